"""Compares the log with the lake, range by range, on executors. Two strengths, one plan:

- `verify` compares digests of the hashes that both sides carry: fast, and enough to know that nothing is missing,
  repeated or mixed up.
- `compare_rows` compares every column of every row in both tables, and recomputes each hash from the lake's event. It
  runs before events leave the log, after which the lake is the only copy.

A result is of one run of `by_partition`. Some tasks read slices of its ids in the log and in the table `log`, others
read its files of `by_partition`, each once; what they found adds up. Both need sound files and stop at the first
error. An audit must not: `jobs/audit/compare_copies.py` sums fingerprints over blocks of ids, goes on past
unreadable files and names every differing row. `origin_check.py` compares hashes without Spark, before a job starts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from unisono.lake.columns import LOG_SCHEMA, to_batch
from unisono.lake.content_check import first_wrong_hash
from unisono.lake.digests import Digest, digest, total
from unisono.lake.lake import Lake, View
from unisono.lake.scan import RowRange, runs_of, scan_file, scan_log
from unisono.lake.storage import BY_PARTITION, LOG, Storage
from unisono.lake.write import DataFile
from unisono.pipeline.errors import NoSuchRange
from unisono.pipeline.open_log import extent, open_reader, read_range, readers_at_once
from unisono.pipeline.row_fingerprints import (
    LAKE_COLUMNS,
    Columns,
    batch_hashes,
    expected_partition_rows,
    mix,
)
from unisono.pipeline.spark.executors import parallelism, run_on_executors, tasks_worthwhile
from unisono.store.batching import in_batches
from unisono.store.port import LogReader, Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_AT_ONCE: Final = 8_192
BYTES_AT_ONCE: Final = 32 << 20
"""Events compared at a time, and their text: the rows of both sides are in memory."""

TASK_ROWS_MIN: Final = 100_000
TASK_ROWS_MAX: Final = 250_000
"""Rows of one task: worth starting it, and some seconds at most. Shorter runs share one."""

TASKS_PER_CORE: Final = 4

Part = TypeVar("Part")

_DIGESTED: Final = ("committed_id", "hash")


class CompareTask(msgspec.Struct, frozen=True):
    """One task: of the ids `(since, upto]` of a run the log and the files of `log`, or files of `by_partition`."""

    run: int
    store: str
    storage: Storage
    since: int
    upto: int
    log: tuple[DataFile, ...] = ()
    by_partition: tuple[DataFile, ...] = ()


class VerifiedRange(msgspec.Struct, frozen=True):
    """The digests of one range in both tables, from the lake and from the log."""

    since: int
    upto: int
    log: Digest
    by_partition: Digest
    store_log: Digest
    store_by_partition: Digest

    @property
    def equal(self) -> bool:
        return self.log == self.store_log and self.by_partition == self.store_by_partition


class ComparedRange(msgspec.Struct, frozen=True):
    """One range; `problem` names the first event whose copy differs from the log, None when all are equal."""

    since: int
    upto: int
    events: int
    problem: str | None = None


def verify(
    spark: SparkSession, store: str, lake: Lake, since: int = 0, upto: int | None = None
) -> list[VerifiedRange]:
    """Compare digests over the part of `(since, upto]` that both hold. Events that left the log are not compared."""
    view = lake.view()
    log = extent(store)
    first, last = max(since, log.pruned_to), min(view.head, log.head if upto is None else upto)
    if first >= last:
        if since < last:
            raise NoSuchRange(f"nothing to compare: the log no longer has any event of ({since}, {last}]")
        return []
    runs = list(_split_at_runs(view.partition_files, first, last))
    found = _on_executors(spark, store, view, runs, _verify_part)
    return [
        VerifiedRange(since, upto, *(total([part[column] for part in parts]) for column in range(4)))
        for (since, upto), parts in zip(runs, found, strict=True)
    ]


def same_places(spark: SparkSession, store: str, view: View, since: int, upto: int) -> bool:
    """Whether `by_partition` has every column of what the log has of `(since, upto]`; the table `log` may lack it."""
    (parts,) = _on_executors(spark, store, view, [(since, upto)], _compare_places)
    return _compared((since, upto), parts).problem is None


def compare_rows(spark: SparkSession, store: str, view: View, since: int, upto: int) -> list[ComparedRange]:
    """Compare every row of `(since, upto]`, which log and lake must both hold."""
    runs = list(_split_at_runs(view.partition_files, since, upto))
    found = _on_executors(spark, store, view, runs, _compare_part)
    return [_compared(run, parts) for run, parts in zip(runs, found, strict=True)]


def _compared(run: tuple[int, int], parts: Sequence[_ComparedPart]) -> ComparedRange:
    since, upto = run
    problem = next((part.problem for part in parts if part.problem is not None), None)
    expected, found = (
        sum(sums, _RowSum()) for sums in zip(*((p.expected, p.found) for p in parts), strict=True)
    )
    if problem is None and found != expected:
        problem = f"the table {BY_PARTITION} differs from the log within events {since + 1} to {upto}"
    return ComparedRange(since, upto, upto - since, problem)


def store_digest(records: Sequence[Record]) -> tuple[Digest, Digest]:
    """The digests that `log` and `by_partition` must have for these records."""
    pairs = [(record, name) for record in records for name in record.partitions]
    by_partition = _digest_rows([record for record, _ in pairs], [name for _, name in pairs])
    return digest(_digest_rows(records, None)), digest(by_partition)


def _on_executors(
    spark: SparkSession,
    store: str,
    view: View,
    runs: Sequence[tuple[int, int]],
    work: Callable[[CompareTask], Part],
) -> list[list[Part]]:
    """What the tasks of each run found, those that read the log first."""
    rows = sum(upto - since for since, upto in runs)
    size = min(max(rows // (parallelism(spark) * TASKS_PER_CORE), TASK_ROWS_MIN), TASK_ROWS_MAX)
    log, by_partition = _FilesById(view.log_files), _FilesById(view.partition_files)
    slices, files = [], []
    for number, (since, upto) in enumerate(runs):
        slices += [
            CompareTask(number, store, view.storage, low, high, log.touching(low, high))
            for low, high in _slices(since, upto, size)
        ]
        files += [
            CompareTask(number, store, view.storage, since, upto, by_partition=tuple(some))
            for some in _joined(by_partition.touching(since, upto), size)
        ]
    readers = readers_at_once(store)
    if readers is None:
        together = tasks_worthwhile(spark, 2 * rows, TASK_ROWS_MIN)
        results = run_on_executors(spark, [*slices, *files], work, at_once=together)
    else:
        results = [
            *run_on_executors(
                spark, slices, work, at_once=min(readers, tasks_worthwhile(spark, rows, TASK_ROWS_MIN))
            ),
            *run_on_executors(spark, files, work, at_once=tasks_worthwhile(spark, rows, TASK_ROWS_MIN)),
        ]
    found: list[list[Part]] = [[] for _ in runs]
    for task, result in zip([*slices, *files], results, strict=True):
        found[task.run].append(result)
    return found


def _slices(since: int, upto: int, size: int) -> Iterator[tuple[int, int]]:
    parts = -(-(upto - since) // size)
    return pairwise(since + (upto - since) * part // parts for part in range(parts + 1))


def _joined(files: Sequence[DataFile], rows: int) -> Iterator[list[DataFile]]:
    """Files in groups of so many rows, or one that has more."""
    some: list[DataFile] = []
    size = 0
    for file in files:
        if some and size + file.rows > rows:
            yield some
            some, size = [], 0
        some.append(file)
        size += file.rows
    if some:
        yield some


def _split_at_runs(files: Sequence[DataFile], since: int, upto: int) -> Iterator[tuple[int, int]]:
    low = since
    for run in runs_of(files):
        high = min(upto, max(file.last_id for file in run))
        if high > low:
            yield low, high
            low = high
    if low < upto:
        yield low, upto


class _FilesById:
    """Files of one table, to find those of a range of ids without looking at all of them for each task."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self._files = sorted(files, key=lambda file: file.first_id)
        self._firsts = [file.first_id for file in self._files]
        self._reached = list(accumulate((file.last_id for file in self._files), max))

    def touching(self, since: int, upto: int) -> tuple[DataFile, ...]:
        """Those that have ids in `(since, upto]`."""
        start, end = bisect_right(self._reached, since), bisect_right(self._firsts, upto)
        return tuple(file for file in self._files[start:end] if file.last_id > since)


def _verify_part(task: CompareTask) -> tuple[Digest, Digest, Digest, Digest]:
    """On an executor: what a task adds to the digests of a `VerifiedRange`."""
    if task.by_partition:
        found = _digest_files(task, task.by_partition, (*_DIGESTED, "partition"))
        return Digest(), found, Digest(), Digest()
    return _digest_files(task, task.log, _DIGESTED), Digest(), *_digest_store(task)


def _digest_files(task: CompareTask, files: Sequence[DataFile], columns: Sequence[str]) -> Digest:
    span = RowRange(task.since, task.upto)
    batches = chain.from_iterable(scan_file(task.storage, file, span, columns) for file in files)
    return sum(map(digest, batches), Digest())


def _digest_store(task: CompareTask) -> tuple[Digest, Digest]:
    log, by_partition = Digest(), Digest()
    reader = open_reader(task.store)
    try:
        for records in read_range(reader, task.since, task.upto):
            of_log, of_partitions = store_digest(records)
            log += of_log
            by_partition += of_partitions
    finally:
        reader.close()
    return log, by_partition


def _digest_rows(records: Sequence[Record], names: Sequence[str] | None) -> Any:
    columns = {
        "committed_id": pa.array([record.committed_id for record in records], pa.int64()),
        "hash": pa.array([record.hash for record in records], pa.binary()),
    }
    if names is not None:
        columns["partition"] = pa.array(names, pa.string())
    return pa.table(columns)


class _RowSum(msgspec.Struct, frozen=True):
    """Rows of `by_partition` in any order: their number, and the sum of their fingerprints modulo 2^64."""

    rows: int = 0
    fingerprints: int = 0

    def __add__(self, other: _RowSum) -> _RowSum:
        return _RowSum(self.rows + other.rows, (self.fingerprints + other.fingerprints) % (1 << 64))

    @classmethod
    def of(cls, ids: Any, columns: Columns) -> _RowSum:
        return cls(len(ids), int(mix(ids, columns).sum(dtype=np.uint64)))


class _ComparedPart(msgspec.Struct, frozen=True):
    """What one task found: the rows that `by_partition` must have by the log, or those that it has."""

    problem: str | None
    expected: _RowSum = _RowSum()
    found: _RowSum = _RowSum()


def _compare_part(task: CompareTask) -> _ComparedPart:
    """On an executor."""
    if task.by_partition:
        problem, rows = _read_partition_rows(task)
        return _ComparedPart(problem, found=rows)
    reader = open_reader(task.store)
    try:
        problem, rows = _compare_log(task, reader)
    finally:
        reader.close()
    return _ComparedPart(problem, expected=rows)


def _compare_places(task: CompareTask) -> _ComparedPart:
    """On an executor: the log beside `by_partition` alone."""
    if task.by_partition:
        return _compare_part(task)
    with closing(open_reader(task.store)) as reader:
        rows = (_expected_rows(to_batch(records)) for records in _portions(task, reader))
        return _ComparedPart(None, expected=sum(rows, _RowSum()))


def _portions(task: CompareTask, reader: LogReader) -> Iterator[list[Record]]:
    events = chain.from_iterable(read_range(reader, task.since, task.upto))
    return in_batches(
        events, lambda record: len(record.event), count_max=ROWS_AT_ONCE, bytes_max=BYTES_AT_ONCE
    )


def _expected_rows(events: pa.RecordBatch) -> _RowSum:
    """The rows that `by_partition` must have of these events."""
    parents, columns = expected_partition_rows(events, batch_hashes(events, LAKE_COLUMNS))
    return _RowSum.of(np.asarray(events.column("committed_id"))[parents], columns)


def _compare_log(task: CompareTask, reader: LogReader) -> tuple[str | None, _RowSum]:
    """The first problem of table `log` against the store; and what `by_partition` must have."""
    expected = _RowSum()
    for records in _portions(task, reader):
        since, upto = records[0].committed_id - 1, records[-1].committed_id
        batch = to_batch(records)
        expected += _expected_rows(batch)
        lake = pa.Table.from_batches(list(scan_log(task.storage, task.log, since, upto)), LOG_SCHEMA)
        if not lake.equals(pa.Table.from_batches([batch])):
            return _first_difference(lake, records), expected
        if (problem := first_wrong_hash(LOG, lake.to_batches())) is not None:
            return problem, expected
    return None, expected


def _read_partition_rows(task: CompareTask) -> tuple[str | None, _RowSum]:
    """The first problem of some files of `by_partition`; and the rows they have."""
    span = RowRange(task.since, task.upto)
    found = _RowSum()
    for file in task.by_partition:
        for batch in scan_file(task.storage, file, span, ("committed_id", "partition", *LAKE_COLUMNS)):
            found += _RowSum.of(
                np.asarray(batch.column("committed_id")), batch_hashes(batch, (*LAKE_COLUMNS, "partition"))
            )
            if (problem := first_wrong_hash(BY_PARTITION, [batch])) is not None:
                return problem, found
    return None, found


def _first_difference(lake: pa.Table, records: Sequence[Record]) -> str:
    rows = {row["committed_id"]: row for row in lake.to_pylist()}
    for record in records:
        (expected,) = to_batch([record]).to_pylist()
        found = rows.get(record.committed_id)
        if found is None:
            return f"event {record.committed_id} is not in the lake"
        if found != expected:
            return f"event {record.committed_id} differs between the log and the lake"
    return f"the lake has duplicates among events {records[0].committed_id} to {records[-1].committed_id}"
