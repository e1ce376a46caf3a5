"""Where a report is computed: on Spark's executors, or by DuckDB in this process, which needs no Spark to start.

Both run the same functions on the same files, and the same SQL over what these return.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import duckdb
import pyarrow as pa

from unisono.pipeline.jobs.report.duck import bounded_duckdb, load_report_queries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")
Work = Callable[[Task], Iterable[pa.RecordBatch]]

MEMORY_MAX: Final = "1GB"
"""Of DuckDB while it adds up in this process; what needs more goes to temporary files."""

_TABLES: Final = ("sums", "places", "drawn")
_SQL_TYPES: Final = {pa.string(): "STRING", pa.int64(): "BIGINT", pa.binary(): "BINARY"}


class ReportEngine(Protocol):
    @property
    def parallelism(self) -> int: ...

    def run(self, tasks: Sequence[Task], function: Callable[[Task], Result]) -> list[Result]:
        """The results of all tasks, in their order."""

    def table(self, name: str, tasks: Sequence[Task], work: Work[Task], schema: pa.Schema) -> None:
        """Name the rows that `work` yields for all tasks, for queries."""

    def small_table(self, name: str, rows: pa.Table) -> None:
        """Name these rows, for queries."""

    def rows(self, query: str, **values: int) -> list[dict[str, Any]]:
        """The result of a query of `sql/sums.sql`."""


@contextmanager
def engine_on(spark: SparkSession | None) -> Iterator[ReportEngine]:
    """On the executors of a session, or in this process (None)."""
    if spark is None:
        with _DuckEngine.started() as here:
            yield here
        return
    engine = _SparkEngine(spark)
    try:
        yield engine
    finally:
        engine.close()


class _DuckEngine:
    def __init__(
        self, connection: duckdb.DuckDBPyConnection, threads: ThreadPoolExecutor, count: int
    ) -> None:
        self._connection = connection
        self._threads = threads
        self.parallelism = count

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[_DuckEngine]:
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        with (
            bounded_duckdb(count, MEMORY_MAX) as connection,
            ThreadPoolExecutor(count, "unisono-report") as threads,
        ):
            yield cls(connection, threads, count)

    def run(self, tasks: Sequence[Task], function: Callable[[Task], Result]) -> list[Result]:
        return list(self._threads.map(function, tasks))

    def table(self, name: str, tasks: Sequence[Task], work: Work[Task], schema: pa.Schema) -> None:
        self._connection.from_arrow(schema.empty_table()).create(name)
        for batches in self._threads.map(lambda task: list(work(task)), tasks):
            self._connection.from_arrow(pa.Table.from_batches(batches, schema)).insert_into(name)

    def small_table(self, name: str, rows: pa.Table) -> None:
        self._connection.register(name, rows)

    def rows(self, query: str, **values: int) -> list[dict[str, Any]]:
        sql = load_report_queries("sums")[query].format(**{name: name for name in _TABLES}, **values)
        found: list[dict[str, Any]] = self._connection.sql(sql).to_arrow_table().to_pylist()
        return found


class _SparkEngine:
    def __init__(self, spark: SparkSession) -> None:
        from unisono.pipeline.spark.executors import parallelism

        self._spark = spark
        self._frames: dict[str, DataFrame] = {}
        self.parallelism = parallelism(spark)

    def close(self) -> None:
        for frame in self._frames.values():
            frame.unpersist()

    def run(self, tasks: Sequence[Task], function: Callable[[Task], Result]) -> list[Result]:
        from unisono.pipeline.spark.executors import run_on_executors

        return run_on_executors(self._spark, tasks, function)

    def table(self, name: str, tasks: Sequence[Task], work: Work[Task], schema: pa.Schema) -> None:
        from unisono.pipeline.spark.executors import task_frame

        ddl = ", ".join(f"{field.name} {_SQL_TYPES[field.type]}" for field in schema)
        self._frames[name] = task_frame(self._spark, tasks, work, ddl).persist()

    def small_table(self, name: str, rows: pa.Table) -> None:
        self._frames[name] = self._spark.createDataFrame(rows)

    def rows(self, query: str, **values: int) -> list[dict[str, Any]]:
        from unisono.pipeline.spark.executors import rows_of

        sql = load_report_queries("sums")[query]
        used: dict[str, Any] = {name: frame for name, frame in self._frames.items() if f"{{{name}}}" in sql}
        found = self._spark.sql(sql, None, **used, **values)
        return [row.asDict() for row in rows_of(found, f"report.{query}")]
