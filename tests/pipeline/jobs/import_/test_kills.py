"""An import killed again and again, as real processes: it goes on, commits nothing twice, and counts exactly."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.pipeline.history import read_store
from tests.pipeline.legacy import Legacy, write_lines
from tests.pipeline.processes import WAIT_S, kill, start, wait_until
from unisono.pipeline.jobs.import_.result import ImportReport
from unisono.store.check import check_directory


def loaded(staging: Path) -> int:
    notes = list(staging.glob("*/loaded.json"))
    return int(notes[0].read_bytes() or b"0") if notes else 0


def moments(staging: Path, chance: random.Random) -> list[Callable[[], object]]:
    """When to kill, one run each: while reading, while deciding, three times while loading."""
    counts = sorted(chance.sample(range(300, 2_500, 50), 3))
    return [
        lambda: list(staging.glob("*/rows/*.parquet")),
        lambda: list(staging.glob("*/decided")),
        *[lambda count=count: loaded(staging) >= count for count in counts],
    ]


@pytest.mark.timeout(300)
def test_killed_while_reading_deciding_and_loading(tmp_path: Path) -> None:
    planted = write_lines(Legacy(5_000, seed=random.randrange(1_000)), tmp_path / "old.jsonl")
    staging, data, report = tmp_path / "staging", tmp_path / "data", tmp_path / "report.json"
    command = (
        "import", str(tmp_path / "old.jsonl"), "--data", str(data), "--staging", str(staging),
        "--report", str(report), "--events-per-group", "25", "--master", "local[2]", "--quiet",
    )  # fmt: skip
    kills, reached = 0, 0
    for moment in moments(staging, random.Random()):
        process = start(*command)
        try:
            assert wait_until(moment, process), process.communicate()
        finally:
            kills += kill(process)
        here = len(read_store(data))
        assert reached <= here < planted.accepted, "killed in the middle"
        reached = here
    assert kills == 5
    assert reached >= 300
    process = start(*command)
    out, err = process.communicate(timeout=2 * WAIT_S)
    assert process.returncode == 0, err
    told = msgspec.json.decode(report.read_bytes(), type=ImportReport)
    assert told.loaded is not None
    assert told.loaded.committed + told.loaded.present == planted.accepted
    assert told.loaded.present >= reached
    assert f"loaded {told.loaded.committed} events" in out
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
