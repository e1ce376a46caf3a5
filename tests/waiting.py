"""Waiting in tests, on machines that are slow or stand still for some seconds now and then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

PATIENCE_S = 60.0
"""How long anything is waited for that takes milliseconds on an idle machine; a machine that stalls is no defect."""


def until(
    condition: Callable[[], object], told: str | Callable[[], str], within_s: float = PATIENCE_S
) -> None:
    """Wait for something that is about to be; `told` is said when it never is."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, told if isinstance(told, str) else told()
        time.sleep(0.01)


def in_a_window(scenario: Callable[[float], None], *windows_s: float) -> None:
    """Play something that must be done before a window of time ends, with the shortest window.

    Where it fails, as it may on a machine that stood still for longer than that, it is played again with the next
    one. What is really wrong fails with the longest, too.
    """
    *shorter, longest = windows_s
    for window_s in shorter:
        with contextlib.suppress(Exception):
            scenario(window_s)
            return
    scenario(longest)
