"""Rate limit: a token bucket of events per client (LIM-04)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MAX_CLIENTS: Final = 100_000
"""Buckets in memory; the one idle longest is dropped, and is most likely full again by then."""


class RateLimiter:
    """Off when `per_s` is 0. A client's bucket survives its reconnects."""

    def __init__(self, per_s: float, burst: int) -> None:
        self.on = per_s > 0
        self._per_s = per_s
        self._burst = float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client_id: str, events: int, now: float) -> float:
        """0 when the events may pass, else the seconds until they could.

        A request larger than the whole bucket passes when the bucket is full and makes it negative, so that no
        request has to wait for ever.
        """
        if not self.on:
            return 0.0
        level, since = self._buckets.get(client_id, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._per_s)
        needed = min(float(events), self._burst)
        granted = level >= needed
        self._buckets[client_id] = (level - events if granted else level, now)
        self._buckets.move_to_end(client_id)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if granted else (needed - level) / self._per_s
