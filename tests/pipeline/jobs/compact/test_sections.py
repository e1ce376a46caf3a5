"""Every job on a lake whose runs have different numbers of sections."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import duckdb
import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.lake.lakes import HERE, compact, spreading
from tests.pipeline.equality import require_replay
from tests.pipeline.history import append, require_exact
from tests.pipeline.jobs.erase.erasing import expected, run
from tests.pipeline.outline import shipped_outline
from unisono.lake import write
from unisono.lake.lake import Lake
from unisono.lake.scan import runs_of
from unisono.lake.sections import section_of
from unisono.lake.storage import BY_PARTITION
from unisono.lake.table import Table
from unisono.pipeline import task_planning
from unisono.pipeline.compare import verify
from unisono.pipeline.duckdb_file import make_duckdb_file
from unisono.pipeline.jobs.audit.job import audit
from unisono.pipeline.jobs.compact.job import needs_compaction
from unisono.pipeline.jobs.erase.select import Selector
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.past.job import state_at
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog


def counts(lake: Lake) -> set[int]:
    return {
        2 if (own := section_of(file)) is None else own.count
        for file in lake.view().partition_files
        if file.bucket != write.UNBUCKETED
    }


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """2,400 events: runs in 2 buckets, in 8 and in 32 sections of them, and one that is not split."""
    folder = tmp_path_factory.mktemp("sections")
    with closing(SqliteLog.open(folder / "data")) as log:
        records = append(log, 2_400)
    lake, store = Lake.at(str(folder / "lake")), sqlite_uri(folder / "data")
    lake.make(buckets=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "UNBUCKETED_ROWS_MAX", 0)
        for upto, rows_per_file in ((1_200, 40), (1_800, 5), (2_000, 0), (2_200, 0)):
            export(HERE, store, lake, to=upto, events_per_file=50)
            if rows_per_file:
                compact(lake, rows_per_file)
    export(HERE, store, lake)
    assert len(counts(lake)) > 2
    assert any(file.bucket == write.UNBUCKETED for file in lake.view().partition_files)
    return folder, records


@pytest.fixture
def place(ready: tuple[Path, list[Record]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(ready[0], tmp_path / "copy"))


def test_read_folded_and_audited(
    spark: SparkSession, place: Path, ready: tuple[Path, list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    records, lake, store = ready[1], Lake.at(str(place / "lake")), sqlite_uri(place / "data")
    model = shipped_outline()
    require_exact(lake, records)
    assert all(part.equal for part in verify(HERE, store, lake))
    for name in ("room-003", "room-007", "plain"):
        own = [record.committed_id for record in records if name in record.partitions]
        found = [row["committed_id"] for batch in lake.scan_arrow([name]) for row in batch.to_pylist()]
        assert found == own
    path = place / "views.duckdb"
    monkeypatch.setattr(task_planning, "FEW_EVENTS", 0)  # tasks by bucket and section, and parts of them
    monkeypatch.setattr(task_planning, "TASK_ROWS_MIN", 20)
    done = snapshot(HERE, lake, model)
    assert done.events == sum(len(record.partitions) for record in records)
    require_replay(lake, model, records)
    table = lake.table("snapshots")
    assert all(section_of(file) is None for file in table.files())
    assert state_at(lake, "room-003", model, 1_000).committed_id <= 1_000
    report = audit(spark, lake, store)
    assert not report.findings, report.text()
    make_duckdb_file(lake, path)
    with duckdb.connect(str(path), read_only=True) as database:
        found = [
            row[0] for row in database.execute("SELECT committed_id FROM history('room-003')").fetchall()
        ]
    assert found == [record.committed_id for record in records if "room-003" in record.partitions]


def test_erased_in_every_section(place: Path, ready: tuple[Path, list[Record]]) -> None:
    records, lake = ready[1], Lake.at(str(place / "lake"))
    before = counts(lake)
    done = run(HERE, place / "data", lake, Selector("partition", ("room-007",)))
    assert done.proof.holds, done.proof.text()
    assert counts(lake) == before, "files that are replaced stay in their sections"
    require_exact(lake, expected(records, lake))


def test_joined_into_longer_runs_as_the_lake_grows(place: Path, ready: tuple[Path, list[Record]]) -> None:
    records, lake = ready[1], Lake.at(str(place / "lake"))
    before = len(list(runs_of(lake.view().partition_files)))
    with spreading():
        assert needs_compaction(lake, 20)
    compact(lake, 20)
    require_exact(lake, records)
    assert len(list(runs_of(lake.view().partition_files))) < before
    assert max(counts(lake)) >= 8


def test_a_row_in_a_wrong_section_is_found(spark: SparkSession, place: Path) -> None:
    """Readers would not look for its partition there."""
    lake = Lake.at(str(place / "lake"))
    table = lake.table(BY_PARTITION)
    files = [file for file in table.files() if section_of(file) is not None]
    one = files[0]
    section = section_of(one)
    assert section is not None
    other = section.folder.replace(f"-{section.number}/", f"-{(section.number + 2) % section.count}/")
    moved = one.path.replace(section.folder, other)
    target = Path(table.storage.location, BY_PARTITION, moved)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(table.storage.location, BY_PARTITION, one.path), target)
    table.replace([one], [msgspec.structs.replace(one, path=moved)], {}, same_rows=True)
    assert Table.open(lake.storage, BY_PARTITION) is not None
    report = audit(spark, lake)
    assert {finding.kind for finding in report.findings} >= {"bucket"}
    assert "belongs to" in report.text()
