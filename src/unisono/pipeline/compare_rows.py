"""Proof, before an event leaves the log, that the lake has it: every column of it, in both tables, and a hash that
fits what is there.

Stronger than `verify`, which compares the hashes that both sides carry: here each event of the lake is hashed anew,
in the table by partition too, from which it will be served.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.columns import LOG_SCHEMA, to_batch
from unisono.lake.lake import View
from unisono.lake.scan import RowRange, scan_file, scan_log
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.pipeline.jobs.audit.row_fingerprints import (
    EVENT_COLUMNS,
    KIND_COLUMNS,
    Columns,
    batch_hashes,
    mix,
)
from unisono.pipeline.jobs.export.verify import Range, ranges
from unisono.pipeline.open_log import open_reader, read_range
from unisono.protocol.canonical import canonical, content_hash
from unisono.protocol.tombstones import is_tombstone
from unisono.store.port import LogReader, Record
from unisono.vocabulary import Json

if TYPE_CHECKING:
    from pyspark import SparkContext

STRETCH: Final = 8_192
"""Events compared at once: both sides of them are in memory."""

_COPIED: Final = (*EVENT_COLUMNS, *KIND_COLUMNS)
"""What both tables have of an event beside its committed_id."""


class ComparedRange(msgspec.Struct, frozen=True):
    """One range; `problem` names the first event whose copy is not what the log has, None when all are."""

    since: int
    upto: int
    events: int
    problem: str | None = None


class _Places(msgspec.Struct, frozen=True):
    """Rows of the table by partition, whatever their order: how many, and the sum of their prints modulo 2^64."""

    rows: int = 0
    prints: int = 0

    def __add__(self, other: _Places) -> _Places:
        return _Places(self.rows + other.rows, (self.prints + other.prints) % (1 << 64))

    @classmethod
    def of(cls, ids: Any, columns: Columns) -> _Places:
        return cls(len(ids), int(mix(ids, columns).sum(dtype=np.uint64)))


def prove(spark: SparkContext, store: str, view: View, since: int, upto: int) -> list[ComparedRange]:
    """Compare every event of `(since, upto]`, which log and lake both hold."""
    tasks = ranges(store, view, since, upto)
    return list(spark.parallelize(tasks, len(tasks)).map(prove_range).collect()) if tasks else []


def prove_range(task: Range) -> ComparedRange:
    """On an executor."""
    reader = open_reader(task.store)
    try:
        problem, places = _compare_log(task, reader)
    finally:
        reader.close()
    problem = problem or _compare_places(task, places)
    return ComparedRange(task.since, task.upto, task.upto - task.since, problem)


def _compare_log(task: Range, reader: LogReader) -> tuple[str | None, _Places]:
    """The table `log` beside the store; and what the table by partition must have."""
    places = _Places()
    for since in range(task.since, task.upto, STRETCH):
        upto = min(since + STRETCH, task.upto)
        records = list(chain.from_iterable(read_range(reader, since, upto)))
        batch = to_batch(records)
        places += _expected(batch)
        there = pa.Table.from_batches([batch])
        here = pa.Table.from_batches(list(scan_log(task.storage, task.log, since, upto)), LOG_SCHEMA)
        if not here.equals(there):
            return _first_difference(here, records), places
        if (problem := misfit(LOG, here.to_batches())) is not None:
            return problem, places
    return None, places


def _expected(rows: pa.RecordBatch) -> _Places:
    """One row for each partition of each event."""
    lists = rows.column("partitions")
    parents = np.asarray(pc.list_parent_indices(lists))
    columns = {name: values[parents] for name, values in batch_hashes(rows, _COPIED).items()}
    names = pa.record_batch({"partition": pc.list_flatten(lists)})
    columns |= batch_hashes(names, ("partition",))
    return _Places.of(np.asarray(rows.column("committed_id"))[parents], columns)


def _compare_places(task: Range, expected: _Places) -> str | None:
    span = RowRange(task.since, task.upto)
    found = _Places()
    for file in task.by_partition:
        for batch in scan_file(task.storage, file, span, ("committed_id", "partition", *_COPIED)):
            found += _Places.of(
                np.asarray(batch.column("committed_id")), batch_hashes(batch, (*_COPIED, "partition"))
            )
            if (problem := misfit(BY_PARTITION, [batch])) is not None:
                return problem
    if found != expected:
        return f"the table {BY_PARTITION} differs from the log within events {task.since + 1} to {task.upto}"
    return None


def misfit(table: str, batches: Sequence[pa.RecordBatch]) -> str | None:
    """The first event whose hash is not its own. Of a tombstone the hash is that of what was erased."""
    for batch in batches:
        for committed_id, partitions, event, kept in _rows(batch):
            text = event.encode()
            if content_hash(text, canonical(partitions)) != kept and not is_tombstone(text):
                return f"event {committed_id} in the lake's table {table} does not fit its hash"
    return None


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[int, list[Json], str, bytes]]:
    columns = (batch.column(name).to_pylist() for name in ("committed_id", "partitions", "event", "hash"))
    return zip(*columns, strict=True)


def _first_difference(here: pa.Table, records: Sequence[Record]) -> str:
    rows = {row["committed_id"]: row for row in here.to_pylist()}
    for record in records:
        (wanted,) = to_batch([record]).to_pylist()
        if rows.get(record.committed_id) != wanted:
            missing = record.committed_id not in rows
            return (
                f"event {record.committed_id} {'is not in the lake' if missing else 'is another in the lake'}"
            )
    return f"the lake holds events twice among {records[0].committed_id} to {records[-1].committed_id}"
