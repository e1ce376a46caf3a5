"""What executors count in the files of `by_partition`: one subset of the partitions at a time, by DuckDB.

A partition is in one subset, so partitions and their items are counted without an exchange. Files are read by the
lake's own reader, which checks them, and pass through DuckDB as a stream. It keeps what it has to sort in bounded
memory, and on disk beyond that. Of large events it gets only what names their items.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.merge import PartitionSubset, scan_subset
from unisono.lake.scan import RowRange
from unisono.lake.write import DataFile, release_arrow_memory
from unisono.pipeline.jobs.report.duck import bounded_duckdb, know_odd_items, load_report_queries
from unisono.pipeline.jobs.report.items import Item, short_event
from unisono.pipeline.jobs.report.scope import ReportScope
from unisono.pipeline.jobs.report.steps import step_start
from unisono.pipeline.jobs.report.tables import BusyPartition

PLACES: Final = pa.schema([("client_id", pa.string()), ("partitions", pa.int64()), ("summary", pa.binary())])
"""In how many partitions a client wrote; in one row, without a client, the pickled summary of a subset."""

MEMORY_MAX: Final = "512MB"
"""Of DuckDB in one task; what needs more goes to temporary files."""

EVENT_BYTES_MAX: Final = 32 << 10
"""Longer event texts are shortened: DuckDB fills vectors of 2,048 rows whatever their size, and spills none."""

_READ: Final = ("partition", "committed_id", "client_id", "status_updated_at", "event", "type", "schema")

_EDITS: Final = pa.schema(
    [
        ("partition", pa.string()),
        ("committed_id", pa.int64()),
        ("client_id", pa.string()),
        ("at_ms", pa.int64()),
        ("event", pa.string()),
        ("type", pa.string()),
        ("schema", pa.string()),
        ("bytes", pa.int64()),
        ("step", pa.int64()),
    ]
)


class PlaceTask(msgspec.Struct, frozen=True):
    """The files of `by_partition` with a subset of the partitions."""

    subset: PartitionSubset
    files: tuple[DataFile, ...]


class ItemContest(msgspec.Struct, frozen=True):
    """One contested item; sorts as in the report."""

    contested: int
    partition: str
    item: Item
    clients: int
    closest_ms: int

    def order(self) -> tuple[int, str, Item]:
        return -self.contested, self.partition, self.item


class PlaceSummary(msgspec.Struct):
    """What one subset has: by step partitions, edits of named items, other edits and contested edits; number of
    clients → in how many partitions; the busiest partitions and the most contested items.
    """

    steps: dict[int, list[int]] = {}
    sharing: Counter[int] = msgspec.field(default_factory=Counter)
    busiest: list[BusyPartition] = []
    contests: list[ItemContest] = []
    contested_items: int = 0


@release_arrow_memory()
def sum_places(scope: ReportScope, task: PlaceTask) -> list[pa.RecordBatch]:
    """On an executor: what a subset of the partitions has, and in how many of them each client wrote."""
    queries = load_report_queries("places")
    with bounded_duckdb(1, MEMORY_MAX) as connection:
        know_odd_items(connection)
        connection.register("edits", pa.RecordBatchReader.from_batches(_EDITS, _edits(scope, task)))
        connection.execute(queries["items"])
        connection.unregister("edits")
        connection.execute(queries["contested"], {"within_ms": scope.within_ms})
        connection.execute(queries["partitions"])
        written = connection.sql(queries["written"]).to_arrow_table().cast(PLACES)
        return [*written.to_batches(), _packed(_summary(connection, queries, scope.top))]


def _edits(scope: ReportScope, task: PlaceTask) -> Iterator[pa.RecordBatch]:
    for file in task.files:
        for batch in scan_subset(scope.storage, file, task.subset, RowRange(0, scope.head), _READ):
            at = batch.column("status_updated_at")
            rows = batch.filter(pc.and_(pc.greater_equal(at, scope.from_ms), pc.less(at, scope.to_ms)))
            size = pc.cast(pc.binary_length(rows.column("event")), pa.int64())
            steps = step_start(np.asarray(rows.column("status_updated_at")), scope.step_ms)
            rows = rows.set_column(_READ.index("event"), "event", _short(rows.column("event"), size))
            yield pa.RecordBatch.from_arrays(
                [*rows.columns, size, pa.array(steps, pa.int64())], schema=_EDITS
            )


def _short(events: pa.Array, size: pa.Array) -> pa.Array:
    large = pc.greater(size, EVENT_BYTES_MAX)
    if not pc.any(large).as_py():
        return events
    texts = [short_event(text) for text in events.filter(large).to_pylist()]
    return pc.replace_with_mask(events, large, pa.array(texts, events.type))


def _summary(connection: duckdb.DuckDBPyConnection, queries: Mapping[str, str], top: int) -> PlaceSummary:
    def rows(name: str, **parameters: int) -> list[tuple[Any, ...]]:
        return connection.execute(queries[name], parameters).fetchall()

    steps = {step: [*counts, 0] for step, *counts in rows("per_step")}
    for step, count in rows("contested_per_step"):
        steps[step][3] = count
    ((contested_items,),) = rows("contested_items")
    return PlaceSummary(
        steps,
        Counter(dict(rows("sharing"))),
        [BusyPartition(*row) for row in rows("busiest", top=top)],
        [
            ItemContest(count, partition, (family, place, node), clients, closest)
            for count, partition, family, place, node, clients, closest in rows("contests", top=top)
        ],
        contested_items,
    )


def _packed(summary: PlaceSummary) -> pa.RecordBatch:
    columns = [[None], [None], [pickle.dumps(summary)]]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, PLACES, strict=True)], schema=PLACES
    )
