"""Snapshots at length: 200,000 events folded by Spark, the authority and a client, and many kills."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.equality import require_one_state
from tests.pipeline.outline import make_outlines, shipped_outline
from tests.pipeline.snapshot_killing import kill_drivers, kill_workers

from unisono.lake.lake import Lake
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.private import java_process
from unisono.pipeline.spark.session import session
from unisono.pipeline.spark.warmup import prepare

EVENTS = int(os.environ.get("SOAK_EVENTS", "200000"))
DRIVER_KILLS = int(os.environ.get("SOAK_DRIVER_KILLS", "30"))
WORKER_KILLS = int(os.environ.get("SOAK_WORKER_KILLS", "120"))


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    prepare()
    running = session("local[2]", "unisono soak", quick=True)
    process = java_process(running)
    yield running
    running.stop()
    process.stdin.close()
    process.wait(30)


@pytest.mark.req("TREE-11")
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("skewed", [False, True], ids=["uniform", "skewed"])
def test_one_state_everywhere(spark: SparkSession, tmp_path: Path, skewed: bool) -> None:
    records = make_outlines(tmp_path / "data", EVENTS, 2_000, skewed=skewed)
    store, lake, model = sqlite_uri(tmp_path / "data"), Lake.at(str(tmp_path / "lake")), shipped_outline()
    lake.make()
    for upto in (EVENTS // 2, EVENTS * 99 // 100, EVENTS):
        export(spark, store, lake, to=upto)
        snapshot(spark, lake, model)
    assert require_one_state(tmp_path / "data", lake, model, records) == 2_000 + skewed


@pytest.mark.timeout(120 + 60 * DRIVER_KILLS)
def test_drivers_killed(tmp_path: Path) -> None:
    seed = time.time_ns()
    tally = kill_drivers(tmp_path, DRIVER_KILLS, seed)
    assert tally.kills == DRIVER_KILLS, seed
    assert tally.left_over


@pytest.mark.timeout(120 + 30 * WORKER_KILLS)
def test_workers_killed(spark: SparkSession, tmp_path: Path) -> None:
    records = make_outlines(tmp_path / "data", 8_000, 120)
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=8)
    export(spark, sqlite_uri(tmp_path / "data"), lake)
    kill_workers(spark, lake, records, WORKER_KILLS, time.time_ns())
