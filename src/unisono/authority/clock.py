"""The time that events are given."""

from __future__ import annotations

from collections.abc import Callable


class Clock:
    """Milliseconds that never run backwards, also across a restart (ENV-07)."""

    def __init__(self, now_ms: Callable[[], int], not_before: int) -> None:
        self._now_ms = now_ms
        self._last = not_before

    def __call__(self) -> int:
        self._last = max(self._last, self._now_ms())
        return self._last

    def not_before(self, time_ms: int) -> None:
        """Another node's clock has been there already."""
        self._last = max(self._last, time_ms)
