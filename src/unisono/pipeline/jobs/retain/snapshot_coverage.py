"""Which events are covered by the store's snapshots, from the smallest columns of the lake's table `log`."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.file_checks import open_checked
from unisono.lake.lake import View
from unisono.lake.row_groups import Footer
from unisono.lake.scan import RowRange, scan_file
from unisono.lake.storage import Storage
from unisono.lake.write import DataFile
from unisono.pipeline.spark.executors import run_on_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCKERS_SHOWN: Final = 20
BLOCKERS_MAX: Final = 100_000
"""Blocking partitions kept by name; beyond this, those that block last are dropped."""

_READ: Final = ("committed_id", "partitions")


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

    def __add__(self, other: Coverage) -> Coverage:
        firsts = [first for first in (self.first_blocked, other.first_blocked) if first is not None]
        blockers = dict(self.blockers)
        for name, blocker in other.blockers.items():
            blockers[name] = blockers[name] + blocker if name in blockers else blocker
        return Coverage(min(firsts, default=None), _fewer(blockers), self.sizes + other.sizes)

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


class _Part(msgspec.Struct, frozen=True):
    storage: Storage
    file: DataFile
    since: int
    upto: int


def measure_coverage(
    spark: SparkSession, view: View, since: int, upto: int, marks: Mapping[str, int]
) -> Coverage:
    """What snapshots at `marks` (partition → committed_id) cover of `(since, upto]`."""
    parts = [
        _Part(view.storage, file, since, upto)
        for file in view.log_files
        if file.last_id > since and file.first_id <= upto
    ]
    if not parts:
        return Coverage()
    found = run_on_executors(spark, parts, partial(_measure_file, dict(marks)))
    return reduce(add, found, Coverage())


def _measure_file(watermarks: Mapping[str, int], part: _Part) -> Coverage:
    """On an executor: one file."""
    covered = Coverage(sizes=list(_sizes(part)))
    for batch in scan_file(part.storage, part.file, RowRange(part.since, part.upto), _READ):
        covered += _measure_batch(batch, watermarks)
    return covered


def _measure_batch(batch: pa.RecordBatch, watermarks: Mapping[str, int]) -> Coverage:
    lists = batch.column("partitions")
    ids = np.asarray(batch.column("committed_id"))[np.asarray(pc.list_parent_indices(lists))]
    names = pc.list_flatten(lists).dictionary_encode()
    texts = names.dictionary.to_pylist()
    marks = np.array([watermarks.get(name, -1) for name in texts], np.int64)
    places = np.asarray(names.indices)
    late = ids > marks[places]
    if not late.any():
        return Coverage()
    ids, places = ids[late], places[late]
    # Ids ascend within a file, so the first index of a partition is its first event.
    own, firsts, counts = np.unique(places, return_index=True, return_counts=True)
    blockers = {
        texts[place]: LaggingSnapshot(texts[place], int(ids[first]), int(count), watermarks.get(texts[place]))
        for place, first, count in zip(own.tolist(), firsts.tolist(), counts.tolist(), strict=True)
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
