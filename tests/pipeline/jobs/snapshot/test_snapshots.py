"""None"""

from __future__ import annotations

import hashlib
import itertools
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.lake.lakes import HERE, spreading
from tests.lake.s3 import object_store
from tests.pipeline.equality import require_replay
from tests.pipeline.jobs.snapshot.buckets import BUCKETS
from tests.pipeline.outline import Outlines, append_outlines, make_outlines, shipped_outline
from unisono.cli.lake.info import lake_info
from unisono.lake import snapshots as tables
from unisono.lake.errors import CommitConflict, LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.scan import open_files_needed
from unisono.lake.snapshots import Snapshots, SnapshotWriter, StateRow
from unisono.lake.storage import SNAPSHOTS, Storage
from unisono.lake.table import Table
from unisono.lake.write import UNBUCKETED
from unisono.model.pack import pack, unpack
from unisono.pipeline.errors import NoSuchPartition
from unisono.pipeline.jobs.compact.job import compact, needs_compaction, vacuum
from unisono.pipeline.jobs.compact.snapshot_compaction import AGE_BASE, states_to_keep
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.past.job import state_at, states_at
from unisono.pipeline.jobs.snapshot import job as snapshots
from unisono.pipeline.jobs.snapshot.drop import drop_snapshots
from unisono.pipeline.jobs.snapshot.job import latest, snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog

EVENTS = 1_500


@pytest.fixture(scope="module")
def outlines(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Record]]:
    """A log that nobody writes to any more, and what is in it."""
    directory = tmp_path_factory.mktemp("outlines")
    records = make_outlines(directory, EVENTS, 25)
    return sqlite_uri(directory), records


def snapshot_files(lake: Lake) -> int:
    return len(lake.table(SNAPSHOTS).files())


def test_only_what_is_new_is_folded(
    spark: SparkSession, lake: Lake, outlines: tuple[str, list[Record]]
) -> None:
    store, records = outlines
    model = shipped_outline()
    export(HERE, store, lake, to=1_000)
    full = snapshot(spark, lake, model)
    assert (full.since, full.upto, full.partitions) == (0, 1_000, 25)
    assert full.events == sum(len(record.partitions) for record in records[:1_000])
    before = require_replay(lake, model, records[:1_000])
    export(HERE, store, lake, to=1_010)
    some = snapshot(spark, lake, model)
    touched = {name for record in records[1_000:1_010] for name in record.partitions}
    assert (some.since, some.upto, some.partitions) == (1_000, 1_010, len(touched))
    assert some.events == sum(len(record.partitions) for record in records[1_000:1_010])
    after = require_replay(lake, model, records[:1_010])
    for name, row in after.items():
        assert row.committed_id == (1_010 if name in touched else 1_000)
        assert name in touched or row == before[name]
    again = snapshot(spark, lake, model)
    assert (again.events, again.partitions, again.upto) == (0, 0, 1_010)
    assert {row.partition: row for row in latest(lake, model.version, upto=1_009)} == before
    info = lake_info(lake)
    assert [(part.model_version, part.folded) for part in info.snapshots] == [(model.version, 1_010)]
    assert f"model       {model.version}" in info.text()


def test_any_delta_reader_can_read_it(lake: Lake, outlines: tuple[str, list[Record]]) -> None:
    export(HERE, outlines[0], lake, to=300)
    model = shipped_outline()
    snapshot(HERE, lake, model)
    rows = DeltaTable(lake.storage.table(SNAPSHOTS)).to_pyarrow_table().to_pylist()
    assert len(rows) == 25
    for row in rows:
        assert row["hash"] == hashlib.sha256(row["state"]).digest()
        assert (row["model_version"], row["committed_id"]) == (model.version, 300)
        assert row["model_digest"] == model.digest
        assert unpack(row["state"]).keys() == {"tree", "data"}


def test_the_same_bytes_however_it_came_about(
    spark: SparkSession, tmp_path: Path, outlines: tuple[str, list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one run or in many, in waves, in a lake of other buckets, compacted between or not."""
    store, _ = outlines
    model = shipped_outline()
    found = []
    for number, (buckets, steps) in enumerate([(1, [EVENTS]), (4, [200, 210, EVENTS]), (16, [EVENTS])]):
        lake = Lake.at(str(tmp_path / f"lake-{number}"))
        lake.make(buckets=buckets)
        monkeypatch.setattr(snapshots, "WAVE_ROWS_PER_CORE", 250 if number else snapshots.WAVE_ROWS_PER_CORE)
        monkeypatch.setattr("unisono.pipeline.task_planning.FEW_EVENTS", 100 if number else 16_384)
        for upto in steps:
            export(HERE, store, lake, to=upto, events_per_file=400)
            snapshot(spark, lake, model)
            if number == 1:
                with spreading():
                    compact(spark, lake)
        found.append(
            {row.partition: (row.hash, row.events, row.skipped) for row in latest(lake, model.version)}
        )
    assert found[0] == found[1] == found[2]


def test_of_some_partitions(lake: Lake, outlines: tuple[str, list[Record]]) -> None:
    store, records = outlines
    model = shipped_outline()
    export(HERE, store, lake, to=500)
    chosen = ["room-00003", "room-00007", "room-00003"]
    done = snapshot(HERE, lake, model, partitions=chosen)
    assert done.partitions == 2
    assert {row.partition for row in latest(lake, model.version)} == set(chosen)
    assert lake.table(SNAPSHOTS).folded_upto(model.version) == 0
    with pytest.raises(NoSuchPartition, match="no event of partition 'nobody' is in the lake"):
        snapshot(HERE, lake, model, partitions=["room-00001", "nobody"])
    assert snapshot(HERE, lake, model, partitions=chosen).events == 0
    snapshot(HERE, lake, model)
    require_replay(lake, model, records[:500])
    export(HERE, store, lake, to=900)
    snapshot(HERE, lake, model, partitions=chosen)
    export(HERE, store, lake, to=1_000)
    snapshot(HERE, lake, model)
    require_replay(lake, model, records[:1_000])


def test_partitions_whose_history_changed_are_folded_anew(
    lake: Lake, outlines: tuple[str, list[Record]]
) -> None:
    store, records = outlines
    model = shipped_outline()
    for upto in (400, 800):
        export(HERE, store, lake, to=upto)
        snapshot(HERE, lake, model)
    gone = ["room-00002", "room-00005", "nobody"]
    assert drop_snapshots(HERE, lake, gone) == 4
    assert drop_snapshots(HERE, lake, gone) == 0
    left = {row.partition for row in latest(lake, model.version)}
    assert len(left) == 23
    named = {file.path for file in lake.table(SNAPSHOTS).files()}
    assert drop_snapshots(HERE, lake, ["room-00002"]) == 0
    assert {file.path for file in lake.table(SNAPSHOTS).files()} == named, "a file without such rows stays"
    assert not left & set(gone)
    assert snapshot(HERE, lake, model).partitions == 2
    require_replay(lake, model, records[:800])


def test_many_runs_are_compacted_first(
    lake: Lake, outlines: tuple[str, list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, records = outlines
    export(HERE, store, lake, to=600, events_per_file=30)
    assert sum(file.bucket == UNBUCKETED for file in lake.view().partition_files) == 20
    monkeypatch.setattr(snapshots, "UNBUCKETED_ROWS_MAX", 300)
    snapshot(HERE, lake, shipped_outline())
    assert len(lake.view().partition_files) == 1
    require_replay(lake, shipped_outline(), records[:600])


def test_many_generations_are_joined_first(
    lake: Lake, outlines: tuple[str, list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever never compacts would have all of them open at once, some day more than a process may."""
    store, records = outlines
    model = shipped_outline()
    monkeypatch.setattr(snapshots, "GENERATIONS_MAX", 3)
    for upto in range(100, 700, 100):
        export(HERE, store, lake, to=upto)
        snapshot(HERE, lake, model)
        assert open_files_needed(lake.table(SNAPSHOTS).files()) <= 4
    require_replay(lake, model, records[:600])


@pytest.mark.soak
def test_older_snapshots_are_thinned_out(lake: Lake, outlines: tuple[str, list[Record]]) -> None:
    store, records = outlines
    model = shipped_outline()
    for upto in range(100, EVENTS + 1, 100):
        export(HERE, store, lake, to=upto)
        snapshot(HERE, lake, model)
        if upto % 500 == 0:
            before = require_replay(lake, model, records[:upto])
            rows = sum(file.rows for file in lake.table(SNAPSHOTS).files())
            assert needs_compaction(lake)
            told = next(part for part in compact(HERE, lake) if part.table == SNAPSHOTS)
            assert told.files_after < told.files_before
            assert told.rows_rewritten == rows
            assert not needs_compaction(lake)
            assert require_replay(lake, model, records[:upto]) == before
    rows = sum(file.rows for file in lake.table(SNAPSHOTS).files())
    assert rows < 25 * 7, "of fifteen generations"
    assert not any(file.bucket == UNBUCKETED for file in lake.table(SNAPSHOTS).files())
    assert vacuum(lake, 0)
    require_replay(lake, model, records)
    data = [
        path
        for path in Path(lake.storage.table(SNAPSHOTS)).rglob("*.parquet")
        if "_delta_log" not in str(path)
    ]
    assert len(data) == snapshot_files(lake)
    early = {row.partition: row for row in latest(lake, model.version, upto=700)}
    assert early, "some of the past stay"


@given(st.lists(st.integers(1, 3_000), min_size=1, max_size=200, unique=True).map(sorted))
def test_what_is_kept_of_many(ids: list[int]) -> None:
    stay = states_to_keep(ids)
    assert stay[-1] == ids[-1]
    assert stay[0] == ids[0], "the oldest of the last stretch"
    assert set(stay) <= set(ids)
    assert stay == sorted(stay)
    ages = sorted(ids[-1] - committed_id for committed_id in stay)
    assert len(ages) <= 2 + len(bin(ids[-1])) // 2
    assert states_to_keep(stay) == stay
    for committed_id in ids:
        near = max(other for other in stay if other <= committed_id)
        age = ids[-1] - committed_id
        assert committed_id - near <= max(AGE_BASE * age, 1), "a replay is bounded by the age"


def test_thinned_again_and_again_the_past_stays_in_reach() -> None:
    ids: list[int] = []
    for number in range(1, 2_000):
        ids = states_to_keep([*ids, number * 10])
        ages = [ids[-1] - committed_id for committed_id in ids]
        for newer, older in itertools.pairwise(sorted(ages)):
            assert older <= max(10, newer) * AGE_BASE * AGE_BASE
        assert len(ids) <= 10


def test_two_runs_at_once(spark: SparkSession, lake: Lake, outlines: tuple[str, list[Record]]) -> None:
    store, records = outlines
    export(HERE, store, lake)
    model, failures = shipped_outline(), []

    def run() -> None:
        try:
            snapshot(spark, lake, model)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    require_replay(lake, model, records)
    rows = [(row.partition, row.committed_id) for row in _every_row(lake)]
    assert len(rows) == len(set(rows)) == 25


def _every_row(lake: Lake) -> list[StateRow]:
    with Snapshots.opened(lake.storage, lake.table(SNAPSHOTS).files()) as held:
        return [held.at(name, id) for name, ids in held.found() for id in ids]


def test_of_two_commits_from_one_version_one_is_refused(lake: Lake) -> None:
    Table.make(lake.storage, SNAPSHOTS, BUCKETS)
    one, other = lake.table(SNAPSHOTS), lake.table(SNAPSHOTS)
    one.put_snapshots(_written(lake.storage, ["a"]), {1: 10}, {})
    with pytest.raises(CommitConflict):
        other.put_snapshots(_written(lake.storage, ["a"]), {1: 10}, {})
    assert lake.table(SNAPSHOTS).folded_upto(1) == 10
    assert lake.table(SNAPSHOTS).folded_upto(2) == 0
    assert snapshot_files(lake) == 1


def _row(name: str, committed_id: int = 10, state: bytes = b"{}") -> StateRow:
    return StateRow(name, committed_id, state, 1, 0, "d", 5, hashlib.sha256(state).digest())


def _written(storage: Storage, names: list[str], state: bytes = b"{}") -> list:  # type: ignore[type-arg]
    writer = SnapshotWriter(storage, UNBUCKETED, 1, "d")
    for name in names:
        writer.add(_row(name, state=state))
    return writer.close()


def test_one_state_is_found_in_one_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "STATE_GROUP_BYTES", 10_000)
    storage = Storage.at(str(tmp_path))
    names = sorted((f"p{number:03d}" for number in range(300)), key=str.encode)
    writer = SnapshotWriter(storage, 0, 1, "d")
    for name in names:
        for committed_id in (5, 10, 15):
            size = 50_000 if name == "p100" else 300
            writer.add(_row(name, committed_id, pack({"tree": {}, "data": {"t": f"{committed_id}" * size}})))
    (file,) = writer.close()
    metadata = pq.read_metadata(storage.uri(SNAPSHOTS, file.path))
    assert metadata.num_row_groups > 30
    assert (file.first_partition, file.last_partition, file.rows) == ("p000", "p299", 900)
    for upto, expected in ((4, None), (5, 5), (12, 10), (99, 15)):
        with Snapshots.opened(storage, [file], upto) as held:
            for name in ("p100", "p007", "p299", "p000"):
                row = held.latest(name.encode())
                assert (row and row.committed_id) == expected
            assert held.latest(b"p1000") is None
            assert [name.decode() for name, _ in held.found()] == (names if expected else [])


def test_a_damaged_snapshot_is_not_built_upon(
    spark: SparkSession, lake: Lake, outlines: tuple[str, list[Record]]
) -> None:
    store, records = outlines
    model = shipped_outline()
    export(HERE, store, lake, to=200)
    Table.make(lake.storage, SNAPSHOTS, BUCKETS)
    writer = SnapshotWriter(lake.storage, UNBUCKETED, model.version, model.digest)
    wrong = _row("room-00001", 100, b'{"tree":{},"data":{"title":"forged"}}')
    writer.add(StateRow(wrong.partition, 100, wrong.state, 3, 0, model.digest, 1, b"\0" * 32))
    lake.table(SNAPSHOTS).put_snapshots(writer.close(), {model.version: 100}, {})
    with pytest.raises(Exception, match="snapshot of partition 'room-00001' at event 100 is damaged"):
        snapshot(spark, lake, model)
    snapshot(spark, lake, model, rebuild=True)
    require_replay(lake, model, records[:200])


def test_a_lake_with_other_buckets(lake: Lake, outlines: tuple[str, list[Record]]) -> None:
    export(HERE, outlines[0], lake, to=10)
    Table.make(lake.storage, SNAPSHOTS, BUCKETS * 2)
    with pytest.raises(LakeUnusable, match="has 8 buckets and by_partition has 4: remove"):
        snapshot(HERE, lake, shipped_outline())


def test_growing_logs(lake: Lake, tmp_path: Path) -> None:
    """Follows a log that gets new partitions on the way."""
    log = SqliteLog.open(tmp_path / "data")
    model = shipped_outline()
    records: list[Record] = []
    for number in range(4):
        fresh = Outlines(number, 10 * (number + 1), first=len(records) + 1)
        records += append_outlines(log, fresh, 120)
        export(HERE, sqlite_uri(tmp_path / "data"), lake)
        snapshot(HERE, lake, model)
        require_replay(lake, model, records)
    log.close()


@pytest.mark.soak
def test_in_an_object_store(spark: SparkSession, outlines: tuple[str, list[Record]]) -> None:
    store, records = outlines
    model = shipped_outline()
    with object_store() as options:
        lake = Lake.at("s3://lake/history", options)
        lake.make(buckets=2)
        for upto in (300, 400):
            export(HERE, store, lake, to=upto)
            snapshot(spark, lake, model)
        require_replay(lake, model, records[:400])
        assert states_at(spark, lake, 350, model=model).count() == 25
        assert state_at(lake, "room-00003", model, 350).base == 300
