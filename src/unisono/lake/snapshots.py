"""The table `snapshots`: states of partitions, each the fold of all events up to a committed_id.

A *generation* is the output of one run: rows of the partitions with new events, all at the id up to which the run
folded. Files are sorted by partition and committed_id, and a row group has at most a few megabytes of states, so that
one partition's state is found by reading one group of a file or two. States are opaque bytes with their SHA-256.
"""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import msgspec
import pyarrow as pa

from unisono.lake.columns import SNAPSHOT_SCHEMA
from unisono.lake.digests import Digest
from unisono.lake.errors import LakeUnusable
from unisono.lake.file_checks import RowOrder, open_checked
from unisono.lake.merge import EVERY_ID, PartitionSubset
from unisono.lake.row_groups import Footer
from unisono.lake.storage import SNAPSHOTS, Storage
from unisono.lake.write import DataFile, FileWriter

STATE_GROUP_BYTES: Final = 2 << 20
STATE_GROUP_ROWS: Final = 1_024
"""A row group, which is read for one state. A larger state has a group of its own."""

STATE_BYTES_MAX: Final = (1 << 31) - (1 << 20)
"""Of one state: the limit of an Arrow array."""

FILE_BYTES: Final = 64 << 20
"""Compressed bytes after which a file is closed; it is written in memory first."""

STATE_COLUMNS: Final = ("state", "events", "skipped", "model_digest", "created_at", "hash")
"""The columns of a `StateRow` after its key."""


class StateRow(msgspec.Struct, frozen=True):
    """One row: the state of a partition after every event of it up to and including `committed_id`."""

    partition: str
    committed_id: int
    state: bytes
    events: int
    skipped: int
    model_digest: str
    created_at: int
    hash: bytes

    def require_sound(self) -> None:
        """Refuse a state that does not match its hash."""
        if hashlib.sha256(self.state).digest() != self.hash:
            raise LakeUnusable(
                f"the snapshot of partition {self.partition!r} at event {self.committed_id} is damaged: "
                "`unisono lake snapshot --rebuild` folds all snapshots again"
            )


class SnapshotWriter:
    """Writes rows sorted by partition and committed_id into files of one bucket and model version."""

    def __init__(self, storage: Storage, bucket: int, model_version: int, model_digest: str) -> None:
        self._storage = storage
        self._bucket = bucket
        self._version = model_version
        self._digest = model_digest
        self._writer: FileWriter | None = None
        self._pending: list[StateRow] = []
        self._size = 0
        self.files: list[DataFile] = []
        self.digest = Digest()

    def add(self, row: StateRow) -> None:
        if len(row.state) > STATE_BYTES_MAX:
            raise LakeUnusable(
                f"the state of partition {row.partition!r} has {len(row.state)} bytes; a snapshot can have at most "
                f"{STATE_BYTES_MAX}"
            )
        full = self._size + len(row.state) > STATE_GROUP_BYTES or len(self._pending) >= STATE_GROUP_ROWS
        if self._pending and full:
            self._flush()
        self._pending.append(row)
        self._size += len(row.state)

    def _flush(self) -> None:
        if self._writer is None:
            self._writer = FileWriter(
                self._storage,
                SNAPSHOTS,
                self._bucket,
                model_version=self._version,
                model_digest=self._digest,
            )
        self._writer.add(_table(self._pending))
        self._pending, self._size = [], 0
        if self._writer.bytes_made >= FILE_BYTES:
            self._end_file()

    def _end_file(self) -> None:
        assert self._writer is not None
        self.files.append(self._writer.close())
        self.digest += self._writer.digest
        self._writer = None

    def close(self) -> list[DataFile]:
        """Write the remaining rows; returns all files."""
        if self._pending:
            self._flush()
        if self._writer is not None:
            self._end_file()
        return self.files


def _table(rows: Sequence[StateRow]) -> pa.Table:
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in SNAPSHOT_SCHEMA]
    return pa.Table.from_arrays(columns, schema=SNAPSHOT_SCHEMA)


class _File:
    """One open file: the keys and states of a row group are read on demand, one group at a time."""

    def __init__(self, file: DataFile, parquet: Any) -> None:
        self._file = file
        self._parquet = parquet
        self.groups = list(Footer(parquet.metadata).row_groups())
        self.first_names = [group.first_name for group in self.groups]
        self.last_names = [group.last_name for group in self.groups]
        self._keys: tuple[int, list[bytes], list[int]] = (-1, [], [])
        self._rest: tuple[int, list[list[Any]]] = (-1, [])

    def keys(self, group: int) -> tuple[list[bytes], list[int]]:
        """The partitions' names and committed ids of a group's rows."""
        if self._keys[0] != group:
            table = self._parquet.read_row_group(group, columns=["partition", "committed_id"])
            # Two rows with the same key are equal; an audit reports them.
            RowOrder(self._file, repeats=True).follow(table.column("committed_id"), table.column("partition"))
            names = [name.encode() for name in table.column("partition").to_pylist()]
            self._keys = group, names, table.column("committed_id").to_pylist()
        return self._keys[1:]

    def find(self, name: bytes, upto: int) -> tuple[int, int, int] | None:
        """The newest row of a partition up to an id: (committed_id, group, row); fastest for ascending names."""
        best = None
        start = bisect_left(self.last_names, name)
        for group in range(start, bisect_right(self.first_names, name)):
            names, ids = self.keys(group)
            first, last = bisect_left(names, name), bisect_right(names, name)
            place = bisect_right(ids, upto, first, last) - 1
            if place >= first:
                best = ids[place], group, place
        return best

    def row(self, group: int, place: int) -> StateRow:
        if self._rest[0] != group:
            table = self._parquet.read_row_group(group, columns=list(STATE_COLUMNS))
            self._rest = group, [table.column(column).to_pylist() for column in STATE_COLUMNS]
        names, ids = self.keys(group)
        return StateRow(names[place].decode(), ids[place], *[values[place] for values in self._rest[1]])


class Snapshots:
    """The snapshots in some files of one model version, up to an id."""

    def __init__(self, files: Sequence[_File], upto: int) -> None:
        self._files = files
        self._upto = upto

    @classmethod
    @contextmanager
    def opened(
        cls, storage: Storage, files: Iterable[DataFile], upto: int = EVERY_ID.upto
    ) -> Iterator[Snapshots]:
        with ExitStack() as stack:
            open_files = []
            for file in sorted(files, key=lambda file: (file.first_id, file.last_id)):
                if file.first_id <= upto:
                    open_files.append(_File(file, stack.enter_context(open_checked(storage, file))))
            yield cls(open_files, upto)

    def latest(self, name: bytes) -> StateRow | None:
        """The newest snapshot of one partition; fastest for ascending names."""
        found = [(*best, file) for file in self._files if (best := file.find(name, self._upto)) is not None]
        if not found:
            return None
        _, group, place, file = max(found, key=itemgetter(0))
        return file.row(group, place)

    def at(self, name: bytes, committed_id: int) -> StateRow:
        """The snapshot of a partition at an id that `found` returned."""
        for file in self._files:
            found = file.find(name, committed_id)
            if found is not None and found[0] == committed_id:
                return file.row(*found[1:])
        raise LakeUnusable(f"there is no snapshot of partition {name.decode()!r} at event {committed_id}")

    def found(self, subset: PartitionSubset | None = None) -> Iterator[tuple[bytes, list[int]]]:
        """Every partition and the ids of its snapshots, ascending; reads no states."""
        streams = [self._stream(file, subset) for file in self._files]
        for name, found in groupby(heapq.merge(*streams), itemgetter(0)):
            yield name, [committed_id for _, committed_id in found]

    def _stream(self, file: _File, subset: PartitionSubset | None) -> Iterator[tuple[bytes, int]]:
        for group in file.groups:
            if group.first_id > self._upto:
                continue
            if subset is not None and not subset.meets(group.first_name, group.last_name):
                continue
            for name, committed_id in zip(*file.keys(group.number), strict=True):
                if committed_id <= self._upto and (subset is None or subset.holds(name.decode())):
                    yield name, committed_id


def files_of(files: Iterable[DataFile], model_version: int) -> list[DataFile]:
    """Those of one model version."""
    return [file for file in files if file.model_version == model_version]
