"""Merging the rows of several partitions by id, reading only as far as a page needs.

An unfinished merge is kept, so that the next page of the same history continues it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from unisono.lake.row_groups import RowGroup
from unisono.lake.write import DataFile
from unisono.store.port import Record

CHUNK_ROWS: Final = 2_048
"""Rows whose ids are copied from a row group at once."""

CURSORS_KEPT_MAX: Final = 4_096
"""Cursors in all kept merges: each has the ids of a chunk, 16 kB at most, and some records."""

_NO_MORE: Final = 1 << 62

Key = tuple[tuple[str | None, ...], tuple[tuple[str, int], ...], int, int]
"""Partitions, their snapshot starts, since, upto."""


class Chunk:
    """Consecutive rows of one partition in one row group, from `start` on, with their ascending ids."""

    __slots__ = ("at", "file", "group", "ids", "records", "start")

    def __init__(self, file: DataFile, group: RowGroup, start: int, ids: Any) -> None:
        self.file = file
        self.group = group
        self.start = start
        self.ids = ids
        self.at = start
        self.records: list[Record] = []

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


class Cursor:
    """The position of one partition in the files.

    Invariant: all of its rows with ids below `bound` were found; those not taken yet are in `_chunks`, of whose first
    `_taken` rows were taken.
    """

    def __init__(self, ahead: Iterator[tuple[int, Chunk | None]]) -> None:
        self._ahead = ahead
        self._chunks: deque[Chunk] = deque()
        self._taken = 0
        self.bound = 0

    def advance(self) -> int | None:
        """Read one step further; how many rows it found, None at the end."""
        step = next(self._ahead, None)
        if step is None:
            return None
        self.bound, chunk = step
        if chunk is None:
            return 0
        self._chunks.append(chunk)
        return len(chunk.ids)

    def take(self, before: int) -> Iterator[tuple[Chunk, int, Any]]:
        """Take the remaining rows with ids below `before`: their chunk, first row and ids."""
        while self._chunks:
            chunk, taken = self._chunks[0], self._taken
            end = int(chunk.ids.searchsorted(before))
            if taken < end:
                yield chunk, chunk.start + taken, chunk.ids[taken:end]
            if end < len(chunk.ids):
                self._taken = end
                return
            self._chunks.popleft()
            self._taken = 0


class RowMerge:
    """Merges the rows of all cursors by id; an event in several of the partitions occurs once."""

    def __init__(self, cursors: list[Cursor]) -> None:
        self.cursors = cursors
        self._ahead = [(cursor.bound, number) for number, cursor in enumerate(cursors)]
        self._found: list[tuple[Chunk, int]] = []
        self._pending = 0

    def first(self, count: int) -> list[tuple[Chunk, int]]:
        """The positions of the next `count` events, or of all that are left: a chunk, and a row of its group."""
        while self._ahead and len(self._found) < count:
            self._advance(1 + len(self.cursors) // 4)
            if len(self._found) + self._pending >= count or not self._ahead:
                self._collect(self._ahead[0][0] if self._ahead else _NO_MORE)
        return self._found[:count]

    def drop(self, count: int) -> None:
        """Skip the next `count` events: they were read."""
        del self._found[:count]

    def _advance(self, steps: int) -> None:
        """Advance the cursor that is furthest behind, several times. Collecting after each step would cost more."""
        ahead = self._ahead
        for _ in range(steps):
            if not ahead:
                return
            number = ahead[0][1]
            cursor = self.cursors[number]
            found = cursor.advance()
            if found is None:
                heapq.heappop(ahead)
            else:
                self._pending += found
                heapq.heapreplace(ahead, (cursor.bound, number))

    def _collect(self, before: int) -> None:
        """Collect all rows below an id that every cursor has reached."""
        taken = [some for cursor in self.cursors for some in cursor.take(before)]
        self._pending -= sum(len(ids) for _, _, ids in taken)
        if len(taken) == 1:
            chunk, start, ids = taken[0]
            self._found += [(chunk, row) for row in range(start, start + len(ids))]
        elif taken:
            sizes = [len(ids) for _, _, ids in taken]
            rows = np.concatenate([np.arange(start, start + len(ids)) for _, start, ids in taken])
            numbers = np.repeat(np.arange(len(taken)), sizes)
            _, places = np.unique(np.concatenate([ids for _, _, ids in taken]), return_index=True)
            pairs = zip(numbers[places].tolist(), rows[places].tolist(), strict=True)
            self._found += [(taken[number][0], row) for number, row in pairs]


class RowMerges:
    """Unfinished merges for the next pages, an LRU cache bounded by CURSORS_KEPT_MAX."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, RowMerge] = OrderedDict()
        self._cursors = 0

    def take(self, key: Key) -> RowMerge | None:
        merge = self._kept.pop(key, None)
        if merge is not None:
            self._cursors -= len(merge.cursors)
        return merge

    def put(self, key: Key, merge: RowMerge) -> None:
        self.take(key)
        self._kept[key] = merge
        self._cursors += len(merge.cursors)
        while self._cursors > CURSORS_KEPT_MAX:
            self.take(next(iter(self._kept)))

    def clear(self) -> None:
        self._kept.clear()
        self._cursors = 0
