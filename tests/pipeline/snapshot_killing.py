"""kill -9 of drivers and workers at random instants of `lake snapshot`, for tests and for soaking."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import msgspec
from pyspark.sql import SparkSession

from tests.lake.lakes import HERE
from tests.pipeline import processes
from tests.pipeline.equality import by_partition, replayed, require_replay
from tests.pipeline.outline import OUTLINE, make_outlines, shipped_outline
from tests.pipeline.processes import kill, start, wait_until
from tests.pipeline.watermarks import watermarks
from unisono.lake.lake import Lake
from unisono.lake.storage import SNAPSHOTS
from unisono.pipeline import task_planning as shares
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot import job as snapshots
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.jobs.snapshot.publish import publish
from unisono.pipeline.open_log import open_reader, sqlite_uri
from unisono.pipeline.spark.private import java_process
from unisono.store.port import Record

EVENTS, ROOMS = 3_000, 700

Condition = Callable[[], object]


class Tally(msgspec.Struct):
    """What came of the killing: kills that hit, and files that no commit named."""

    kills: int = 0
    left_over: int = 0


def kill_drivers(place: Path, kills: int, seed: int) -> Tally:
    """Kill commands, half of them with --publish, until so many were hit; after each, run again and compare."""
    tally, chance = Tally(), random.Random(seed)
    number = 0
    while tally.kills < kills:
        records = make_outlines(place / f"data-{number}", EVENTS, ROOMS)
        store, lake = sqlite_uri(place / f"data-{number}"), Lake.at(str(place / f"lake-{number}"))
        lake.make(buckets=4)
        for upto in (EVENTS // 2, EVENTS):
            export(HERE, store, lake, to=upto)
            _kill_one(lake, store, number, chance, tally)
            _require_sound_so_far(lake, records)
            number += 1
            if tally.kills >= kills:
                break
        tally.left_over += _files(lake, "*.parquet") - _checkpoints(lake) - _named(lake)
        snapshot(HERE, lake, shipped_outline())
        publish(lake, store, shipped_outline().version)
        require_replay(lake, shipped_outline(), records[: lake.head()])
        _require_published(lake, store)
    return tally


def _kill_one(lake: Lake, store: str, number: int, chance: random.Random, tally: Tally) -> None:
    writing, committed = _files(lake, "*.parquet"), _files(lake, "0*.json")
    moments: list[Condition] = [
        lambda: _files(lake, "*.parquet") > writing,
        lambda: _published(lake, store),  # an odd place: only these are to publish
        lambda: _files(lake, "0*.json") > committed + 1,
        lambda: time.monotonic() > at,
    ]
    at = time.monotonic() + chance.uniform(2.0, 8.0)
    driver = start(
        "snapshot", "--store", store, "--lake", lake.storage.location, "--model", str(OUTLINE),
        "--master", "local[2]", *(["--publish"] if number % 2 else []),
    )  # fmt: skip
    reached = wait_until(moments[number % 4], driver)
    if reached and number and chance.random() < 0.5:  # the first leaves files that no commit names
        time.sleep(chance.uniform(0, 0.1))
    tally.kills += kill(driver)


def _published(lake: Lake, store: str) -> bool:
    """Whether the store has snapshots as new as the lake."""
    time.sleep(0.02)
    model = shipped_outline()
    return lake.head() in watermarks(store, model.version, model.digest).values()


def _require_sound_so_far(lake: Lake, records: Sequence[Record]) -> None:
    """Before anything is run again: each snapshot that is read is the replay of its partition up to its id."""
    model, histories = shipped_outline(), by_partition(records)
    for row in snapshots.latest(lake, model.version):
        history = [record for record in histories[row.partition] if record.committed_id <= row.committed_id]
        assert (row.state, row.skipped) == replayed(model.load(), history)


def _require_published(lake: Lake, store: str) -> None:
    reader = open_reader(store)
    try:
        model = shipped_outline()
        for row in snapshots.latest(lake, model.version):
            held = reader.snapshot(row.partition, model.version, model.digest)
            assert held is not None
            assert (held.committed_id, held.state) == (row.committed_id, row.state)
    finally:
        reader.close()


def kill_workers(spark: SparkSession, lake: Lake, records: Sequence[Record], kills: int, seed: int) -> None:
    """Kill Python workers in the middle of runs that are cut into many tasks and several commits."""
    java = java_process(spark).pid
    model, chance, hit = shipped_outline(), random.Random(seed), 0
    with (
        mock.patch.object(snapshots, "WAVE_ROWS_PER_CORE", 250),
        mock.patch.object(shares, "FEW_EVENTS", 10),
        mock.patch.object(shares, "TASK_ROWS_MIN", 50),
    ):
        while hit < kills:
            running = threading.Thread(target=_try, args=(spark, lake))
            running.start()
            hit += processes.kill_workers(java, running, chance, 0.25, kills - hit)
            snapshot(HERE, lake, model)
            require_replay(lake, model, records)


def _try(spark: SparkSession, lake: Lake) -> None:
    try:
        snapshot(spark, lake, shipped_outline(), rebuild=True)
    except Exception:
        return  # a task that lost its worker four times: the job ends, nothing is harmed


def _files(lake: Lake, pattern: str) -> int:
    return sum(1 for _ in Path(lake.storage.table(SNAPSHOTS)).rglob(pattern))


def _checkpoints(lake: Lake) -> int:
    return _files(lake, "*.checkpoint.parquet")


def _named(lake: Lake) -> int:
    table = lake.find(SNAPSHOTS)
    return 0 if table is None else len(table.files())
