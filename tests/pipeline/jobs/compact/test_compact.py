from __future__ import annotations

import itertools
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.lake.lakes import HERE, spreading
from tests.pipeline.history import make_store, require_exact, row_of
from unisono.lake.lake import Lake
from unisono.lake.scan import runs_of
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.lake.write import UNBUCKETED, DataFile
from unisono.pipeline import compare
from unisono.pipeline.compare import verify
from unisono.pipeline.jobs.compact import job as compaction
from unisono.pipeline.jobs.compact.job import ALWAYS_JOINED_ROWS, choose, compact, needs_compaction, vacuum
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.frames import read_log
from unisono.store.port import Record


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory, store: str) -> Path:
    """3,000 events in runs of all sizes, most of them small: to be copied, not changed."""
    folder = tmp_path_factory.mktemp("compaction") / "lake"
    made = Lake.at(str(folder))
    made.make(buckets=4)
    for upto in (10, 20, 25, 400, 1_000, 1_001, 1_500, 3_000):
        export(HERE, store, made, to=upto, events_per_file=700)
    return folder


@pytest.fixture
def lake(ready: Path, tmp_path: Path) -> Lake:
    return Lake.at(str(shutil.copytree(ready, tmp_path / "lake")))


def run(first: int, rows: int) -> list[DataFile]:
    return [DataFile(LOG, f"{first}", 1, rows, first, first + rows - 1)]


@given(st.lists(st.integers(1, 3_000_000), max_size=60), st.integers(1, 2_000_000))
def test_neighbours_of_a_kind_are_joined(sizes: list[int], full: int) -> None:
    runs, first = [], 1
    for size in sizes:
        runs.append(run(first, size))
        first += size
    groups = choose(runs, full)
    paths = [file.path for group in groups for file in group]
    assert len(paths) == len(set(paths))
    order = [files[0].path for files in runs]
    for group in groups:
        places = [order.index(file.path) for file in group]
        assert places == list(range(places[0], places[0] + len(places))), "neighbours, in order"
        assert len(places) > 1
        assert sum(file.rows for file in group) <= full
    joined = [list(group) for group in groups]
    left = [files for files in runs if files[0].path not in paths]
    merged = left + [
        [DataFile(LOG, group[0].path, 1, sum(f.rows for f in group), group[0].first_id, group[-1].last_id)]
        for group in joined
    ]
    assert len(merged) <= len(runs)
    again = sorted(merged, key=lambda files: files[0].first_id)
    assert not joined or len(again) < len(runs), "each round leaves fewer, so rounds come to an end"


def test_files_of_large_events_are_joined_some_at_a_time() -> None:
    """Each takes the memory of a row group while they are merged, however few rows it has."""
    for size, groups in ((4 << 20, 4), (40 << 10, 1)):
        runs = [
            [
                DataFile(
                    BY_PARTITION, f"{number}", size, 8, 8 * number + 1, 8 * number + 8, UNBUCKETED, "a", "z"
                )
            ]
            for number in range(128)
        ]
        chosen = choose(runs, 1_000_000)
        assert len(chosen) == groups
        assert sum(map(len, chosen)) == len(runs)


def test_a_large_old_run_is_left_alone() -> None:
    runs = [run(1, 900_000), run(900_001, ALWAYS_JOINED_ROWS), run(920_001, 10)]
    assert choose(runs, 10_000_000) == [[*runs[1], *runs[2]]]


def test_fewer_files_same_rows(
    spark: SparkSession,
    store: str,
    records: list[Record],
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = lake.view()
    names = ["plain", "room-003"]
    old = [row for batch in before.scan_arrow(names) for row in batch.to_pylist()]
    assert needs_compaction(lake)
    with spreading():
        told = compact(spark, lake)
    assert [part.table for part in told] == [LOG, BY_PARTITION]
    assert all(part.files_after < part.files_before for part in told)
    after = lake.view()
    assert len(after.log_files) == 1
    assert len(after.partition_files) == 4
    assert not any(file.bucket == UNBUCKETED for file in after.partition_files)
    assert after.head == before.head == 3_000
    require_exact(lake, records)
    whole = verify(spark, store, lake)
    assert all(part.equal for part in whole)
    with monkeypatch.context() as patch:
        patch.setattr(compare, "TASK_ROWS_MIN", 200)
        patch.setattr(compare, "TASK_ROWS_MAX", 200)
        assert verify(HERE, store, lake) == whole, "in many tasks as in few"
        (proof,) = compare.compare_rows(HERE, store, after, 0, 3_000)
        assert (proof.since, proof.upto, proof.problem) == (0, 3_000, None)
    assert [row for batch in after.scan_arrow(names) for row in batch.to_pylist()] == old
    # A reader that opened the lake before sees what it saw.
    assert [row for batch in before.scan_arrow(names) for row in batch.to_pylist()] == old
    assert read_log(spark, before).count() == 3_000
    assert not needs_compaction(lake)
    assert [part.rows_rewritten for part in compact(spark, lake)] == [0, 0]


def test_what_is_small_is_joined_and_not_spread(store: str, records: list[Record], lake: Lake) -> None:
    compact(HERE, lake)
    view = lake.view()
    assert len(view.log_files) == 1
    assert [file.bucket for file in view.partition_files] == [UNBUCKETED]
    assert not needs_compaction(lake)
    require_exact(lake, records)
    seen = [row["committed_id"] for batch in view.scan_arrow(["plain"]) for row in batch.to_pylist()]
    assert seen == [record.committed_id for record in records if "plain" in record.partitions]


def test_full_files_are_cut_where_partitions_change_hands(
    spark: SparkSession, records: list[Record], lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "GROUP_ROWS", 64)  # on the driver only; executors keep theirs
    with spreading():
        compact(spark, lake, rows_per_file=1_000)
    require_exact(lake, records)
    for files in runs_of(lake.view().partition_files):
        for bucket in range(4):
            own = sorted(
                (f for f in files if f.bucket == bucket), key=lambda f: str(f.first_partition).encode()
            )
            for left, right in itertools.pairwise(own):
                assert str(left.last_partition).encode() <= str(right.first_partition).encode()


def test_vacuum_leaves_what_the_lake_names(records: list[Record], lake: Lake) -> None:
    orphan = Path(lake.storage.table(LOG), "000000000001-000000000009-orphan.parquet")
    orphan.write_bytes(b"left by a killed job")
    compact(HERE, lake)
    assert vacuum(lake, 10**15) == 0
    removed = vacuum(lake, 0)
    assert removed > 8
    assert not orphan.exists()
    require_exact(lake, records)
    kept = {path.name for path in Path(lake.storage.table(LOG)).glob("*.parquet")}
    assert kept == {file.path for file in lake.view().log_files}


@pytest.mark.soak
def test_compaction_beside_readers_exports_and_another_compaction(
    spark: SparkSession, tmp_path: Path
) -> None:
    records = make_store(tmp_path / "data", 1_300)
    store, lake = sqlite_uri(tmp_path / "data"), Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=4)
    export(spark, store, lake, to=100, events_per_file=20)
    stop = threading.Event()
    failures: list[BaseException] = []

    def guarded(action: object) -> None:
        try:
            while not stop.is_set():
                action()  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        view = lake.view()
        expected = records[: view.head]
        assert [row for batch in view.scan_arrow() for row in batch.to_pylist()] == [
            row_of(r) for r in expected
        ]
        name = "room-003"
        found = [row["committed_id"] for batch in view.scan_arrow([name]) for row in batch.to_pylist()]
        assert found == [record.committed_id for record in expected if name in record.partitions]

    def tidy() -> None:
        compact(spark, lake)

    threads = [threading.Thread(target=guarded, args=(action,)) for action in (read, read, tidy, tidy)]
    with spreading():
        for thread in threads:
            thread.start()
        for upto in range(250, 1_301, 150):
            export(spark, store, lake, to=upto)
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    require_exact(lake, records)
    assert lake.table(LOG).version > 9, "each export commits once, and compactions came between"
