"""The queries of a report: executors count files and partitions, Spark adds up by name, and every result is small.

An *item* is what an event edits, within a partition:

- a tree action on a node (treePush, treeUpdate, treeMove, treeDelete): its target and the node's id;
- `set` and `unset`: their target; `init`: the partition as a whole;
- a canonical event whose data has an `id`: the schema's name up to its last dot, and that id, so that `note.added`
  and `note.edited` of one id are about one note. Canonical events without one name no item.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from unisono.lake.lake import View
from unisono.pipeline.jobs.report.steps import step_of
from unisono.pipeline.jobs.report.tables import (
    BusyClient,
    BusyPartition,
    ContestedItem,
    EventKindRow,
    Totals,
)
from unisono.pipeline.jobs.report.tasks import (
    BEFORE,
    CLIENT,
    DELAY,
    EVER_MS,
    KIND,
    OLDER,
    PLACES_DDL,
    SIZE,
    SUMS_DDL,
    TOTAL,
    Item,
    PlaceSummary,
    PlaceTask,
    ReportScope,
    sum_log_file,
    sum_places,
    time_span,
)
from unisono.pipeline.spark.executors import parallelism, rows_of, run_on_executors, task_frame
from unisono.pipeline.task_planning import plan_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable


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
    """Queries on the events of a view within `[from_ms, to_ms)`. Caches sums in Spark until closed.

    `within_ms`: edits this close are contested. `top`: how many of the busiest. `since` and `ages`: see `older`.
    """

    def __init__(
        self,
        spark: SparkSession,
        view: View,
        from_ms: int | None,
        to_ms: int | None,
        *,
        within_ms: int,
        top: int,
        since: int,
        ages: Mapping[int, int],
    ) -> None:
        scope = ReportScope(
            view.storage,
            view.head,
            -EVER_MS if from_ms is None else from_ms,
            EVER_MS if to_ms is None else to_ms,
            within_ms=within_ms,
            top=top,
            since=since,
            ages=tuple(ages.values()),
        )
        files = [file for file in view.log_files if file.first_id <= view.head]
        spans = [span for span in run_on_executors(spark, files, partial(time_span, scope)) if span]
        self.first_at, self.last_at = (
            min((low for low, _ in spans), default=None),
            max((high for _, high in spans), default=None),
        )
        self.step_ms = step_of((self.last_at or 0) - (self.first_at or 0))
        self._scope = msgspec.structs.replace(scope, step_ms=self.step_ms)
        self._ages = ages
        self._top = top
        self._sums = task_frame(spark, files, partial(sum_log_file, self._scope), SUMS_DDL).persist()
        tasks = [
            PlaceTask(
                part.subset, tuple(file for file in view.partition_files if part.subset.may_be_in(file))
            )
            for part in plan_tasks(
                view.storage, view.partition_files, view.buckets, view.head, parallelism(spark)
            )
        ]
        self._places = task_frame(spark, tasks, partial(sum_places, self._scope), PLACES_DDL).persist()

    def close(self) -> None:
        self._sums.unpersist()
        self._places.unpersist()

    def totals(self) -> Totals:
        whole = self._few.get((TOTAL, 0))
        if whole is None or not whole["events"]:
            return Totals()
        clients = self._of(CLIENT).agg(f.count_distinct("name").alias("clients"))
        (row,) = rows_of(clients, "report.clients")
        return Totals(
            whole["events"],
            whole["bytes"],
            row["clients"],
            sum(self.clients_per_partition().values()),
            whole["low"],
            whole["high"],
            self.first_at,
            self.last_at,
        )

    def before(self) -> tuple[int, int]:
        """Events and bytes before the range."""
        return self._sum(BEFORE, 0)

    def per_step(self) -> dict[int, TimeStep]:
        """The counts of each step that has events."""
        steps = self._of(CLIENT).groupBy("step").agg(*_added(), f.count_distinct("name").alias("clients"))
        found = {}
        for row in rows_of(steps, "report.per_step"):
            partitions, edits, unnamed, _ = self._place_steps[row["step"]]
            found[row["step"]] = TimeStep(
                row["events"], row["bytes"], row["clients"], partitions, edits, unnamed
            )
        return found

    def kinds(self, rows_max: int) -> tuple[list[EventKindRow], int]:
        """The most frequent kinds, and how many there are."""
        by_kind = self._of(KIND).groupBy(f.col("name").alias("type"), f.col("more").alias("schema"))
        kinds = by_kind.agg(*_added(), f.max("high").alias("largest"))
        order = (f.desc("events"), f.asc_nulls_first("type"), f.asc_nulls_first("schema"))
        rows = rows_of(kinds.orderBy(*order).limit(rows_max), "report.kinds")
        count = kinds.count() if len(rows) == rows_max else len(rows)
        return [_row(EventKindRow, row) for row in rows], count

    def kinds_per_step(self, shown: Sequence[EventKindRow]) -> dict[tuple[int, int], int]:
        """(step, place in `shown` or -1 for all others) → events."""
        place: Column = f.lit(-1)
        for number, kind in reversed(list(enumerate(shown))):
            same = f.col("name").eqNullSafe(f.lit(kind.type)) & f.col("more").eqNullSafe(f.lit(kind.schema))
            place = f.when(same, number).otherwise(place)
        counted = self._of(KIND).groupBy("step", place.alias("place")).agg(f.sum("events").alias("events"))
        return {
            (row["step"], row["place"]): row["events"] for row in rows_of(counted, "report.kinds_per_step")
        }

    def busiest_partitions(self) -> list[BusyPartition]:
        best = (busy for summary in self._summaries for busy in summary.busiest)
        return sorted(best, key=lambda busy: (-busy.events, busy.partition))[: self._top]

    def busiest_clients(self) -> list[BusyClient]:
        extent = (f.min("low").alias("first_at"), f.max("high").alias("last_at"))
        clients = self._of(CLIENT).groupBy(f.col("name").alias("client_id")).agg(*_added(), *extent)
        order = clients.orderBy(f.desc("events"), "client_id").limit(self._top)
        top = rows_of(order, "report.busiest_clients")
        named = self._places.where(f.col("client_id").isin([row["client_id"] for row in top]))
        written = rows_of(
            named.groupBy("client_id").agg(f.sum("partitions").alias("partitions")),
            "report.partitions_of_clients",
        )
        partitions = {row["client_id"]: row["partitions"] for row in written}
        return [
            BusyClient(
                row["client_id"],
                row["events"],
                row["bytes"],
                partitions[row["client_id"]],
                row["first_at"],
                row["last_at"],
            )
            for row in top
        ]

    def clients_per_partition(self) -> dict[int, int]:
        """How many clients wrote → to how many partitions."""
        return dict(sum((summary.sharing for summary in self._summaries), Counter[int]()))

    def sizes(self) -> tuple[dict[int, int], int | None]:
        """Size of event text, in three digits → events; and the largest."""
        return self._distribution(SIZE)

    def delays(self) -> tuple[dict[int, int], int | None]:
        """Milliseconds from draft to commit, in three digits → events (-1: dated after it); and the longest."""
        return self._distribution(DELAY)

    def contested(self) -> dict[int, int]:
        """Step → edits within the given time after another client's edit of the same item, once per partition."""
        return {start: step[3] for start, step in self._place_steps.items() if step[3]}

    def contested_items(self) -> tuple[list[ContestedItem], int]:
        """The most contested items, and how many there are."""
        best = [contest for summary in self._summaries for contest in summary.contests]
        top = [
            ContestedItem(
                each.partition, _item_name(each.item), each.contested, each.clients, each.closest_ms
            )
            for each in sorted(best, key=lambda each: each.order())[: self._top]
        ]
        return top, sum(summary.contested_items for summary in self._summaries)

    def older(self) -> tuple[int, int, dict[int, tuple[int, int]]]:
        """Events and bytes after the committed id `since`, and those of them committed before each of `ages`."""
        parts = {key: self._sum(OLDER, number) for number, key in enumerate(self._ages)}
        return (*self._sum(OLDER, -1), parts)

    def _of(self, kind: str) -> DataFrame:
        return self._sums.where(f.col("of") == kind)

    @cached_property
    def _few(self) -> Mapping[tuple[str, int], Any]:
        """All sums that are not by name."""
        few = self._sums.where(~f.col("of").isin([CLIENT, KIND])).groupBy("of", "step")
        extremes = (f.min("low").alias("low"), f.max("high").alias("high"))
        return {
            (row["of"], row["step"]): row for row in rows_of(few.agg(*_added(), *extremes), "report.sums")
        }

    def _sum(self, kind: str, step: int) -> tuple[int, int]:
        row = self._few.get((kind, step))
        return (0, 0) if row is None else (row["events"], row["bytes"])

    def _distribution(self, kind: str) -> tuple[dict[int, int], int | None]:
        rows = [row for (of, _), row in self._few.items() if of == kind]
        return {row["step"]: row["events"] for row in rows}, max((row["high"] for row in rows), default=None)

    @cached_property
    def _summaries(self) -> Sequence[PlaceSummary]:
        rows = rows_of(self._places.where("summary is not null").select("summary"), "report.partitions")
        return [pickle.loads(row["summary"]) for row in rows]  # noqa: S301 (pickled by our executors)

    @cached_property
    def _place_steps(self) -> Mapping[int, list[int]]:
        whole: dict[int, list[int]] = {}
        for summary in self._summaries:
            for start, counts in summary.steps.items():
                whole[start] = _plus(whole.get(start, (0, 0, 0, 0)), counts)
        return whole


def _added() -> tuple[Column, Column]:
    return f.sum("events").alias("events"), f.sum("bytes").alias("bytes")


def _plus(some: Iterable[int], more: Iterable[int]) -> list[int]:
    return [one + other for one, other in zip(some, more, strict=True)]


def _row(kind: type[Any], row: Any) -> Any:
    return kind(**{name: row[name] for name in kind.__struct_fields__})


def _item_name(item: Item) -> str:
    _, place, node = item
    return f"{place} / {node}" if node else place or "(everything)"
