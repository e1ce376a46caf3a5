"""Merging the rows of files that are each sorted by partition and committed_id, many rows at a time.

Where a partition has few rows in each of many files, merging the files by partition takes nearly as many steps as
there are rows. Here the next rows of all files are sorted together, in rounds. When a round begins, every file has at
least a batch of rows ready, so the round has about a batch of each, and a row costs the same however many files and
partitions there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

ROUND_BYTES_MAX: Final = 64 << 20
"""Rows sorted together. A larger round is split, at worst into one partition of one file at a time."""

READY_BYTES_MAX: Final = 1 << 20
"""Rows of a file that are enough for a round, however few they are: only large events reach it."""


class _Source:
    """One file, or some that follow each other: the rows that were read and are not merged yet. After `fill`, `count`
    is 0 only at the end."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._batch_rows = 0
        self._ready: pa.RecordBatch | None = None
        self._start = 0
        self.ended = False
        """Whether all rows were read."""
        self.fill()

    @property
    def count(self) -> int:
        return 0 if self._ready is None else self._ready.num_rows - self._start

    def fill(self) -> None:
        """Read on until as many rows are ready as a batch has."""
        rows, size, parts = self.count, 0, []
        if rows:
            parts = [self.head(rows)]
            size = parts[0].nbytes if rows < self._batch_rows else 0
        while not rows or (rows < self._batch_rows and size < READY_BYTES_MAX):
            batch = next(self._batches, None)
            if batch is None:
                self.ended = True
                break
            self._batch_rows = max(self._batch_rows, batch.num_rows)
            rows += batch.num_rows
            size += batch.nbytes
            parts.append(batch)
        self._ready = pa.concat_batches(parts) if len(parts) > 1 else next(iter(parts), None)
        self._start = 0

    def take(self, count: int) -> pa.RecordBatch:
        """The next rows; they are merged from now on."""
        rows = self.head(count)
        self._start += count
        return rows

    def head(self, count: int) -> pa.RecordBatch:
        assert self._ready is not None
        return self._ready.slice(self._start, count)

    def name(self, place: int) -> bytes:
        """The partition of a row, counted from the next one."""
        assert self._ready is not None
        return str(self._ready.column("partition")[self._start + place].as_py()).encode()

    @property
    def last(self) -> bytes:
        return self.name(self.count - 1)

    def count_before(self, name: bytes, *, including: bool) -> int:
        return (bisect_right if including else bisect_left)(range(self.count), name, key=self.name)


def merge_rows(files: Sequence[Iterable[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """The rows of all files by partition, and of one partition by file; two batches of each file are in memory."""
    left = [source for source in map(_Source, files) if source.count]
    while left:
        yield left[0].take(left[0].count) if len(left) == 1 else _next_rows(left)
        for source in left:
            source.fill()
        left = [source for source in left if source.count]


def _next_rows(left: Sequence[_Source]) -> pa.RecordBatch:
    """Rows of which it is certain that no row to come is before them: all, or as many as fit into a round."""
    lasts = [(source.last, number) for number, source in enumerate(left) if not source.ended]
    # Of the partition where a file ends for now it may have more, so rows of the files after it wait.
    name, through = min(lasts, default=(None, len(left)))
    while True:
        counts = [
            source.count if name is None else source.count_before(name, including=number <= through)
            for number, source in enumerate(left)
        ]
        heads = [source.head(count) for source, count in zip(left, counts, strict=True) if count]
        if sum(head.nbytes for head in heads) <= ROUND_BYTES_MAX:
            break
        most = max(counts)
        middle = left[counts.index(most)].name(most // 2)
        if middle == name:
            return _first_piece(left)
        name, through = middle, len(left)  # all rows up to this partition are there
    for source, count in zip(left, counts, strict=True):
        source.take(count)
    return _sorted(heads)


def _first_piece(left: Sequence[_Source]) -> pa.RecordBatch:
    firsts = [source.name(0) for source in left]
    name = min(firsts)
    source = left[firsts.index(name)]
    return source.take(source.count_before(name, including=True))


def _sorted(heads: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Stable: rows of one partition stay in the order of the files and of each file."""
    if len(heads) == 1:
        return heads[0]
    (rows,) = pa.Table.from_batches(heads).combine_chunks().to_batches()
    return rows.take(pa.array(np.argsort(_ranks(rows.column("partition")), kind="stable")))


def _ranks(names: Any) -> Any:
    """The place of each row's partition among all partitions, by its UTF-8 bytes."""
    encoded = names.dictionary_encode()
    values = [name.encode() for name in encoded.dictionary.to_pylist()]
    ranks = np.empty(len(values), np.int32)
    ranks[sorted(range(len(values)), key=values.__getitem__)] = np.arange(len(values), dtype=np.int32)
    return ranks[np.asarray(encoded.indices)]
