"""What a pipeline beside this server says of itself, on the admin port: `unisono lake run` keeps it in a file.

The server knows nothing of the pipeline but this file, and is none the worse without it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

STATUS_FILE: Final = "pipeline.json"
"""In the server's data directory."""

STATUS_BYTES_MAX: Final = 1 << 20

SILENT_MS: Final = 90_000
"""After which the service was killed, or its machine is gone: it writes the file every 20 seconds."""

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


class ReportedStage(msgspec.Struct):
    """What is read of a stage; see `unisono.pipeline.service.status`, which writes it."""

    runs: int = 0
    failures: int = 0
    items: int = 0
    last_done_ms: int = 0
    last_seconds: float = 0.0
    error: str = ""

    @property
    def failing(self) -> bool:
        return bool(self.error)


class PipelineStatus(msgspec.Struct):
    running: bool = False
    updated_ms: int = 0
    log_head: int = 0
    log_pruned_to: int = 0
    lake_head: int = 0
    stages: dict[str, ReportedStage] = {}


def read_text(data: Path) -> bytes | None:
    """The file as it is; None when there is none worth showing."""
    try:
        with (data / STATUS_FILE).open("rb") as file:
            text = file.read(STATUS_BYTES_MAX + 1)
    except OSError:
        return None
    return text if len(text) <= STATUS_BYTES_MAX else None


def read_status(data: Path) -> PipelineStatus | None:
    text = read_text(data)
    try:
        status = None if text is None else msgspec.json.decode(text, type=PipelineStatus)
    except msgspec.DecodeError:
        return None
    if status is not None and time.time() * 1_000 - status.updated_ms > SILENT_MS:
        status.running = False
    return status


class PipelineCollector(Collector):
    """The figures of the status file; none where there is no pipeline."""

    def __init__(self, status: PipelineStatus | None) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        if self._status is not None:
            yield from self._whole(self._status)
            yield from self._by_stage(self._status)

    def _whole(self, status: PipelineStatus) -> Iterator[Metric]:
        for name, text in GAUGES.items():
            family = GaugeMetricFamily(f"unisono_pipeline_{name}", text)
            family.add_metric([], float(getattr(status, name)))
            yield family

    def _by_stage(self, status: PipelineStatus) -> Iterator[Metric]:
        for name, text in STAGE_COUNTERS.items():
            counted = CounterMetricFamily(f"unisono_pipeline_stage_{name}", text, labels=["stage"])
            for stage, told in status.stages.items():
                counted.add_metric([stage], float(getattr(told, name)))
            yield counted
        for name, text in STAGE_GAUGES.items():
            gauge = GaugeMetricFamily(f"unisono_pipeline_stage_{name}", text, labels=["stage"])
            for stage, told in status.stages.items():
                gauge.add_metric([stage], float(getattr(told, name)))
            yield gauge
