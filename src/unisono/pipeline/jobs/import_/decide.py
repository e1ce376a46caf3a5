"""Decides every row that can be an event, on Spark: duplicates, conflicts, events of the log, the model's judgement.

Three exchanges, each of which spills to disk: what is compared of rows by id (`repeats.py`), rows by partition in
order, and a total sort of the accepted rows. Python writes the decided rows itself, a file for each task. The result
depends on the rows and the log only, not on how work is distributed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from unisono.pipeline.jobs.import_.compare_rows import Deciding, Leaders, compare
from unisono.pipeline.jobs.import_.judge import Components, Judge
from unisono.pipeline.jobs.import_.large_texts import LargeTexts
from unisono.pipeline.jobs.import_.outcomes import ACCEPTED
from unisono.pipeline.jobs.import_.verdicts import (
    BatchVerdicts,
    decided_file,
    decided_path,
    judge_row,
    judge_whole,
)
from unisono.pipeline.open_log import gc_paused, open_reader
from unisono.pipeline.spark.executors import parallelism, rows_of, run_on_executors, task_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEEP, ASSIGN = "keep", "assign"

TASK_ROWS_MIN: Final = 5_000
"""Fewer rows are not worth a second task."""

ROWS_PER_TASK: Final = 100_000
ROWS_PER_FILE: Final = 200_000
"""Rows per staged file: after a kill a file is read again from its start."""

ROW_GROUP_BYTES: Final = 16 << 20
"""Bytes of a staged row group, which Java holds until they are written: an eighth of its default."""

DECIDED: Final = (
    "file INT, row BIGINT, id STRING, client_id STRING, partitions ARRAY<STRING>, event STRING, hash BINARY, "
    "time BIGINT, author STRING, committed_at BIGINT, key BIGINT, number BIGINT, place INT, outcome STRING, "
    "reason STRING, field STRING, message STRING, rank INT"
)
"""The columns of a decided row for Spark; see `verdicts.OUT`."""

_WRITTEN: Final = pa.schema([("rows", pa.int64())])
_SORTED: Final = ("key", "file", "row")


class Shares(msgspec.Struct, frozen=True):
    """How work is divided: the splits that a task compares, and the number of tasks that judge (0: not judged)."""

    splits: tuple[tuple[int, ...], ...]
    judging: int

    @classmethod
    def of(cls, spark: SparkSession, splits: int, events: int, *, judged: bool) -> Shares:
        tasks = max(1, min(splits, max(2 * parallelism(spark), events // ROWS_PER_TASK)))
        numbers = [range(task * splits // tasks, (task + 1) * splits // tasks) for task in range(tasks)]
        return cls(tuple(map(tuple, numbers)), judging_tasks(spark, events) if judged else 0)


def decide(
    spark: SparkSession, deciding: Deciding, shares: Shares, leaders: Leaders | None, folder: Path
) -> None:
    """Write every row that was read with its outcome to `folder`, a file for each task.

    An event has a row for each of its partitions, judged there by itself. `leaders`: it has one, and is judged with
    all of its component.
    """
    from pyspark.sql import functions as F  # noqa: N812

    folder.mkdir()
    tasks = shares.judging
    if not tasks:
        numbered = list(enumerate(shares.splits))
        run_on_executors(spark, numbered, partial(_write_unjudged, deciding, str(folder)))
        return
    compared = partial(compare, deciding, leaders, leaders is None)
    frame = task_frame(spark, shares.splits, compared, DECIDED)
    frame = frame.repartitionById(tasks, F.pmod("number", F.lit(tasks)).cast("int"))
    frame = frame.sortWithinPartitions("number", *_SORTED)
    judging = _Judging(deciding, str(folder), tasks, whole=leaders is not None)
    rows_of(frame.mapInArrow(judging, "rows BIGINT"), "import.decide")


def judging_tasks(spark: SparkSession, count: int) -> int:
    """The number of tasks that judge so many events; a partition's number modulo it is its task."""
    return max(1, min(2 * parallelism(spark), count // TASK_ROWS_MIN), count // ROWS_PER_TASK)


def in_order(decided: DataFrame, count: int) -> DataFrame:
    """The accepted rows in total order across files."""
    accepted = decided.where(f"outcome = '{ACCEPTED}' AND place = 0")
    files = -(-count // ROWS_PER_FILE)
    spread = accepted.repartitionByRange(files, *_SORTED) if files > 1 else accepted.coalesce(1)
    columns = ("id", "client_id", "partitions", "event", "hash", "time", "author", "committed_at")
    return spread.sortWithinPartitions(*_SORTED).select(*columns)


def components(links: list[str]) -> Leaders:
    """On the driver: the components of partitions, from the links that the splits found."""
    found = Components()
    for path in links:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["names"]):
                for names in batch.column(0).to_pylist():
                    found.link(names)
    return found.leaders()


def staged_files(folder: Path) -> list[tuple[str, int]]:
    """The files of a sorted table with their row counts, in order, without empty ones."""
    files = sorted(folder.glob("part-*.parquet"))
    counted = [(file.name, pq.read_metadata(file).num_rows) for file in files]
    return [(name, rows) for name, rows in counted if rows]


def _write_unjudged(deciding: Deciding, folder: str, task: tuple[int, Sequence[int]]) -> None:
    """On an executor: the rows of some splits in a file."""
    number, splits = task
    with decided_file(decided_path(folder, number)) as file:
        for batch in compare(deciding, None, False, splits):
            file.write_batch(batch)


class _Judging:
    """On an executor: judges partitions, or whole components, one after the other, each in order."""

    def __init__(self, deciding: Deciding, folder: str, tasks: int, *, whole: bool) -> None:
        self._deciding = deciding
        self._folder = folder
        self._tasks = tasks
        self._whole = whole

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        rows = iter(batches)
        first = next(rows, None)
        if first is None or not first.num_rows:
            return
        task = first.column("number")[0].as_py() % self._tasks
        with (
            opened_judge(self._deciding) as (judge, texts),
            decided_file(decided_path(self._folder, task)) as file,
        ):
            count = 0
            for batch in chain((first,), rows):
                file.write_batch(self._judged(batch, judge, texts))
                count += batch.num_rows
        yield pa.RecordBatch.from_arrays([pa.array([count], pa.int64())], schema=_WRITTEN)

    def _judged(self, batch: Any, judge: Judge, texts: LargeTexts) -> Any:
        verdicts = BatchVerdicts(batch)
        judged = judge_whole if self._whole else judge_row
        for row, outcome in enumerate(verdicts.outcomes):
            if outcome == ACCEPTED:
                judge.enter(verdicts.numbers[row])
                verdict = judged(judge, texts, verdicts, row)
                if verdict is not None:
                    verdicts.set(row, verdict, verdict.rank)
        return verdicts.batch()


@contextmanager
def opened_judge(deciding: Deciding) -> Iterator[tuple[Judge, LargeTexts]]:
    """A judge on an executor, and the texts of large events, with garbage collection paused."""
    log = open_reader(deciding.store) if deciding.base else None
    try:
        with gc_paused(), LargeTexts(deciding.rows) as texts:
            yield Judge(deciding.model.load(), log, deciding.base), texts
    finally:
        if log is not None:
            log.close()
