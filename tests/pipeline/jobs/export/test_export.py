from __future__ import annotations

import itertools
import shutil
import threading
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.commands import unisono
from tests.pipeline.history import append, make_store, require_exact, row_of
from tests.pipeline.processes import file_size_limit
from tests.pipeline.test_open_log import prune
from unisono.cli.lake.info import lake_info
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.pipeline.compare import verify
from unisono.pipeline.errors import Mismatch, NoSuchRange
from unisono.pipeline.jobs.export import job as exporting
from unisono.pipeline.jobs.export.job import (
    BOTH,
    ExportCommit,
    ExportTask,
    commit,
    export,
    plan,
    ranges,
    run_task,
)
from unisono.pipeline.open_log import LogExtent, extent, sqlite_uri
from unisono.pipeline.origin_check import origin_of
from unisono.pipeline.spark.executors import run_on_executors
from unisono.pipeline.spark.frames import read_log, read_partitions
from unisono.pipeline.spark.private import java_process
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake.at(str(tmp_path / "lake"))
    made.make(buckets=4)
    return made


@given(st.integers(0, 1000), st.integers(1, 100_000), st.integers(200, 300_000), st.integers(1, 9))
def test_ranges_cover_everything_once(since: int, count: int, size: int, cores: int) -> None:
    parts = ranges(since, since + count, size, cores)
    assert parts[0][0] == since
    assert parts[-1][1] == since + count
    assert all(before[1] == after[0] for before, after in itertools.pairwise(parts))
    assert all(0 < upto - low <= size for low, upto in parts)
    assert max(upto - low for low, upto in parts) - min(upto - low for low, upto in parts) <= 1


def test_the_lake_is_the_log(spark: SparkSession, store: str, records: list[Record], lake: Lake) -> None:
    told: list[tuple[int, int]] = []
    done = export(spark, store, lake, events_per_file=800, progress=lambda *seen: told.append(seen))
    assert (done.since, done.upto, done.events) == (0, 3_000, 3_000)
    assert told[-1] == (3_000, 3_000)
    require_exact(lake, records)
    checked = verify(spark, store, lake)
    assert checked
    assert all(part.equal for part in checked)
    assert sum(part.log.rows for part in checked) == 3_000
    again = export(spark, store, lake)
    assert (again.events, again.upto) == (0, 3_000)


def test_a_little_at_a_time(spark: SparkSession, store: str, records: list[Record], lake: Lake) -> None:
    for upto in (1, 2, 500, 500, 1_700):
        assert export(spark, store, lake, to=upto, events_per_file=300).upto == upto
        assert lake.head() == upto
    require_exact(lake, records[:1_700])
    assert all(part.equal for part in verify(spark, store, lake, since=400, upto=1_000))
    info = lake_info(lake, store)
    assert (info.head, info.store_head, info.buckets) == (1_700, 3_000, 4)
    assert info.tables[0].rows == 1_700
    assert "1300 to export" in info.text()


def test_reading_it_with_spark(
    spark: SparkSession, store: str, records: list[Record], tmp_path: Path
) -> None:
    lake = Lake.at(str(tmp_path / "la ke[1]{x}*é"))
    lake.make(buckets=4)
    assert read_log(spark, lake).count() == 0
    export(spark, store, lake, events_per_file=800)
    rows = [row.asDict() for row in read_log(spark, lake).orderBy("committed_id").collect()]
    assert rows == [row_of(record) | {"hash": bytearray(record.hash)} for record in records]
    assert read_log(spark, lake, 10, 20).count() == 10
    names = ["emoji-🎻", "room-007", "nobody"]
    found = read_partitions(spark, lake, names, since=100).select("partition", "committed_id").collect()
    expected = {(name, r.committed_id) for r in records[100:] for name in r.partitions if name in names}
    assert {(row.partition, row.committed_id) for row in found} == expected
    assert len(found) == len(expected)
    assert read_partitions(spark, lake.view()).count() == sum(len(r.partitions) for r in records)


def test_any_delta_reader_prunes_by_bucket_and_range(spark: SparkSession, store: str, lake: Lake) -> None:
    export(spark, store, lake, events_per_file=500)
    log = DeltaTable(lake.storage.table(LOG))
    assert len(log.file_uris(file_pruning_predicate="committed_id <= 500")) == 1
    assert len(log.file_uris()) == 6
    schema = DeltaTable(lake.storage.table(BY_PARTITION)).schema().to_json()
    assert '"bucket"' in schema


def test_a_kill_between_the_two_commits(
    spark: SparkSession, store: str, records: list[Record], lake: Lake
) -> None:
    """by_partition has (1000, 1500] and log has not: nobody sees it, and the next export completes it."""
    export(spark, store, lake, to=1_000)
    task = ExportTask(store, lake.storage, 1_000, 1_500, BOTH, 4, 800)
    commit(lake, ExportCommit(1_000, 1_500, frozenset((BY_PARTITION,))), [run_task(task)])
    assert lake.head() == 1_000
    name = "room-007"
    seen = [row["committed_id"] for batch in lake.scan_arrow([name]) for row in batch.to_pylist()]
    assert seen == [record.committed_id for record in records[:1_000] if name in record.partitions]
    stages = plan(store, lake, 2_000)
    assert stages == [ExportCommit(1_000, 1_500, frozenset((LOG,))), ExportCommit(1_500, 2_000, BOTH)]
    assert plan(store, lake, 1_200) == [ExportCommit(1_000, 1_200, frozenset((LOG,)))]
    export(spark, store, lake, to=2_000)
    require_exact(lake, records[:2_000])


def test_by_partition_is_made_anew_from_the_lake_alone(
    spark: SparkSession, records: list[Record], lake: Lake, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    make_store(data, 3_000)
    export(spark, sqlite_uri(data), lake, to=2_500)
    prune(data, 2_400)
    shutil.rmtree(lake.storage.table(BY_PARTITION))
    lake.make(buckets=7)
    with pytest.raises(LakeUnusable, match="completes it from the log's files"):
        next(iter(lake.scan_arrow(["plain"])))
    told: list[tuple[int, int]] = []
    done = export(
        spark, sqlite_uri(data), lake, events_per_file=200, progress=lambda *seen: told.append(seen)
    )
    assert (done.since, done.upto, done.events, done.digest.rows) == (0, 3_000, 3_000, 500)
    assert told == [(1_600, 3_000), (2_500, 3_000), (3_000, 3_000)]
    assert lake.view().buckets == 7
    require_exact(lake, records)


def test_what_cannot_be_exported(spark: SparkSession, store: str, lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(NoSuchRange, match="the log ends at 3000, 9999 is requested"):
        export(spark, store, lake, to=9_999)
    export(spark, store, lake, to=100)
    make_store(tmp_path / "other", 200, seed=2)
    with pytest.raises(Mismatch, match="a copy of another log"):
        plan(sqlite_uri(tmp_path / "other"), lake)
    make_store(tmp_path / "short", 50)
    with pytest.raises(LakeUnusable, match="this log has lost events"):
        plan(sqlite_uri(tmp_path / "short"), lake)
    make_store(tmp_path / "pruned", 300)
    with closing(SqliteLog.open(tmp_path / "pruned")) as log:
        log.set_identity(origin_of(store).log)
    prune(tmp_path / "pruned", 100)
    assert plan(sqlite_uri(tmp_path / "pruned"), lake) == [ExportCommit(100, 300, BOTH)]
    prune(tmp_path / "pruned", 150)
    with pytest.raises(
        NoSuchRange, match="events 101 to 150 were pruned from the log and are not in the lake"
    ):
        plan(sqlite_uri(tmp_path / "pruned"), lake)
    with pytest.raises(NoSuchRange, match="no longer has any event"):
        verify(spark, sqlite_uri(tmp_path / "pruned"), lake)


def test_verification_sees_a_difference(
    spark: SparkSession, records: list[Record], lake: Lake, tmp_path: Path
) -> None:
    make_store(tmp_path / "data", 1_000)
    make_store(tmp_path / "twin", 1_000, seed=9)
    export(spark, sqlite_uri(tmp_path / "data"), lake, events_per_file=300)
    assert all(part.equal for part in verify(spark, sqlite_uri(tmp_path / "data"), lake))
    assert not any(part.equal for part in verify(spark, sqlite_uri(tmp_path / "twin"), lake))


def test_an_export_that_comes_between_looking_at_log_and_lake(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SqliteLog.open(tmp_path / "data")
    records = append(log, 100)
    store = sqlite_uri(tmp_path / "data")
    export(spark, store, lake)

    def then_more_is_exported(uri: str) -> LogExtent:
        held = extent(uri)
        monkeypatch.setattr(exporting, "extent", extent)
        records.extend(append(log, 50))
        export(spark, store, lake)
        return held

    monkeypatch.setattr(exporting, "extent", then_more_is_exported)
    assert plan(store, lake) == []
    log.close()
    require_exact(lake, records)


def test_two_exports_at_once(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Beside each other and beside a writer: no event twice, none missing."""
    log = SqliteLog.open(tmp_path / "data")
    records = append(log, 2_000)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(3):
                export(spark, sqlite_uri(tmp_path / "data"), lake, events_per_file=150)
        except BaseException as error:
            failures.append(error)

    exporters = [threading.Thread(target=run) for _ in range(2)]
    for thread in exporters:
        thread.start()
    for _ in range(5):
        records += append(log, 100)
    for thread in exporters:
        thread.join()
    log.close()
    assert failures == []
    export(spark, sqlite_uri(tmp_path / "data"), lake)
    require_exact(lake, records)


def test_a_disk_that_is_full(spark: SparkSession, store: str, records: list[Record], tmp_path: Path) -> None:
    """The error says where, nothing is left of the attempt, and with room again the same command goes on."""
    java = java_process(spark).pid
    run_on_executors(spark, range(2), str)  # there are workers to be limited
    sizes = []
    for name in ("elsewhere", "lake"):
        lake = Lake.at(str(tmp_path / name))
        lake.make(buckets=4)
        export(spark, store, lake, to=100)
        if name == "elsewhere":
            export(spark, store, lake)
            view = lake.view()
            sizes = [view.log_files[-1].bytes, view.partition_files[-1].bytes]
    assert sizes[0] < sizes[1], "the file of log is written first, and fits"
    held = set((tmp_path / "lake").rglob("*.parquet"))
    place = ["--store", store, "--lake", str(tmp_path / "lake"), "--quiet"]
    with file_size_limit(java, sum(sizes) // 2):
        told = unisono("lake", "export", *place)
    assert told.exit_code == 1
    assert f"File too large: '{tmp_path}/lake/by_partition/bucket=-1/" in told.output, told.output
    assert lake.head() == 100
    assert set((tmp_path / "lake").rglob("*.parquet")) == held
    assert unisono("lake", "export", *place).exit_code == 0
    require_exact(lake, records)
