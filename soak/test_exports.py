"""Exports killed with -9 again and again: their drivers, the Python workers that run the tasks, and executors.

SOAK_ROUNDS shortens or lengthens it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.cluster import running_cluster
from tests.pipeline.export_killing import kill_drivers, kill_executors, kill_workers

from unisono.store.port import Record

ROUNDS = int(os.environ.get("SOAK_ROUNDS", "300"))
DRIVER_KILLS = max(4, ROUNDS // 10)
WORKER_KILLS = max(20, ROUNDS // 2)
CLUSTERS = max(1, ROUNDS // 60)


@pytest.mark.timeout(120 + 60 * DRIVER_KILLS)
def test_drivers_killed(tmp_path: Path) -> None:
    kill_drivers(tmp_path, DRIVER_KILLS, time.time_ns())


@pytest.mark.timeout(120 + 30 * WORKER_KILLS)
def test_workers_killed(
    spark: SparkSession,
    store: str,
    records: list[Record],
    tmp_path: Path,
) -> None:
    kill_workers(spark, store, records, tmp_path, WORKER_KILLS, time.time_ns())


@pytest.mark.parametrize("number", range(CLUSTERS))
@pytest.mark.timeout(600)
def test_executors_killed(number: int, tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster") as cluster:
        kill_executors(
            cluster, tmp_path, events=6_000, kills=2, seed=time.time_ns(), submitted=number % 2 == 1
        )
