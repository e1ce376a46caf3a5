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
"""Ranges of ids whose rows and bytes are counted, of equal length at first; ranges of files end where one of these
does."""

PARTS: Final = 4
"""Where slots would have more than SORTED_BYTES, there are so many for each file that they fill."""

UNPACKED: Final = 8
"""Estimated ratio of event size in memory to size in a file."""


def stored_paths(files: Sequence[DataFile]) -> list[str]:
    """The files that the table names, each once, for engines that need no order."""
    paths = (file.sources.paths if file.sources else (file.path,) for file in files)
    return list(dict.fromkeys(chain.from_iterable(paths)))


class _Cells:
    """What the rows of some files add up to, by bucket (0 in the table `log`) and slot of ids."""

    def __init__(self, table: Table, buckets: int, edges: Any) -> None:
        """`edges`: the first id of each slot, and an id after the last."""
        self._table = table.name
        self._uri = table.storage.table(table.name)
        self._head = max(1, table.head)
        self._edges = edges
        self.slots = len(edges) - 1
        self.buckets = buckets
        shape = buckets, self.slots
        self.rows = np.zeros(shape, np.int64)
        self.bytes = np.zeros(shape, np.int64)
        self.first = np.full(shape, 1 << 62, np.int64)
        self.last = np.zeros(shape, np.int64)
        self.names: list[dict[int, tuple[bytes, bytes]]] = [{} for _ in range(self.slots)]

    def add(self, file: DataFile, rows: pa.RecordBatch) -> None:
        ids = np.asarray(rows.column("committed_id"))
        if ids.min() < 1 or ids.max() > self._head:
            raise LakeUnusable(
                f"{self._uri}/{file.path} has event {int(ids.max())}, and the table ends at {self._head}: another "
                f"program changed the table; {remedy(self._table)}"
            )
        slots = np.searchsorted(self._edges[1:-1], ids, side="right")
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
        cells = homes * self.slots + slots
        found, places = np.unique(cells, return_inverse=True)
        low = np.full(len(found), len(names), np.int64)
        high = np.full(len(found), -1, np.int64)
        np.minimum.at(low, places, ranked)
        np.maximum.at(high, places, ranked)
        for cell, first, last in zip(found.tolist(), low.tolist(), high.tolist(), strict=True):
            bucket, slot = divmod(cell, self.slots)
            own = names[order[first]], names[order[last]]
            known = self.names[slot].get(bucket, own)
            self.names[slot][bucket] = min(known[0], own[0]), max(known[1], own[1])
        return homes

    @property
    def apart(self) -> bool:
        """Whether a described file has the rows of one bucket: so many rows are not in one file for all."""
        return self._table != LOG and int(self.rows.sum()) >= write.UNBUCKETED_ROWS_MAX

    def ranges(self) -> list[tuple[int, int]]:
        """The slots with rows, from each first to before the next: no described file has more than SORTED_BYTES, but
        where one event does."""
        used = np.flatnonzero(self.rows.any(axis=0))
        of_files = self._bytes_of_files()
        edges, sizes = [int(used[0])], np.zeros(len(of_files), np.int64)
        for slot in range(edges[0], int(used[-1]) + 1):
            if slot > edges[-1] and (sizes + of_files[:, slot]).max() > SORTED_BYTES:
                edges.append(slot)
                sizes[:] = 0
            sizes += of_files[:, slot]
        return list(pairwise([*edges, int(used[-1]) + 1]))

    def finer_edges(self) -> Any | None:
        """Edges of smaller slots where one of these is too large for a described file; None where none is."""
        most = self._bytes_of_files().max(axis=0)
        ids = np.diff(self._edges)
        large = (most > SORTED_BYTES) & (ids > 1)
        if not large.any():
            return None
        parts = np.where(large, np.minimum(ids, -(-most // SORTED_BYTES) * PARTS), 1).tolist()
        spans = zip(self._edges[:-1].tolist(), ids.tolist(), parts, strict=True)
        finer = (first + count * part // into for first, count, into in spans for part in range(into))
        return np.array([*finer, self._edges[-1]])

    def _bytes_of_files(self) -> Any:
        return self.bytes if self.apart else self.bytes.sum(axis=0, keepdims=True)


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
    cells = _counted(table, run, buckets)
    for slots in cells.ranges():
        if table.name == LOG:
            _require_each_id(table, cells, slots)
        for bucket in range(buckets) if cells.apart else (UNBUCKETED,):
            if (described := _file(table, cells, run, slots, bucket)) is not None:
                yield described


def _counted(table: Table, run: Sequence[DataFile], buckets: int) -> _Cells:
    """The rows of these files, in slots of which none is too large. Where the sizes of files say little about their
    events, or large events are close together, all are read again."""
    first, end = min(file.first_id for file in run), max(file.last_id for file in run) + 1
    filled = sum(file.bytes for file in run) * UNPACKED // (SORTED_BYTES * buckets)
    count = min(end - first, max(SLOTS, filled * PARTS))
    edges: Any = first + np.arange(count + 1, dtype=np.int64) * (end - first) // count
    own = () if table.name == LOG else ("partition",)
    while edges is not None:
        cells = _Cells(table, buckets, edges)
        for file in run:
            for batch in raw_batches(table.storage, table.name, file.path, ["committed_id", "event", *own]):
                if batch.num_rows:
                    cells.add(file, batch)
        edges = cells.finer_edges()
    return cells


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
