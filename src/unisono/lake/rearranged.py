"""Describes the files of another program as files in order, after checking their rows.

OPTIMIZE, Z-order or a rewrite by another Delta writer, and a VACUUM after it, leave the right rows in any order,
under names and with statistics that promise nothing. Readers then get files that nobody stored: each has the rows of
one range of ids and, in `by_partition`, of one bucket, in the order of the table. `sorted_copies.py` makes such a
file when it is opened. Ranges are so small that one is sorted in memory.

The rows are checked first, once for every version of a table: their number, and of `log`, how many each range has.
`same_rows.py` compares them with those of the other table. A sorted copy checks each id and each hash.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake import write
from unisono.lake.columns import bucket_of
from unisono.lake.errors import LakeUnusable, one_line
from unisono.lake.file_checks import is_own
from unisono.lake.remedies import remedy
from unisono.lake.scan import runs_of
from unisono.lake.sorted_copies import raw_batches
from unisono.lake.storage import LOG
from unisono.lake.write import UNBUCKETED, DataFile, Sources

if TYPE_CHECKING:
    from unisono.lake.table import Table

log = logging.getLogger("unisono.lake")

SORTED_BYTES: Final = 48 << 20
"""Of events in one described file, which is sorted in memory: about three times this, for a moment."""

SLOTS: Final = 1_024
"""Equal ranges of ids whose rows and bytes are counted; ranges of files end where one of these does."""

UNPACKED: Final = 8
"""Estimated ratio of event size in memory to size in a file."""


def stored_paths(files: Sequence[DataFile]) -> list[str]:
    """The files that the table names, each once, for engines that need no order."""
    paths = (file.sources.paths if file.sources else (file.path,) for file in files)
    return list(dict.fromkeys(chain.from_iterable(paths)))


class _Cells:
    """What the rows of some files add up to, by bucket (0 in the table `log`) and slot of ids."""

    def __init__(self, table: Table, buckets: int) -> None:
        self._table = table.name
        self._uri = table.storage.table(table.name)
        self._head = max(1, table.head)
        self.buckets = buckets
        self.rows = np.zeros((buckets, SLOTS), np.int64)
        self.bytes = np.zeros((buckets, SLOTS), np.int64)
        self.first = np.full((buckets, SLOTS), 1 << 62, np.int64)
        self.last = np.zeros((buckets, SLOTS), np.int64)
        self.names: list[dict[int, tuple[bytes, bytes]]] = [{} for _ in range(SLOTS)]

    def add(self, file: DataFile, rows: pa.RecordBatch) -> None:
        ids = np.asarray(rows.column("committed_id"))
        if ids.min() < 1 or ids.max() > self._head:
            raise LakeUnusable(
                f"{self._uri}/{file.path} has event {int(ids.max())}, and the table ends at {self._head}: another "
                f"program changed the table; {remedy(self._table)}"
            )
        slots = (ids - 1) * SLOTS // self._head
        sizes = np.asarray(pc.binary_length(rows.column("event")))
        if self._table == LOG:
            homes = np.zeros(len(ids), np.int64)
        else:
            homes = self._note_names(file, rows.column("partition"), slots)
        np.add.at(self.rows, (homes, slots), 1)
        np.add.at(self.bytes, (homes, slots), sizes)
        np.minimum.at(self.first, (homes, slots), ids)
        np.maximum.at(self.last, (homes, slots), ids)

    def _note_names(self, file: DataFile, column: Any, slots: Any) -> Any:
        """The buckets of these rows; notes the first and the last name of each cell."""
        encoded = column.dictionary_encode()
        names = [name.encode() for name in encoded.dictionary.to_pylist()]
        order = sorted(range(len(names)), key=names.__getitem__)
        ranks = np.empty(len(names), np.int64)
        ranks[order] = np.arange(len(names))
        by_name = np.array([bucket_of(name.decode(), self.buckets) for name in names])
        if file.bucket != UNBUCKETED and (strays := by_name != file.bucket).any():
            name = names[int(np.argmax(strays))].decode()
            raise LakeUnusable(
                f"{self._uri}/{file.path} has rows of partition {name!r}, which is not of bucket {file.bucket}: "
                f"another program changed the table; {remedy(self._table)}"
            )
        homes, ranked = by_name[encoded.indices], ranks[encoded.indices]
        cells = homes * SLOTS + slots
        found, places = np.unique(cells, return_inverse=True)
        low = np.full(len(found), len(names), np.int64)
        high = np.full(len(found), -1, np.int64)
        np.minimum.at(low, places, ranked)
        np.maximum.at(high, places, ranked)
        for cell, first, last in zip(found.tolist(), low.tolist(), high.tolist(), strict=True):
            bucket, slot = divmod(cell, SLOTS)
            own = names[order[first]], names[order[last]]
            known = self.names[slot].get(bucket, own)
            self.names[slot][bucket] = min(known[0], own[0]), max(known[1], own[1])
        return homes

    def ranges(self, first: int, last: int) -> list[tuple[int, int]]:
        """Slots from `first` to before `last` in ranges, of which no bucket has more than SORTED_BYTES."""
        edges, sizes = [first], np.zeros(self.buckets, np.int64)
        for slot in range(first, last):
            if slot > edges[-1] and (sizes + self.bytes[:, slot]).max() > SORTED_BYTES:
                edges.append(slot)
                sizes[:] = 0
            sizes += self.bytes[:, slot]
        return list(pairwise([*edges, last]))


def described_files(table: Table) -> list[DataFile]:
    """Files in order with this version's rows. LakeUnusable when there are more or fewer than were committed."""
    try:
        return _described(table)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise LakeUnusable(
            f"a file of another program in {table.storage.table(table.name)} cannot be read ({one_line(error)}): "
            f"{remedy(table.name)}"
        ) from error


def _described(table: Table) -> list[DataFile]:
    listed, uri = table.listed_files(), table.storage.table(table.name)
    log.warning(
        "%s: another program rearranged the rows and removed the former files; checking %d files and sorting what is "
        "read, until `unisono lake export` or compact has put them in order",
        uri,
        len(listed),
    )
    buckets = 1 if table.name == LOG else table.description().buckets
    known = {file.path: file for file in listed if is_own(file)}
    measured = [known.get(file.path) or _measured_file(table, file) for file in listed]
    rows, expected = sum(file.rows for file in measured), table.head if table.name == LOG else table.rows
    if expected is not None and rows != expected:
        raise LakeUnusable(
            f"the files of {uri} have {rows} rows and {expected} were committed: another program changed the table; "
            f"{remedy(table.name)}"
        )
    files: list[DataFile] = []
    for run in runs_of(measured):
        if all(file.path in known for file in run):
            files += run
        else:
            files += _of_run(table, run, buckets)
    return sorted(files, key=lambda file: (file.first_id, file.last_id, file.path))


def _measured_file(table: Table, file: DataFile) -> DataFile:
    rows, first, last = 0, 1 << 62, 0
    for batch in raw_batches(table.storage, table.name, file.path, ["committed_id"]):
        rows += batch.num_rows
        ids = pc.min_max(batch.column(0)).as_py()
        first, last = min(first, ids["min"]), max(last, ids["max"])
    return msgspec.structs.replace(file, rows=rows, first_id=first if rows else 0, last_id=last)


def _of_run(table: Table, run: Sequence[DataFile], buckets: int) -> Iterator[DataFile]:
    """The described files of some stored files whose ids overlap."""
    cells = _Cells(table, buckets)
    own = () if table.name == LOG else ("partition",)
    for file in run:
        for batch in raw_batches(table.storage, table.name, file.path, ["committed_id", "event", *own]):
            if batch.num_rows:
                cells.add(file, batch)
    used = np.flatnonzero(cells.rows.any(axis=0))
    apart = table.name != LOG and int(cells.rows.sum()) >= write.UNBUCKETED_ROWS_MAX
    for slots in cells.ranges(int(used[0]), int(used[-1]) + 1):
        if table.name == LOG:
            _require_each_id(table, cells, slots)
        for bucket in range(buckets) if apart else (UNBUCKETED,):
            if (described := _file(table, cells, run, slots, bucket)) is not None:
                yield described


def _require_each_id(table: Table, cells: _Cells, slots: tuple[int, int]) -> None:
    """Refuse a range with too few or too many rows; a sorted copy looks at each id."""
    own = slice(*slots)
    first, last, rows = (
        int(cells.first[0, own].min()),
        int(cells.last[0, own].max()),
        cells.rows[0, own].sum(),
    )
    if rows != last - first + 1:
        raise LakeUnusable(
            f"{table.storage.table(LOG)} has {rows} rows of events {first} to {last}: another program changed the "
            f"table; {remedy(LOG)}"
        )


def _file(
    table: Table, cells: _Cells, run: Sequence[DataFile], slots: tuple[int, int], bucket: int
) -> DataFile | None:
    """One described file: of a bucket, or of all (UNBUCKETED); None without rows."""
    own = (slice(None) if bucket == UNBUCKETED else bucket), slice(*slots)
    rows = int(cells.rows[own].sum())
    if not rows:
        return None
    first, last = int(cells.first[own].min()), int(cells.last[own].max())
    sources = tuple(
        file.path
        for file in run
        if file.last_id >= first
        and file.first_id <= last
        and (bucket == UNBUCKETED or file.bucket in (bucket, UNBUCKETED))
    )
    names = [
        edges
        for slot in cells.names[slice(*slots)]
        for home, edges in slot.items()
        if bucket in (UNBUCKETED, home)
    ]
    mark = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:16]
    return DataFile(
        table.name,
        f"rearranged/{first}-{last}-{bucket}-{mark}",
        int(cells.bytes[own].sum()) // UNPACKED,
        rows,
        first,
        last,
        None if table.name == LOG else bucket,
        min(low for low, _ in names).decode() if names else None,
        max(high for _, high in names).decode() if names else None,
        sources=Sources(sources, cells.buckets),
    )
