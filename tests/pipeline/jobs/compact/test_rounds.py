"""Compaction comes to an end, and then finds nothing to do, where joined files look like several runs."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.lake.lakes import HERE, compact, export_to, spreading
from tests.pipeline.equality import require_replay
from tests.pipeline.history import make_record, require_exact
from tests.pipeline.outline import shipped_outline
from unisono.lake import snapshots, write
from unisono.lake.lake import Lake
from unisono.lake.scan import runs_of
from unisono.lake.storage import LOG, SNAPSHOTS
from unisono.lake.write import DataFile
from unisono.pipeline.jobs.compact import job as compaction
from unisono.pipeline.jobs.compact import snapshot_compaction
from unisono.pipeline.jobs.compact.job import FILE_BYTES_MAX, ROWS_PER_FILE, needs_compaction
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog

pytestmark = pytest.mark.timeout(60)


def make_log(directory: Path, names: Iterable[str], seed: int = 1) -> list[Record]:
    """A log with one event for each of `names`, in that partition alone."""
    chance, records = random.Random(seed), []
    with closing(SqliteLog.open(directory)) as log:
        for number, name in enumerate(names, 1):
            records.append(msgspec.structs.replace(make_record(number, chance), partitions=(name,)))
        for start in range(0, len(records), 1_000):
            log.begin([])
            log.commit(records[start : start + 1_000])
            log.maintain()
    return records


def require_joined(lake: Lake, records: list[Record], rows_per_file: int = ROWS_PER_FILE) -> None:
    compact(lake, rows_per_file)
    require_exact(lake, records)
    with spreading():
        assert not needs_compaction(lake, rows_per_file), "nothing is left to do"


def test_partitions_that_come_one_after_the_other(tmp_path: Path) -> None:
    records = make_log(tmp_path / "data", [f"day-{number // 100}" for number in range(800)])
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=16)
    export_to(lake, tmp_path / "data", 350, 700, 750)
    require_joined(lake, records[:750])
    files = lake.view().partition_files
    assert len(list(runs_of(files))) > 1, "what was joined looks like several runs"
    paths = [file.path for file in files]
    export_to(lake, tmp_path / "data")
    require_joined(lake, records)
    assert [file.path for file in lake.view().partition_files] != paths


def test_one_partition_in_many_full_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of events so large that none has as many rows as it may, and files with as many rows as they may have."""
    records = make_log(tmp_path / "data", ["only"] * 600)
    for module in (compaction, write):
        monkeypatch.setattr(module, "GROUP_ROWS", 20)
    for bytes_max, rows_per_file in ((8_000, ROWS_PER_FILE), (1 << 30, 100)):
        monkeypatch.setattr(compaction, "FILE_BYTES_MAX", bytes_max)
        lake = Lake.at(str(tmp_path / f"lake-{rows_per_file}"))
        export_to(lake, tmp_path / "data", 10, 200, 450, 600)
        require_joined(lake, records, rows_per_file)
        assert len(list(runs_of(lake.table(LOG).files()))) > 2


@pytest.mark.parametrize("file_bytes", [1, 1 << 30])
def test_snapshots_of_partitions_that_come_one_after_the_other(
    tmp_path: Path, file_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unisono.pipeline.task_planning.FEW_EVENTS", 0)
    monkeypatch.setattr(snapshots, "STATE_GROUP_ROWS", 2)
    monkeypatch.setattr(snapshots, "FILE_BYTES", file_bytes)
    monkeypatch.setattr(snapshot_compaction, "FILE_BYTES", file_bytes)
    monkeypatch.setattr(snapshot_compaction, "STATES_PER_TASK", 3)
    records = make_log(tmp_path / "data", [f"day-{number // 30}" for number in range(600)])
    lake, model = Lake.at(str(tmp_path / "lake")), shipped_outline()
    lake.make(buckets=2)
    for head in range(25, 601, 25):
        export_to(lake, tmp_path / "data", head)
        snapshot(HERE, lake, model)
        if head % 100 == 0:
            compact(lake)
            require_replay(lake, model, records[:head])
            assert not snapshot_compaction.has_work(lake), "nothing is left to do"
    files = lake.table(SNAPSHOTS).files()
    assert len({file.bucket for file in files}) == 2
    assert len(files) > 4, "large buckets are joined in parts"


def test_many_generations_of_new_partitions_leave_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names never overlap, and a fold or a lookup opens all files of a bucket."""
    monkeypatch.setattr("unisono.pipeline.task_planning.FEW_EVENTS", 0)
    make_log(tmp_path / "data", [f"day-{number // 20:02}" for number in range(600)])
    lake, model = Lake.at(str(tmp_path / "lake")), shipped_outline()
    lake.make(buckets=2)
    for head in range(60, 601, 60):
        export_to(lake, tmp_path / "data", head)
        snapshot(HERE, lake, model)
    assert len(lake.table(SNAPSHOTS).files()) > 10
    compact(lake)
    assert len(lake.table(SNAPSHOTS).files()) == 2
    assert not snapshot_compaction.has_work(lake)


def test_large_states_and_a_small_newer_one_are_not_joined_again_and_again() -> None:
    """The newer one is in another file, and with it all of them are kept."""

    def states(size: int, last_id: int, last_partition: str) -> DataFile:
        return DataFile(SNAPSHOTS, str(last_id), size, 1, last_id, last_id, 0, "partition", last_partition, 1)

    large = [states(snapshots.FILE_BYTES, id, "partition") for id in (1, 46, 62)]
    assert snapshot_compaction._worthwhile(large), "the third is so near that the second can go"
    assert snapshot_compaction.states_to_keep([1, 46, 62, 65]) == [1, 46, 62, 65]
    assert not snapshot_compaction._worthwhile([*large, states(100, 65, "room")])


@pytest.mark.parametrize(
    ("seed", "file_bytes"), [*((seed, FILE_BYTES_MAX) for seed in range(6)), (6, 3_000), (7, 12_000)]
)
def test_partitions_that_come_and_go(
    tmp_path: Path, seed: int, file_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are full by their rows, or by their bytes."""
    for module in (compaction, write):
        monkeypatch.setattr(module, "GROUP_ROWS", 8)
    monkeypatch.setattr(compaction, "FILE_BYTES_MAX", file_bytes)
    monkeypatch.setattr(compaction, "ALWAYS_JOINED_BYTES", file_bytes // 4)
    chance = random.Random(seed)
    alive = chance.choice([1, 3, 10])
    names = [f"room-{number // chance.choice([30, 60]) + chance.randrange(alive)}" for number in range(900)]
    records = make_log(tmp_path / "data", names, seed)
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    for head in (*sorted(chance.sample(range(1, 900), 6)), 900):
        export_to(lake, tmp_path / "data", head, events_per_file=chance.choice([20, 100, 400]))
        require_joined(lake, records[:head], chance.choice([15, 40]))
