"""The in-memory index of a lake's files, and a bounded cache of what was read from them.

A file of `by_partition` is sorted by partition and committed_id, one of `log` by committed_id. Only what a page needs
is read, and it is cached for the next page within one bound of bytes:

    row groups   of one file: their ranges of ids and partitions
    layout       of one row group: which rows each partition has, and their ids
    piece        consecutive rows of one row group, all columns of a record

A row group is decoded whole, about 4 ms for 8,192 events, so reading a history page by page decodes each group once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.columns import bucket_of
from unisono.lake.file_checks import RowOrder, require_footer
from unisono.lake.lake import View
from unisono.lake.row_groups import NO_NAME, Footer, RowGroup
from unisono.lake.scan import runs_of
from unisono.lake.sections import Section, section_of
from unisono.lake.sorted_copies import open_source
from unisono.lake.storage import BY_PARTITION, Storage
from unisono.lake.write import UNBUCKETED, DataFile
from unisono.store.port import Record

T = TypeVar("T")

OPEN_FILES_MAX: Final = 32
"""Files open at once. A page of many partitions reads files of 16 buckets; opening one again is cheap."""

PIECE_ROWS_MAX: Final = 1_024
PIECE_BYTES: Final = 512 * 1024
"""The smallest cached part of a row group: 64 partitions then need about 30 MB, whatever their size."""

GROUP_COST_BYTES: Final = 256
"""Approximate memory of one `RowGroup`."""

RECORD_COLUMNS: Final = Record.__struct_fields__
PARTITIONS: Final = RECORD_COLUMNS.index("partitions")
AUTHOR: Final = RECORD_COLUMNS.index("author")


class PartitionFile(msgspec.Struct, frozen=True):
    """A file with its first and last partition as bytes, which is how they are ordered."""

    file: DataFile
    first: bytes
    last: bytes

    @classmethod
    def of(cls, file: DataFile) -> PartitionFile:
        if file.first_partition is None or file.last_partition is None:
            return cls(file, NO_NAME, NO_NAME)
        return cls(file, file.first_partition.encode(), file.last_partition.encode())


class Run(msgspec.Struct, frozen=True):
    """Files with interleaved ids; runs of one bucket do not overlap."""

    first_id: int
    last_id: int
    places: tuple[PartitionFile, ...]

    def of(self, name: bytes) -> list[PartitionFile]:
        """The files that may have rows of a partition, in the order of its ids.

        A partition that continues in another file is the last of its file and the first of the next. Files with only
        this partition are between the two, ordered by their ids.
        """
        found = [place for place in self.places if place.first <= name <= place.last]
        return sorted(found, key=lambda place: (place.first, place.last, place.file.first_id))


class Runs(msgspec.Struct, frozen=True):
    """All runs that may have partitions of one bucket, by id."""

    runs: list[Run]
    ends: list[int]

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> Runs:
        runs = [
            Run(
                min(file.first_id for file in group),
                max(file.last_id for file in group),
                tuple(map(PartitionFile.of, group)),
            )
            for group in runs_of(files)
        ]
        return cls(runs, [run.last_id for run in runs])

    def within(self, since: int, upto: int) -> Iterator[Run]:
        """Those with ids in `(since, upto]`, ascending."""
        later = self.runs[bisect_left(self.ends, since + 1) :]
        return takewhile(lambda run: run.first_id <= upto, later)


class Index:
    """The files of one version of the lake, by bucket and ids."""

    def __init__(self, view: View) -> None:
        self.head = view.head
        self._buckets = view.buckets
        self._by_bucket: dict[int, list[DataFile]] = {}
        self._sections = self._buckets
        for file in view.partition_files:
            assert file.bucket is not None
            self._by_bucket.setdefault(file.bucket, []).append(file)
            if (section := section_of(file)) is not None:
                self._sections = max(self._sections, section.count)
        self._log_files = view.log_files
        self._runs: dict[int, Runs] = {}
        self._log: Runs | None = None
        self.paths = {(f.table, f.path) for f in (*view.partition_files, *view.log_files)}

    def runs(self, name: str | None) -> Runs:
        """The runs of a partition; None: of the table `log`, with all events."""
        if name is None:
            if self._log is None:
                self._log = Runs.of(self._log_files)
            return self._log
        section = Section(self._sections, bucket_of(name, self._sections))
        if section.number not in self._runs:
            own = self._by_bucket.get(section.number % self._buckets, ())
            mine = [file for file in own if (its := section_of(file)) is None or its.meets(section)]
            self._runs[section.number] = Runs.of([*mine, *self._by_bucket.get(UNBUCKETED, ())])
        return self._runs[section.number]


class RowGroups(msgspec.Struct, frozen=True):
    """The row groups of a file, in its order."""

    groups: list[RowGroup]
    last_names: list[bytes]

    def of(self, name: bytes, since: int, upto: int) -> Iterator[RowGroup]:
        """The groups that may have rows of a partition with ids in `(since, upto]`."""
        for group in self.groups[bisect_left(self.last_names, name) :]:
            if group.first_name > name:
                return
            if group.overlaps(since, upto):
                yield group


class Layout(msgspec.Struct, frozen=True):
    """Which rows of a row group belong to which partition, and the ids of all rows."""

    ids: Any
    names: Any | None
    ends: Any

    def rows(self, name: bytes) -> tuple[int, int]:
        """The range of rows of a partition; empty when it has none."""
        names = self.names
        if names is None:
            return 0, len(self.ids)
        place = bisect_left(range(len(names)), name, key=lambda number: names[number].as_py())
        if place == len(names) or names[place].as_py() != name:
            return 0, 0
        return (int(self.ends[place - 1]) if place else 0), int(self.ends[place])


class Piece(msgspec.Struct, frozen=True):
    """Consecutive rows of a row group; `start` is the first one's number."""

    start: int
    rows: Any

    @property
    def end(self) -> int:
        return self.start + int(self.rows.num_rows)

    def records(self, start: int, end: int) -> list[Record]:
        """The records of rows `start` to `end` of the row group."""
        some = self.rows.slice(start - self.start, end - start)
        columns = [some.column(name).to_pylist() for name in RECORD_COLUMNS]
        columns[PARTITIONS] = map(tuple, columns[PARTITIONS])
        columns[AUTHOR] = [author or "" for author in columns[AUTHOR]]
        return [Record(*row) for row in zip(*columns, strict=True)]


class BoundedCache:
    """An LRU cache of at most `bytes_max` bytes; the newest item is always kept."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._items: OrderedDict[tuple[str, ...], tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[str, ...]) -> Any:
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: tuple[str, ...], value: T, size: int) -> T:
        self._forget(key)
        self._items[key] = value, size
        self._bytes += size
        while self._bytes > self.bytes_max and len(self._items) > 1:
            self._forget(next(iter(self._items)))
        return value

    def keep_only(self, wanted: Callable[[tuple[str, ...]], bool]) -> None:
        for key in [key for key in self._items if not wanted(key)]:
            self._forget(key)

    def _forget(self, key: tuple[str, ...]) -> None:
        found = self._items.pop(key, None)
        if found is not None:
            self._bytes -= found[1]


class Files:
    """Reads row groups, layouts and pieces, and caches them."""

    def __init__(self, storage: Storage, bytes_max: int) -> None:
        self._storage = storage
        self._kept = BoundedCache(bytes_max)
        self._open: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def keep_only(self, paths: set[tuple[str, str]]) -> None:
        """Drop everything of all other files, which were replaced or removed."""
        self._kept.keep_only(lambda key: (key[0], key[1]) in paths)
        for path in [path for path in self._open if path not in paths]:
            self._open.pop(path).close(force=True)

    def close(self) -> None:
        self.keep_only(set())

    def row_groups(self, file: DataFile) -> RowGroups:
        key = (file.table, file.path)
        found: RowGroups | None = self._kept.get(key)
        if found is None:
            groups = list(Footer(self._parquet(file).metadata).row_groups())
            found = RowGroups(groups, [group.last_name for group in groups])
            self._kept.put(key, found, len(groups) * GROUP_COST_BYTES)
        return found

    def layout(self, file: DataFile, group: RowGroup) -> Layout:
        key = (file.table, file.path, "layout", str(group.number))
        found: Layout | None = self._kept.get(key)
        if found is None:
            found = self._read_layout(file, group)
            self._kept.put(key, found, 8 * len(found.ids) + 40 * len(found.ends))
        return found

    def piece(self, file: DataFile, group: RowGroup, row: int, share: float) -> Piece:
        """The piece with this row. Other pieces of the group are cached too, within `share` of the cache."""
        number = row // _piece_rows(group)
        found: Piece | None = self._kept.get(_piece_key(file, group, number))
        return self._read_pieces(file, group, number, share) if found is None else found

    def _read_layout(self, file: DataFile, group: RowGroup) -> Layout:
        own = ("partition",) if file.table == BY_PARTITION else ()
        rows = self._read(file, group, (*own, "committed_id"))
        ids = np.asarray(rows.column("committed_id"))
        RowOrder(file).follow(ids, rows.column("partition") if own else None)
        if not own:
            return Layout(ids, None, np.array([len(ids)]))
        runs = pc.run_end_encode(rows.column("partition").combine_chunks())
        return Layout(ids, runs.values.cast(pa.binary()), np.asarray(runs.run_ends))

    def _read_pieces(self, file: DataFile, group: RowGroup, wanted: int, share: float) -> Piece:
        rows = self._read(file, group, RECORD_COLUMNS)
        count = -(-group.rows // _piece_rows(group))
        fitting = int(share * self._kept.bytes_max * count / rows.nbytes)
        # The wanted piece last and the others by distance: the least needed is evicted first.
        for after in reversed(range(max(1, min(count, fitting)))):
            number = (wanted + after) % count
            piece = _piece(rows, group, number)
            self._kept.put(_piece_key(file, group, number), piece, piece.rows.nbytes)
        return piece

    def _read(self, file: DataFile, group: RowGroup, columns: Sequence[str]) -> Any:
        return self._parquet(file).read_row_group(group.number, columns=list(columns), use_threads=False)

    def _parquet(self, file: DataFile) -> Any:
        key = (file.table, file.path)
        found = self._open.get(key)
        if found is not None:
            self._open.move_to_end(key)
            return found
        source = open_source(self._storage, file)
        opened = self._storage.open_parquet(source)
        require_footer(file, opened.metadata)
        self._open[key] = opened
        if len(self._open) > OPEN_FILES_MAX:
            self._open.popitem(last=False)[1].close(force=True)
        return opened


def _piece_key(file: DataFile, group: RowGroup, number: int) -> tuple[str, ...]:
    return file.table, file.path, "piece", str(group.number), str(number)


def _piece(rows: Any, group: RowGroup, number: int) -> Piece:
    """A copy, so that the rest of the group can be freed."""
    start = number * _piece_rows(group)
    end = min(start + _piece_rows(group), group.rows)
    own = rows.take(pa.array(np.arange(start, end))).combine_chunks()
    texts = own.column("event").cast(pa.binary())
    return Piece(start, own.set_column(own.column_names.index("event"), "event", texts))


def _piece_rows(group: RowGroup) -> int:
    """How many rows of a row group make up a piece."""
    fitting = group.rows * PIECE_BYTES // max(1, group.uncompressed_bytes)
    return max(1, min(PIECE_ROWS_MAX, fitting))
