"""Merges the ids of many partitions, reading only as many of each from the index as a page needs (SYNC-10).

The index has the ids of one partition in order. Reading a page's worth of ids for every partition would read
partitions times events of them. Instead a few of each are read, and then more only of partitions that may have ids
before the end of the page. So a page costs in proportion to its events, plus one probe per partition on the first
page of a history. An unfinished merge is kept for the next page.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

EACH_MIN: Final = 4
"""Ids of a partition asked for at a time, at the least: the next pages are likely to need them."""

GROWTH: Final = 4
"""So many times more are asked for in the next round, of partitions that have not enough yet."""

KEPT_MAX: Final = 400_000
"""Ids, partitions and names in the merges that are kept, some 30 MB; or about 60 histories of 1,000 partitions."""

K = TypeVar("K")

Fetch = Callable[[Sequence[tuple[K, int]], int, int], Mapping[K, Sequence[int]]]
"""Of each (partition, after): the first ids above `after` and up to a bound, so many at most, ascending."""


class IdMerge(Generic[K]):
    """The history of some partitions up to `upto`, each from an id of its own.

    Invariants: `_found` has every id of them, once and ascending, that is above what was dropped, up to the smallest
    of `_reached`, and some above. A partition that is not in `_reached` has no ids that were not found.
    """

    def __init__(self, after: Mapping[K, int], upto: int) -> None:
        self._upto = upto
        self._reached = {key: since for key, since in after.items() if since < upto}
        self._found: list[int] = []

    @property
    def reached(self) -> Mapping[K, int]:
        """Up to where the ids of each partition have been found, of those that may have more."""
        return self._reached

    @property
    def size(self) -> int:
        return len(self._found) + len(self._reached)

    def first(self, count: int, fetch: Fetch[K]) -> tuple[list[int], set[K]]:
        """The next `count` ids, or all there are; and which partitions were looked at for them."""
        looked_at: set[K] = set()
        each = self._share(count, EACH_MIN)
        while True:
            found = self._found
            until = found[count - 1] if len(found) >= count else self._upto
            behind = [(key, reached) for key, reached in self._reached.items() if reached < until]
            if not behind:
                return found[:count], looked_at
            looked_at.update(key for key, _ in behind)
            fresh = fetch(behind, until, each)
            for key, _ in behind:
                ids = fresh.get(key, ())
                found.extend(ids)
                self._reached[key] = ids[-1] if len(ids) == each else until
                if self._reached[key] >= self._upto:
                    del self._reached[key]
            found.sort()
            self._found = list(dict.fromkeys(found))
            each = self._share(count, each * GROWTH)

    def _share(self, count: int, least: int) -> int:
        """Of how many ids of a partition it is worth to ask, when so many of all of them are wanted."""
        return min(count, max(least, 2 * count // max(1, len(self._reached))))

    def drop(self, upto: int) -> None:
        """The ids up to this one have been read."""
        del self._found[: bisect_right(self._found, upto)]


Key = tuple[tuple[str, ...], tuple[tuple[str, int], ...], int, int]
"""Partitions, their snapshot starts, since, upto."""


class IdMerges(Generic[K]):
    """Unfinished merges for the next pages, an LRU cache bounded by KEPT_MAX."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, tuple[IdMerge[K], int]] = OrderedDict()
        self._size = 0

    def take(self, key: Key) -> IdMerge[K] | None:
        merge, size = self._kept.pop(key, (None, 0))
        self._size -= size
        return merge

    def put(self, key: Key, merge: IdMerge[K]) -> None:
        self.take(key)
        size = merge.size + len(key[0]) + len(key[1])
        self._kept[key] = merge, size
        self._size += size
        while self._size > KEPT_MAX:
            self.take(next(iter(self._kept)))

    def clear(self) -> None:
        self._kept.clear()
        self._size = 0


def key_of(partitions: Sequence[str], snapshot_starts: Mapping[str, int], since: int, upto: int) -> Key:
    return tuple(partitions), tuple(snapshot_starts.items()), since, upto
