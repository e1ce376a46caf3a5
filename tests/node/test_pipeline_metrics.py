"""What the admin port makes of the file that `unisono lake run` writes."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from unisono.ipc.files import (
    SILENT_MS,
    STATUS_BYTES_MAX,
    STATUS_FILE,
    PipelineStatus,
    StageStatus,
    read_pipeline_status,
    write_pipeline_status,
)
from unisono.node.pipeline_metrics import PipelineCollector
from unisono.pipeline.clock import now_ms


def write(data: Path, updated_ms: int) -> None:
    status = PipelineStatus(
        "/lake", "sqlite:/data", "here", 1, 0, updated_ms=updated_ms, log_head=9, lake_head=7
    )
    status.stages = {
        "export": StageStatus(runs=3, failures=1, error="no luck"),
        "publish": StageStatus(runs=2),
    }
    write_pipeline_status(data / STATUS_FILE, status)


def metrics(data: Path) -> str:
    registry = CollectorRegistry()
    registry.register(PipelineCollector(read_pipeline_status(data / STATUS_FILE)))
    return generate_latest(registry).decode()


def test_a_service_at_work(tmp_path: Path) -> None:
    write(tmp_path, now_ms())
    text = metrics(tmp_path)
    for line in (
        "unisono_pipeline_running 1.0",
        "unisono_pipeline_lake_head 7.0",
        'unisono_pipeline_stage_runs_total{stage="export"} 3.0',
        'unisono_pipeline_stage_failing{stage="export"} 1.0',
        'unisono_pipeline_stage_failing{stage="publish"} 0.0',
    ):
        assert f"{line}\n" in text


def test_a_service_that_was_killed_is_not_running(tmp_path: Path) -> None:
    write(tmp_path, now_ms() - SILENT_MS - 1)
    assert "unisono_pipeline_running 0.0\n" in metrics(tmp_path)


def test_a_service_that_was_killed_is_not_running_once_the_clock_is_set_back(tmp_path: Path) -> None:
    write(tmp_path, now_ms() + 3_600_000)
    assert "unisono_pipeline_running 0.0\n" in metrics(tmp_path)


def test_no_file_or_one_that_is_something_else(tmp_path: Path) -> None:
    assert metrics(tmp_path) == ""
    for content in (b"", b"[]", b'{"stages": 5}', b" " * (STATUS_BYTES_MAX + 1)):
        (tmp_path / STATUS_FILE).write_bytes(content)
        assert metrics(tmp_path) == ""
