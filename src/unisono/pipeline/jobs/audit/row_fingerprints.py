"""Fingerprints of rows, by which two large copies are compared without bringing their rows together.

Each column of a row has a 64-bit hash, the same in every process; a row's print mixes them all with its
committed_id. Prints are summed over blocks of ids, so that the sums of parts, taken wherever the rows are, add up.
Where the sums of a block differ, its rows are looked at one by one. Nothing here proves equality against somebody who
wants to deceive: for that the events carry SHA-256, which is recomputed elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array  # type: ignore[import-untyped]

from unisono.store.port import Record

EVENT_COLUMNS: Final = ("id", "client_id", "partitions", "event", "status_updated_at", "hash")
"""What the log itself has of an event."""

REMEMBERED_COLUMNS: Final = ("id", "client_id", "status_updated_at", "hash")
"""What the log remembers of an event that has left it."""

KIND_COLUMNS: Final = ("type", "schema")
"""What the lake derives of it."""

BLOCKS_MAX: Final = 1 << 16
BLOCK_IDS_MIN: Final = 4_096
"""A block: what is read again, row by row, where sums differ; and as few sums as a driver likes to hold."""

_REPEATED: Final = frozenset(("client_id", "type", "schema"))
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
        ("type", 0x589965CC75374CC3),
        ("schema", 0x1D8E4E27C47D124F),
        ("partition", 0xEB44ACCAB455D165),
        ("length", 0xD1342543DE82EF95),
    )
}

Columns = Mapping[str, Any]
"""Hashes by column, as arrays of equal length."""


def hashes(values: Any) -> Any:
    """Of texts, bytes or None; a text and its UTF-8 bytes hash alike."""
    return hash_array(np.asarray(values, object), categorize=False)


def batch_hashes(batch: pa.RecordBatch, columns: Sequence[str]) -> dict[str, Any]:
    """Of the rows of a table's file."""
    return {name: _column_hashes(name, batch.column(name)) for name in columns}


def record_hashes(records: Sequence[Record]) -> dict[str, Any]:
    """Of records of the log, the same as of the lake's rows for them."""
    partitions = [record.partitions for record in records]
    lengths = np.array([len(names) for names in partitions], np.uint64)
    return {
        "id": hashes([record.id for record in records]),
        "client_id": hashes([record.client_id for record in records]),
        "partitions": hashes(["\0".join(names) for names in partitions]) + lengths * _ODD["length"],
        "event": hashes([record.event for record in records]),
        "status_updated_at": np.array([record.status_updated_at for record in records], np.int64).view("u8"),
        "hash": hashes([record.hash for record in records]),
    }


def mix(ids: Any, columns: Columns) -> Any:
    """One print for each row, of its committed_id and these columns."""
    total = ids.astype(np.uint64) * _ODD["committed_id"]
    for name, values in columns.items():
        total += _scramble(values * _ODD[name])
    return _scramble(total)


def joined(partitions: Any) -> Any:
    """Each list of names as one value, the names apart by a NUL; null where a name is."""
    return pc.binary_join(partitions.cast(pa.list_(pa.binary())), b"\0")


def texts(column: Any) -> Any:
    """A column of text or bytes as an array of bytes objects; what is not UTF-8 does no harm here."""
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
    """Each distinct value is hashed once."""
    encoded = column.cast(pa.binary()).dictionary_encode(null_encoding="encode")
    return hashes(encoded.dictionary.to_pylist())[np.asarray(encoded.indices)]


def _scramble(values: Any) -> Any:
    """A bijection of 64 bits in which every bit depends on every other (the end of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def block_ids(head: int) -> int:
    """Ids of one block, for a history that ends at `head`."""
    size = BLOCK_IDS_MIN
    while head > size * BLOCKS_MAX:
        size *= 2
    return size


class Sums:
    """How many rows each block of ids has, and the sum of their prints, modulo 2^64.

    Only non-empty blocks travel, so that what a task saw of a long history is small.
    """

    def __init__(self, head: int) -> None:
        self.size = block_ids(head)
        self._blocks = max(1, -(-head // self.size))
        self._rows = np.zeros(self._blocks, np.int64)
        self._prints = np.zeros(self._blocks, np.uint64)

    def add(self, ids: Any, prints: Any) -> None:
        """Rows by id; ids must lie in the history."""
        places = (ids - 1) // self.size
        np.add.at(self._rows, places, 1)
        np.add.at(self._prints, places, prints)

    def merge(self, other: Sums) -> None:
        self._rows += other._rows
        self._prints += other._prints

    def differing(self, other: Sums, since: int, upto: int) -> list[tuple[int, int]]:
        """Ranges `(low, high]` within `(since, upto]`, one for each block in which the two differ."""
        places = np.flatnonzero((self._rows != other._rows) | (self._prints != other._prints))
        ranges = [
            (max(since, int(place) * self.size), min(upto, (int(place) + 1) * self.size)) for place in places
        ]
        return [(low, high) for low, high in ranges if low < high]

    def __getstate__(self) -> tuple[int, int, Any, Any, Any]:
        places = np.flatnonzero(self._rows)
        return self.size, self._blocks, places, self._rows[places], self._prints[places]

    def __setstate__(self, state: tuple[int, int, Any, Any, Any]) -> None:
        self.size, self._blocks, places, rows, prints = state
        self._rows = np.zeros(self._blocks, np.int64)
        self._prints = np.zeros(self._blocks, np.uint64)
        self._rows[places] = rows
        self._prints[places] = prints
