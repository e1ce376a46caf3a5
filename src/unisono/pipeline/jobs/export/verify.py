"""Is the lake what the log is? Digests of the same ranges from both sides, taken on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from unisono.lake.digests import Digest, digest
from unisono.lake.lake import Lake, View
from unisono.lake.scan import RowRange, runs_of, scan_file
from unisono.lake.storage import Storage
from unisono.lake.write import DataFile
from unisono.pipeline.errors import NoSuchRange
from unisono.pipeline.open_log import extent, open_reader, read_range
from unisono.store.port import Record

if TYPE_CHECKING:
    from pyspark import SparkContext

_DIGESTED: Final = ("committed_id", "hash")


class VerifiedRange(msgspec.Struct, frozen=True):
    """One range, seen from both sides."""

    since: int
    upto: int
    log: Digest
    by_partition: Digest
    store_log: Digest
    store_by_partition: Digest

    @property
    def equal(self) -> bool:
        return self.log == self.store_log and self.by_partition == self.store_by_partition


class Range(msgspec.Struct, frozen=True):
    """One task's part of a comparison: where log and lake are, and the files of the lake that hold the range."""

    store: str
    storage: Storage
    since: int
    upto: int
    log: tuple[DataFile, ...]
    by_partition: tuple[DataFile, ...]


def verify(
    spark: SparkContext, store: str, lake: Lake, since: int = 0, upto: int | None = None
) -> list[VerifiedRange]:
    """Compare the lake with the log over what both hold of `(since, upto]`, range by range.

    Ranges follow the runs of the lake, so that every file is read once. What has left the log cannot be compared.
    """
    view = lake.view()
    held = extent(store)
    first, last = max(since, held.pruned_to), min(view.head, held.head if upto is None else upto)
    if first >= last:
        if since < last:
            raise NoSuchRange(f"the log has nothing left of ({since}, {last}] to compare the lake with")
        return []
    tasks = ranges(store, view, first, last)
    return list(spark.parallelize(tasks, len(tasks)).map(check).collect())


def ranges(store: str, view: View, since: int, upto: int) -> list[Range]:
    """`(since, upto]` cut where the runs of the table by partition end, so that each file is read by one task."""
    return [
        Range(
            store,
            view.storage,
            low,
            high,
            _touching(view.log_files, low, high),
            _touching(view.partition_files, low, high),
        )
        for low, high in _edges(view.partition_files, since, upto)
    ]


def check(task: Range) -> VerifiedRange:
    """On an executor: one range from both sides."""
    return VerifiedRange(
        task.since,
        task.upto,
        _of_files(task, task.log, _DIGESTED),
        _of_files(task, task.by_partition, (*_DIGESTED, "partition")),
        *_of_store(task),
    )


def _edges(files: Sequence[DataFile], since: int, upto: int) -> Iterator[tuple[int, int]]:
    low = since
    for run in runs_of(files):
        high = min(upto, max(file.last_id for file in run))
        if high > low:
            yield low, high
            low = high
    if low < upto:
        yield low, upto


def _touching(files: Sequence[DataFile], since: int, upto: int) -> tuple[DataFile, ...]:
    return tuple(file for file in files if file.last_id > since and file.first_id <= upto)


def _of_files(task: Range, files: Sequence[DataFile], columns: Sequence[str]) -> Digest:
    span = RowRange(task.since, task.upto)
    batches = chain.from_iterable(scan_file(task.storage, file, span, columns) for file in files)
    return sum(map(digest, batches), Digest())


def _of_store(task: Range) -> tuple[Digest, Digest]:
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


def store_digest(records: Sequence[Record]) -> tuple[Digest, Digest]:
    """What both tables of the lake must have for these records."""
    places = [(record, name) for record in records for name in record.partitions]
    by_partition = _rows([record for record, _ in places], [name for _, name in places])
    return digest(_rows(records, None)), digest(by_partition)


def _rows(records: Sequence[Record], names: Sequence[str] | None) -> Any:
    columns = {
        "committed_id": pa.array([record.committed_id for record in records], pa.int64()),
        "hash": pa.array([record.hash for record in records], pa.binary()),
    }
    if names is not None:
        columns["partition"] = pa.array(names, pa.string())
    return pa.table(columns)
