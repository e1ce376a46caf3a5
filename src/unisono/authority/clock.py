"""The clock that gives events their time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from unisono.display import utc_time
from unisono.store.port import CLOCK_SKEW_MAX_MS

logger = logging.getLogger("unisono.authority")

NEVER_SET_MS: Final = 1_704_067_200_000
"""The beginning of 2024: a clock with an earlier time has not been set since its machine booted."""

WARN_EVERY_MS: Final = 60_000
"""Least time between two warnings."""


class Clock:
    """Milliseconds for events (ENV-07).

    From one event of the log to the next, time never goes back by CLOCK_SKEW_MAX_MS or less, also across nodes and
    restarts: if the newest event is ahead of this node's clock by no more than that, its time is used again. An event
    that is further ahead has the time of a wrong clock: this node warns and uses its own clock, unless that was
    never set.
    """

    def __init__(self, now_ms: Callable[[], int], newest: int) -> None:
        """`newest`: the time of the newest event in the log."""
        self._now_ms = now_ms
        self._newest = newest
        self._warned_at: int | None = None
        self.corrections = 0

    def __call__(self) -> int:
        now = self._now_ms()
        if self._newest - now > CLOCK_SKEW_MAX_MS and now >= NEVER_SET_MS:
            self.corrections += 1
            self._warn(now)
            self._newest = now
        self._newest = max(self._newest, now)
        return self._newest

    def observe(self, time_ms: int) -> None:
        """Another node has committed an event with this time, which is now the newest."""
        self._newest = time_ms

    def _warn(self, now: int) -> None:
        if self._warned_at is not None and 0 <= now - self._warned_at < WARN_EVERY_MS:
            return
        self._warned_at = now
        logger.warning(
            "newest event has the time %s, the clock of this node %s: more than %d s apart, using the clock of this "
            "node. Correct the clock that is wrong",
            utc_time(self._newest),
            utc_time(now),
            CLOCK_SKEW_MAX_MS // 1000,
            extra={"event_ms": self._newest, "clock_ms": now},
        )
