"""The part of a copy that is about what has left the log: deduplication goes on in the copy as in the source.

It is copied before the copy begins to hold events, in bounded transactions, and may be copied again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol, TypeVar

import apsw
import msgspec

from unisono.store.port import RememberedId

BATCH_ROWS: Final = 2_000
"""Rows of one transaction of the target: some ten milliseconds."""

READ_ROWS: Final = 5_000
"""Rows read at a time."""

Remembered = tuple[str, RememberedId]
"""An id, and what deduplication knows of it."""

Place = tuple[str, int]
"""A partition, and the last event of it that has left."""

T = TypeVar("T")


class PrunedSource(Protocol):
    """Reads what has left. Each of these is in the order of its names, as its engine has it."""

    def pruned(self, upto: int) -> Iterator[Remembered]: ...

    def pruned_partitions(self) -> Iterator[Place]: ...

    def archive(self) -> str | None: ...


class PrunedTarget(PrunedSource, Protocol):
    """Takes it, too; what is there already stays."""

    def put_pruned(self, rows: Sequence[Remembered]) -> None: ...

    def put_pruned_partitions(self, rows: Sequence[Place]) -> None: ...

    def set_archive(self, location: str) -> None: ...


def copy_pruned(
    source: PrunedSource, target: PrunedTarget, upto: int, tell: Callable[[str, int, int], None]
) -> None:
    done = 0
    for batch in _batches(source.pruned(upto)):
        target.put_pruned(batch)
        done += len(batch)
        tell("copy", done, upto)
    for places in _batches(source.pruned_partitions()):
        target.put_pruned_partitions([(name, min(last, upto)) for name, last in places])
    if (archive := source.archive()) is not None:
        target.set_archive(archive)


def digest_pruned(source: PrunedSource, upto: int) -> tuple[int, int]:
    """How many there are, and a sum over all of them that does not depend on their order."""
    count = total = 0
    encode = msgspec.msgpack.Encoder().encode
    for row in source.pruned(upto):
        count += 1
        total ^= int.from_bytes(hashlib.sha256(encode(row)).digest(), "big")
    return count, total


def _batches(rows: Iterable[T]) -> Iterator[list[T]]:
    left = iter(rows)
    while batch := list(islice(left, BATCH_ROWS)):
        yield batch


# -- the embedded log ----------------------------------------------------------------------------------------

_PRUNED: Final = (
    "SELECT id, committed_id, hash, client_id, status_updated_at FROM pruned "
    "WHERE id > ?1 AND committed_id <= ?2 ORDER BY id LIMIT ?3"
)
_PARTITIONS: Final = (
    "SELECT number, name, pruned_to FROM partitions WHERE number > ?1 ORDER BY number LIMIT ?2"
)
_PUT_PRUNED: Final = (
    "INSERT INTO pruned (id, committed_id, hash, client_id, status_updated_at) VALUES (?1, ?2, ?3, ?4, ?5) "
    "ON CONFLICT (id) DO NOTHING"
)
_PUT_PARTITION: Final = (
    "INSERT INTO partitions (name, pruned_to) VALUES (?1, ?2) "
    "ON CONFLICT (name) DO UPDATE SET pruned_to = max(pruned_to, excluded.pruned_to)"
)


def read_pruned(connection: apsw.Connection, upto: int) -> Iterator[Remembered]:
    after = ""
    while rows := connection.execute(_PRUNED, (after, upto, READ_ROWS)).fetchall():
        for id, committed_id, hash, client_id, time in msgspec.convert(
            rows, list[tuple[str, int, bytes, str, int]]
        ):
            yield id, RememberedId(committed_id, hash, client_id, time)
            after = id


def read_partitions(connection: apsw.Connection) -> Iterator[Place]:
    after = -(2**63)
    while rows := connection.execute(_PARTITIONS, (after, READ_ROWS)).fetchall():
        places = msgspec.convert(rows, list[tuple[int, str, int]])
        yield from ((name, pruned_to) for _, name, pruned_to in places if pruned_to)
        after = places[-1][0]


def write_pruned(connection: apsw.Connection, rows: Sequence[Remembered]) -> None:
    with connection:
        connection.executemany(
            _PUT_PRUNED, [(id, k.committed_id, k.hash, k.client_id, k.status_updated_at) for id, k in rows]
        )


def write_partitions(connection: apsw.Connection, rows: Sequence[Place]) -> None:
    with connection:
        connection.executemany(_PUT_PARTITION, rows)
