"""Judges the whole history again under another model, before it is deployed.

Three questions, for the model before and the model now:

- which events would be rejected if they were submitted today, one after the other, in the order of the log;
- which would be skipped in replay, which is what a server does with history that its model cannot apply;
- which partitions would have another state after replay.

Partitions are judged on executors, each by itself. An event of several partitions is accepted in all of them or in
none, so the others must know what one partition refuses: subsets that did not know are judged again, until all agree.
An event depends on earlier events only, so there is exactly one agreement: the result of one server that judges in
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from unisono.lake.columns import bucket_of
from unisono.lake.lake import Lake, View
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.revalidate.page import page
from unisono.pipeline.jobs.revalidate.result import (
    EXAMPLES_MAX,
    REFUSED_MAX,
    Difference,
    EventKind,
    Reason,
    RefusedEvent,
    RevalidationOutcome,
    VerdictCounts,
    VerdictExample,
    elsewhere,
    totals,
)
from unisono.pipeline.jobs.revalidate.rows import RESULT, clear
from unisono.pipeline.jobs.revalidate.tasks import RevalidationTask, judge_subset
from unisono.pipeline.progress import Notify, silent
from unisono.pipeline.spark.executors import parallelism, run_on_executors
from unisono.pipeline.task_planning import FilesByBucket, plan_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS_MAX: Final = 50
"""Each round settles at least the next disputed event; two or three rounds are usual."""

TASKS_PER_WAVE_AND_CORE: Final = 4
"""Progress is reported after each wave of tasks."""


class ModelName(msgspec.Struct, frozen=True):
    version: int
    digest: str


class KindResult(msgspec.Struct, frozen=True):
    """Counts of one kind; see `VerdictCounts`."""

    kind: EventKind
    counts: VerdictCounts


class ReasonResult(msgspec.Struct, frozen=True):
    """How many events of a kind are newly rejected for this reason, with the first of them."""

    kind: EventKind
    reason: Reason
    events: int
    examples: list[VerdictExample]


class Revalidation(msgspec.Struct, frozen=True):
    """The result. `settled` is False when partitions did not agree within the bounds: then counts of events in
    several partitions, and of later events, are those of the last round. `unjudged` events of the log are not in the
    lake yet.
    """

    before: ModelName
    now: ModelName
    head: int
    events: int
    partitions: int
    erased: int
    total: VerdictCounts
    kinds: list[KindResult]
    reasons: list[ReasonResult]
    skipped: list[VerdictExample]
    differing: int
    differences: list[Difference]
    rounds: int
    settled: bool
    unjudged: int

    @property
    def compatible(self) -> bool:
        return self.settled and not self._differs

    @property
    def _differs(self) -> bool:
        return bool(self.total.newly_rejected or self.total.newly_skipped or self.differing)

    @property
    def verdict(self) -> str:
        if self.compatible:
            return (
                f"compatible: the model treats all {self.events:,} events as the one before, and the states of all "
                f"{self.partitions:,} partitions stay as they are"
            )
        if not self._differs:
            return "not known to be compatible: no difference was found, but not everything could be settled"
        return (
            f"not compatible: {self.total.newly_rejected:,} of {self.events:,} events would be rejected, "
            f"{self.total.newly_skipped:,} skipped in replay, and {self.differing:,} of {self.partitions:,} "
            "partitions would have another state"
        )


def revalidate(
    spark: SparkSession,
    lake: Lake,
    before: ShippedModel,
    now: ShippedModel,
    *,
    out: Path | None = None,
    notify: Notify = silent,
    log_head: int = 0,
) -> Revalidation:
    """Judge everything in the lake under both models.

    `out`: where tasks write the rows behind the counts. `log_head`: the end of the log, to count what the lake lacks.
    """
    view = lake.view()
    tasks = _plan(spark, view, before, now, out)
    if out is not None:
        clear(out)
    owners = _Owners(tasks)
    outcomes: dict[int, RevalidationOutcome] = {}
    refusals = KnownRefusals(), KnownRefusals()
    pending, rounds, settled = tasks, 0, True
    while pending:
        rounds += 1
        _judge(spark, pending, outcomes, notify if rounds == 1 else silent)
        every = outcomes.values()
        refused = (
            [each for o in every for each in o.refused_before],
            [each for o in every for each in o.refused_now],
        )
        if max(map(len, refused)) > REFUSED_MAX or not all(outcome.refused_all for outcome in every):
            settled = False
            break
        touched = refusals[0].learn(refused[0]) | refusals[1].learn(refused[1])
        pending = owners.again(touched, refusals)
        if pending and rounds == ROUNDS_MAX:
            settled = False
            break
        if pending:
            notify(
                f"{len(touched)} partitions are judged again: another partition of their events decided differently"
            )
    if out is not None:
        _require_written(out, outcomes.values())
    return _result(view, before, now, outcomes, rounds, settled, max(0, log_head - view.head))


class KnownRefusals:
    """Known refusals of events of several partitions, under one model."""

    def __init__(self) -> None:
        self.reasons: dict[int, Reason] = {}
        self.partitions: dict[int, tuple[str, ...]] = {}

    def learn(self, refused: Sequence[RefusedEvent]) -> set[str]:
        """Replace the known refusals; returns the partitions that judged with other ones."""
        learnt = elsewhere(refused)
        changed = {
            id_ for id_ in self.reasons.keys() | learnt.keys() if self.reasons.get(id_) != learnt.get(id_)
        }
        self.partitions |= {each.committed_id: each.partitions for each in refused}
        self.reasons = learnt
        touched = {id_: set(self.partitions[id_]) for id_ in changed}
        for each in refused:
            if (
                each.committed_id in changed
            ):  # a partition that refuses it by itself need not know of the others
                touched[each.committed_id].discard(each.partition)
        return set().union(*touched.values())


class _Owners:
    """Finds the subset of a partition."""

    def __init__(self, tasks: Sequence[RevalidationTask]) -> None:
        self._plan = tasks
        self._buckets: dict[int, list[RevalidationTask]] = {}
        for task in tasks:
            for bucket in task.subset.buckets or range(task.subset.buckets_in_all):
                self._buckets.setdefault(bucket, []).append(task)

    def _of(self, name: str) -> int:
        in_all = self._plan[0].subset.buckets_in_all
        return next(task.number for task in self._buckets[bucket_of(name, in_all)] if task.subset.holds(name))

    def again(
        self, touched: set[str], refusals: tuple[KnownRefusals, KnownRefusals]
    ) -> list[RevalidationTask]:
        """The subsets to judge again, each with the refusals that it must know."""
        numbers = {self._of(name) for name in touched}
        if not numbers:
            return []
        known_by_task: dict[int, tuple[dict[int, Reason], dict[int, Reason]]] = {
            number: ({}, {}) for number in numbers
        }
        for place, known in enumerate(refusals):
            for committed_id, reason in known.reasons.items():
                for name in known.partitions[committed_id]:
                    number = self._of(name)
                    if number in numbers:
                        known_by_task[number][place][committed_id] = reason
        return [
            msgspec.structs.replace(
                task,
                elsewhere_before=known_by_task[task.number][0],
                elsewhere_now=known_by_task[task.number][1],
            )
            for task in self._plan
            if task.number in numbers
        ]


def _plan(
    spark: SparkSession, view: View, before: ShippedModel, now: ShippedModel, out: Path | None
) -> list[RevalidationTask]:
    if not view.head:
        return []
    files = view.partition_files
    own = FilesByBucket(files)
    cores = parallelism(spark)
    place = None if out is None else str(out.absolute())
    return [
        RevalidationTask(
            number,
            view.storage,
            part.subset,
            view.head,
            own.of(part.subset),
            part.rows,
            before,
            now,
            {},
            {},
            place,
        )
        for number, part in enumerate(plan_tasks(view.storage, files, view.buckets, view.head, cores))
    ]


def _judge(
    spark: SparkSession,
    tasks: Sequence[RevalidationTask],
    outcomes: dict[int, RevalidationOutcome],
    notify: Notify,
) -> None:
    wave = TASKS_PER_WAVE_AND_CORE * parallelism(spark)
    rows, done = sum(task.rows for task in tasks), 0
    for start in range(0, len(tasks), wave):
        part = tasks[start : start + wave]
        found = run_on_executors(spark, part, judge_subset)
        for task, outcome in zip(part, found, strict=True):
            outcomes[task.number] = outcome
            done += task.rows
        notify(f"judged about {done} of {rows} rows")


def _require_written(out: Path, outcomes: Iterable[RevalidationOutcome]) -> None:
    """Refuse rows that executors wrote to a local directory on another machine."""
    if not all(Path(path).exists() for each in outcomes for path in each.written):
        raise PipelineError(
            f"executors wrote to {out}, and the driver does not see it: use a directory that all machines share"
        )


def _result(
    view: View,
    before: ShippedModel,
    now: ShippedModel,
    outcomes: Mapping[int, RevalidationOutcome],
    rounds: int,
    settled: bool,
    unjudged: int,
) -> Revalidation:
    whole = RevalidationOutcome()
    for number in sorted(outcomes):
        whole.add(outcomes[number])
    reasons = sorted(whole.reasons.items(), key=lambda each: (-each[1], each[0]))
    results, left = [], EXAMPLES_MAX
    for key, events in reasons:
        examples = whole.examples[key][:left]
        left -= len(examples)
        results.append(ReasonResult(*key, events, examples))
    kinds = sorted(whole.kinds.items(), key=lambda each: (-each[1].newly_rejected, -each[1].events, each[0]))
    total = totals(whole.kinds)
    return Revalidation(
        ModelName(before.version, before.digest),
        ModelName(now.version, now.digest),
        view.head,
        total.events,
        whole.partitions,
        whole.erased,
        total,
        [KindResult(kind, counts) for kind, counts in kinds],
        results,
        whole.skipped,
        whole.differing,
        whole.differences,
        rounds,
        settled,
        unjudged,
    )


def encode(result: Revalidation) -> bytes:
    """The result as JSON, its verdict first."""
    plain = {"compatible": result.compatible, "verdict": result.verdict, **msgspec.to_builtins(result)}
    return msgspec.json.encode(plain)


def write(result: Revalidation, out: Path) -> None:
    """Write the page and the JSON beside the rows of the tasks."""
    try:
        for name, content in zip(RESULT, (encode(result), page(result).encode()), strict=True):
            unfinished = out / f".{name}.unfinished"
            unfinished.write_bytes(content)
            unfinished.replace(out / name)
    except OSError as error:
        raise PipelineError(f"cannot write the result to {out}: {error.strerror or error}") from error
