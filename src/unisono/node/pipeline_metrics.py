"""Metrics of the pipeline beside this server, from the status file that `unisono lake run` writes.

The file is all the server knows of the pipeline; without it there are no such metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from unisono.ipc.files import PipelineStatus, is_running

GAUGES: Final[Mapping[str, str]] = {
    "running": "1 while a service keeps the status file; 0 after its end, or when nothing was heard for 90 s",
    "updated_ms": "when the file was written, in milliseconds since 1970",
    "log_head": "head of the log, as the pipeline saw it",
    "log_pruned_to": "last event that has left the hot log",
    "lake_head": "last event in the lake",
}
STAGE_COUNTERS: Final[Mapping[str, str]] = {
    "runs": "times a stage was done or tried",
    "failures": "times it failed",
    "items": "events, snapshots or rows it moved",
}
STAGE_GAUGES: Final[Mapping[str, str]] = {
    "last_done_ms": "when a stage was last done well, in milliseconds since 1970",
    "last_seconds": "how long its last run took",
    "failing": "1 while its last run failed, or found something wrong",
}


class PipelineCollector(Collector):
    """The metrics of one status; none without a status."""

    def __init__(self, status: PipelineStatus | None) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        if self._status is not None:
            yield from self._overall(self._status)
            yield from self._by_stage(self._status)

    def _overall(self, status: PipelineStatus) -> Iterator[Metric]:
        for name, text in GAUGES.items():
            family = GaugeMetricFamily(f"unisono_pipeline_{name}", text)
            family.add_metric([], float(is_running(status) if name == "running" else getattr(status, name)))
            yield family

    def _by_stage(self, status: PipelineStatus) -> Iterator[Metric]:
        for name, text in STAGE_COUNTERS.items():
            counter = CounterMetricFamily(f"unisono_pipeline_stage_{name}", text, labels=["stage"])
            for stage, values in status.stages.items():
                counter.add_metric([stage], float(getattr(values, name)))
            yield counter
        for name, text in STAGE_GAUGES.items():
            gauge = GaugeMetricFamily(f"unisono_pipeline_stage_{name}", text, labels=["stage"])
            for stage, values in status.stages.items():
                gauge.add_metric([stage], float(getattr(values, name)))
            yield gauge
