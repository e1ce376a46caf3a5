"""Python work on executors: tasks are the rows of a DataFrame, and `mapInArrow` works on them.

Every job runs its tasks through `run_on_executors` or `task_frame`, on a classic session and on Spark Connect alike.
A task and its result travel as pickled plain data. Spark retries a task whose executor is lost, so work must be safe
to repeat.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

import pyarrow as pa

from unisono.pipeline.errors import own_error
from unisono.pipeline.spark import private
from unisono.pipeline.spark.plans import show_plan
from unisono.pipeline.spark.worker import end_quietly

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")

PLAN_BYTES_MAX: Final = 256 << 10
"""Tasks up to this size in all are part of the plan, which saves a shuffle. Every executor gets the whole plan, so
more of them are sent as rows, each to its own Spark task."""

_TASKS: Final = pa.schema([("task", pa.int32()), ("content", pa.binary())])
_RESULTS: Final = pa.schema([("task", pa.int32()), ("result", pa.binary())])
_RESULTS_DDL: Final = "task INT, result BINARY"

_parallelism: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def run_on_executors(
    spark: SparkSession,
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    *,
    at_once: int | None = None,
) -> list[Result]:
    """The results of `function` for all tasks, in the order of `tasks`; each is a Spark task of its own.

    `at_once`: at most so many run at the same time. Then a Spark task works on several, one after the other.

    What all tasks share is bound to the function: `partial(function, shared)`. A `PipelineError` or `LakeError` of a
    task is raised here as what it is.
    """
    if not tasks:
        return []
    frame = task_frame(spark, list(enumerate(tasks)), partial(_call, function), _RESULTS_DDL, at_once=at_once)
    return [
        result for _, result in sorted(_unpacked(rows_of(frame, _name(function))), key=lambda row: row[0])
    ]


def task_frame(
    spark: SparkSession,
    tasks: Sequence[Task],
    work: Callable[[Task], Iterable[pa.RecordBatch]],
    schema: str,
    *,
    at_once: int | None = None,
) -> DataFrame:
    """A lazy DataFrame of the rows that `work` yields for each task; one Spark partition per task, in their order.

    `at_once`: at most so many Spark partitions.
    """
    packed = [pickle.dumps(task) for task in tasks]
    if not packed:
        return spark.createDataFrame([], schema)
    parts = len(packed) if at_once is None else min(len(packed), at_once)
    if sum(map(len, packed)) <= PLAN_BYTES_MAX:
        numbers = spark.range(len(packed), numPartitions=parts)
        return numbers.mapInArrow(_TasksInPlan(work, tuple(packed)), schema)
    table = pa.table([pa.array(range(len(packed)), pa.int32()), pa.array(packed, pa.binary())], schema=_TASKS)
    rows = spark.createDataFrame(table).repartitionById(parts, "task")  # its number modulo the parts
    return rows.mapInArrow(_TasksInRows(work), schema)


def rows_of(frame: DataFrame, name: str) -> list[Any]:
    """Collect a DataFrame; a `PipelineError` or `LakeError` of a task is raised as what it is.

    `name` says in `--explain` what the plan is for.
    """
    show_plan(name, frame)
    try:
        return frame.collect()
    except Exception as error:
        if (own := own_error(error)) is not None:
            raise own from error
        raise


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at the same time, as Spark counts it: the cores of all executors, by default."""
    if not private.is_connect(spark):
        return max(1, private.default_parallelism(spark))
    if spark not in _parallelism:
        from pyspark.sql import functions as f

        # Connect has no other way: a range has as many parts as Spark would make by itself.
        parts = spark.range(1 << 16).select(f.spark_partition_id().alias("part"))
        (row,) = parts.agg(f.max("part")).collect()
        _parallelism[spark] = int(row[0]) + 1
    return _parallelism[spark]


def tasks_worthwhile(spark: SparkSession, size: int, worth: int) -> int:
    """For `at_once`: how many Spark tasks to split work of this size into, when one of `worth` is worth starting.

    Each core has one, however little there is to do.
    """
    return max(parallelism(spark), size // worth)


def runs_here(spark: SparkSession) -> bool:
    """Whether a session is a local Spark: its tasks have the cores of this machine and no others."""
    return not private.is_connect(spark) and str(spark.conf.get("spark.master", "")).startswith("local")


class _TasksInPlan:
    """On an executor: works on the tasks with the numbers that come in."""

    def __init__(self, work: Callable[[Any], Iterable[pa.RecordBatch]], packed: tuple[bytes, ...]) -> None:
        self._work = work
        self._packed = packed

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        end_quietly()
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from self._work(pickle.loads(self._packed[number]))  # noqa: S301 (packed by the driver)


class _TasksInRows:
    """On an executor: works on the tasks that come in."""

    def __init__(self, work: Callable[[Any], Iterable[pa.RecordBatch]]) -> None:
        self._work = work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        end_quietly()
        for batch in batches:
            for content in batch.column("content").to_pylist():
                yield from self._work(pickle.loads(content))  # noqa: S301 (packed by the driver)


def _call(function: Callable[[Any], Any], numbered: tuple[int, Any]) -> Iterator[pa.RecordBatch]:
    """On an executor: one call, its result in a row."""
    number, task = numbered
    result = pickle.dumps(function(task))
    columns = [pa.array([number], pa.int32()), pa.array([result], pa.binary())]
    yield pa.RecordBatch.from_arrays(columns, schema=_RESULTS)


def _unpacked(rows: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    for number, result in rows:
        yield number, pickle.loads(result)  # noqa: S301 (packed by our executors)


def _name(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    return f"{function.__module__.removeprefix('unisono.pipeline.')}.{function.__name__}"
