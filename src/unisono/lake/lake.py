"""The lake: an exact copy of the log in two Delta tables that any Delta reader can read, and folded snapshots.

    log           one row per event, sorted by committed_id
    by_partition  one row per (partition, event), bucketed by partition, sorted by partition and committed_id
    snapshots     states of partitions; exists once the first was folded

Invariants:

- `head` is the last committed_id exported to `log`, stored in the table itself. The lake has every event up to it,
  once, in both tables: `by_partition` is committed first, and its rows beyond the head are not read;
- a `View` is the lake at one version. Its files stay until a vacuum, whatever is exported or compacted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import pyarrow as pa

from unisono.lake.columns import bucket_of
from unisono.lake.errors import LakeUnusable, OutsideLake
from unisono.lake.same_rows import require_same_rows
from unisono.lake.scan import COLUMNS, scan_log, scan_partitions
from unisono.lake.storage import BY_PARTITION, LOG, Storage
from unisono.lake.table import BUCKETS, BUCKETS_MAX, Table
from unisono.lake.write import UNBUCKETED, DataFile
from unisono.protocol.partitions import PartitionError, normalise

__all__ = ["UNBUCKETED", "Lake", "View", "bucket_of"]


class Lake:
    """A lake at a location; every call opens the current version of its tables."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @classmethod
    def at(cls, location: str, storage_options: Mapping[str, str] | None = None) -> Lake:
        """`location`: a directory, or a URL with options for delta-rs."""
        return cls(Storage.at(location, storage_options))

    def make(self, buckets: int = BUCKETS) -> None:
        """Create the missing tables; `buckets` is fixed from then on."""
        if not 1 <= buckets <= BUCKETS_MAX:
            raise LakeUnusable(f"a lake has 1 to {BUCKETS_MAX} buckets, not {buckets}")
        Table.make(self.storage, LOG, buckets)
        Table.make(self.storage, BY_PARTITION, buckets)

    def exists(self) -> bool:
        return Table.open(self.storage, LOG) is not None

    def table(self, name: str) -> Table:
        """The current version of a table; LakeUnusable when it is missing."""
        found = Table.open(self.storage, name)
        if found is None:
            raise LakeUnusable(
                f"there is no lake at {self.storage.location} (its table {name} is missing): "
                "`unisono lake export` makes one"
            )
        return found

    def find(self, name: str, version: int | None = None) -> Table | None:
        """The current version of a table, or this one; None when it is missing."""
        return Table.open(self.storage, name, version)

    def view(self, *, checked: bool = True) -> View:
        """The current version; LakeUnusable unless both tables are complete and written by this program. Unchecked,
        the checks run when their files are listed."""
        log = self.table(LOG)  # first: by_partition already has what it has
        view = View(self.storage, log, self.table(BY_PARTITION))
        if checked:
            view.require_whole()
        return view

    def head(self) -> int:
        """The last committed_id in the lake, 0 while it is empty."""
        return self.table(LOG).head

    def scan_arrow(
        self,
        names: str | Sequence[str] | None = None,
        since: int = 0,
        upto: int | None = None,
        columns: Sequence[str] = COLUMNS,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        return self.view().scan_arrow(names, since, upto, columns, limit)


class View:
    """One version of each table."""

    def __init__(self, storage: Storage, log: Table, by_partition: Table) -> None:
        self.storage = storage
        self.log = log
        self.by_partition = by_partition
        self.head = log.head
        self.buckets = by_partition.description().buckets

    def require_whole(self) -> None:
        """Refuse a lake whose rows another program changed, or that lost rows."""
        _ = self.log_files, self.all_partition_files

    @cached_property
    def log_files(self) -> list[DataFile]:
        return self.log.readable_files()

    @cached_property
    def all_partition_files(self) -> list[DataFile]:
        files = self.by_partition.readable_files()
        require_same_rows(self.storage, self.log_files, files)
        return files

    @property
    def partition_files(self) -> list[DataFile]:
        if self.by_partition.head < self.head:
            raise LakeUnusable(
                f"the table {BY_PARTITION} ends at {self.by_partition.head} and {LOG} at {self.head}: "
                "`unisono lake export` completes it from the log's files"
            )
        return self.all_partition_files

    def scan_arrow(
        self,
        names: str | Sequence[str] | None = None,
        since: int = 0,
        upto: int | None = None,
        columns: Sequence[str] = COLUMNS,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Events of `(since, upto]` without Spark, ascending, each once; of all partitions (None), of one or of
        several; OutsideLake unless the lake has them all. Reads only row groups that may have some.
        """
        last = end_of_range(self.storage.location, self.head, since, upto)
        if names is None:
            return _limited(scan_log(self.storage, self.log_files, since, last, columns), limit)
        wanted = _as_spelled(names)
        return scan_partitions(
            self.storage, self.partition_files, self.buckets, wanted, since, last, columns, limit
        )


def end_of_range(location: str, head: int, since: int, upto: int | None) -> int:
    """The last id of `(since, upto]` in a lake that ends at `head`; a range that is not all there is refused."""
    if max(since, upto or 0) > head:
        wanted = f"events up to {upto}" if (upto or 0) > head else f"events after {since}"
        raise OutsideLake(
            f"the lake at {location} ends at event {head}, {wanted} are requested: "
            "`unisono lake export` adds what the log has"
        )
    end = head if upto is None else upto
    if not 0 <= since <= end:
        raise OutsideLake(f"({since}, {end}] is not a range: 0 <= from <= to must hold")
    return end


def _as_spelled(names: str | Sequence[str]) -> tuple[str, ...]:
    """Names given by a person, as the log spells them (PART-02). A text is one name, not one for each letter."""
    given = [names] if isinstance(names, str) else list(names)
    try:
        return normalise(given, entries_max=len(given), allow_empty=True)
    except PartitionError as error:
        raise OutsideLake(f"invalid partition name: {error}") from error


def _limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in batches:
        if left is None:
            yield batch
        elif left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows
        else:
            return
