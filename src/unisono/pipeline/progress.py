"""How a job reports its progress: one line of text at a time."""

from __future__ import annotations

from collections.abc import Callable

Notify = Callable[[str], None]


def silent(_: str) -> None:
    """Reports nothing."""
