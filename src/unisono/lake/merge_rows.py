"""Merging the rows of files that are each sorted by partition and committed_id, many rows at a time.

`merge.py` merges pieces, one for each partition in each file, which a fold needs. Where a partition has few rows in
each of many files, its pieces are nearly as many as the rows. Here the next rows of all files are sorted together, so
a row costs the same however many files and partitions there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

ROUND_BYTES_MAX: Final = 64 << 20
"""Rows sorted together. Beyond this, which only large events reach, they come one partition of one file at a time."""


class _Source:
    """One file: the rows of its current batch that are not merged yet."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self.rows: pa.RecordBatch | None = None
        self._start = 0
        self.drop(0)

    def drop(self, count: int) -> None:
        """The first rows have been merged; `rows` is None when none is left."""
        self._start += count
        while self.rows is None or self._start == self.rows.num_rows:
            self.rows, self._start = next(self._batches, None), 0
            if self.rows is None:
                return

    def name(self, place: int) -> bytes:
        assert self.rows is not None
        return str(self.rows.column("partition")[place].as_py()).encode()

    @property
    def first(self) -> bytes:
        return self.name(self._start)

    @property
    def last(self) -> bytes:
        assert self.rows is not None
        return self.name(self.rows.num_rows - 1)

    def count_before(self, name: bytes, *, including: bool) -> int:
        assert self.rows is not None
        places = range(self._start, self.rows.num_rows)
        return (bisect_right if including else bisect_left)(places, name, key=self.name)

    def head(self, count: int) -> pa.RecordBatch:
        assert self.rows is not None
        return self.rows.slice(self._start, count)


def merge_rows(files: Sequence[Iterable[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """The rows of all files by partition, and of one partition by file; one batch of each file is in memory."""
    left = [source for source in map(_Source, files) if source.rows is not None]
    while len(left) > 1:
        yield _next_rows(left)
        left = [source for source in left if source.rows is not None]
    for source in left:
        while source.rows is not None:
            rows = source.head(source.rows.num_rows)
            source.drop(rows.num_rows)
            yield rows


def _next_rows(left: Sequence[_Source]) -> pa.RecordBatch:
    """All rows of which it is certain that no row to come is before them."""
    name = min(source.last for source in left)
    open_ended = next(source for source in left if source.last == name)
    # Of this partition that file may have more: rows of the files after it wait.
    through = left.index(open_ended)
    counts = [source.count_before(name, including=number <= through) for number, source in enumerate(left)]
    heads = [source.head(count) for source, count in zip(left, counts, strict=True)]
    if sum(head.nbytes for head in heads) > ROUND_BYTES_MAX:
        return _first_piece(left)
    for source, count in zip(left, counts, strict=True):
        source.drop(count)
    return _sorted([head for head in heads if head.num_rows])


def _first_piece(left: Sequence[_Source]) -> pa.RecordBatch:
    name = min(source.first for source in left)
    source = next(source for source in left if source.first == name)
    rows = source.head(source.count_before(name, including=True))
    source.drop(rows.num_rows)
    return rows


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
