"""The queries of a report, in Spark SQL on the lake. Every result is small and in a fixed order.

An *item* is what an event edits, within a partition:

- a tree action on a node (treePush, treeUpdate, treeMove, treeDelete): its target and the node's id;
- `set` and `unset`: their target; `init`: the partition as a whole;
- a canonical event whose data has an `id`: the schema's name up to its last dot, and that id, so that `note.added`
  and `note.edited` of one id are about one note. Canonical events without one name no item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from unisono.lake.lake import View
from unisono.pipeline.jobs.report.tables import (
    BusyClient,
    BusyPartition,
    ContestedItem,
    EventKindRow,
    Totals,
)
from unisono.pipeline.spark.executors import rows_of
from unisono.pipeline.spark.frames import read_log

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS
MONDAY_MS: Final = 4 * DAY_MS
"""The first Monday of the epoch: weeks begin there."""

_STEPS: Final = ((3 * HOUR_MS, MINUTE_MS), (7 * DAY_MS, HOUR_MS), (730 * DAY_MS, DAY_MS))
"""(duration, step): ranges up to the duration use the step; enough steps for a shape, few enough to draw."""

_UUID7: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"

_ITEM: Final = """struct(
    case when type = 'event' then 'event' when type like 'tree%' then 'tree' else 'path' end as family,
    case when type = 'event' then regexp_replace(schema, '[.][^.]*$', '')
         when type = 'init' then ''
         when type in ('set', 'unset', 'treePush', 'treeUpdate', 'treeDelete', 'treeMove')
              then get_json_object(event, '$.payload.target') end as place,
    case when type = 'event' then get_json_object(event, '$.payload.data.id')
         when type = 'treePush' then get_json_object(event, '$.payload.value.id')
         when type in ('treeUpdate', 'treeDelete', 'treeMove') then get_json_object(event, '$.payload.options.id')
         when type in ('set', 'unset', 'init') then '' end as node)"""


def step_of(span_ms: int) -> int:
    """The step of a report on a range of this length."""
    return next((step for longest, step in _STEPS if span_ms <= longest), WEEK_MS)


def step_start(at: int, step_ms: int) -> int:
    """The start of the step that contains `at`."""
    return (at - MONDAY_MS) // step_ms * step_ms + MONDAY_MS


def steps_between(first_at: int, last_at: int, step_ms: int) -> range:
    return range(step_start(first_at, step_ms), step_start(last_at, step_ms) + 1, step_ms)


class TimeStep(msgspec.Struct, frozen=True):
    """One step: events and their bytes, active clients and partitions, and once per partition of an event
    whether it names an item.
    """

    events: int = 0
    bytes: int = 0
    clients: int = 0
    partitions: int = 0
    edits: int = 0
    unnamed: int = 0


class ReportQueries:
    """Queries on the events of a view within `[from_ms, to_ms)`. Caches rows in Spark until closed."""

    def __init__(self, spark: SparkSession, view: View, from_ms: int | None, to_ms: int | None) -> None:
        self._log = read_log(spark, view)
        at = f.col("status_updated_at")
        within = f.lit(True)
        if from_ms is not None:
            within &= at >= from_ms
        if to_ms is not None:
            within &= at < to_ms
        self._events = (
            self._log.where(within)
            .select(
                "committed_id",
                "client_id",
                "partitions",
                "type",
                "schema",
                at.alias("at"),
                f.octet_length("event").cast("long").alias("bytes"),
                f.expr(_ITEM).alias("item"),
                _drafted().alias("drafted"),
            )
            .persist()
        )
        exploded = self._events.withColumn("partition", f.explode("partitions"))
        self._by_partition = exploded.drop("partitions", "drafted")
        self._pairs = self._by_partition.groupBy("partition", "client_id").agg(*_sums(), *_extent()).persist()
        self._per_partition = self._pairs.groupBy("partition").agg(
            f.sum("events").alias("events"),
            f.sum("bytes").alias("bytes"),
            f.count("*").alias("clients"),
            f.min("first_at").alias("first_at"),
            f.max("last_at").alias("last_at"),
        )
        self._contested: DataFrame | None = None
        self._sharing: dict[int, int] | None = None

    def close(self) -> None:
        for frame in (self._events, self._pairs, self._contested):
            if frame is not None:
                frame.unpersist()

    def totals(self) -> Totals:
        whole = self._events.agg(
            *_sums(),
            f.countDistinct("client_id").alias("clients"),
            f.min("committed_id").alias("first_id"),
            f.max("committed_id").alias("last_id"),
            *_extent(),
        )
        (row,) = rows_of(whole, "report.totals")
        return Totals(
            row["events"],
            row["bytes"] or 0,
            row["clients"],
            sum(self.clients_per_partition().values()),
            row["first_id"],
            row["last_id"],
            row["first_at"],
            row["last_at"],
        )

    def before(self, from_ms: int) -> tuple[int, int]:
        """Events and bytes before the range."""
        earlier = self._log.where(f.col("status_updated_at") < from_ms)
        (row,) = rows_of(earlier.agg(f.count("*"), f.sum(f.octet_length("event"))), "report.before")
        return row[0], row[1] or 0

    def per_step(self, step_ms: int) -> dict[int, TimeStep]:
        """The counts of each step that has events."""
        step = _step(step_ms)
        in_partitions = self._by_partition.groupBy(step).agg(
            f.countDistinct("partition").alias("partitions"),
            f.count_if(_named()).alias("edits"),
            f.count_if(~_named()).alias("unnamed"),
        )
        by_step = {row["step"]: row for row in rows_of(in_partitions, "report.partitions_per_step")}
        clients = f.countDistinct("client_id").alias("clients")
        steps = {}
        for row in rows_of(self._events.groupBy(step).agg(*_sums(), clients), "report.per_step"):
            more = by_step[row["step"]]
            steps[row["step"]] = TimeStep(
                row["events"],
                row["bytes"],
                row["clients"],
                more["partitions"],
                more["edits"],
                more["unnamed"],
            )
        return steps

    def kinds(self, rows_max: int) -> tuple[list[EventKindRow], int]:
        """The most frequent kinds, and how many there are."""
        kinds = self._events.groupBy("type", "schema").agg(*_sums(), f.max("bytes").alias("largest"))
        order = (f.desc("events"), f.asc_nulls_first("type"), f.asc_nulls_first("schema"))
        rows = rows_of(kinds.orderBy(*order).limit(rows_max), "report.kinds")
        count = kinds.count() if len(rows) == rows_max else len(rows)
        return [_row(EventKindRow, row) for row in rows], count

    def kinds_per_step(self, step_ms: int, shown: Sequence[EventKindRow]) -> dict[tuple[int, int], int]:
        """(step, place in `shown` or -1 for all others) → events."""
        place: Column = f.lit(-1)
        for number, kind in reversed(list(enumerate(shown))):
            same = f.col("type").eqNullSafe(f.lit(kind.type)) & f.col("schema").eqNullSafe(f.lit(kind.schema))
            place = f.when(same, number).otherwise(place)
        counted = self._events.groupBy(_step(step_ms), place.alias("place")).count()
        return {
            (row["step"], row["place"]): row["count"] for row in rows_of(counted, "report.kinds_per_step")
        }

    def busiest_partitions(self, rows_max: int) -> list[BusyPartition]:
        top = self._per_partition.orderBy(f.desc("events"), "partition").limit(rows_max)
        return [_row(BusyPartition, row) for row in rows_of(top, "report.busiest_partitions")]

    def busiest_clients(self, rows_max: int) -> list[BusyClient]:
        clients = self._events.groupBy("client_id").agg(*_sums(), *_extent())
        written = self._pairs.groupBy("client_id").agg(f.count("*").alias("partitions"))
        top = clients.orderBy(f.desc("events"), "client_id").limit(rows_max).join(written, "client_id")
        top = top.orderBy(f.desc("events"), "client_id")
        return [_row(BusyClient, row) for row in rows_of(top, "report.busiest_clients")]

    def clients_per_partition(self) -> dict[int, int]:
        """How many clients wrote → to how many partitions."""
        if self._sharing is None:
            rows = rows_of(self._per_partition.groupBy("clients").count(), "report.clients_per_partition")
            self._sharing = {row["clients"]: row["count"] for row in rows}
        return self._sharing

    def sizes(self) -> tuple[dict[int, int], int | None]:
        """Size of event text, in three digits → events; and the largest."""
        return _counted(self._events.select(f.col("bytes").alias("value")))

    def delays(self) -> tuple[dict[int, int], int | None]:
        """Milliseconds from draft to commit, in three digits → events (-1: dated after it); and the longest."""
        known = self._events.where("drafted is not null")
        return _counted(known.selectExpr("greatest(at - drafted, -1) as value"))

    def contested(self, within_ms: int, step_ms: int) -> dict[int, int]:
        """Step → edits within the given time after another client's edit of the same item, once per partition."""
        order = Window.partitionBy("partition", "item").orderBy("committed_id")
        judged = (
            self._by_partition.where(_named())
            .withColumn("before", f.lag(f.struct("client_id", "at")).over(order))
            .withColumn("gap", f.col("at") - f.col("before.at"))
            .withColumn("other", f.col("before.client_id"))
            .where((f.col("other") != f.col("client_id")) & f.col("gap").between(0, within_ms))
            .select("partition", "item", "at", "client_id", "other", "gap")
        )
        self._contested = judged.persist()
        rows = rows_of(self._contested.groupBy(_step(step_ms)).count(), "report.contested")
        return {row["step"]: row["count"] for row in rows}

    def contested_items(self, rows_max: int) -> tuple[list[ContestedItem], int]:
        """The most contested items, and how many there are; after `contested`."""
        assert self._contested is not None
        both = self._contested.withColumn("who", f.explode(f.array("client_id", "other")))
        items = both.groupBy("partition", "item").agg(
            f.expr("count(*) div 2").alias("contested"),
            f.countDistinct("who").alias("clients"),
            f.min("gap").alias("closest_ms"),
        )
        most = items.orderBy(f.desc("contested"), "partition", "item").limit(rows_max)
        rows = rows_of(most, "report.contested_items")
        top = [
            ContestedItem(
                row["partition"], _item_name(row["item"]), row["contested"], row["clients"], row["closest_ms"]
            )
            for row in rows
        ]
        return top, items.count() if len(rows) == rows_max else len(rows)

    def older(self, since: int, ages: Mapping[int, int]) -> tuple[int, int, dict[int, tuple[int, int]]]:
        """Events and bytes after the committed id `since`, and those of them committed before each of `ages`."""
        size = f.octet_length("event").cast("long")
        at = f.col("status_updated_at")
        wanted = [f.count("*"), f.sum(size)]
        for before in ages.values():
            wanted += [f.count_if(at < before), f.sum(f.when(at < before, size).otherwise(0))]
        (row,) = rows_of(self._log.where(f.col("committed_id") > since).agg(*wanted), "report.older")
        figures = [value or 0 for value in row]
        parts = {key: (figures[2 + 2 * n], figures[3 + 2 * n]) for n, key in enumerate(ages)}
        return figures[0], figures[1], parts


def _named() -> Column:
    return f.col("item.place").isNotNull() & f.col("item.node").isNotNull()


def _sums() -> tuple[Column, Column]:
    return f.count("*").alias("events"), f.sum("bytes").alias("bytes")


def _extent() -> tuple[Column, Column]:
    return f.min("at").alias("first_at"), f.max("at").alias("last_at")


def _step(step_ms: int) -> Column:
    return f.expr(f"(at - {MONDAY_MS}) div {step_ms} * {step_ms} + {MONDAY_MS}").alias("step")


def _three_digits(name: str) -> Column:
    """A whole number rounded down to its first three digits: a few thousand values at most."""
    power = f"cast(pow(10, greatest(length(cast({name} as string)) - 3, 0)) as bigint)"
    return f.expr(f"{name} div {power} * {power}")


def _drafted() -> Column:
    """When a draft was written, by its client's clock: the time in an id that is a UUID of version 7."""
    id_ = f.lower("id")
    stamp = f.conv(f.concat(f.substring(id_, 1, 8), f.substring(id_, 10, 4)), 16, 10).cast("long")
    return f.when((f.length("id") == 36) & id_.rlike(_UUID7), stamp)


def _counted(values: DataFrame) -> tuple[dict[int, int], int | None]:
    grouped = values.groupBy(_three_digits("value").alias("digits"))
    counted = grouped.agg(f.count("*").alias("values"), f.max("value").alias("largest"))
    rows = rows_of(counted, "report.distribution")
    return {row["digits"]: row["values"] for row in rows}, max((row["largest"] for row in rows), default=None)


def _row(kind: type[Any], row: Any) -> Any:
    return kind(**{name: row[name] for name in kind.__struct_fields__})


def _item_name(item: Any) -> str:
    place, node = item["place"], item["node"]
    return f"{place} / {node}" if node else str(place) or "(everything)"
