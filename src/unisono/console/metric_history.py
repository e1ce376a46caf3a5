"""Rates and latencies of the last hour, from the counters that the processes of the node keep anyway."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from unisono.ipc.stats import CounterValues
from unisono.vocabulary import Json, JsonObject

SAMPLE_S: Final = 5.0
SAMPLES_KEPT: Final = 720
"""One hour."""

SPAN_MIN_S: Final = 0.5
"""Over less time than this a rate says nothing."""

RATES: Final = ("commits", "broadcasts", "rejections", "duplicates", "sync_page_events", "messages_in")
QUANTILES: Final = (0.5, 0.95, 0.99)


class MetricSample(msgspec.Struct, frozen=True):
    """Totals at one moment. `buckets`: how many groups took at most each bound, not cumulative."""

    time_ms: int
    clock_s: float
    totals: Mapping[str, float]
    buckets: Sequence[int]
    bounds: Sequence[float]
    connections: float
    processes: frozenset[str]


class MetricHistory:
    """Takes a sample every SAMPLE_S seconds while it runs."""

    def __init__(self, stats: Callable[[], Awaitable[Mapping[str, CounterValues]]]) -> None:
        self._stats = stats
        self._samples: deque[MetricSample] = deque(maxlen=SAMPLES_KEPT)

    async def run(self) -> None:
        while True:
            self._samples.append(sample_of(await self._stats()))
            await asyncio.sleep(SAMPLE_S)

    def series(self) -> JsonObject:
        """One column for each figure, a row for each interval; null where a process was restarted or silent."""
        columns: dict[str, list[Json]] = {"time": [], **{name: [] for name in (*RATES, "p50", "p95", "p99")}}
        columns["connections"] = []
        samples = list(self._samples)
        for before, after in pairwise(samples):
            columns["time"].append(after.time_ms)
            columns["connections"].append(after.connections)
            for name in RATES:
                columns[name].append(_rate(before, after, name))
            for name, value in zip(("p50", "p95", "p99"), _latencies(before, after), strict=True):
                columns[name].append(value)
        return dict(columns)

    def since(self, now: MetricSample, seconds: float) -> tuple[JsonObject, float]:
        """Rates and latencies from the sample about `seconds` ago until `now`, and how long that really is."""
        older = [each for each in self._samples if now.clock_s - each.clock_s >= seconds]
        before = older[-1] if older else (self._samples[0] if self._samples else now)
        span = now.clock_s - before.clock_s
        figures: JsonObject = {name: _rate(before, now, name) for name in RATES}
        figures |= dict(zip(("p50", "p95", "p99"), _latencies(before, now), strict=True))
        return figures, span


def sample_of(stats: Mapping[str, CounterValues]) -> MetricSample:
    totals: dict[str, float] = {}
    connections = 0.0
    for values in stats.values():
        for key, value in values.counters.items():
            name = key.partition("|")[0]
            totals[name] = totals.get(name, 0) + value
        connections += values.gauges.get("connections", 0)
    authority = stats.get("authority")
    histogram = authority.histograms.get("commit_seconds") if authority is not None else None
    buckets, bounds = ((), ()) if histogram is None else (tuple(histogram.counts), tuple(histogram.bounds))
    now_ms, clock_s = time.time_ns() // 1_000_000, time.monotonic()
    return MetricSample(now_ms, clock_s, totals, buckets, bounds, connections, frozenset(stats))


def _rate(before: MetricSample, after: MetricSample, name: str) -> float | None:
    """Per second; None where a process was silent in one of the samples, so that the totals do not compare."""
    seconds = after.clock_s - before.clock_s
    grown = after.totals.get(name, 0) - before.totals.get(name, 0)
    if seconds < SPAN_MIN_S or grown < 0 or before.processes != after.processes:
        return None
    return round(grown / seconds, 3)


def _latencies(before: MetricSample, after: MetricSample) -> list[Json]:
    """Milliseconds of the quantiles of the groups between two samples; null without any."""
    old = before.buckets or (0,) * len(after.buckets)
    counts = [new - past for new, past in zip(after.buckets, old, strict=False)]
    return [quantile(counts, after.bounds, share) for share in QUANTILES]


def quantile(counts: Sequence[float], bounds: Sequence[float], share: float) -> float | None:
    """Within its bucket the value is interpolated; above the last bound it is that bound. In milliseconds."""
    total = sum(counts)
    if total <= 0 or min(counts) < 0:
        return None
    rank, passed, lower = share * total, 0.0, 0.0
    for count, upper in zip(counts, bounds, strict=False):
        if count and passed + count >= rank:
            return round(1000 * (lower + (upper - lower) * (rank - passed) / count), 3)
        passed += count
        lower = upper
    return round(1000 * lower, 3)
