"""Snapshots under kill -9: whatever dies when, running again makes them the replay, and no orphan is read.

Many more kills: soak/test_snapshots.py.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lake.lakes import HERE
from tests.pipeline.outline import make_outlines
from tests.pipeline.snapshot_killing import kill_drivers, kill_workers
from unisono.lake.lake import Lake
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.open_log import sqlite_uri

DRIVER_KILLS = 3
"""While files are written, when states are published, after a commit."""
WORKER_KILLS = 4


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_drivers_killed_at_each_step(tmp_path: Path) -> None:
    seed = time.time_ns()
    tally = kill_drivers(tmp_path, DRIVER_KILLS, seed)
    assert tally.kills == DRIVER_KILLS, seed
    assert tally.left_over, f"some were killed between writing files and naming them ({seed})"


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_workers_killed_anywhere(spark: SparkSession, tmp_path: Path) -> None:
    records = make_outlines(tmp_path / "data", 2_500, 60)
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=8)
    export(HERE, sqlite_uri(tmp_path / "data"), lake)
    kill_workers(spark, lake, records, WORKER_KILLS, time.time_ns())
