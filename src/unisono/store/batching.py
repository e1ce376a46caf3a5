"""Splitting long sequences into batches that fit into one transaction or one message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def in_batches(
    items: Iterable[T], size_of: Callable[[T], int], *, count_max: int, bytes_max: int
) -> Iterator[list[T]]:
    """`items` in order, in batches of at most `count_max` items and `bytes_max` bytes; a larger item is alone."""
    batch: list[T] = []
    size = 0
    for item in items:
        own = size_of(item)
        if batch and (len(batch) >= count_max or size + own > bytes_max):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += own
    if batch:
        yield batch
