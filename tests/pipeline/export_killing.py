"""kill -9 of drivers, workers and executors of `lake export`, for tests and for soaking."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from tests.lake.lakes import HERE
from tests.pipeline import processes
from tests.pipeline.cluster import Cluster
from tests.pipeline.history import make_store, require_exact
from tests.pipeline.processes import kill, start, wait_until
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.packing import pack
from unisono.pipeline.spark.private import java_process
from unisono.store.port import Record

EVENTS = 3_000
LAKE_SUBMIT = Path(__file__).parents[2] / "examples" / "lake_submit.py"


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
    return [writing, some, whole, later]


def kill_drivers(place: Path, kills: int, seed: int) -> None:
    """Kill exports until so many were hit, at one moment after the other; then run them in peace and compare."""
    chance = random.Random(seed)
    records = make_store(place / "data", EVENTS)
    store = sqlite_uri(place / "data")
    hit = left_over = number = 0
    while hit < kills:
        lake = Lake.at(str(place / f"lake-{number}"))
        lake.make(buckets=4)
        number += 1
        while lake.head() < EVENTS and hit < kills:
            choices = moments(lake, chance)
            pause_s = chance.choice((0, 0.2)) if hit else 0  # the first leaves files that no commit names
            hit += _kill_one(lake, store, choices[hit % len(choices)](), chance.uniform(0, pause_s))
        left_over += orphans(lake)
        export(HERE, store, lake, events_per_file=1_000)
        require_exact(lake, records)
    assert left_over, f"some were killed between writing files and naming them ({seed})"


def _kill_one(lake: Lake, store: str, reached: Callable[[], object], pause_s: float) -> bool:
    driver = start(
        "export", "--store", store, "--lake", lake.storage.location, "--events-per-file", "50",
        "--master", "local[2]",
    )  # fmt: skip
    if wait_until(reached, driver):
        time.sleep(pause_s)
    alive = kill(driver)
    assert lake.head() <= EVENTS
    seen = [id for batch in lake.scan_arrow(columns=["committed_id"]) for id in batch.column(0).to_pylist()]
    assert seen == list(range(1, lake.head() + 1)), "even before anything is run again"
    return alive


def kill_workers(
    spark: SparkSession, store: str, records: Sequence[Record], place: Path, kills: int, seed: int
) -> None:
    """Kill Python workers while they export; after each export, run another in peace and compare."""
    chance, java = random.Random(seed), java_process(spark).pid
    hit = number = 0
    while hit < kills:
        lake = Lake.at(str(place / f"lake-{number}"))
        lake.make(buckets=4)
        number += 1
        exporting = threading.Thread(target=_try, args=(spark, store, lake))
        exporting.start()
        hit += processes.kill_workers(java, exporting, chance, 0.3, kills - hit)
        export(HERE, store, lake, events_per_file=500)
        require_exact(lake, records)


def _try(spark: SparkSession, store: str, lake: Lake) -> None:
    try:
        export(spark, store, lake, events_per_file=100)
    except Exception:
        return  # a task that lost its worker four times: the job ends, nothing is harmed


def kill_executors(
    cluster: Cluster, place: Path, events: int, kills: int, seed: int, *, submitted: bool = False
) -> None:
    """An export on a cluster that loses executors, each after it has written some more files.

    `submitted`: by spark-submit, to which the package is given as one file.
    """
    chance = random.Random(seed)
    records = make_store(place / "data", events)
    lake = Lake.at(str(place / "lake"))
    lake.make(buckets=4)
    arguments = ["export", "--data", str(place / "data"), "--lake", lake.storage.location]
    arguments += ["--events-per-file", "75", "--verify"]
    if submitted:
        exporting = cluster.submit(pack(place / "unisono.zip"), LAKE_SUBMIT, *arguments)
    else:
        exporting = start(*arguments, "--master", cluster.master, *cluster.options("--spark-conf"))
    hit = 0
    while hit < kills:
        written = files_in(lake, BY_PARTITION, "*.parquet")
        if not wait_until(lambda: files_in(lake, BY_PARTITION, "*.parquet") > written, exporting):  # noqa: B023
            break
        time.sleep(chance.uniform(0, 0.3))
        if executors := cluster.executors():
            os.kill(chance.choice(executors), signal.SIGKILL)
            hit += 1
    out, err = exporting.communicate(timeout=200 + 60 * kills)
    assert exporting.returncode == 0, (out + err)[-3_000:]
    assert f"the lake has all events up to {events}" in out
    assert f"verified {events} events" in (out if submitted else err)  # spark-submit has one stream for both
    assert hit == kills, f"the export was over too soon ({seed})"
    require_exact(lake, records)
