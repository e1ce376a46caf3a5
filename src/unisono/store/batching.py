"""Long sequences in portions that fit into one transaction, or one message, each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def in_portions(
    items: Iterable[T], size_of: Callable[[T], int], *, count_max: int, bytes_max: int
) -> Iterator[list[T]]:
    """`items` in their order, so many and so large at a time; one that is larger than that goes alone."""
    portion: list[T] = []
    size = 0
    for item in items:
        own = size_of(item)
        if portion and (len(portion) >= count_max or size + own > bytes_max):
            yield portion
            portion, size = [], 0
        portion.append(item)
        size += own
    if portion:
        yield portion
