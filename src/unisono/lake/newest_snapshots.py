"""The newest snapshot of each partition in some files, many partitions at a time.

Keys are read and merged first, and states only where the caller wants them. `Snapshots` in `snapshots.py` finds the
snapshots of one partition after the other, at any id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.file_checks import RowOrder, open_checked
from unisono.lake.merge import PartitionSubset
from unisono.lake.merge_rows import merge_rows
from unisono.lake.row_groups import Footer
from unisono.lake.snapshots import STATE_COLUMNS, StateRow
from unisono.lake.storage import Storage
from unisono.lake.write import UNBUCKETED, DataFile

KEYS_AT_ONCE: Final = 8_192
"""Partitions decided upon together."""

Wanted = Callable[[list[str], Any], Any]
"""Partitions and the ids of their newest snapshots → which of them to read, as an array of bool."""


def newest_snapshots(
    storage: Storage, files: Iterable[DataFile], subset: PartitionSubset, upto: int, wanted: Wanted
) -> Iterator[StateRow]:
    """The newest snapshot up to `upto` of each partition of `subset`, of those that are `wanted`."""
    with ExitStack() as stack:
        opened = [
            _File(number, file, stack.enter_context(open_checked(storage, file)))
            for number, file in enumerate(sorted(files, key=lambda file: (file.first_id, file.last_id)))
            if file.first_id <= upto
        ]
        by_number = {file.number: file for file in opened}
        merged = merge_rows([file.keys(subset, upto) for file in opened])
        for keys in _joined(_last_of_each(merged)):
            names, ids = keys.column("partition").to_pylist(), np.asarray(keys.column("committed_id"))
            chosen = np.flatnonzero(wanted(names, ids))
            places, groups, numbers = (
                np.asarray(keys.column(column)) for column in ("place", "group", "file")
            )
            chosen = chosen[np.lexsort((places[chosen], groups[chosen], numbers[chosen]))]
            places, groups, numbers = places[chosen], groups[chosen], numbers[chosen]
            for start, end in _runs(numbers, groups):
                some = chosen[start:end]
                rest = by_number[int(numbers[start])].states(int(groups[start]), places[start:end])
                for place, *values in zip(some.tolist(), *rest, strict=True):
                    row = StateRow(names[place], int(ids[place]), *values)
                    row.require_sound()
                    yield row


class _File:
    """One open file: the keys of its row groups in turn, and the states of the group read last."""

    def __init__(self, number: int, file: DataFile, parquet: Any) -> None:
        self.number = number
        self._file = file
        self._parquet = parquet
        self._states: tuple[int, Any] = (-1, None)

    def keys(self, subset: PartitionSubset, upto: int) -> Iterator[pa.RecordBatch]:
        mixed = self._file.bucket == UNBUCKETED and subset.buckets is not None
        # Two rows with the same key are equal; an audit reports them.
        order = RowOrder(self._file, repeats=True)
        for group in Footer(self._parquet.metadata).row_groups():
            if group.first_id > upto or not subset.meets(group.first_name, group.last_name):
                continue
            table = self._parquet.read_row_group(group.number, columns=["partition", "committed_id"])
            order.follow(table.column("committed_id"), table.column("partition"))
            (keys,) = table.combine_chunks().to_batches()
            rows = keys.num_rows
            for name, values in (
                ("file", np.full(rows, self.number, np.int32)),
                ("group", np.full(rows, group.number, np.int32)),
                ("place", np.arange(rows, dtype=np.int32)),
            ):
                keys = keys.append_column(name, pa.array(values))
            if group.last_id > upto:
                keys = keys.filter(pc.field("committed_id") <= upto)
            if mixed or not subset.holds_range(group.first_name, group.last_name):
                keys = subset.filter(keys)
            yield keys

    def states(self, group: int, places: Any) -> list[list[Any]]:
        """Of some rows of a group: the columns of a `StateRow` after its key."""
        if self._states[0] != group:
            self._states = group, self._parquet.read_row_group(group, columns=list(STATE_COLUMNS))
        rows = self._states[1].take(pa.array(places))
        return [rows.column(column).to_pylist() for column in STATE_COLUMNS]


def _last_of_each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The row with the largest id of each partition; rows of one partition come together."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        rows = _one([*pending, batch])
        names = rows.column("partition")
        ends = np.append(np.flatnonzero(np.asarray(pc.not_equal(names[1:], names[:-1]))) + 1, rows.num_rows)
        begin = int(ends[-2]) if len(ends) > 1 else 0  # the last partition may go on
        pending = [rows.slice(begin)]
        if begin:
            yield _largest(rows.slice(0, begin), ends[:-1])
    if pending:
        yield _largest(pending[0], np.array([pending[0].num_rows]))


def _largest(rows: pa.RecordBatch, ends: Any) -> pa.RecordBatch:
    if len(ends) == rows.num_rows:
        return rows
    runs = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    order = np.lexsort((np.asarray(rows.column("committed_id")), runs))
    return rows.take(pa.array(order[ends - 1]))


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small batches in larger ones, of KEYS_AT_ONCE rows or little more."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        if rows >= KEYS_AT_ONCE:
            yield _one(pending)
            pending, rows = [], 0
    if pending:
        yield _one(pending)


def _one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (rows,) = pa.Table.from_batches(batches).combine_chunks().to_batches() or (batches[0],)
    return rows


def _runs(numbers: Any, groups: Any) -> Iterator[tuple[int, int]]:
    """(start, end) of rows of the same row group that follow each other."""
    if not len(numbers):
        return
    change = (numbers[1:] != numbers[:-1]) | (groups[1:] != groups[:-1])
    edges = [0, *(np.flatnonzero(change) + 1).tolist(), len(numbers)]
    yield from pairwise(edges)
