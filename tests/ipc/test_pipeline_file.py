"""What the admin port makes of the file that `unisono lake run` keeps."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from unisono.ipc import pipeline_file as pipelines
from unisono.pipeline.clock import now_ms
from unisono.pipeline.service import status
from unisono.pipeline.service.status import ServiceStatus, StageStatus


def written(data: Path, updated_ms: int) -> None:
    told = ServiceStatus(
        "/lake", "sqlite:/data", "here", 1, 0, updated_ms=updated_ms, log_head=9, lake_head=7
    )
    told.stages = {"export": StageStatus(runs=3, failures=1, error="no luck"), "publish": StageStatus(runs=2)}
    status.write(data / status.STATUS_FILE, told)


def shown(data: Path) -> str:
    registry = CollectorRegistry()
    registry.register(pipelines.PipelineCollector(pipelines.read_status(data)))
    return generate_latest(registry).decode()


def test_a_service_at_work(tmp_path: Path) -> None:
    written(tmp_path, now_ms())
    text = shown(tmp_path)
    for line in (
        "unisono_pipeline_running 1.0",
        "unisono_pipeline_lake_head 7.0",
        'unisono_pipeline_stage_runs_total{stage="export"} 3.0',
        'unisono_pipeline_stage_failing{stage="export"} 1.0',
        'unisono_pipeline_stage_failing{stage="publish"} 0.0',
    ):
        assert f"{line}\n" in text


def test_a_service_that_was_killed_is_not_running(tmp_path: Path) -> None:
    written(tmp_path, now_ms() - pipelines.SILENT_MS - 1)
    assert "unisono_pipeline_running 0.0\n" in shown(tmp_path)


def test_no_file_or_one_that_is_something_else(tmp_path: Path) -> None:
    assert shown(tmp_path) == ""
    for content in (b"", b"[]", b'{"stages": 5}', b" " * (pipelines.STATUS_BYTES_MAX + 1)):
        (tmp_path / pipelines.STATUS_FILE).write_bytes(content)
        assert shown(tmp_path) == ""
