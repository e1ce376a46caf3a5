"""Counters of one process, cheap to increment, sent as JSON when the node asks for them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import msgspec

SIZE_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
SECONDS_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Histogram(msgspec.Struct):
    """Counts per bucket (the last one is +Inf), and the sum of the observed values."""

    bounds: Sequence[float]
    counts: list[int]
    total: float = 0.0


class CounterValues(msgspec.Struct):
    """All counters of a process; a key is a metric name, or `name|label value`."""

    counters: dict[str, float]
    gauges: dict[str, float]
    histograms: dict[str, Histogram]


class Counters:
    """The counters that one process increments."""

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._histograms: dict[str, Histogram] = {}

    def add(self, name: str, amount: float = 1) -> None:
        self._counters[name] = self._counters.get(name, 0) + amount

    def reset(self, name: str, total: float) -> None:
        """Set a counter that is incremented elsewhere."""
        self._counters[name] = total

    def set(self, name: str, value: float) -> None:
        self._gauges[name] = value

    def observe(self, name: str, value: float, bounds: Sequence[float]) -> None:
        histogram = self._histograms.get(name)
        if histogram is None:
            histogram = self._histograms[name] = Histogram(bounds, [0] * (len(bounds) + 1))
        histogram.counts[bisect_left(histogram.bounds, value)] += 1
        histogram.total += value

    def dump(self) -> bytes:
        return msgspec.json.encode(CounterValues(self._counters, self._gauges, self._histograms))


def parse(body: bytes) -> CounterValues:
    """Decode the result of `dump`."""
    return msgspec.json.decode(body, type=CounterValues)
