from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tests.lake.lakes import export_to
from tests.pipeline.history import make_record, make_store, row_of
from unisono.lake import write as runs
from unisono.lake.columns import bucket_of, to_batch
from unisono.lake.lake import Lake
from unisono.lake.scan import runs_of, scan_log, scan_partitions
from unisono.lake.storage import BY_PARTITION, LOG, Storage
from unisono.lake.write import GROUP_BYTES, GROUP_ROWS, UNBUCKETED, DataFile, row_group_ranges, write_runs
from unisono.store.port import Record

BUCKETS = 4


@given(st.lists(st.integers(0, GROUP_BYTES * 2), max_size=200))
def test_row_groups_are_bounded_and_leave_nothing_out(sizes: list[int]) -> None:
    found = list(row_group_ranges(np.array(sizes, np.int64)))
    assert [place for start, end in found for place in range(start, end)] == list(range(len(sizes)))
    for start, end in found:
        assert 0 < end - start <= GROUP_ROWS
        assert end - start == 1 or sum(sizes[start:end]) <= GROUP_BYTES


def history(count: int, seed: int = 3) -> list[Record]:
    chance = random.Random(seed)
    return [make_record(number, chance) for number in range(1, count + 1)]


def files_of(written: list[DataFile], table: str) -> list[DataFile]:
    return [file for file in written if file.table == table]


def test_a_run_spread_over_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "UNBUCKETED_ROWS_MAX", 1)
    monkeypatch.setattr(runs, "GROUP_ROWS", 50)
    events = history(900)
    storage = Storage.at(str(tmp_path))
    batches = [to_batch(events[start : start + 100]) for start in range(0, 900, 100)]
    written = write_runs(storage, batches, buckets=BUCKETS, events_per_file=400)
    assert [(file.first_id, file.last_id) for file in files_of(written.files, LOG)] == [
        (1, 400),
        (401, 800),
        (801, 900),
    ]
    assert written.log.rows == 900
    by_partition = files_of(written.files, BY_PARTITION)
    assert {file.bucket for file in by_partition} == set(range(BUCKETS))
    assert written.by_partition.rows == sum(len(record.partitions) for record in events)
    for file in by_partition:
        table = pq.read_table(storage.uri(file.table, file.path), partitioning=None)
        places = [(row["partition"].encode(), row["committed_id"]) for row in table.to_pylist()]
        assert places == sorted(places)
        assert {bucket_of(name.decode(), BUCKETS) for name, _ in places} == {file.bucket}
        assert (file.first_partition, file.last_partition) == (places[0][0].decode(), places[-1][0].decode())
        assert (file.first_id, file.last_id) == (min(id for _, id in places), max(id for _, id in places))
        assert file.bytes == Path(storage.uri(file.table, file.path)).stat().st_size
        metadata = pq.read_metadata(storage.uri(file.table, file.path))
        assert all(metadata.row_group(group).num_rows <= 50 for group in range(metadata.num_row_groups))
    assert len(list(runs_of(by_partition))) == 3


def test_a_small_run_is_one_fresh_file(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    written = write_runs(storage, [to_batch(history(30))], buckets=BUCKETS, events_per_file=400)
    assert [file.bucket for file in files_of(written.files, BY_PARTITION)] == [UNBUCKETED]
    assert write_runs(storage, [], buckets=BUCKETS, events_per_file=9).files == []


def test_large_events_make_shorter_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "RUN_BYTES_MAX", 100_000)
    events = history(500)
    batches = [to_batch(events[start : start + 20]) for start in range(0, 500, 20)]
    written = write_runs(Storage.at(str(tmp_path)), batches, buckets=BUCKETS, events_per_file=10_000)
    assert len(files_of(written.files, LOG)) > 1
    assert written.log.rows == 500


@pytest.mark.parametrize("fresh_rows", [1, 100_000])
def test_scans_find_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_rows: int) -> None:
    """Any partitions, any range, any limit: the answer a log would give (SYNC-01)."""
    monkeypatch.setattr(runs, "UNBUCKETED_ROWS_MAX", fresh_rows)
    monkeypatch.setattr(runs, "GROUP_ROWS", 40)
    events, chance = history(1_200), random.Random(5)
    storage = Storage.at(str(tmp_path))
    written = write_runs(
        storage,
        [to_batch(events[start : start + 150]) for start in range(0, 1_200, 150)],
        buckets=BUCKETS,
        events_per_file=300,
    )
    names = sorted({name for record in events for name in record.partitions})
    for _ in range(60):
        since, upto = sorted((chance.randrange(1_250), chance.randrange(1_250)))
        wanted = set(chance.sample(names, chance.randrange(1, 5))) | {"not there"}
        limit = chance.choice([None, 0, 1, 7, 100])
        batches = scan_partitions(
            storage, files_of(written.files, BY_PARTITION), BUCKETS, sorted(wanted), since, upto, limit=limit
        )
        found = [row for batch in batches for row in batch.to_pylist()]
        expected = [row_of(record) for record in events[since:upto] if wanted & set(record.partitions)]
        assert found == expected[:limit]
        scanned = scan_log(storage, files_of(written.files, LOG), since, upto, ["hash", "committed_id"])
        assert [row["committed_id"] for batch in scanned for row in batch.to_pylist()] == [
            record.committed_id for record in events[since:upto]
        ]


def test_a_table_has_the_bounds_of_times_and_clients(tmp_path: Path) -> None:
    """By which other engines skip files; Delta names them by column."""
    records = make_store(tmp_path / "data", 300)
    lake = Lake.at(str(tmp_path / "lake"))
    export_to(lake, tmp_path / "data", 100, 300)
    for table in (LOG, BY_PARTITION):
        actions = pa.table(DeltaTable(lake.storage.table(table)).get_add_actions(flatten=True)).to_pylist()
        assert len(actions) == 2
        for action in actions:
            own = records[action["min.committed_id"] - 1 : action["max.committed_id"]]
            times, clients = [r.status_updated_at for r in own], [r.client_id for r in own]
            assert (action["min.status_updated_at"], action["max.status_updated_at"]) == (
                min(times),
                max(times),
            )
            assert (action["min.client_id"], action["max.client_id"]) == (min(clients), max(clients))
