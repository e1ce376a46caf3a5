"""Fingerprints of rows: compare two large copies without bringing their rows together.

Each column of a row has a 64-bit hash, the same in every process. A row's fingerprint mixes these with its
committed_id. Fingerprints are summed over blocks of ids; sums of parts add up, wherever the parts are read. Only the
rows of blocks whose sums differ are compared one by one. This does not protect against forgery: events carry SHA-256
for that, which other checks recompute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array  # type: ignore[import-untyped]

from unisono.store.port import Record

EVENT_COLUMNS: Final = ("id", "client_id", "partitions", "event", "status_updated_at", "hash", "author")
"""Columns of an event that the log has."""

REMEMBERED_COLUMNS: Final = ("id", "client_id", "status_updated_at", "hash")
"""Columns that the log keeps of a pruned event, for deduplication."""

KIND_COLUMNS: Final = ("type", "schema")
"""Columns that the lake derives from an event."""

LAKE_COLUMNS: Final = (*EVENT_COLUMNS, *KIND_COLUMNS)
"""What both tables of the lake have of an event beside its committed_id."""

BLOCKS_MAX: Final = 1 << 16
BLOCK_IDS_MIN: Final = 4_096
"""A block is read again, row by row, where sums differ: small blocks. The driver holds all sums: few blocks."""

_REPEATED: Final = frozenset(("client_id", "type", "schema", "author"))
_ODD: Final = {
    name: np.uint64(odd)
    for name, odd in (
        ("committed_id", 0x9E3779B97F4A7C15),
        ("id", 0xC2B2AE3D27D4EB4F),
        ("client_id", 0x165667B19E3779F9),
        ("partitions", 0xD6E8FEB86659FD93),
        ("event", 0xA0761D6478BD642F),
        ("status_updated_at", 0xE7037ED1A0B428DB),
        ("hash", 0x8EBC6AF09C88C6E3),
        ("author", 0x2127599BF4325C37),
        ("type", 0x589965CC75374CC3),
        ("schema", 0x1D8E4E27C47D124F),
        ("partition", 0xEB44ACCAB455D165),
        ("length", 0xD1342543DE82EF95),
    )
}

Columns = Mapping[str, Any]
"""Hashes by column, as arrays of equal length."""


def hashes(values: Any) -> Any:
    """Hashes of texts, bytes or None; a text and its UTF-8 bytes hash alike."""
    return hash_array(np.asarray(values, object), categorize=False)


def batch_hashes(batch: pa.RecordBatch, columns: Sequence[str]) -> dict[str, Any]:
    """Column hashes of rows of the lake."""
    return {name: _column_hashes(name, batch.column(name)) for name in columns}


def record_hashes(records: Sequence[Record]) -> dict[str, Any]:
    """Column hashes of records of the log, equal to those of the lake's rows for them."""
    partitions = [record.partitions for record in records]
    lengths = np.array([len(names) for names in partitions], np.uint64)
    return {
        "id": hashes([record.id for record in records]),
        "client_id": hashes([record.client_id for record in records]),
        "partitions": hashes(["\0".join(names) for names in partitions]) + lengths * _ODD["length"],
        "event": hashes([record.event for record in records]),
        "status_updated_at": np.array([record.status_updated_at for record in records], np.int64).view("u8"),
        "hash": hashes([record.hash for record in records]),
        "author": hashes([record.author or None for record in records]),
    }


def mix(ids: Any, columns: Columns) -> Any:
    """The fingerprint of each row, from its committed_id and these columns."""
    total = ids.astype(np.uint64) * _ODD["committed_id"]
    for name, values in columns.items():
        total += _scramble(values * _ODD[name])
    return _scramble(total)


def expected_partition_rows(log: pa.RecordBatch, hashed: Columns) -> tuple[Any, dict[str, Any]]:
    """The rows that `by_partition` must have for rows of `log`, one for each partition of each event.

    Returns the index of the `log` row each comes from, and its column hashes. `hashed` are those of `log`.
    """
    lists = log.column("partitions")
    parents = np.asarray(pc.list_parent_indices(lists))
    names = pa.RecordBatch.from_arrays([pc.list_flatten(lists)], ["partition"])
    columns = {name: values[parents] for name, values in hashed.items()}
    return parents, columns | batch_hashes(names, ("partition",))


def joined(partitions: Any) -> Any:
    """Each list of names as one value, NUL between names; null where a name is null."""
    return pc.binary_join(partitions.cast(pa.list_(pa.binary())), b"\0")


def texts(column: Any) -> Any:
    """A column of text or bytes as an array of bytes objects; invalid UTF-8 is allowed."""
    return column.cast(pa.binary()).to_numpy(zero_copy_only=False)


def _column_hashes(name: str, column: Any) -> Any:
    if name == "status_updated_at":
        return np.asarray(column.fill_null(-1)).view("u8")
    if name == "partitions":
        lengths = np.asarray(pc.list_value_length(column).fill_null(0)).astype(np.uint64)
        return _by_value(joined(column)) + lengths * _ODD["length"]
    if name in _REPEATED or name == "partition":
        return _by_value(column)
    return hashes(texts(column))


def _by_value(column: Any) -> Any:
    """Hashes each distinct value once."""
    encoded = column.cast(pa.binary()).dictionary_encode(null_encoding="encode")
    return hashes(encoded.dictionary.to_pylist())[np.asarray(encoded.indices)]


def _scramble(values: Any) -> Any:
    """A bijection of 64 bits in which every bit depends on every other (the end of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def block_ids(head: int) -> int:
    """Ids per block, for a history that ends at `head`."""
    size = BLOCK_IDS_MIN
    while head > size * BLOCKS_MAX:
        size *= 2
    return size


class Sums:
    """Per block of ids: the number of rows, and the sum of their fingerprints modulo 2^64.

    Only non-empty blocks are pickled, so a task's part of a long history is small.
    """

    def __init__(self, head: int) -> None:
        self.size = block_ids(head)
        self._blocks = max(1, -(-head // self.size))
        self._rows = np.zeros(self._blocks, np.int64)
        self._sums = np.zeros(self._blocks, np.uint64)

    def add(self, ids: Any, fingerprints: Any) -> None:
        """Add rows; their ids must lie in the history."""
        blocks = (ids - 1) // self.size
        np.add.at(self._rows, blocks, 1)
        np.add.at(self._sums, blocks, fingerprints)

    def merge(self, other: Sums) -> None:
        self._rows += other._rows
        self._sums += other._sums

    def differing(self, other: Sums, since: int, upto: int) -> list[tuple[int, int]]:
        """Ranges `(low, high]` within `(since, upto]`, one for each block in which the two differ."""
        blocks = np.flatnonzero((self._rows != other._rows) | (self._sums != other._sums)).tolist()
        ranges = [(max(since, block * self.size), min(upto, (block + 1) * self.size)) for block in blocks]
        return [(low, high) for low, high in ranges if low < high]

    def __getstate__(self) -> tuple[int, int, Any, Any, Any]:
        blocks = np.flatnonzero(self._rows)
        return self.size, self._blocks, blocks, self._rows[blocks], self._sums[blocks]

    def __setstate__(self, state: tuple[int, int, Any, Any, Any]) -> None:
        self.size, self._blocks, blocks, rows, sums = state
        self._rows = np.zeros(self._blocks, np.int64)
        self._sums = np.zeros(self._blocks, np.uint64)
        self._rows[blocks] = rows
        self._sums[blocks] = sums
