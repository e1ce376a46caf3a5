"""Copying what a log remembers about pruned events, so that deduplication works in the copy as in the source.

It is copied before the first event, in bounded transactions; copying it again is harmless.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol, TypeVar

import msgspec

from unisono.store.port import RememberedId

BATCH_ROWS: Final = 2_000
"""Rows of one transaction of the target: about ten milliseconds."""

READ_ROWS: Final = 5_000
"""Rows read at once."""

Remembered = tuple[str, RememberedId]
"""A pruned id, and what deduplication remembers about it."""

Place = tuple[str, int]
"""A partition, and its last pruned event."""

T = TypeVar("T")


class PrunedSource(Protocol):
    """Reads it, in an order of its engine."""

    def pruned(self, upto: int) -> Iterator[Remembered]: ...

    def pruned_partitions(self) -> Iterator[Place]: ...

    def archive(self) -> str | None: ...


class PrunedTarget(PrunedSource, Protocol):
    """Writes it too; existing rows stay."""

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
    """The number of pruned ids, and a checksum that does not depend on their order."""
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
