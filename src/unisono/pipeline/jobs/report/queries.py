"""The queries of a report: executors count files and partitions, an engine adds up by name, and results are small."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final

import msgspec
import pyarrow as pa

from unisono.lake.lake import View
from unisono.lake.merge import PartitionSubset
from unisono.pipeline.jobs.report.engines import ReportEngine
from unisono.pipeline.jobs.report.items import item_name
from unisono.pipeline.jobs.report.log_sums import (
    BEFORE,
    DELAY,
    OLDER,
    SIZE,
    SUMS,
    TOTAL,
    sum_log_file,
    time_span,
)
from unisono.pipeline.jobs.report.place_sums import PLACES, PlaceSummary, PlaceTask, sum_places
from unisono.pipeline.jobs.report.scope import EVER_MS, ReportScope
from unisono.pipeline.jobs.report.steps import step_of
from unisono.pipeline.jobs.report.tables import (
    BusyClient,
    BusyPartition,
    ContestedItem,
    EventKindRow,
    Totals,
)
from unisono.pipeline.task_planning import FilesByBucket, plan_tasks

TASK_ROWS: Final = 500_000
"""Rows of `by_partition` for one task: each starts a database, which takes as long as some ten thousand rows."""

_SHOWN = pa.schema([("place", pa.int64()), ("name", pa.string()), ("more", pa.string())])


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
    """Queries on the events of a view within `[from_ms, to_ms)`. The engine keeps partial sums.

    `within_ms`: edits this close are contested. `top`: how many of the busiest. `since` and `ages`: see `older`.
    """

    def __init__(
        self,
        engine: ReportEngine,
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
        spans = [span for span in engine.run(files, partial(time_span, scope)) if span]
        self.first_at, self.last_at = (
            min((low for low, _ in spans), default=None),
            max((high for _, high in spans), default=None),
        )
        self.step_ms = step_of((self.last_at or 0) - (self.first_at or 0))
        self._scope = msgspec.structs.replace(scope, step_ms=self.step_ms)
        self._ages = ages
        self._top = top
        self._engine = engine
        engine.table("sums", files, partial(sum_log_file, self._scope), SUMS)
        own = FilesByBucket(view.partition_files)
        tasks = [PlaceTask(subset, own.of(subset)) for subset in _subsets(view, engine.parallelism)]
        engine.table("places", tasks, partial(sum_places, self._scope), PLACES)

    def totals(self) -> Totals:
        whole = self._few.get((TOTAL, 0))
        if whole is None or not whole["events"]:
            return Totals()
        (row,) = self._engine.rows("clients")
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
        found = {}
        for row in self._engine.rows("per_step"):
            partitions, edits, unnamed, _ = self._place_steps[row["step"]]
            found[row["step"]] = TimeStep(
                row["events"], row["bytes"], row["clients"], partitions, edits, unnamed
            )
        return found

    def kinds(self, rows_max: int) -> tuple[list[EventKindRow], int]:
        """The most frequent kinds, and how many there are."""
        rows = self._engine.rows("kinds", rows_max=rows_max)
        count = len(rows)
        if count == rows_max:
            (whole,) = self._engine.rows("count_kinds")
            count = whole["kinds"]
        return [_row(EventKindRow, row) for row in rows], count

    def kinds_per_step(self, shown: Sequence[EventKindRow]) -> dict[tuple[int, int], int]:
        """(step, place in `shown` or -1 for all others) → events."""
        named = pa.table(
            [range(len(shown)), [kind.type for kind in shown], [kind.schema for kind in shown]], schema=_SHOWN
        )
        self._engine.small_table("drawn", named)
        counted = self._engine.rows("kinds_per_step")
        return {(row["step"], row["place"]): row["events"] for row in counted}

    def busiest_partitions(self) -> list[BusyPartition]:
        best = (busy for summary in self._summaries for busy in summary.busiest)
        return sorted(best, key=lambda busy: (-busy.events, busy.partition))[: self._top]

    def busiest_clients(self) -> list[BusyClient]:
        return [_row(BusyClient, row) for row in self._engine.rows("busiest_clients", top=self._top)]

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
            ContestedItem(each.partition, item_name(each.item), each.contested, each.clients, each.closest_ms)
            for each in sorted(best, key=lambda each: each.order())[: self._top]
        ]
        return top, sum(summary.contested_items for summary in self._summaries)

    def older(self) -> tuple[int, int, dict[int, tuple[int, int]]]:
        """Events and bytes after the committed id `since`, and those of them committed before each of `ages`."""
        parts = {key: self._sum(OLDER, number) for number, key in enumerate(self._ages)}
        return (*self._sum(OLDER, -1), parts)

    @cached_property
    def _few(self) -> Mapping[tuple[str, int], Mapping[str, Any]]:
        """All sums that are not by name."""
        rows = self._engine.rows("not_by_name")
        return {(row["counted"], row["step"]): row for row in rows}

    def _sum(self, kind: str, step: int) -> tuple[int, int]:
        row = self._few.get((kind, step))
        return (0, 0) if row is None else (row["events"], row["bytes"])

    def _distribution(self, kind: str) -> tuple[dict[int, int], int | None]:
        rows = [row for (counted, _), row in self._few.items() if counted == kind]
        return {row["step"]: row["events"] for row in rows}, max((row["high"] for row in rows), default=None)

    @cached_property
    def _summaries(self) -> Sequence[PlaceSummary]:
        rows = self._engine.rows("summaries")
        return [pickle.loads(row["summary"]) for row in rows]  # noqa: S301 (pickled by our executors)

    @cached_property
    def _place_steps(self) -> Mapping[int, list[int]]:
        whole: dict[int, list[int]] = {}
        for summary in self._summaries:
            for start, counts in summary.steps.items():
                whole[start] = _plus(whole.get(start, (0, 0, 0, 0)), counts)
        return whole


def _subsets(view: View, cores: int) -> list[PartitionSubset]:
    """All partitions in parts: a task for each core, and more where there is more to count."""
    count = max(cores, -(-sum(file.rows for file in view.partition_files) // TASK_ROWS))
    if count < view.buckets:
        return [
            PartitionSubset(view.buckets, tuple(range(number, view.buckets, count)))
            for number in range(count)
        ]
    planned = plan_tasks(view.storage, view.partition_files, view.buckets, view.head, cores)
    return [part.subset for part in planned]


def _plus(some: Iterable[int], more: Iterable[int]) -> list[int]:
    return [one + other for one, other in zip(some, more, strict=True)]


def _row(kind: type[Any], row: Any) -> Any:
    return kind(**{name: row[name] for name in kind.__struct_fields__})
