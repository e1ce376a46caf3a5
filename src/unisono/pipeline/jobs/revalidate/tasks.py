"""Judges a subset of the partitions under two models, on an executor; imports no PySpark.

Partitions come one after the other with their events in order, as in `fold.py`. The states of one partition under
both models are in memory, and a batch of events per file.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from unisono.display import shorten
from unisono.lake.merge import PartitionSubset
from unisono.lake.storage import Storage
from unisono.lake.write import DataFile
from unisono.model.authorship import authorship_of
from unisono.model.pack import pack
from unisono.pipeline.fold import COLLECT_EVENTS, SETTLE_EVENTS, authors_of, histories
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.revalidate.compare_states import changes
from unisono.pipeline.jobs.revalidate.model_track import PartitionVerdict, Track
from unisono.pipeline.jobs.revalidate.result import (
    DIFFERENCES_MAX,
    REFUSED_MAX,
    SHAPE,
    TEXT_MAX,
    Difference,
    EventKind,
    Reason,
    RefusedEvent,
    RevalidationOutcome,
    VerdictExample,
)
from unisono.pipeline.jobs.revalidate.rows import EVENTS, PARTITIONS, Rows, events_file, partitions_file
from unisono.pipeline.open_log import gc_paused
from unisono.protocol.tombstones import is_tombstone

COLUMNS: Final = (
    *("partition", "committed_id", "id", "client_id", "partitions", "event", "type", "schema"),
    *("author", "status_updated_at"),
)


class RevalidationTask(msgspec.Struct, frozen=True):
    """One task: a subset of the partitions up to an id, under the model before and the model now.

    `elsewhere_…`: events that another of their partitions refuses. `out`: where rows are written, if anywhere.
    """

    number: int
    storage: Storage
    subset: PartitionSubset
    upto: int
    files: tuple[DataFile, ...]
    rows: int
    before: ShippedModel
    now: ShippedModel
    elsewhere_before: dict[int, Reason]
    elsewhere_now: dict[int, Reason]
    out: str | None


class Batch:
    """Rows of a file; most rows need three columns only."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self.ids: list[int] = batch.column("committed_id").to_pylist()
        self.events: list[bytes] = batch.column("event").cast(pa.binary()).to_pylist()
        self.types: list[str | None] = batch.column("type").to_pylist()
        self.schemas: list[str | None] = batch.column("schema").to_pylist()
        self.authors = authors_of(batch)
        self.several: list[bool] = pc.greater(pc.list_value_length(batch.column("partitions")), 1).to_pylist()

    def value(self, column: str, place: int) -> Any:
        return self._batch.column(column)[place].as_py()

    def partitions(self, place: int) -> tuple[str, ...] | None:
        """All partitions of an event that is in several."""
        return tuple(self.value("partitions", place)) if self.several[place] else None


def judge_subset(task: RevalidationTask) -> RevalidationOutcome:
    """On an executor: every partition of the subset, under both models."""
    judge = _ShareJudge(task)
    found = histories(task.storage, task.files, task.subset, 0, task.upto, COLUMNS, Batch)
    try:
        with gc_paused():
            for name, history in found:
                judge.begin(name.decode())
                for _, batch, start, end in history:
                    for begin in range(start, end, SETTLE_EVENTS):
                        for place in range(begin, min(begin + SETTLE_EVENTS, end)):
                            judge.take(batch, place)
                        judge.settle()
                judge.end()
    except BaseException:
        judge.abandon()
        raise
    return judge.close()


class _ShareJudge:
    """Both models on a subset, and the outcome."""

    def __init__(self, task: RevalidationTask) -> None:
        self._before = Track(task.before.load(), task.elsewhere_before)
        self._now = Track(task.now.load(), task.elsewhere_now)
        self._outcome = RevalidationOutcome()
        self._name = ""
        self._collected = 0
        out = None if task.out is None else Path(task.out)
        self._events = Rows(None if out is None else events_file(out, task.number), EVENTS)
        self._partitions = Rows(None if out is None else partitions_file(out, task.number), PARTITIONS)

    def begin(self, name: str) -> None:
        self._name = name
        self._before.begin()
        self._now.begin()
        self._outcome.partitions += 1

    def settle(self) -> None:
        self._before.settle()
        self._now.settle()
        if self._outcome.rows - self._collected >= COLLECT_EVENTS:
            self._collected = self._outcome.rows
            gc.collect()

    def take(self, batch: Batch, place: int) -> None:
        text = batch.events[place]
        self._outcome.rows += 1
        if batch.types[place] == "erased" and is_tombstone(text):
            self._outcome.erased += self._is_home(batch.partitions(place))
            return
        loaded = orjson.loads(text)
        event = loaded if isinstance(loaded, dict) else {}
        committed_id = batch.ids[place]
        by = authorship_of(*batch.authors[place])
        before, now = self._before.take(committed_id, event, by), self._now.take(committed_id, event, by)
        kind = EventKind(batch.types[place] or "", batch.schemas[place] or "")
        counts = self._outcome.of_kind(kind)
        rejected = before.rejected is not None or now.rejected is not None
        if not rejected and not before.skipped and not now.skipped and not batch.several[place]:
            counts.events += 1
            return
        self._unusual(batch, place, kind, before, now)

    def _is_home(self, partitions: tuple[str, ...] | None) -> bool:
        """Whether the event is counted here: in the first of its partitions."""
        return partitions is None or partitions[0] == self._name

    def _unusual(
        self, batch: Batch, place: int, kind: EventKind, before: PartitionVerdict, now: PartitionVerdict
    ) -> None:
        partitions = batch.partitions(place)
        counts = self._outcome.of_kind(kind)
        newly = now.rejected is not None and before.rejected is None
        counts.skipped_before += before.skipped
        counts.skipped_now += now.skipped
        counts.newly_skipped += now.skipped and not before.skipped
        if now.skipped and not before.skipped:
            self._outcome.keep_skipped([self._example(batch, place, kind, None)])
        if self._is_home(partitions):
            counts.events += 1
            counts.rejected_before += before.rejected is not None
            counts.rejected_now += now.rejected is not None
            counts.newly_rejected += newly
            counts.no_longer_rejected += before.rejected is not None and now.rejected is None
            if newly:
                assert now.rejected is not None
                example = self._example(batch, place, kind, now.rejected)
                self._outcome.count_reason(kind, now.rejected, 1, [example])
        if partitions is not None:
            self._note(self._outcome.refused_before, batch.ids[place], before, partitions)
            self._note(self._outcome.refused_now, batch.ids[place], now, partitions)
        self._write(batch, place, before, now)

    def _note(
        self,
        noted: list[RefusedEvent],
        committed_id: int,
        judged: PartitionVerdict,
        partitions: tuple[str, ...],
    ) -> None:
        if judged.refused is None or judged.refused.stage == SHAPE:
            return  # an invalid shape is refused by all of its partitions
        if len(noted) >= REFUSED_MAX:
            self._outcome.refused_all = False
            return
        noted.append(RefusedEvent(committed_id, judged.refused, self._name, partitions))

    def _write(self, batch: Batch, place: int, before: PartitionVerdict, now: PartitionVerdict) -> None:
        if before.rejected is None and now.rejected is None and not before.skipped and not now.skipped:
            return
        why = now.rejected
        self._events.add(
            partition=self._name,
            committed_id=batch.ids[place],
            id=batch.value("id", place),
            client_id=batch.value("client_id", place),
            type=batch.types[place],
            schema=batch.schemas[place],
            rejected_before=before.rejected is not None,
            rejected_now=why is not None,
            refused_here=now.refused is not None,
            skipped_before=before.skipped,
            skipped_now=now.skipped,
            stage=why and why.stage,
            field=why and why.field,
            message=why and why.message,
        )

    def _example(self, batch: Batch, place: int, kind: EventKind, reason: Reason | None) -> VerdictExample:
        text = batch.events[place].decode()
        id_, client = batch.value("id", place), batch.value("client_id", place)
        return VerdictExample(
            batch.ids[place], self._name, id_, client, kind, reason, shorten(text, TEXT_MAX)
        )

    def end(self) -> None:
        """End of a partition: compare its states."""
        before, now = self._before.replayed.dump(), self._now.replayed.dump()
        if pack(before) == pack(now):
            return
        self._outcome.differing += 1
        self._partitions.add(partition=self._name)
        if len(self._outcome.differences) < DIFFERENCES_MAX:  # names come in order, so these are the first
            self._outcome.differences.append(Difference(self._name, changes(before, now)))

    def close(self) -> RevalidationOutcome:
        self._outcome.written = self._events.close() + self._partitions.close()
        return self._outcome

    def abandon(self) -> None:
        self._events.abandon()
        self._partitions.abandon()
