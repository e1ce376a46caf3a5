"""The number of tasks follows the partitions, however few buckets a lake has."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.lake.lakes import HERE
from tests.pipeline.jobs.snapshot.buckets import BUCKETS
from tests.pipeline.outline import make_outlines, shipped_outline
from unisono.lake import snapshots as files
from unisono.lake.lake import Lake
from unisono.pipeline import task_planning
from unisono.pipeline.deep_json import state_text
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.past.job import states_at
from unisono.pipeline.jobs.snapshot import job as snapshots
from unisono.pipeline.jobs.snapshot.frames import newest_snapshots
from unisono.pipeline.jobs.snapshot.job import latest, snapshot
from unisono.pipeline.open_log import sqlite_uri

PARTITIONS = 60


def test_states_of_a_large_bucket_are_read_by_several_tasks(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_outlines(tmp_path / "data", 1_000, PARTITIONS)
    export(HERE, sqlite_uri(tmp_path / "data"), lake)
    monkeypatch.setattr(files, "STATE_GROUP_ROWS", 2)
    monkeypatch.setattr(task_planning, "FEW_EVENTS", 0)
    monkeypatch.setattr(task_planning, "TASK_ROWS_MIN", 5)
    monkeypatch.setattr(snapshots, "STATES_PER_TASK", 5)
    snapshot(HERE, lake, shipped_outline())
    expected = {row.partition: state_text(row.state) for row in latest(lake, shipped_outline().version)}
    assert len(expected) == PARTITIONS
    for found in (
        states_at(spark, lake, model=shipped_outline()),
        newest_snapshots(spark, lake, shipped_outline()),
    ):
        rows = _with_tasks(found)
        assert {partition: state for partition, state, _ in rows} == expected
        assert len(rows) == PARTITIONS
        assert len({task for *_, task in rows}) > 2 * BUCKETS


def _with_tasks(rows: DataFrame) -> list[tuple[str, str, int]]:
    return [tuple(row) for row in rows.select("partition", "state", f.spark_partition_id()).collect()]
