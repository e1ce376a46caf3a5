"""Tables that another Delta writer rearranged, without their former files: the same rows, or an error."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.lake.guests import delta, optimize, overwrite_one_bucket, overwrite_with_polars, vacuum, z_order
from tests.lake.lakes import HERE, export_to
from tests.lake.s3 import object_store
from tests.pipeline.history import make_store, require_exact
from unisono.lake import rearranged, write
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.same_rows import require_same_rows
from unisono.lake.sorted_copies import open_source
from unisono.lake.sql import query
from unisono.lake.storage import BY_PARTITION, LOG, Storage
from unisono.pipeline.errors import Mismatch
from unisono.pipeline.jobs.compact import job as compaction
from unisono.pipeline.jobs.compact.foreign_files import rewrite_foreign_files
from unisono.pipeline.spark.executors import run_on_executors
from unisono.store.port import Record

EVENTS = 1_500
Ready = tuple[Path, list[Record]]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    folder = tmp_path_factory.mktemp("rearranged")
    records = make_store(folder / "data", EVENTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "UNBUCKETED_ROWS_MAX", 0)
        export_to(Lake.at(str(folder / "lake")), folder / "data", 300, 600, 900, 1_200)
    export_to(Lake.at(str(folder / "lake")), folder / "data", 1_300, EVENTS)
    return folder, records


@pytest.fixture
def lake(ready: Ready, tmp_path: Path) -> Lake:
    shutil.copytree(ready[0] / "lake", tmp_path / "lake")
    return Lake.at(str(tmp_path / "lake"))


def ids_of(lake: Lake, names: list[str] | None = None) -> list[int]:
    batches = lake.scan_arrow(names, columns=["committed_id"])
    return [committed_id for batch in batches for committed_id in batch.column(0).to_pylist()]


def require_same(lake: Lake, records: list[Record]) -> None:
    """Scans of all events and of one partition at a time, every column; and a query that needs no order."""
    rows = [row for batch in lake.scan_arrow() for row in batch.to_pylist()]
    assert [row["committed_id"] for row in rows] == list(range(1, EVENTS + 1))
    assert [(row["id"], row["event"].encode(), row["hash"]) for row in rows] == [
        (record.id, record.event, record.hash) for record in records
    ]
    for name in sorted({name for record in records for name in record.partitions})[:8]:
        expected = [record.committed_id for record in records if name in record.partitions]
        assert ids_of(lake, [name]) == expected
    pairs = sum(len(record.partitions) for record in records)
    assert query(lake, "SELECT count(*), count(DISTINCT committed_id) FROM partition_events").rows == [
        [str(pairs), str(EVENTS)]
    ]
    assert query(lake, "SELECT count(*), sum(committed_id) FROM events").rows == [
        [str(EVENTS), str(EVENTS * (EVENTS + 1) // 2)]
    ]


@pytest.mark.req("DUR-06")
@pytest.mark.parametrize("tables", [(LOG,), (BY_PARTITION,), (LOG, BY_PARTITION)], ids="+".join)
@pytest.mark.parametrize(
    ("change", "ranges"),
    [
        (optimize, False),
        (z_order, False),
        (z_order, True),
        (overwrite_with_polars, False),
        (overwrite_one_bucket, True),
    ],
)
def test_the_same_rows_in_order(
    lake: Lake,
    ready: Ready,
    tables: tuple[str, ...],
    change: Callable[[Lake, str], None],
    ranges: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for table in tables:
        change(lake, table)
    vacuum(lake, *tables)
    if ranges:
        monkeypatch.setattr(rearranged, "SORTED_BYTES", 10_000)
        monkeypatch.setattr(write, "UNBUCKETED_ROWS_MAX", 0)
    assert any(file.sources for name in tables for file in lake.table(name).readable_files())
    require_same(lake, ready[1])
    rewrite_foreign_files(HERE, lake)
    assert not any(lake.table(name).foreign_files() for name in tables)
    require_exact(lake, ready[1])


@pytest.mark.parametrize(
    ("unbucketed", "slots"), [(write.UNBUCKETED_ROWS_MAX, rearranged.SLOTS), (0, 4)], ids=["few", "dense"]
)
def test_what_is_sorted_at_once_is_bounded(
    lake: Lake, ready: Ready, unbucketed: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in files for all buckets, and where a slot of ids has more than a file may have."""
    for module, name, value in (
        (rearranged, "SORTED_BYTES", 30_000),
        (rearranged, "SLOTS", slots),
        (write, "UNBUCKETED_ROWS_MAX", unbucketed),
    ):
        monkeypatch.setattr(module, name, value)
    for table in (LOG, BY_PARTITION):
        optimize(lake, table)
    vacuum(lake)
    for table in (LOG, BY_PARTITION):
        for file in lake.table(table).readable_files():
            assert file.sources is not None
            rows = pq.ParquetFile(open_source(lake.storage, file)).read(["committed_id", "event"])
            assert rows.num_rows == file.rows
            size = pc.sum(pc.binary_length(rows.column("event"))).as_py()
            assert size <= 30_000
    require_same(lake, ready[1])


def updated(lake: Lake) -> None:
    delta(lake, LOG).update({"event": "'{}'"}, predicate="committed_id = 700")


def deleted(lake: Lake) -> None:
    delta(lake, BY_PARTITION).delete("committed_id = 700")


def moved(lake: Lake) -> None:
    delta(lake, BY_PARTITION).update({"partition": "'elsewhere'"}, predicate="committed_id = 700")


def renumbered(lake: Lake) -> None:
    delta(lake, LOG).update({"committed_id": "701"}, predicate="committed_id = 700")


def reattributed(lake: Lake) -> None:
    """No hash covers who sent an event."""
    delta(lake, LOG).update({"client_id": "'somebody'"}, predicate="committed_id = 700")


def reattributed_in_partitions(lake: Lake) -> None:
    delta(lake, BY_PARTITION).update({"author": "null"}, predicate="committed_id = 700")


def replaced(lake: Lake) -> None:
    """A row less and another twice: as many as were committed."""
    found = delta(lake, BY_PARTITION)
    rows = found.to_pyarrow_table()
    place = rows.column("committed_id").to_pylist().index(700)
    double = rows.slice(place + 1, 1)
    found.delete(f"committed_id = 700 AND partition = '{rows.column('partition')[place].as_py()}'")
    write_deltalake(lake.storage.table(BY_PARTITION), double, mode="append")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (updated, "the hash of event 700 in the lake's table log does not match its content"),
        (deleted, r"have \d+ rows and \d+ were committed"),
        (moved, "'elsewhere', which is not of bucket|is not what the table log has"),
        (renumbered, "is not what the table by_partition has|rows of events"),
        (replaced, "is not what the table log has"),
        (reattributed, "within events 601 to 900 is not what the table by_partition has; restore"),
        (reattributed_in_partitions, "within events 601 to 900 is not what the table log has; remove"),
    ],
)
def test_other_rows_are_refused(lake: Lake, change: Callable[[Lake], None], says: str) -> None:
    change(lake)
    vacuum(lake)
    with pytest.raises(LakeUnusable, match=says):
        [*lake.scan_arrow(["plain"]), *lake.scan_arrow()]


@pytest.mark.parametrize("table", [LOG, BY_PARTITION])
def test_each_file_is_compared_once(lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that another program made of many is read in ranges; the files of the other table have rows of all."""
    monkeypatch.setattr(rearranged, "SORTED_BYTES", 10_000)
    monkeypatch.setattr(write, "UNBUCKETED_ROWS_MAX", 0)
    optimize(lake, table)
    vacuum(lake)
    view = lake.view(checked=False)
    log_files, partition_files = view.log_files, view.by_partition.readable_files()
    assert sum(file.sources is not None for file in (*log_files, *partition_files)) > 10
    opened, read = Counter[tuple[str, str]](), Storage.read

    def noted(self: Storage, table: str, path: str) -> Any:
        opened[table, path] += 1
        return read(self, table, path)

    monkeypatch.setattr(Storage, "read", noted)
    require_same_rows(lake.storage, log_files, partition_files)
    assert set(opened.values()) == {1}


def test_two_that_put_the_files_in_order(lake: Lake, ready: Ready) -> None:
    """One is refused by each table, looks again and finds nothing to do."""
    for table in (LOG, BY_PARTITION):
        z_order(lake, table)
    start = threading.Barrier(2)

    def rewrite(_: int) -> int:
        start.wait()
        return rewrite_foreign_files(HERE, Lake.at(lake.storage.location))

    with ThreadPoolExecutor(2) as pool:
        assert max(pool.map(rewrite, range(2))) > 0
    require_exact(lake, ready[1])


def test_an_optimize_while_a_compaction_is_at_work(
    lake: Lake, ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the tasks and the commit: the compaction joins what is there then."""
    tables = [LOG, BY_PARTITION]

    def run(*given: Any, **options: Any) -> list[Any]:
        done = run_on_executors(*given, **options)
        if tables:
            optimize(lake, tables.pop())
        return done

    monkeypatch.setattr(compaction, "run_on_executors", run)
    compaction.compact(HERE, lake)
    assert not tables
    assert len(lake.view().log_files) == 1
    require_exact(lake, ready[1])


def test_an_update_that_no_hash_covers_is_not_made_ours(lake: Lake, ready: Ready) -> None:
    """Of `log`, with the files before it and without; `by_partition` is made from `log`."""
    reattributed(lake)
    with pytest.raises(Mismatch, match="within events 601 to 900 is not what it had before"):
        rewrite_foreign_files(HERE, lake)
    vacuum(lake, LOG)
    with pytest.raises(Mismatch, match="within events 601 to 900 is not what the table by_partition has"):
        rewrite_foreign_files(HERE, lake)
    delta(lake, LOG).update({"client_id": f"'{ready[1][699].client_id}'"}, predicate="committed_id = 700")
    reattributed_in_partitions(lake)
    vacuum(lake)
    with pytest.raises(Mismatch, match="within events 601 to 900 is not what the table by_partition has"):
        rewrite_foreign_files(HERE, lake)
    shutil.rmtree(lake.storage.table(BY_PARTITION))
    lake.make()
    rewrite_foreign_files(HERE, lake)
    export_to(lake, ready[0] / "data")
    require_exact(lake, ready[1])


def test_a_file_that_goes_while_it_is_read(lake: Lake) -> None:
    z_order(lake, BY_PARTITION)
    vacuum(lake)
    for path in Path(lake.storage.table(BY_PARTITION)).rglob("part-*.parquet"):
        path.unlink()
    with pytest.raises(LakeUnusable, match=r"cannot be read .* remove the directory by_partition"):
        lake.view()


@pytest.mark.req("DUR-06")
def test_in_an_object_store(ready: Ready) -> None:
    with object_store() as options:
        lake = Lake.at("s3://lake/rearranged", options)
        export_to(lake, ready[0] / "data", 500, 1_000, EVENTS)
        z_order(lake, BY_PARTITION)
        assert not any(file.sources for file in lake.view().partition_files), "the former files are there"
        vacuum(lake, BY_PARTITION)
        assert any(file.sources for file in lake.view().partition_files)
        for name in ("plain", "Ωmega"):
            expected = [record.committed_id for record in ready[1] if name in record.partitions]
            assert ids_of(lake, [name]) == expected
