"""Exactly once under kill -9: whatever dies when, running again makes the lake the log, and no orphan is read.

Drivers here, with the Java process that dies with them, and the Python workers that run the tasks; executors of a
real cluster in test_cluster. Many more kills: soak/test_exports.py.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.export_killing import kill_drivers, kill_workers
from unisono.store.port import Record

DRIVER_KILLS = 3
"""While files are written, after a commit to one table, after one to both."""
WORKER_KILLS = 5


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_drivers_killed_at_each_step(tmp_path: Path) -> None:
    kill_drivers(tmp_path, DRIVER_KILLS, time.time_ns())


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_workers_killed_anywhere(
    spark: SparkSession, store: str, records: list[Record], tmp_path: Path
) -> None:
    kill_workers(spark, store, records, tmp_path, WORKER_KILLS, time.time_ns())
