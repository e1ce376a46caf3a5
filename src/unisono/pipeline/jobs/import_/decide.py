"""Decides every row that can be an event, on Spark: duplicates, conflicts, events of the log, the model's judgement.

Three shuffles, each of which spills to disk: rows by id, then by partition in order, and a total sort of the accepted
rows. The result depends on the rows and the log only, not on how work is distributed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.import_.judge import Components, Judge
from unisono.pipeline.jobs.import_.outcomes import ACCEPTED, DUPLICATE, KNOWN, REJECTED
from unisono.pipeline.jobs.import_.read_split import number_of
from unisono.pipeline.jobs.import_.verdicts import KINDS, OUT, TOLD, BatchVerdicts, judge_row, judge_whole
from unisono.pipeline.open_log import gc_paused, open_reader
from unisono.pipeline.spark.executors import parallelism
from unisono.store.bulk_load import Ids, open_ids
from unisono.store.port import RememberedId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEEP, ASSIGN = "keep", "assign"

Leaders = Mapping[int, int]
"""The component of each partition that shares events with others, both by number."""

LAST: Final = 2**62
"""Sorts behind every id and every time."""

TASK_ROWS_MIN: Final = 5_000
"""Fewer rows are not worth a second task."""

ROWS_PER_TASK: Final = 100_000
ROWS_PER_FILE: Final = 200_000
"""Rows per staged file: after a kill a file is read again from its start."""

_DECIDED: Final = (
    "file INT, row BIGINT, id STRING, client_id STRING, partitions ARRAY<STRING>, event STRING, hash BINARY, "
    "time BIGINT, author STRING, key BIGINT, number BIGINT, place INT, outcome STRING, reason STRING, field STRING, "
    "message STRING, rank INT"
)
_SORTED: Final = ("key", "file", "row")


class Deciding(msgspec.Struct, frozen=True):
    """What all tasks need. `base` is the log's head; 0 for an empty log."""

    store: str
    base: int
    model: ShippedModel
    by_id: bool
    files: tuple[str, ...]


def decide(
    spark: SparkSession, rows: list[str], deciding: Deciding, order: str, tasks: int, leaders: Leaders | None
) -> DataFrame:
    """Every row of the Parquet files `rows` with its outcome, as a lazy DataFrame of `tasks` parts (0: not judged).

    An event has a row for each of its partitions, judged there by itself. `leaders`: it has one, and is judged with
    all of its component.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    key = F.coalesce(F.col("time" if order == ASSIGN else "committed_id"), F.lit(LAST))
    if order == KEEP and not deciding.by_id:
        key = F.lit(0).cast("bigint")
    by_id = Window.partitionBy("id").orderBy(*_SORTED)
    frame = spark.read.parquet(*rows).withColumn("key", key)
    frame = frame.withColumn("earlier", F.row_number().over(by_id) - 1).withColumn(
        "first", F.first(F.struct("hash", "file", "row")).over(by_id)
    )
    frame = frame.mapInArrow(_Comparing(deciding, leaders, spread=tasks > 0 and leaders is None), _DECIDED)
    if not tasks:
        return frame
    frame = frame.repartitionById(tasks, F.pmod("number", F.lit(tasks)).cast("int"))
    frame = frame.sortWithinPartitions("number", *_SORTED)
    return frame.mapInArrow(_Judging(deciding, whole=leaders is not None), _DECIDED)


def judging_tasks(spark: SparkSession, count: int) -> int:
    """The number of tasks that judge so many events; a partition's number modulo it is its task."""
    return max(1, min(2 * parallelism(spark), count // TASK_ROWS_MIN), count // ROWS_PER_TASK)


def in_order(decided: DataFrame, count: int) -> DataFrame:
    """The accepted rows in total order across files."""
    accepted = decided.where(f"outcome = '{ACCEPTED}' AND place = 0")
    files = -(-count // ROWS_PER_FILE)
    spread = accepted.repartitionByRange(files, *_SORTED) if files > 1 else accepted.coalesce(1)
    columns = ("id", "client_id", "partitions", "event", "hash", "time", "author")
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


class _Comparing:
    """On an executor: the first row of an id counts, unless the log has the id."""

    def __init__(self, deciding: Deciding, leaders: Leaders | None, *, spread: bool) -> None:
        self._deciding = deciding
        self._leaders = leaders or {}
        self._spread = spread

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        ids = open_ids(self._deciding.store) if self._deciding.base else None
        try:
            with gc_paused():
                for batch in batches:
                    yield self._decided(batch, ids)
        finally:
            if ids is not None:
                ids.close()

    def _decided(self, batch: Any, ids: Ids | None) -> Any:
        names = ("id", "earlier", "hash", "first", "committed_id")
        rows = list(zip(*(batch.column(name).to_pylist() for name in names), strict=True))
        known = {} if ids is None else ids.known([row[0] for row in rows if row[1] == 0])
        outcomes = [self._outcome(known, *row) for row in rows]
        columns = {name: batch.column(name) for name in OUT.names if name in batch.schema.names}
        for name, values in zip(TOLD, zip(*outcomes, strict=True), strict=True):
            columns[name] = pa.array(values, pa.string())
        # Rows that are in the log, or staged under another row, need no content.
        done = pc.is_in(columns["outcome"], pa.array([DUPLICATE, KNOWN]))
        columns["event"] = pc.if_else(done, pa.scalar(None, pa.string()), columns["event"])
        partitions = columns["partitions"].to_pylist()
        judged = [self._spread and outcome[0] == ACCEPTED for outcome in outcomes]
        spread = [
            (row, place, number_of(name))
            for row, (names, several) in enumerate(zip(partitions, judged, strict=True))
            for place, name in enumerate(names if several else names[:1])
        ]
        parents, places, numbers = zip(*spread, strict=True)
        columns["number"] = pa.array([self._leaders.get(number, number) for number in numbers], pa.int64())
        columns["place"] = pa.array(places, pa.int32())
        columns["rank"] = pa.nulls(len(spread), pa.int32())
        if len(spread) > len(rows):
            taken = pa.array(parents, pa.int32())
            columns |= {
                name: column.take(taken) for name, column in columns.items() if len(column) == len(rows)
            }
        return pa.RecordBatch.from_arrays([columns[name].cast(kind) for name, kind in KINDS], schema=OUT)

    def _outcome(
        self,
        known: dict[str, RememberedId],
        id: str,
        earlier: int,
        hash: bytes,
        first: Any,
        committed_id: int | None,
    ) -> tuple[str, str | None, str, str]:
        if earlier:
            if hash == first["hash"]:
                return DUPLICATE, None, "", ""
            where = f"{self._deciding.files[first['file']]}, row {first['row']}"
            return REJECTED, "conflict", "event", f"{where} has this id with other content"
        logged = known.get(id)
        if logged is not None:
            if logged.hash == hash:
                return KNOWN, None, "", ""
            says = f"event {logged.committed_id} of the log has this id with other content"
            return REJECTED, "conflict_in_log", "event", says
        if self._deciding.by_id and committed_id is None:
            return REJECTED, "no_committed_id", "committed_id", "other rows are ordered by theirs"
        return ACCEPTED, None, "", ""


class _Judging:
    """On an executor: judges partitions, or whole components, one after the other, each in order."""

    def __init__(self, deciding: Deciding, *, whole: bool) -> None:
        self._deciding = deciding
        self._whole = whole

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        with opened_judge(self._deciding) as judge:
            for batch in batches:
                yield self._judged(batch, judge)

    def _judged(self, batch: Any, judge: Judge) -> Any:
        verdicts = BatchVerdicts(batch)
        judged = judge_whole if self._whole else judge_row
        for row, outcome in enumerate(verdicts.outcomes):
            if outcome == ACCEPTED:
                judge.enter(verdicts.numbers[row])
                verdict = judged(judge, verdicts, row)
                if verdict is not None:
                    verdicts.set(row, verdict, verdict.rank)
        return verdicts.batch()


@contextmanager
def opened_judge(deciding: Deciding) -> Iterator[Judge]:
    """A judge on an executor, with garbage collection paused."""
    log = open_reader(deciding.store) if deciding.base else None
    try:
        with gc_paused():
            yield Judge(deciding.model.load(), log, deciding.base)
    finally:
        if log is not None:
            log.close()
