"""kill -9 of `lake erase` at its steps and at random instants, for tests and for soaking."""

from __future__ import annotations

import random
import time
from contextlib import closing
from pathlib import Path

from pyspark.sql import SparkSession

from tests.pipeline.canaries import CULPRIT
from tests.pipeline.jobs.erase.erasing import prepare, require_erased, require_states, run
from tests.pipeline.processes import kill, start, wait_until
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.lake.table import REWRITE
from unisono.pipeline.jobs.erase.erasure_table import recorded
from unisono.protocol.tombstones import is_tombstone
from unisono.store.check import check_directory
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteReader


def require_whole(data: Path, lake: Lake) -> None:
    """Before anything is run again: the log is sound, and the lake reads as every event once."""
    assert check_directory(data).ok, check_directory(data).text()
    seen = [id for batch in lake.scan_arrow(columns=["committed_id"]) for id in batch.column(0).to_pylist()]
    assert seen == list(range(1, lake.head() + 1))


def reached(data: Path, lake: Lake, baseline: dict[str, int], records: list[Record]) -> int:
    """How many of the steps of an erasure have been done, at least in part."""
    steps = [bool(recorded(lake))]
    steps += [
        (lake.table(name).delta.transaction_version(REWRITE) or 0) > baseline[name] for name in baseline
    ]
    with closing(SqliteReader.open(data)) as reader:
        (first,) = reader.scan(319, 320, limit=1)
    steps.append(is_tombstone(first.event))
    return sum(steps)


def kill_and_complete(spark: SparkSession, tmp_path: Path, kills: int, seed: int) -> int:
    """Erase, killed so many times at different moments, and then in peace; how many times it was killed alive."""
    chance = random.Random(seed)
    data, lake = tmp_path / "data", Lake.at(str(tmp_path / "lake"))
    records = prepare(data, lake)
    baseline = {
        name: lake.table(name).delta.transaction_version(REWRITE) or 0 for name in (BY_PARTITION, LOG)
    }
    killed = 0
    for number in range(kills):
        stage = min(reached(data, lake, baseline, records), 3) if number else 0
        process = start(
            "erase", "--data", str(data), "--lake", lake.storage.location, "--client", CULPRIT, "--yes",
            "--master", "local[2]",
        )  # fmt: skip
        wait_until(lambda stage=stage: reached(data, lake, baseline, records) > stage, process)  # type: ignore[misc]
        time.sleep(chance.choice((0.0, 0.05, 0.3, 1.0)))
        killed += kill(process)
        require_whole(data, lake)
    done = run(spark, data, lake)
    assert done.proof.holds, done.proof.text()
    require_erased(data, lake, records)
    require_states(data, lake, records)
    return killed
