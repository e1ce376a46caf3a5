"""Exactly once under kill -9: whatever dies when, running again makes the lake the log, and no orphan is read.

Drivers here, with the Java process that dies with them, and the Python workers that run the tasks; executors of a
real cluster in test_cluster.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import SparkContext

from tests.pipeline.history import make_store, require_exact
from tests.pipeline.processes import kill, kill_workers, start, wait_until
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.private import java_process
from unisono.store.port import Record

DRIVER_KILLS = 5
WORKER_KILLS = 22


def files_in(lake: Lake, table: str, pattern: str) -> int:
    return sum(1 for _ in Path(lake.storage.table(table)).rglob(pattern))


def orphans(lake: Lake) -> int:
    view = lake.view()
    named = len(view.log_files) + len(view.partition_files)
    data = files_in(lake, LOG, "*.parquet") + files_in(lake, BY_PARTITION, "*.parquet")
    checkpoints = files_in(lake, LOG, "*.checkpoint.parquet") + files_in(
        lake, BY_PARTITION, "*.checkpoint.parquet"
    )
    return data - checkpoints - named


def moments(lake: Lake, chance: random.Random) -> list[Callable[[], Callable[[], object]]]:
    """When to kill: each makes a condition from how things stand before the run."""

    def more(table: str, pattern: str) -> Callable[[], Callable[[], object]]:
        def condition() -> Callable[[], object]:
            before = files_in(lake, table, pattern)
            return lambda: files_in(lake, table, pattern) > before

        return condition

    def later() -> Callable[[], object]:
        at = time.monotonic() + chance.uniform(1.0, 7.0)
        return lambda: time.monotonic() > at

    writing, some, whole = (
        more(BY_PARTITION, "*.parquet"),
        more(BY_PARTITION, "0*.json"),
        more(LOG, "0*.json"),
    )
    return [writing, some, later, whole, writing, some][:DRIVER_KILLS]


@pytest.mark.timeout(300)
def test_drivers_killed_anywhere(context: SparkContext, tmp_path: Path) -> None:
    chance = random.Random()
    records = make_store(tmp_path / "data", 6_000)
    store = sqlite_uri(tmp_path / "data")
    kills = left_over = number = 0
    while kills < DRIVER_KILLS:
        lake = Lake.at(str(tmp_path / f"lake-{number}"))
        lake.make(buckets=4)
        number += 1
        for moment in moments(lake, chance)[kills:]:
            reached = moment()
            driver = start(
                "export", "--store", store, "--lake", lake.storage.location, "--events-per-file", "150",
                "--master", "local[2]",
            )  # fmt: skip
            if wait_until(reached, driver) and chance.random() < 0.5:
                time.sleep(chance.uniform(0, 0.2))
            kills += kill(driver)
            assert lake.head() <= 6_000
            seen = [
                row["committed_id"]
                for batch in lake.scan_arrow(columns=["committed_id"])
                for row in batch.to_pylist()
            ]
            assert seen == list(range(1, lake.head() + 1)), "even before anything is run again"
            if lake.head() == 6_000 or kills >= DRIVER_KILLS:
                break
        left_over += orphans(lake)
        export(context, store, lake, events_per_file=1_000)
        require_exact(lake, records)
    assert left_over, "some were killed between writing files and naming them"


@pytest.mark.timeout(300)
def test_workers_killed_anywhere(
    context: SparkContext, store: str, records: list[Record], tmp_path: Path
) -> None:
    chance = random.Random()
    java = java_process(context).pid
    kills = number = 0
    while kills < WORKER_KILLS:
        lake = Lake.at(str(tmp_path / f"lake-{number}"))
        lake.make(buckets=4)
        number += 1
        failures: list[Exception] = []

        def run(lake: Lake = lake, failures: list[Exception] = failures) -> None:
            try:
                export(context, store, lake, events_per_file=100)
            except Exception as error:
                failures.append(
                    error
                )  # a task that lost its worker four times: the job ends, nothing is harmed

        exporting = threading.Thread(target=run)
        exporting.start()
        kills += kill_workers(java, exporting, chance, 0.3, WORKER_KILLS - kills)
        export(context, store, lake, events_per_file=500)
        require_exact(lake, records)
