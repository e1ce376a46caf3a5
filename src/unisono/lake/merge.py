"""Subsets of the partitions, and reading them from files that are each sorted by partition and committed_id.

The files are runs of `by_partition` (or generations of `snapshots`), in the order of their ids, which never overlap.
Merged (`merge_rows.py`), they give the histories of all partitions, one after the other, however long they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.columns import bucket_of
from unisono.lake.file_checks import RowOrder, open_checked
from unisono.lake.row_groups import Footer
from unisono.lake.scan import BATCH_ROWS, RowRange
from unisono.lake.sections import Section, section_of
from unisono.lake.storage import Storage
from unisono.lake.write import UNBUCKETED, DataFile

FILES_MERGED_MAX: Final = 256
"""Files merged, each with two batches of rows in memory where all are open at once."""

MERGED_BYTES_MAX: Final = 768 << 20
"""Memory of these, as `open_bytes` estimates it: large events make it gigabytes with fewer files."""

MERGE_ROWS_MAX: Final = 32 * 1_024
BATCH_ROWS_MIN: Final = 512
"""Rows read at a time from all files of a merge, and from one. More make a worker larger and no faster."""

EVERY_ID: Final = RowRange(-1, (1 << 53) - 1)

Piece: TypeAlias = tuple[bytes, Any, int, int]
"""Rows of one partition: its name, the converted batch, first row, end."""


class PartitionSubset(msgspec.Struct, frozen=True):
    """Some of the partitions: those of some buckets (None: of all), with names from `low` to before `high`; of one
    section of a bucket, where one is given."""

    buckets_in_all: int
    buckets: tuple[int, ...] | None = None
    low: bytes | None = None
    high: bytes | None = None
    section: Section | None = None

    def holds(self, name: str) -> bool:
        return (
            self._in_range(name.encode())
            and (self.buckets is None or bucket_of(name, self.buckets_in_all) in self.buckets)
            and (self.section is None or self.section.holds(name))
        )

    def _in_range(self, name: bytes) -> bool:
        return (self.low is None or name >= self.low) and (self.high is None or name < self.high)

    def may_be_in(self, file: DataFile) -> bool:
        """Whether a file can have rows of this subset."""
        assert file.first_partition is not None
        assert file.last_partition is not None
        ours = self.buckets is None or file.bucket == UNBUCKETED or file.bucket in self.buckets
        if ours and self.section is not None and (own := section_of(file)) is not None:
            ours = self.section.meets(own)
        return ours and self.meets(file.first_partition.encode(), file.last_partition.encode())

    def splits(self, file: DataFile) -> bool:
        """Whether a file that has rows of this subset may have others, by their buckets and sections."""
        if file.bucket == UNBUCKETED and self.buckets is not None:
            return True
        own = section_of(file)
        return self.section is not None and (own is None or not own.within(self.section))

    def meets(self, first: bytes, last: bytes) -> bool:
        """Whether names from `first` to `last` can be among its names."""
        return (self.low is None or last >= self.low) and (self.high is None or first < self.high)

    def holds_range(self, first: bytes, last: bytes) -> bool:
        """Whether all names from `first` to `last` are within its bounds, whatever their buckets."""
        return self._in_range(first) and self._in_range(last)

    def filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch.column("partition").dictionary_encode()
        ours = [self.holds(name) for name in names.dictionary.to_pylist()]
        return batch if all(ours) else batch.filter(pa.array(ours, pa.bool_()).take(names.indices))


class NamedPartitions(PartitionSubset, frozen=True, kw_only=True):
    """The partitions with these names, sorted by their UTF-8 bytes."""

    names: tuple[bytes, ...]

    def holds(self, name: str) -> bool:
        wanted = name.encode()
        return self.meets(wanted, wanted)

    def meets(self, first: bytes, last: bytes) -> bool:
        place = bisect_left(self.names, first)
        return place < len(self.names) and self.names[place] <= last

    def holds_range(self, first: bytes, last: bytes) -> bool:
        return first == last and self.meets(first, last)


def batch_rows_for(files: int) -> int:
    """Rows in a batch of one file, when so many are open at once."""
    return max(BATCH_ROWS_MIN, min(BATCH_ROWS, MERGE_ROWS_MAX // max(1, files)))


def pieces(batches: Iterable[pa.RecordBatch], made: Callable[[pa.RecordBatch], Any]) -> Iterator[Piece]:
    """Rows sorted by partition, split where the partition changes; `made` converts a batch."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        runs = pc.run_end_encode(batch.column("partition"))
        rows = made(batch)
        start = 0
        for name, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield name.encode(), rows, start, end
            start = end


def scan_subset(
    storage: Storage,
    file: DataFile,
    subset: PartitionSubset,
    span: RowRange,
    columns: Sequence[str],
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file in this subset and in this range of ids, in the file's order, which is checked."""
    read = list(dict.fromkeys((*columns, "partition", "committed_id")))
    mixed = subset.splits(file)
    order = RowOrder(file)
    with open_checked(storage, file) as parquet:
        for group in Footer(parquet.metadata).row_groups():
            if not (span.may_be_in(group) and subset.meets(group.first_name, group.last_name)):
                continue
            partly = not group.within(span.since, span.upto)
            if partly and not _any_within(parquet, group.number, span):
                continue
            whole = not mixed and subset.holds_range(group.first_name, group.last_name)
            for batch in parquet.iter_batches(batch_rows, row_groups=[group.number], columns=read):
                order.follow(batch.column("committed_id"), batch.column("partition"))
                rows = batch.filter(span.expression()) if partly else batch
                rows = rows if whole else subset.filter(rows)
                if rows.num_rows:
                    yield rows.select(list(columns))


def scan_chain(
    storage: Storage,
    chain: Iterable[DataFile],
    subset: PartitionSubset,
    span: RowRange,
    columns: Sequence[str],
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The rows of files that follow each other (`chains`); each is opened where the one before ends."""
    for file in chain:
        yield from scan_subset(storage, file, subset, span, columns, batch_rows)


def _any_within(parquet: Any, group: int, span: RowRange) -> bool:
    """Whether any row of a group is in the range. In a long run few groups have new rows, and ids are read fast."""
    ids = parquet.read_row_group(group, columns=["committed_id"]).column("committed_id")
    there = pc.and_(pc.greater(ids, span.since), pc.less_equal(ids, span.upto))
    return bool(pc.any(there).as_py())
