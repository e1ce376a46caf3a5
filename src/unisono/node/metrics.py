"""Exports the counters of all processes of a node as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from unisono.ipc.stats import CounterValues, Histogram

# name → (help, label of the part behind `|`)
COUNTERS: Final[Mapping[str, tuple[str, str | None]]] = {
    "connections_opened": ("WebSocket connections accepted", None),
    "openings_cut": ("sockets cut before their upgrade, because newer ones needed their room", None),
    "origins_refused": ("upgrades refused because of their Origin", None),
    "messages_in": ("well-formed messages received", None),
    "broadcasts": ("event_broadcast messages sent", None),
    "presence_messages": ("presence_update messages sent", None),
    "presence_dropped": ("presences of other fronts and nodes for which there was no room", None),
    "errors": ("error messages sent", "code"),
    "closes": ("connections closed by the server", "code"),
    "commits": ("events committed", None),
    "duplicates": ("retries answered from the log", None),
    "rejections": ("submitted items rejected", "reason"),
    "sync_pages": ("pages of history read", None),
    "sync_page_events": ("events in those pages", None),
    "sync_archive_pages": ("pages for which the archive was read", None),
    "sync_pages_failed": (
        "pages that could not be read because the log or the archive was unavailable",
        None,
    ),
    "sync_pages_cancelled": ("pages that were not read, because the connection was gone", None),
    "sync_snapshots": ("snapshots sent in place of the history before them", None),
    "sync_snapshot_bytes": ("bytes of those snapshots", None),
    "rules_slow": ("model rules that passed their time budget", "rule"),
    "rules_failed": ("model rules that raised", "rule"),
    "rules_stopped": ("model rules that were stopped because the time of their event was over", "rule"),
    "clock_corrections": (
        "times given by this node's clock although the newest event is dated far ahead of it",
        None,
    ),
    "states_loaded": ("partition states brought into memory", None),
    "states_evicted": ("partition states dropped from memory", None),
}
GAUGES: Final[Mapping[str, str]] = {
    "connections": "open connections",
    "openings": "accepted sockets that have not upgraded yet",
    "in_flight_items": "submitted items waiting for judgement",
    "in_flight_bytes": "bytes of messages waiting for judgement",
    "sync_queue_bytes": "estimated memory of syncs that wait for an answer",
    "archive_pages_waiting": "pages waiting for the archive to be read",
    "subscribed_partitions": "partitions with a subscriber",
    "presences": "clients present in partitions, as each front knows them",
    "queue_requests": "requests in the authority's queue",
    "parked_requests": "requests waiting for a partition's state",
    "last_committed_id": "head of the log",
    "store_reachable": "1 while the log is available",
    "states_resident": "partition states in memory",
    "states_bytes": "estimated memory of those states",
    "states_loading": "partition states being loaded",
}
HISTOGRAMS: Final[Mapping[str, str]] = {
    "group_events": "submitted items per group",
    "commit_seconds": "time from the start of a group until it is durable",
}


class NodeCollector(Collector):
    """One scrape: every metric, with the process it comes from as a label."""

    def __init__(self, snapshots: Mapping[str, CounterValues]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        yield from self._counters()
        yield from self._gauges()
        yield from self._histograms()

    def _counters(self) -> Iterator[Metric]:
        for name, (text, label) in COUNTERS.items():
            family = CounterMetricFamily(
                f"unisono_{name}", text, labels=["process", label] if label else ["process"]
            )
            for process, snapshot in self._snapshots.items():
                for key, value in snapshot.counters.items():
                    counted, _, part = key.partition("|")
                    if counted == name:
                        family.add_metric([process, part] if label else [process], value)
            yield family

    def _gauges(self) -> Iterator[Metric]:
        for name, text in GAUGES.items():
            family = GaugeMetricFamily(f"unisono_{name}", text, labels=["process"])
            for process, snapshot in self._snapshots.items():
                if name in snapshot.gauges:
                    family.add_metric([process], snapshot.gauges[name])
            yield family

    def _histograms(self) -> Iterator[Metric]:
        for name, text in HISTOGRAMS.items():
            family = HistogramMetricFamily(f"unisono_{name}", text, labels=["process"])
            for process, snapshot in self._snapshots.items():
                histogram = snapshot.histograms.get(name)
                if histogram is not None:
                    family.add_metric([process], _buckets(histogram), histogram.total)
            yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts per upper bound, as Prometheus expects."""
    rows: list[tuple[str, float]] = []
    total = 0.0
    bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    for bound, counted in zip(bounds, histogram.counts, strict=True):
        total += counted
        rows.append((bound, total))
    return rows
