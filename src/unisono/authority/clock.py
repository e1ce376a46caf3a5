"""The time that events are given."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from unisono.store.port import CLOCK_SKEW_MAX_MS

log = logging.getLogger("unisono.authority")

NEVER_SET_MS: Final = 1_704_067_200_000
"""The beginning of 2024: a clock that shows an earlier time was not set since its machine booted."""

WARN_EVERY_MS: Final = 60_000
"""Between two warnings of times that differ."""


class Clock:
    """Milliseconds for events (ENV-07).

    From one event of the log to the next, time never goes back by CLOCK_SKEW_MAX_MS or less, also across nodes and
    restarts: so far the newest event may be ahead of this node's clock, and time stands still. One that is further
    ahead was given by a wrong clock, and does not hold up everybody's time until that moment comes: this node
    warns and uses its own clock. A clock that was never set is not used for that.
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

    def saw(self, time_ms: int) -> None:
        """The newest event of the log, which another node committed, has this time."""
        self._newest = time_ms

    def _warn(self, now: int) -> None:
        if self._warned_at is not None and 0 <= now - self._warned_at < WARN_EVERY_MS:
            return
        self._warned_at = now
        log.warning(
            "the newest event has the time %s and the clock of this node says %s: more than %d s apart, so this "
            "node uses its own clock. Set the clock that is wrong",
            _shown(self._newest),
            _shown(now),
            CLOCK_SKEW_MAX_MS // 1000,
        )


def _shown(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
