"""kill -9 of `lake import`, again and again until it is done, for tests and for soaking."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.commands import unisono
from tests.pipeline.history import read_store
from tests.pipeline.legacy import Legacy, write_lines
from tests.pipeline.processes import kill, start, wait_until
from unisono.pipeline.jobs.import_.result import ImportReport
from unisono.store.check import check_directory


def loaded(staging: Path) -> int:
    notes = list(staging.glob("*/loaded.json"))
    return int(notes[0].read_bytes() or b"0") if notes else 0


def moments(staging: Path, loading: list[int]) -> list[Callable[[], object]]:
    """When to kill, one run each: while reading, while deciding, and while loading, after so many events."""
    return [
        lambda: list(staging.glob("*/rows/*.parquet")),
        lambda: list(staging.glob("*/decided")),
        *[lambda count=count: loaded(staging) >= count for count in loading],
    ]


def kill_and_complete(tmp_path: Path, rows: int, loading: int, seed: int) -> None:
    """An import of `rows`, killed once while reading, once while deciding and `loading` times while loading.

    The last run is in this process, in the Spark of the tests.
    """
    chance = random.Random(seed)
    planted = write_lines(Legacy(rows, seed=chance.randrange(1_000)), tmp_path / "old.jsonl")
    counts = sorted(chance.sample(range(300, rows // 2, 50), loading))
    staging, data, report = tmp_path / "staging", tmp_path / "data", tmp_path / "out" / "import.json"
    command = (
        "import", str(tmp_path / "old.jsonl"), "--data", str(data), "--staging", str(staging),
        "--out", str(report.parent), "--events-per-group", "25", "--master", "local[2]", "--quiet",
    )  # fmt: skip
    kills, reached = 0, 0
    for moment in moments(staging, counts):
        process = start(*command)
        try:
            assert wait_until(moment, process), process.communicate()
        finally:
            kills += kill(process)
        here = len(read_store(data))
        assert reached <= here < planted.accepted, "killed in the middle"
        reached = here
    assert kills == 2 + loading
    assert reached >= 300
    done = unisono("lake", *command)
    assert done.exit_code == 0, done.output
    told = msgspec.json.decode(report.read_bytes(), type=ImportReport)
    assert told.loaded is not None
    assert told.loaded.committed + told.loaded.present == planted.accepted
    assert told.loaded.present >= reached
    assert f"loaded {told.loaded.committed} events" in done.stdout
    totals = told.prepared.totals
    assert (totals.rows, totals.accepted, totals.duplicate, totals.known) == (
        planted.rows,
        planted.accepted,
        planted.duplicate,
        0,
    )
    assert told.prepared.reasons == dict(planted.reasons)
    assert [record.id for record in read_store(data)] == planted.ids
    assert check_directory(data).ok
