"""Events in several partitions: the verdicts of the partitions brought together, in rounds.

Every partition is first judged by itself, as if all others took what it shares with them. Then each partition learns
which of its events another one does not take; where that differs from what it was judged with, it is judged again
without them. This goes on until nothing differs.

The result is that of one pass over everything: of the events that have another outcome than in that pass, take the
first in the order. All events before it have the right outcome, so each of its partitions, judged with these, gives
the right verdict, and so has the event; a contradiction. In every round at least the first wrong event becomes right,
and mostly all but those that depend on other wrong ones. A history in which verdicts depend on each other in long
chains is judged by components instead (`Unsettled`).
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from unisono.pipeline.jobs.import_.compare_rows import Deciding
from unisono.pipeline.jobs.import_.decide import opened_judge
from unisono.pipeline.jobs.import_.judge import Judge, LocalVerdict
from unisono.pipeline.jobs.import_.large_texts import LargeTexts
from unisono.pipeline.jobs.import_.outcomes import ACCEPTED, REFUSED
from unisono.pipeline.jobs.import_.read_split import number_of
from unisono.pipeline.jobs.import_.result import JudgingSummary
from unisono.pipeline.jobs.import_.verdicts import (
    BatchVerdicts,
    decided_file,
    decided_path,
    decided_rows,
    judge_row,
)
from unisono.pipeline.spark.executors import run_on_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS_MAX: Final = 40
AGAIN_MAX: Final = 3
"""Rounds, and how often as many rows as there are may be judged again, before components are judged instead."""

ONE_TASK_ROWS: Final = 6_000
"""Events of an import of which one task judges all rounds. Of 600 in four rounds it takes 0.36 s where a job for each
round takes 1.27, of 6,000 in two rounds 0.37 and 0.45; larger imports were not compared."""

SETTLED: Final = "settled"
"""The folder for copies of decided rows, beside them."""

REFUSALS_MAX: Final = 1_000_000
"""Verdicts of partitions against events that they share, which the driver holds: some 400 bytes each."""

BATCH_ROWS: Final = 4_096
BATCH_BYTES: Final = 8 << 20
"""Rows of a file in memory at a time: so many, or fewer where they are large on average."""

RowKey: TypeAlias = tuple[int, int]
"""File and row of an event."""

Inbox: TypeAlias = dict[RowKey, LocalVerdict]
"""What the other partitions of a partition's events say against them."""


class Unsettled(Exception):
    """The rounds take too long, or there are too many refusals."""


class SharedRefusal(msgspec.Struct, frozen=True, array_like=True):
    """The verdict of the partition `number` against an event that others share; these are `others`."""

    number: int
    key: RowKey
    verdict: LocalVerdict
    others: tuple[int, ...]


class RoundTask(msgspec.Struct, frozen=True):
    """One file of decided rows, and for the partitions to judge again what others say."""

    deciding: Deciding
    path: str
    inboxes: dict[int, Inbox]


class RoundResult(msgspec.Struct, frozen=True):
    """The rows judged again, and all refusals of these partitions that concern others."""

    rows: int
    refusals: list[SharedRefusal]


class Settling(msgspec.Struct, frozen=True):
    """The decided files of an import, in which `rows` events were judged by `tasks`."""

    deciding: Deciding
    folder: str
    tasks: int
    rows: int


Judged: TypeAlias = Callable[[list[RoundTask]], list[RoundResult]]


def settle(spark: SparkSession, settling: Settling) -> JudgingSummary:
    """Bring the verdicts in the decided files together; Unsettled when that takes too long.

    Of a small import one task judges all rounds, which saves a Spark job for each.
    """
    if next(found_refusals(Path(settling.folder)), None) is None:
        return JudgingSummary()
    if settling.rows > ONE_TASK_ROWS:
        return rounds(settling, lambda tasks: run_on_executors(spark, tasks, judge_again))
    (done,) = run_on_executors(spark, [settling], _all_rounds)
    if done is None:
        raise Unsettled
    folder, summary = done
    shutil.rmtree(settling.folder)
    Path(folder).rename(settling.folder)
    return summary


def _all_rounds(settling: Settling) -> tuple[str, JudgingSummary] | None:
    """On an executor: all rounds in one task, on a copy of the files, which a repeated task would find half changed.
    The folder of the copy, and how events were judged; None when the rounds take too long."""
    place = Path(settling.folder).with_name(SETTLED)
    place.mkdir(exist_ok=True)
    own = shutil.copytree(settling.folder, place / uuid.uuid4().hex)
    copied = msgspec.structs.replace(settling, folder=str(own))
    try:
        return str(own), rounds(copied, lambda tasks: [judge_again(task) for task in tasks])
    except Unsettled:
        return None


def rounds(settling: Settling, judged: Judged) -> JudgingSummary:
    """Judge partitions again until nothing differs; `judged` runs the tasks of one round."""
    summary = JudgingSummary()
    known: dict[int, Inbox] = {}
    refusals: dict[int, list[SharedRefusal]] = {}
    _add(refusals, found_refusals(Path(settling.folder)))
    while True:
        inboxes = _inboxes(refusals)
        changed = [
            number for number in known.keys() | inboxes.keys() if known.get(number) != inboxes.get(number)
        ]
        if not changed:
            return summary
        if summary.rounds >= ROUNDS_MAX or summary.again > AGAIN_MAX * settling.rows:
            raise Unsettled
        by_task: dict[int, dict[int, Inbox]] = {}
        for number in sorted(changed):
            by_task.setdefault(number % settling.tasks, {})[number] = inboxes.get(number, {})
        done = judged(
            [
                RoundTask(settling.deciding, str(decided_path(settling.folder, task)), own)
                for task, own in sorted(by_task.items())
            ]
        )
        for number in changed:
            refusals.pop(number, None)
        for result in done:
            _add(refusals, result.refusals)
            summary.again += result.rows
        known = inboxes
        summary.rounds += 1


def found_refusals(folder: Path) -> Iterator[SharedRefusal]:
    """The refusals of events in several partitions in decided files."""
    columns = ["number", "file", "row", "rank", "field", "message", "place", "partitions"]
    found = decided_rows(folder).to_batches(columns=columns, filter=ds.field("rank").is_valid())
    for batch in found:
        several = batch.filter(pc.greater(pc.list_value_length(batch.column("partitions")), 1))
        for row in several.to_pylist():
            verdict = LocalVerdict(row["rank"], row["field"], row["message"])
            yield _refusal(row["number"], (row["file"], row["row"]), verdict, row["place"], row["partitions"])


def _refusal(
    number: int, key: RowKey, verdict: LocalVerdict, place: int, partitions: Sequence[str]
) -> SharedRefusal:
    others = (number_of(name) for other, name in enumerate(partitions) if other != place)
    return SharedRefusal(number, key, verdict, tuple(others))


def _add(
    refusals: dict[int, list[SharedRefusal]], more: Iterator[SharedRefusal] | Sequence[SharedRefusal]
) -> None:
    for refusal in more:
        refusals.setdefault(refusal.number, []).append(refusal)
    if sum(map(len, refusals.values())) > REFUSALS_MAX:
        raise Unsettled


def _inboxes(refusals: Mapping[int, Sequence[SharedRefusal]]) -> dict[int, Inbox]:
    """By partition: the gravest verdict of others against each of its events."""
    inboxes: dict[int, Inbox] = {}
    for some in refusals.values():
        for refusal in some:
            for number in refusal.others:
                inbox = inboxes.setdefault(number, {})
                inbox[refusal.key] = min(inbox.get(refusal.key, refusal.verdict), refusal.verdict)
    return inboxes


def judge_again(task: RoundTask) -> RoundResult:
    """On an executor: judge some partitions of a file again, and replace the file. The result of a repeated call is
    the same: what was rejected by judging is judged as if it were not."""
    path = Path(task.path)
    refusals: list[SharedRefusal] = []
    rows = 0
    with (
        opened_judge(task.deciding) as (judge, texts),
        pq.ParquetFile(path) as file,
        decided_file(path) as again,
    ):
        for batch in file.iter_batches(_batch_rows(file.metadata)):
            own = pc.is_in(batch.column("number"), pa.array(task.inboxes, pa.int64()))
            if pc.any(own).as_py():
                verdicts = BatchVerdicts(batch)
                rows += _judge_batch(judge, texts, verdicts, task.inboxes, refusals)
                again.write_batch(verdicts.batch())
            else:
                again.write_batch(batch)
    return RoundResult(rows, refusals)


def _batch_rows(metadata: Any) -> int:
    size: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(1, min(BATCH_ROWS, BATCH_BYTES * int(metadata.num_rows) // max(1, size)))


def _judge_batch(
    judge: Judge,
    texts: LargeTexts,
    verdicts: BatchVerdicts,
    inboxes: Mapping[int, Inbox],
    refusals: list[SharedRefusal],
) -> int:
    rows = 0
    for row, number in enumerate(verdicts.numbers):
        inbox = inboxes.get(number)
        if inbox is None or not (verdicts.outcomes[row] == ACCEPTED or verdicts.reasons[row] == REFUSED):
            continue
        rows += 1
        key = verdicts.files[row], verdicts.rows[row]
        elsewhere = inbox.get(key)
        judge.enter(number)
        local = judge_row(judge, texts, verdicts, row, refused_elsewhere=elsewhere is not None)
        against = [verdict for verdict in (local, elsewhere) if verdict is not None]
        verdicts.set(row, min(against, default=None), None if local is None else local.rank)
        partitions: Any = verdicts.partitions[row]
        if local is not None and len(partitions) > 1:
            refusals.append(_refusal(number, key, local, verdicts.places[row], partitions))
    return rows
