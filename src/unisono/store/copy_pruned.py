"""The part of a copy that is about what has left the log: deduplication goes on in the copy as in the source.

It is copied before the copy begins to hold events, in bounded transactions, and may be copied again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol, TypeVar

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
