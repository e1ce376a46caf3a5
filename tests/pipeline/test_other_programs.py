"""A lake that another program changed gives the right answer or an error, never a wrong answer with exit code 0."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import TableFeatures
from pyspark.sql import SparkSession

from tests.commands import unisono
from tests.lake.lakes import HERE, export_to, spreading
from tests.pipeline.equality import by_partition, replayed, require_replay
from tests.pipeline.history import make_store, require_exact
from tests.pipeline.other_programs import (
    DAMAGE,
    EVENTS,
    OPEN,
    Place,
    lose_a_line,
    optimize,
    z_order,
)
from tests.pipeline.planting import Planter
from unisono.lake.cold.archive import Archive, ArchivedReader, ArchiveFailed
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, ERASURES, LOG, SNAPSHOTS
from unisono.model.pack import pack
from unisono.pipeline.deep_json import state_text
from unisono.pipeline.errors import Mismatch
from unisono.pipeline.jobs.compact import foreign_files
from unisono.pipeline.jobs.compact.job import compact
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.past.job import state_at, states_at
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.jobs.snapshot.publish import publish
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.frames import read_log, read_partitions
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteReader


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    folder = tmp_path_factory.mktemp("others")
    records = make_store(folder / "data", EVENTS)
    store, lake = sqlite_uri(folder / "data"), Lake.at(str(folder / "lake"))
    lake.make(buckets=4)
    for upto in (100, 250, 400, 550, 700):
        export(HERE, store, lake, to=upto)
        snapshot(HERE, lake, OPEN)
    publish(lake, store, 0)
    with closing(open_maintainer(store)) as maintainer:
        maintainer.set_archive(lake.storage.location)
        while maintainer.prune_step(100):
            pass
    for upto in (800, 900, EVENTS):
        export(HERE, store, lake, to=upto)
    return folder, records


@pytest.fixture
def place(ready: tuple[Path, list[Record]], tmp_path: Path) -> Place:
    folder, records = ready
    shutil.copytree(folder, tmp_path / "copy")
    made = Place(tmp_path / "copy", records)
    with closing(open_maintainer(sqlite_uri(made.data))) as maintainer:
        maintainer.set_archive(made.lake.storage.location)
    return made


REARRANGED = [name for name in DAMAGE if name.split()[0] in ("optimize", "z-order")]
MENDED = [*REARRANGED, "statistics of by_partition"]


def shorter(case: str) -> Any:
    """`make test` tries one of the ways of a kind, `make soak` all of them."""
    soak = case.startswith("z-order") or case in ("optimize log", "log restored")
    return pytest.param(case, marks=pytest.mark.soak) if soak else case


@pytest.mark.req("DUR-05", "DUR-06")
@pytest.mark.parametrize("case", [shorter(case) for case in DAMAGE if case not in MENDED])
def test_no_command_is_wrong_in_silence(spark: SparkSession, place: Place, case: str) -> None:
    damage, table = DAMAGE[case]
    before = place.kept()
    damage(place, table)
    assert place.lake.head() == EVENTS, "the table itself still says that all is there"
    name = place.records[0].partitions[0]
    for arguments in (
        ("snapshot", "--publish"),
        ("retain", "--keep-events", "10", "--keep-newest", "10"),
        ("state", "--partition", name, "--model", "open"),
        ("diff", "--partition", name, "--from", "10", "--to", "900", "--model", "open"),
        ("export",),
        ("report", "--out", str(place.data.parent / "report")),
        ("erase", "--id", place.records[-1].id, "--yes"),
        ("info",),
        ("run", "--cycles", "1", "--compact-every", "1h", "--every", "1s"),
    ):
        told = unisono("lake", arguments[0], *place.options[:-1], *arguments[1:])
        assert told.exit_code in (1, 2), (arguments, told.output)
        assert f"/{table}" in told.output, (arguments, told.output)
        assert "another program" in told.output
    audit = unisono("lake", "audit", *place.options)
    assert audit.exit_code == 1, audit.output
    with (
        closing(SqliteReader.open(place.data)) as log,
        closing(Archive()) as archive,
        pytest.raises(ArchiveFailed, match=f"/{table}"),
    ):
        ArchivedReader(log, archive).page([name], 0, EVENTS, limit=10, bytes_max=1 << 20)
    assert place.kept() == before, "nothing was published, nothing left the log"


@pytest.mark.req("DUR-06")
@pytest.mark.parametrize("case", [shorter(case) for case in REARRANGED])
def test_what_another_program_rearranged_reads_the_same(spark: SparkSession, place: Place, case: str) -> None:
    """Before anything is mended: cold pages, states, scans and an audit. The next export mends."""
    damage, table = DAMAGE[case]
    damage(place, table)
    damage(place, table)
    assert foreign_files.has_work(place.lake)
    _require_cold(place)
    ids = [
        id for batch in place.lake.scan_arrow(columns=["committed_id"]) for id in batch.column(0).to_pylist()
    ]
    assert ids == list(range(1, EVENTS + 1))
    for name, history in list(by_partition(place.records).items())[:5]:
        found = state_at(place.lake, name, OPEN)
        assert (pack(found.state), found.skipped) == replayed(OPEN.load(), history)
    assert unisono("lake", "info", *place.options).exit_code == 0
    audit = unisono("lake", "audit", *place.options)
    assert audit.exit_code == 0, audit.output
    assert "foreign (warning, " in audit.output
    told = unisono("lake", "export", *place.options[:-1])
    assert told.exit_code == 0, told.output
    assert "checking and rewriting them" in told.output
    assert not foreign_files.has_work(place.lake)
    require_exact(place.lake, place.records)


def test_an_audit_finds_what_another_program_changed_and_rearranged(
    spark: SparkSession, place: Place
) -> None:
    place.delta(LOG).update({"event": "'{}'"}, predicate="committed_id = 700")
    optimize(place, LOG)
    audit = unisono("lake", "audit", *place.options)
    assert audit.exit_code == 1, audit.output
    assert "hash (1): " in audit.output
    told = unisono("lake", "export", *place.options)
    assert told.exit_code != 0
    assert "the hash of event 700" in told.output


@pytest.mark.req("DUR-06")
def test_without_the_former_files_everything_reads_the_same(spark: SparkSession, place: Place) -> None:
    """Cold pages, frames, states, reports and audits, before the next run puts the files in order."""
    for table in (LOG, BY_PARTITION, SNAPSHOTS):
        z_order(place, table)
        place.delta(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
        if table == BY_PARTITION:
            told = unisono("lake", "audit", *place.options)
            assert told.exit_code == 0, told.output
    _require_cold(place)
    view = place.lake.view()
    assert read_log(spark, view).count() == EVENTS
    name, history = next(iter(by_partition(place.records).items()))
    rows = read_partitions(spark, view, [name]).select("committed_id").collect()
    assert sorted(row.committed_id for row in rows) == [record.committed_id for record in history]
    states = {row.partition: row.state for row in states_at(spark, view, model=OPEN).collect()}
    assert states.keys() == by_partition(place.records).keys()
    for partition, own in by_partition(place.records).items():
        assert states[partition] == state_text(replayed(OPEN.load(), own)[0])
    for arguments in (
        ("state", "--partition", name, "--model", "open"),
        ("diff", "--partition", name, "--from", "10", "--to", "900", "--model", "open"),
        ("report", "--out", str(place.data.parent / "report")),
        ("info",),
    ):
        told = unisono("lake", arguments[0], *place.options, *arguments[1:])
        assert told.exit_code == 0, (arguments, told.output)
    assert "rearranged, `unisono lake snapshot` folds them again" in told.output
    told = unisono("lake", "audit", *place.options)
    assert told.exit_code == 1, "of these snapshots it knows nothing but their hashes"
    assert "NOT SOUND, 1 finding" in told.output
    assert "cannot be read in order; `unisono lake snapshot --rebuild`" in told.output
    assert unisono("lake", "run", *place.options, "--cycles", "1", "--every", "1s").exit_code == 0
    assert unisono("lake", "audit", *place.options).exit_code == 0
    assert not foreign_files.has_work(place.lake)
    _require_cold(place)
    require_exact(place.lake, place.records)
    require_replay(place.lake, OPEN, place.records)


@pytest.mark.req("DUR-06")
@pytest.mark.parametrize("case", [shorter(case) for case in MENDED])
def test_compaction_mends_what_another_program_rearranged(
    spark: SparkSession, place: Place, case: str
) -> None:
    damage, table = DAMAGE[case]
    damage(place, table)
    assert foreign_files.has_work(place.lake)
    told = unisono("lake", "compact", *place.options[:-1])
    assert told.exit_code == 0, told.output
    assert f"{table}: " in told.output
    assert "checking and rewriting them" in told.output
    assert not foreign_files.has_work(place.lake)
    require_exact(place.lake, place.records)
    assert unisono("lake", "snapshot", *place.options, "--publish").exit_code == 0
    require_replay(place.lake, OPEN, place.records)
    assert unisono("lake", "audit", *place.options).exit_code == 0
    _require_cold(place)


def test_the_service_mends_in_its_turn(spark: SparkSession, place: Place) -> None:
    optimize(place, BY_PARTITION)
    told = unisono("lake", "run", *place.options, "--cycles", "2", "--every", "1s")
    assert told.exit_code == 0, told.output
    require_exact(place.lake, place.records)
    require_replay(place.lake, OPEN, place.records)
    _, states = place.kept()
    assert {state for _, state in states.values()} == {  # type: ignore[attr-defined]
        replayed(OPEN.load(), history)[0] for history in by_partition(place.records).values()
    }


def _require_cold(place: Place) -> None:
    """Clients get everything, also of what has left the log."""
    with closing(SqliteReader.open(place.data)) as log, closing(Archive()) as archive:
        reader = ArchivedReader(log, archive)
        for name, history in by_partition(place.records).items():
            page = reader.page([name], 0, EVENTS, limit=EVENTS, bytes_max=1 << 30)
            assert list(page.records) == history


def test_spread_over_buckets_and_in_both_tables(spark: SparkSession, place: Place) -> None:
    with spreading():
        compact(spark, place.lake)
    export_to(place.lake, place.data)
    for table in (LOG, BY_PARTITION):
        z_order(place, table)
    _require_cold(place)
    assert foreign_files.rewrite_foreign_files(HERE, place.lake) == EVENTS + sum(
        len(r.partitions) for r in place.records
    )
    require_exact(place.lake, place.records)
    name = place.records[0].partitions[0]
    own = by_partition(place.records)[name]
    assert state_at(place.lake, name, OPEN).events == len(own)


def test_snapshots_that_another_program_rearranged_are_folded_anew(spark: SparkSession, place: Place) -> None:
    z_order(place, SNAPSHOTS)
    name, history = next(iter(by_partition(place.records).items()))
    found = state_at(place.lake, name, OPEN)
    assert (found.base, found.events) == (700, len(history)), "read from the version before"
    told = unisono("lake", "snapshot", *place.options[:-1], "--publish")
    assert told.exit_code == 0, told.output
    assert "all snapshots removed, `unisono lake snapshot` makes them again" in told.output
    require_replay(place.lake, OPEN, place.records)


def test_snapshots_that_lost_a_line(spark: SparkSession, place: Place) -> None:
    lose_a_line(place, SNAPSHOTS, 0)
    for arguments in (("snapshot", "--publish"), ("state", "--partition", "plain", "--model", "open")):
        told = unisono("lake", arguments[0], *place.options, *arguments[1:])
        assert told.exit_code == 2, told.output
        assert f"remove the directory {SNAPSHOTS}" in told.output
    assert unisono("lake", "audit", *place.options).exit_code == 1
    shutil.rmtree(place.lake.storage.table(SNAPSHOTS))
    snapshot(spark, place.lake, OPEN)
    require_replay(place.lake, OPEN, place.records)


def test_by_partition_is_made_anew_as_the_error_says(spark: SparkSession, place: Place) -> None:
    lose_a_line(place, BY_PARTITION)
    told = unisono("lake", "export", *place.options)
    assert f"remove the directory {BY_PARTITION}, and `unisono lake export` rebuilds it" in told.output
    shutil.rmtree(place.lake.storage.table(BY_PARTITION))
    assert unisono("lake", "export", *place.options, "--buckets", "4").exit_code == 0
    require_exact(place.lake, place.records)


def test_what_is_not_the_same_rows_is_not_mended(spark: SparkSession, place: Place) -> None:
    """DELETE and UPDATE of other programs: the files are theirs, and so are the rows."""
    place.delta(BY_PARTITION).delete("committed_id = 700")
    with pytest.raises(Mismatch, match=r"have 11\d\d rows and 11\d\d were committed: remove the directory"):
        foreign_files.rewrite_foreign_files(HERE, place.lake)
    shutil.rmtree(place.lake.storage.table(BY_PARTITION))
    export_to(place.lake, place.data)
    place.delta(LOG).update({"event": "'{}'"}, predicate="committed_id = 700")
    files = set(Path(place.lake.storage.location).rglob("*.parquet"))
    with pytest.raises(
        Mismatch, match="the hash of event 700 in the lake's table log does not match its content"
    ):
        foreign_files.rewrite_foreign_files(HERE, place.lake)
    assert set(Path(place.lake.storage.location).rglob("*.parquet")) == files
    place.delta(LOG).restore(place.delta(LOG).version() - 1)
    place.delta(BY_PARTITION).update({"partition": "'elsewhere'"}, predicate="committed_id = 700")
    with pytest.raises(Mismatch, match="is not what the table log has: remove the directory by_partition"):
        foreign_files.rewrite_foreign_files(HERE, place.lake)
    assert set(Path(place.lake.storage.location).rglob("0*.parquet")) <= files, "nothing is left"


def test_features_that_change_what_files_mean_are_refused(place: Place) -> None:
    place.delta(LOG).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(LakeUnusable, match=r"needs a reader of version 3 \(deletionVectors\)"):
        place.lake.view()
    told = unisono("lake", "info", *place.options)
    assert told.exit_code == 2
    assert "restore the table from a backup" in told.output


def test_a_file_that_is_gone(spark: SparkSession, place: Place) -> None:
    for file in place.lake.view().partition_files:
        Path(place.lake.storage.uri(BY_PARTITION, file.path)).unlink()
    for arguments in (
        ("snapshot", "--publish"),
        ("state", "--partition", "plain", "--model", "open"),
        ("audit",),
    ):
        told = unisono("lake", arguments[0], *place.options, *arguments[1:])
        assert told.exit_code in (1, 2), (arguments, told.output)


def test_rows_out_of_order_in_a_file_of_our_name(spark: SparkSession, place: Place) -> None:
    """Nobody does this by accident; readers look nevertheless."""
    planter = Planter(place.lake)
    held = planter.files(BY_PARTITION)[-1]
    held.dirty = True
    names = [row["partition"] for row in held.rows]
    name = next(name for name in names if names.count(name) > 1)
    first = [number for number, found in enumerate(names) if found == name]
    held.rows[first[0]], held.rows[first[1]] = held.rows[first[1]], held.rows[first[0]]
    planter.commit()
    with pytest.raises(LakeUnusable, match="are out of order at event"):
        state_at(place.lake, name, OPEN)
    told = unisono("lake", "snapshot", *place.options, "--publish")
    assert told.exit_code != 0
    assert "are out of order at event" in told.output
    with (
        closing(SqliteReader.open(place.data)) as log,
        closing(Archive()) as archive,
        pytest.raises(ArchiveFailed, match="are out of order"),
    ):
        archive.page(log.extent(), [name], 0, EVENTS, limit=EVENTS, bytes_max=1 << 30)


def test_a_lake_of_before_rows_were_recorded(spark: SparkSession, place: Place) -> None:
    """Its rows are counted from the next commit on."""
    for path in place.commits(BY_PARTITION):
        lines = path.read_text().splitlines()
        path.write_text("\n".join(line for line in lines if "unisono.rows" not in line) + "\n")
    table = place.lake.table(BY_PARTITION)
    assert table.rows is None
    with closing(SqliteReader.open(place.data)) as reader:
        assert reader.head() == EVENTS
    require_exact(place.lake, place.records)
    compact(spark, place.lake)
    _require_cold(place)


@pytest.mark.soak
def test_erasures_that_lost_a_line(spark: SparkSession, place: Place) -> None:
    for number in (-1, -2):
        told = unisono("lake", "erase", *place.options, "--id", place.records[number].id, "--yes")
        assert told.exit_code == 0, told.output
    lose_a_line(place, ERASURES, 0)
    told = unisono("lake", "erase", *place.options, "--id", place.records[-3].id, "--yes")
    assert told.exit_code == 2
    assert f"/{ERASURES} names files with 1 rows and 2 were committed" in told.output


def test_states_are_those_of_the_log(place: Place) -> None:
    """What the tests above compare with: a plain fold."""
    name, history = next(iter(by_partition(place.records).items()))
    found = state_at(place.lake, name, OPEN)
    assert json.dumps(found.state)
    assert found.events == len(history)
    assert replayed(OPEN.load(), history)[1] == found.skipped
