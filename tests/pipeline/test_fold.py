from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.pipeline.equality import by_partition, replayed, require_one_state
from tests.pipeline.outline import HOT, Outlines, make_outlines, outline_model, shipped_outline
from tests.store.records import make_record as store_record
from unisono.lake import merge
from unisono.lake import write as runs
from unisono.lake.columns import bucket_of, to_batch
from unisono.lake.errors import LakeUnusable
from unisono.lake.file_checks import open_checked
from unisono.lake.lake import Lake
from unisono.lake.merge import (
    EVERY_ID,
    NamedPartitions,
    PartitionSubset,
    pieces,
    scan_chain,
)
from unisono.lake.merge_rows import merge_rows
from unisono.lake.scan import chains
from unisono.lake.storage import BY_PARTITION, Storage
from unisono.lake.write import UNBUCKETED, DataFile, write_runs
from unisono.model.load import load_model
from unisono.pipeline import task_planning
from unisono.pipeline.fold import Folder, FoldTask, PartitionFold, fold_names, fold_subset
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.compact import job as compaction
from unisono.pipeline.jobs.compact.job import CompactionTask, join
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.task_planning import FilesByBucket, PlannedTask, plan_names, plan_tasks
from unisono.protocol.canonical import canonical
from unisono.samples import sample_model
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog
from unisono.vocabulary import JsonObject

BUCKETS = 4


@pytest.mark.req("TREE-11")
@pytest.mark.parametrize(
    "skewed", [pytest.param(False, marks=pytest.mark.soak), True], ids=["uniform", "skewed"]
)
def test_spark_the_authority_and_the_client_have_one_state(
    spark: SparkSession, tmp_path: Path, skewed: bool
) -> None:
    records = make_outlines(tmp_path / "data", 3_000, 60, skewed=skewed)
    store, lake = sqlite_uri(tmp_path / "data"), Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=BUCKETS)
    model = shipped_outline()
    for upto in (2_000, 2_003, 3_000):
        export(spark, store, lake, to=upto, events_per_file=800)
        snapshot(spark, lake, model)
    assert require_one_state(tmp_path / "data", lake, model, records) == 60 + skewed


@pytest.mark.req("VAL-06", "TREE-11")
def test_rules_that_know_who_submitted_give_the_same_state_everywhere(
    spark: SparkSession, tmp_path: Path
) -> None:
    people = ("ann", "ben", "cat")
    log = SqliteLog.open(tmp_path / "data")
    log.begin([])
    records = []
    for number in range(1, 121):
        board, user = f"board/{number % 5}", people[number % 3]
        data: JsonObject
        schema, data = "card.added", {"id": f"c{number}", "list": "todo", "text": "milk"}
        if number <= 10:
            schema, data = "member.set", {"user_id": user, "role": "owner"}
        event = canonical({"type": "event", "payload": {"schema": schema, "data": data}})
        author = canonical({"user_id": user, "claims": {"name": user.title()}}).decode()
        records.append(store_record(number, (board,), event=event, client_id=f"{user}-phone", author=author))
    log.commit(records)
    log.close()
    store, lake = sqlite_uri(tmp_path / "data"), Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=BUCKETS)
    shipped = ShippedModel.of(load_model(sample_model("roles")))
    for upto in (70, 120):
        export(spark, store, lake, to=upto, events_per_file=40)
        snapshot(spark, lake, shipped)
    assert require_one_state(tmp_path / "data", lake, shipped, records) == 5
    state = orjson.loads(replayed(shipped.load(), by_partition(records)["board/1"])[0])
    assert state["data"]["cards"]["c11"] == {
        "list": "todo", "text": "milk", "by": "cat", "name": "Cat", "at": records[10].status_updated_at,
    }  # fmt: skip


@pytest.fixture
def spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Storage, list[Record], list[DataFile]]:
    """A skewed history in three runs: one spread in many small row groups, two fresh."""
    monkeypatch.setattr(runs, "GROUP_ROWS", 50)
    storage = Storage.at(str(tmp_path))
    records = Outlines(5, 30, skewed=True).records(2_000)
    files: list[DataFile] = []
    for since, upto, fresh in ((0, 1_400, 1), (1_400, 1_900, 1_000_000), (1_900, 2_000, 1_000_000)):
        monkeypatch.setattr(runs, "UNBUCKETED_ROWS_MAX", fresh)
        batch = to_batch(records[since:upto])
        written = write_runs(
            storage, [batch], buckets=BUCKETS, events_per_file=10_000, tables=frozenset((BY_PARTITION,))
        )
        files += written.files
    return storage, records, files


def work(
    storage: Storage,
    files: list[DataFile],
    subset: PartitionSubset,
    since: int = 0,
    upto: int = 2_000,
    *names: str,
) -> FoldTask:
    return FoldTask(storage, shipped_outline(), subset, since, upto, tuple(files), (), names=names)


def test_however_the_work_is_cut_the_states_are_the_same(
    spread: tuple[Storage, list[Record], list[DataFile]], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, records, files = spread
    monkeypatch.setattr(task_planning, "TASK_ROWS_MIN", 40)
    assert {file.bucket for file in files} == {UNBUCKETED, *range(BUCKETS)}
    model = outline_model()
    expected = {name: replayed(model, history) for name, history in by_partition(records).items()}
    for cores, events in ((1, 1), (2, 10_000), (3, 100_000), (64, 100_000)):
        parts = plan_tasks(storage, files, BUCKETS, events, cores)
        folded = [one for part in parts for one in fold_subset(work(storage, files, part.subset))]
        assert len(folded) == len(expected), "no partition twice"
        found = FilesByBucket(files)
        for part in parts:
            assert found.of(part.subset) == tuple(file for file in files if part.subset.may_be_in(file))
        assert {one.partition: (one.state, one.skipped) for one in folded} == expected
    assert len(plan_tasks(storage, files, BUCKETS, 100_000, 64)) > 2 * BUCKETS
    assert [part for part in plan_tasks(storage, files, BUCKETS, 100_000, 64) if _is_alone(part)], (
        "the large one"
    )
    (hot,) = fold_names(work(storage, files, PartitionSubset(BUCKETS), 0, 1_950, HOT))
    assert (hot.state, hot.skipped) == replayed(
        model, [record for record in by_partition(records)[HOT] if record.committed_id <= 1_950]
    )


def test_many_names_are_folded_in_one_pass(
    spread: tuple[Storage, list[Record], list[DataFile]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is opened once, however many partitions are named; one that has no events is named, too."""
    storage, records, files = spread
    histories = by_partition(records)
    some = sorted(histories)[::2]
    opened: list[str] = []

    def noted(place: Storage, file: DataFile) -> object:
        opened.append(file.path)
        return open_checked(place, file)

    monkeypatch.setattr(merge, "open_checked", noted)
    folded = list(fold_names(work(storage, files, PartitionSubset(BUCKETS), 0, 2_000, *some, "nobody")))
    model = outline_model()
    expected = {name: replayed(model, histories[name]) for name in some}
    assert {one.partition: (one.state, one.skipped) for one in folded if one.events} == expected
    assert [one.partition for one in folded if not one.events] == ["nobody"]
    assert len(opened) == len(set(opened)) <= len(files)


@given(
    st.sets(st.text(min_size=1, max_size=2), min_size=1, max_size=6), st.text(max_size=2), st.text(max_size=2)
)
def test_named_partitions_are_those_and_no_others(names: set[str], one: str, other: str) -> None:
    encoded = tuple(sorted(name.encode("utf-8", "replace") for name in names))
    subset = NamedPartitions(BUCKETS, names=encoded)
    first, last = sorted((one.encode("utf-8", "replace"), other.encode("utf-8", "replace")))
    assert subset.holds(first.decode()) == (first in encoded)
    assert subset.meets(first, last) == any(first <= name <= last for name in encoded)


def test_named_partitions_are_planned_each_once() -> None:
    few = [f"room-{number}" for number in range(5)]
    assert sorted(name for _, part in plan_names(few, BUCKETS, 2) for name in part) == sorted(few)
    many = [f"room-{number}" for number in range(task_planning.FEW_EVENTS + 1)]
    planned = plan_names(many, BUCKETS, 2)
    assert sorted(name for _, part in planned for name in part) == sorted(many)
    assert all(bucket_of(name, BUCKETS) == bucket for bucket, part in planned for name in part)


def _is_alone(part: PlannedTask) -> bool:
    return (part.subset.low, part.subset.high) == (HOT.encode(), HOT.encode() + b"\0")


@given(st.data())
def test_shares_leave_no_name_out_and_take_none_twice(data: st.DataObject) -> None:
    edges = sorted(data.draw(st.sets(st.binary(min_size=1, max_size=3), max_size=4)))
    parts = [
        PartitionSubset(BUCKETS, (bucket,), low, high)
        for bucket in range(BUCKETS)
        for low, high in pairwise([None, *edges, None])
    ]
    name = data.draw(st.text(min_size=1, max_size=3))
    holders = [part for part in parts if part.holds(name)]
    assert [part.buckets for part in holders] == [(bucket_of(name, BUCKETS),)]


def test_a_partition_that_goes_on_in_the_next_file(
    spread: tuple[Storage, list[Record], list[DataFile]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of one run and bucket: neighbours by name, whose ids say nothing about the partition they share."""
    storage, records, files = spread
    monkeypatch.setattr(compaction, "GROUP_ROWS", 60)
    bucket = bucket_of(HOT, BUCKETS)
    job = CompactionTask(storage, BY_PARTITION, tuple(files), 120, bucket, BUCKETS)
    first = join(job)
    assert first.read == first.written
    assert sum(HOT in (file.first_partition, file.last_partition) for file in first.files) > 3
    chance = random.Random(1)
    for _ in range(5):
        shuffled = chance.sample(first.files, len(first.files))
        assert _order(storage, shuffled, bucket) == _order(storage, files, bucket)
    again = join(
        CompactionTask(
            storage,
            BY_PARTITION,
            tuple(chance.sample(first.files, len(first.files))),
            10_000,
            bucket,
            BUCKETS,
        )
    )
    assert again.read == again.written == first.written
    expected = [record.committed_id for record in by_partition(records)[HOT]]
    assert [id for name, id in _order(storage, again.files, bucket) if name == HOT.encode()] == expected


def test_files_of_one_run_are_open_one_at_a_time(
    spread: tuple[Storage, list[Record], list[DataFile]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large events fill hundreds of files of a run and a bucket, each of which takes megabytes while it is open."""
    storage, records, files = spread
    monkeypatch.setattr(compaction, "GROUP_ROWS", 10)
    new = [file for file in files if file.first_id > 1_900]
    joined = [
        file
        for bucket in range(BUCKETS)
        for file in join(
            CompactionTask(
                storage,
                BY_PARTITION,
                tuple(file for file in files if file not in new and file.bucket in (UNBUCKETED, bucket)),
                20,
                bucket,
                BUCKETS,
            )
        ).files
    ]
    now = most = 0

    @contextmanager
    def noted(place: Storage, file: DataFile) -> Iterator[object]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        with open_checked(place, file) as parquet:
            yield parquet
        now -= 1

    monkeypatch.setattr(merge, "open_checked", noted)
    model = outline_model()
    expected = {name: replayed(model, history) for name, history in by_partition(records).items()}
    folded: list[PartitionFold] = []
    for bucket in range(BUCKETS):
        own = [file for file in joined if file.bucket == bucket]
        assert len(own) > 3
        subset = PartitionSubset(BUCKETS, (bucket,))
        folded += fold_subset(work(storage, [*own, *new], subset))
        assert most == 2, "one of the joined run, and the new one"
        most = 0
        again = join(CompactionTask(storage, BY_PARTITION, tuple(own), 10_000, bucket, BUCKETS))
        assert again.read == again.written
        assert most == 1
        most = 0
    assert {one.partition: (one.state, one.skipped) for one in folded} == expected


def _order(storage: Storage, files: list[DataFile], bucket: int) -> list[tuple[bytes, int]]:
    subset = PartitionSubset(BUCKETS, (bucket,))
    sources = [
        scan_chain(storage, chain, subset, EVERY_ID, ("partition", "committed_id")) for chain in chains(files)
    ]
    found = [
        (name, id) for name, ids, start, end in pieces(merge_rows(sources), _ids) for id in ids[start:end]
    ]
    assert found == sorted(found)
    return found


def _ids(batch: object) -> list[int]:
    return list(batch.column("committed_id").to_pylist())  # type: ignore[attr-defined]


def test_a_history_is_never_held_whole() -> None:
    """Ten times the events of a partition whose state stays small: the same memory."""
    model = ShippedModel.open().load()
    text = orjson.dumps({"type": "set", "payload": {"target": "a", "value": "x" * 500}})

    def history(batches: int):  # type: ignore[no-untyped-def]
        for number in range(batches):
            ids = list(range(number * 1_000 + 1, number * 1_000 + 1_001))
            authors = [("c", None, 1)] * 1_000
            yield b"p", (ids, [bytes(text) + b" " * (number % 2)] * 1_000, authors), 0, 1_000

    def peak(batches: int) -> int:
        tracemalloc.start()
        folded = Folder(model).fold(b"p", None, history(batches))
        assert folded.events == batches * 1_000
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(10) < 2 * peak(1)


def test_a_history_out_of_order_is_refused() -> None:
    """Within the rows that were merged from several files, and from one batch to the next."""
    model = ShippedModel.open().load()

    def fold(*batches: list[int]) -> PartitionFold:
        history = [
            (b"p", (ids, [b'{"type":"set"}'] * len(ids), [("c", None, 1)] * len(ids)), 0, len(ids))
            for ids in batches
        ]
        return Folder(model).fold(b"p", None, history)

    assert fold([1, 3], [4, 9]).events == 4
    for batches, named in (([[1, 3, 3]], "event 3 .* after 3"), ([[1, 5], [4, 9]], "event 4 .* after 5")):
        with pytest.raises(LakeUnusable, match=named):
            fold(*batches)


def test_groups_by_name_stay_in_order(spread: tuple[Storage, list[Record], list[DataFile]]) -> None:
    storage, _, files = spread
    for bucket in range(BUCKETS):
        order = _order(storage, files, bucket)
        names = [name for name, _ in groupby(order, itemgetter(0))]
        assert len(names) == len(set(names))
