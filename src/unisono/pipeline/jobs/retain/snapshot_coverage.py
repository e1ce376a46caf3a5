"""Which events are covered by the store's snapshots, from the smallest columns of the lake's table `by_partition`.

A task asks the store for the snapshots of the partitions that it meets, some thousand at a time. So neither the
driver nor a worker has the watermarks of all partitions, and each is looked up once in a run. That `by_partition` has
every event is proved by `compare_rows` before any is pruned.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from unisono.lake.file_checks import open_checked
from unisono.lake.lake import View
from unisono.lake.row_groups import Footer
from unisono.lake.scan import RowRange, scan_file
from unisono.lake.storage import LOG, Storage
from unisono.lake.write import DataFile
from unisono.pipeline.open_log import open_reader, readers_at_once
from unisono.pipeline.spark.executors import run_on_executors, tasks_worthwhile
from unisono.store.port import LogReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCKERS_SHOWN: Final = 20
BLOCKERS_MAX: Final = 100_000
"""Blocking partitions kept by name; beyond this, those that block last are dropped."""

BATCHES_AT_ONCE: Final = 64
"""Half a million rows, of which only ids and partitions are read: each partition is looked up once for all."""

NAMES_AT_ONCE: Final = 5_000
"""Partitions looked up by one statement: some milliseconds."""

TASK_ROWS_WORTHWHILE: Final = 250_000
"""Rows for which a task is worth starting."""

_READ: Final = ("committed_id", "partition")


class LaggingSnapshot(msgspec.Struct, frozen=True):
    """A partition with events past its snapshot: the first of them, their number, and the snapshot's id."""

    partition: str
    first_id: int
    events: int
    watermark: int | None

    def text(self) -> str:
        has = "no snapshot" if self.watermark is None else f"snapshot at {self.watermark}"
        return f"{self.partition!r}: {has}, {self.events} events from {self.first_id} on"

    def __add__(self, other: LaggingSnapshot) -> LaggingSnapshot:
        return msgspec.structs.replace(
            self, first_id=min(self.first_id, other.first_id), events=self.events + other.events
        )


class Coverage(msgspec.Struct, frozen=True):
    """The first event of a range that some snapshot does not cover, and the partitions whose snapshots lag.

    `sizes`: first and last committed_id, and bytes of event text, of each row group.
    """

    first_blocked: int | None = None
    blockers: dict[str, LaggingSnapshot] = {}
    sizes: list[tuple[int, int, int]] = []

    def worst(self) -> list[LaggingSnapshot]:
        """The partitions that block first."""
        return heapq.nsmallest(
            BLOCKERS_SHOWN, self.blockers.values(), key=lambda b: (b.first_id, b.partition)
        )

    def bytes_within(self, since: int, upto: int) -> int:
        """Estimated event text of `(since, upto]`, assuming equal sizes within a row group."""
        return sum(
            size * max(0, min(last, upto) - max(first - 1, since)) // (last - first + 1)
            for first, last, size in self.sizes
        )


class StoredSnapshots(msgspec.Struct, frozen=True):
    """The snapshots that count: those of one model in a store."""

    store: str
    model_version: int
    model_digest: str

    def watermarks(self, reader: LogReader, names: list[str]) -> Any:
        """The committed ids of these partitions' snapshots; -1 for those without one."""
        found = np.full(len(names), -1, np.int64)
        for start in range(0, len(names), NAMES_AT_ONCE):
            some = names[start : start + NAMES_AT_ONCE]
            stored = reader.snapshot_sizes(some, self.model_version, self.model_digest)
            found[start : start + len(some)] = [stored[name][0] if name in stored else -1 for name in some]
        return found


class _Part(msgspec.Struct, frozen=True):
    stored: StoredSnapshots
    storage: Storage
    file: DataFile
    since: int
    upto: int


class _Sum:
    """Adds up what was found, in place."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._blockers: dict[str, LaggingSnapshot] = {}
        self._sizes: list[tuple[int, int, int]] = []

    def add(self, part: Coverage) -> None:
        if part.first_blocked is not None:
            self._first = part.first_blocked if self._first is None else min(self._first, part.first_blocked)
        for name, blocker in part.blockers.items():
            before = self._blockers.get(name)
            self._blockers[name] = blocker if before is None else before + blocker
        self._sizes += part.sizes
        if len(self._blockers) > 2 * BLOCKERS_MAX:
            self._blockers = _fewer(self._blockers)

    def whole(self) -> Coverage:
        return Coverage(self._first, _fewer(self._blockers), self._sizes)


def measure_coverage(
    spark: SparkSession, view: View, since: int, upto: int, stored: StoredSnapshots
) -> Coverage:
    """What the store's snapshots cover of `(since, upto]`."""
    parts = [
        _Part(stored, view.storage, file, since, upto)
        for file in (*view.log_files, *view.partition_files)
        if file.last_id > since and file.first_id <= upto
    ]
    tasks = tasks_worthwhile(spark, upto - since, TASK_ROWS_WORTHWHILE)
    readers = readers_at_once(stored.store) or tasks
    whole = _Sum()
    for found in run_on_executors(spark, parts, _measure_file, at_once=min(tasks, readers)):
        whole.add(found)
    return whole.whole()


def _measure_file(part: _Part) -> Coverage:
    """On an executor: the sizes of a file of `log`, or the rows of one of `by_partition`."""
    if part.file.table == LOG:
        return Coverage(sizes=list(_sizes(part)))
    whole = _Sum()
    batches = scan_file(part.storage, part.file, RowRange(part.since, part.upto), _READ)
    with closing(open_reader(part.stored.store)) as reader:
        while some := list(islice(batches, BATCHES_AT_ONCE)):
            whole.add(_measure_rows(pa.Table.from_batches(some), part.stored, reader))
    return whole.whole()


def _measure_rows(rows: pa.Table, stored: StoredSnapshots, reader: LogReader) -> Coverage:
    ids = np.asarray(rows.column("committed_id"))
    names = rows.column("partition").combine_chunks().dictionary_encode()
    marks = stored.watermarks(reader, names.dictionary.to_pylist())
    places = np.asarray(names.indices)
    late = ids > marks[places]
    if not late.any():
        return Coverage()
    ids, places = ids[late], places[late]
    # Ids ascend within a partition, so its first index is its first event.
    own, firsts, counts = np.unique(places, return_index=True, return_counts=True)
    texts = names.dictionary.take(pa.array(own)).to_pylist()
    reached = marks[own].tolist()
    blockers = {
        name: LaggingSnapshot(name, int(ids[first]), int(count), None if mark < 0 else mark)
        for name, first, count, mark in zip(texts, firsts.tolist(), counts.tolist(), reached, strict=True)
    }
    return Coverage(int(ids.min()), blockers)


def _sizes(part: _Part) -> Iterator[tuple[int, int, int]]:
    """Bytes of event text per row group, from the file's footer."""
    with open_checked(part.storage, part.file) as parquet:
        footer = Footer(parquet.metadata)
        for group in footer.row_groups():
            if group.overlaps(part.since, part.upto):
                yield group.first_id, group.last_id, footer.uncompressed_bytes(group.number, "event")


def _fewer(blockers: dict[str, LaggingSnapshot]) -> dict[str, LaggingSnapshot]:
    if len(blockers) <= BLOCKERS_MAX:
        return blockers
    kept = heapq.nsmallest(BLOCKERS_MAX, blockers.values(), key=lambda blocker: blocker.first_id)
    return {blocker.partition: blocker for blocker in kept}
