"""Digests that show that two copies of a range of events are equal, computed from the hashes of the events.

Digests of parts add up to the digest of the whole, in any order, so each task computes its own. They use the stored
hash of each event; whether a hash matches its event is checked by an audit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.columns import name_hash

HASH_BYTES: Final = 32

UNHASHED: Final = ("id", "client_id", "status_updated_at", "type", "schema", "author")
"""Columns that the hash of an event does not cover."""

_WRAP: Final = 1 << 64


class Digest(msgspec.Struct, frozen=True):
    """Of a set of rows: their count, first and last id, the xor of all hashes, and hashes weighted with their ids.

    `weighted` is the sum, modulo 2^64, of the first eight bytes of each hash (little endian) times its
    committed_id: it detects two events with swapped hashes and repeated rows.
    """

    rows: int = 0
    first: int = 0
    last: int = 0
    xor: str = "00" * HASH_BYTES
    weighted: int = 0

    def __add__(self, other: Digest) -> Digest:
        if not (self.rows and other.rows):
            return self if self.rows else other
        mixed = int(self.xor, 16) ^ int(other.xor, 16)
        return Digest(
            self.rows + other.rows,
            min(self.first, other.first),
            max(self.last, other.last),
            f"{mixed:0{2 * HASH_BYTES}x}",
            (self.weighted + other.weighted) % _WRAP,
        )


def total(digests: list[Digest]) -> Digest:
    return reduce(add, digests, Digest())


def digest(rows: pa.Table | pa.RecordBatch) -> Digest:
    """Of rows with `committed_id`, `hash` and, in the table by partition, `partition`."""
    return _digest(rows, ())


def row_digest(rows: pa.Table | pa.RecordBatch) -> Digest:
    """The same, and of the columns that the hash does not cover."""
    return _digest(rows, UNHASHED)


def _digest(rows: pa.Table | pa.RecordBatch, more: Sequence[str]) -> Digest:
    if rows.num_rows == 0:
        return Digest()
    ids = np.asarray(rows.column("committed_id"))
    hashes = _fixed(rows.column("hash"))
    if "partition" in rows.schema.names:
        hashes = hashes ^ _name_hashes(rows.column("partition"))
    if more:
        hashes = hashes ^ _text_hashes([rows.column(name) for name in more])
    lanes = np.ascontiguousarray(hashes[:, :8]).view("<u8").ravel()
    return Digest(
        rows.num_rows,
        int(ids.min()),
        int(ids.max()),
        np.bitwise_xor.reduce(hashes, axis=0).tobytes().hex(),
        int((lanes * ids.astype(np.uint64)).sum(dtype=np.uint64)),
    )


def _fixed(column: Any) -> Any:
    """The hashes as a matrix of bytes; one of a wrong length (a damaged log) is replaced by its SHA-256."""
    whole = _one_array(column)
    lengths = pc.min_max(pc.binary_length(whole)).as_py()
    if lengths == {"min": HASH_BYTES, "max": HASH_BYTES}:
        data = np.frombuffer(whole.buffers()[2], np.uint8)
        start = whole.offset * HASH_BYTES + _first_offset(whole)
        return data[start : start + len(whole) * HASH_BYTES].reshape(-1, HASH_BYTES)
    values = (
        value if len(value) == HASH_BYTES else hashlib.sha256(value).digest() for value in whole.to_pylist()
    )
    return np.frombuffer(b"".join(values), np.uint8).reshape(-1, HASH_BYTES)


def _first_offset(array: Any) -> int:
    """The offset of an array's first value, beyond what equal lengths account for."""
    offsets = np.frombuffer(array.buffers()[1], np.int32)
    return int(offsets[array.offset] - array.offset * HASH_BYTES)


def _name_hashes(column: Any) -> Any:
    encoded = _one_array(column).dictionary_encode()
    names = [name_hash(name) for name in encoded.dictionary.to_pylist()]
    return np.frombuffer(b"".join(names), np.uint8).reshape(-1, HASH_BYTES)[np.asarray(encoded.indices)]


def _text_hashes(columns: Sequence[Any]) -> Any:
    """One hash for the values of a row, as texts."""
    joined = pc.binary_join_element_wise(
        *(column.cast(pa.string()) for column in columns),
        "\x1f",
        null_handling="replace",
        null_replacement="\x00",
    )
    hashed = (hashlib.sha256(text.encode()).digest() for text in joined.to_pylist())
    return np.frombuffer(b"".join(hashed), np.uint8).reshape(-1, HASH_BYTES)


def _one_array(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
