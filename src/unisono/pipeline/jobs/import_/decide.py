"""Decides every row that can be an event, on Spark: duplicates, conflicts, events of the log, the model's judgement.

Three shuffles, each of which spills to disk: rows by id, then by component in order, and a total sort of the accepted
rows. The result depends on the rows and the log only, not on how work is distributed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from unisono.model.authorship import authorship_of
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.import_.judge import Components, Judge
from unisono.pipeline.jobs.import_.outcomes import ACCEPTED, DUPLICATE, KNOWN, REJECTED
from unisono.pipeline.jobs.import_.read_split import ROW_SCHEMA, number_of
from unisono.pipeline.open_log import gc_paused, open_reader
from unisono.pipeline.spark.executors import parallelism
from unisono.store.bulk_load import Ids, open_ids
from unisono.store.port import RememberedId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEEP, ASSIGN = "keep", "assign"

LAST: Final = 2**62
"""Sorts behind every id and every time."""

TASK_ROWS_MIN: Final = 5_000
"""Fewer rows are not worth a second task."""

ROWS_PER_TASK: Final = 100_000
ROWS_PER_FILE: Final = 200_000
"""Rows per staged file: after a kill a file is read again from its start."""

_DECIDED: Final = (
    "file INT, row BIGINT, id STRING, client_id STRING, partitions ARRAY<STRING>, event STRING, hash BINARY, "
    "time BIGINT, author STRING, key BIGINT, component BIGINT, outcome STRING, reason STRING, field STRING, "
    "message STRING"
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
    spark: SparkSession,
    rows: list[str],
    deciding: Deciding,
    order: str,
    links: list[str],
    full: bool,
    count: int,
) -> DataFrame:
    """Every row of the Parquet files `rows` with its outcome, as a lazy DataFrame."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    key = F.coalesce(F.col("time" if order == ASSIGN else "committed_id"), F.lit(LAST))
    if order == KEEP and not deciding.by_id:
        key = F.lit(0).cast("bigint")
    by_id = Window.partitionBy("id").orderBy(*_SORTED)
    frame = spark.read.parquet(*rows).withColumn("key", key)
    frame = frame.withColumn("place", F.row_number().over(by_id)).withColumn(
        "first", F.first(F.struct("hash", "file", "row")).over(by_id)
    )
    frame = frame.mapInArrow(_Comparing(deciding, components(links)), _DECIDED)
    if not full:
        return frame
    tasks = max(1, min(2 * parallelism(spark), count // TASK_ROWS_MIN), count // ROWS_PER_TASK)
    frame = frame.repartition(tasks, "component").sortWithinPartitions("component", *_SORTED)
    return frame.mapInArrow(_Judging(deciding), _DECIDED)


def in_order(decided: DataFrame, count: int) -> DataFrame:
    """The accepted rows in total order across files."""
    accepted = decided.where(f"outcome = '{ACCEPTED}'")
    files = -(-count // ROWS_PER_FILE)
    spread = accepted.repartitionByRange(files, *_SORTED) if files > 1 else accepted.coalesce(1)
    columns = ("id", "client_id", "partitions", "event", "hash", "time", "author")
    return spread.sortWithinPartitions(*_SORTED).select(*columns)


def components(links: list[str]) -> dict[int, int]:
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


_TOLD: Final = ("outcome", "reason", "field", "message")

_OUT: Final = pa.schema(
    [
        *(field for field in ROW_SCHEMA if field.name != "committed_id"),
        pa.field("key", pa.int64()),
        pa.field("component", pa.int64()),
        *(pa.field(name, pa.string()) for name in _TOLD),
    ]
)
_KINDS: Final = [(field.name, field.type) for field in _OUT]


class _Comparing:
    """On an executor: the first row of an id counts, unless the log has the id."""

    def __init__(self, deciding: Deciding, leaders: dict[int, int]) -> None:
        self._deciding = deciding
        self._leaders = leaders

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
        names = ("id", "place", "hash", "first", "committed_id")
        rows = list(zip(*(batch.column(name).to_pylist() for name in names), strict=True))
        known = {} if ids is None else ids.known([row[0] for row in rows if row[1] == 1])
        outcomes = [self._outcome(known, *row) for row in rows]
        leaders = self._leaders
        numbers = [number_of(names[0]) for names in batch.column("partitions").to_pylist()]
        columns = {name: batch.column(name) for name in _OUT.names if name in batch.schema.names}
        columns["component"] = pa.array([leaders.get(number, number) for number in numbers], pa.int64())
        for name, values in zip(_TOLD, zip(*outcomes, strict=True), strict=True):
            columns[name] = pa.array(values, pa.string())
        # Rows that are in the log, or staged under another row, need no content.
        done = pc.is_in(columns["outcome"], pa.array([DUPLICATE, KNOWN]))
        columns["event"] = pc.if_else(done, pa.scalar(None, pa.string()), columns["event"])
        return pa.RecordBatch.from_arrays([columns[name].cast(kind) for name, kind in _KINDS], schema=_OUT)

    def _outcome(
        self,
        known: dict[str, RememberedId],
        id: str,
        place: int,
        hash: bytes,
        first: Any,
        committed_id: int | None,
    ) -> tuple[str, str | None, str, str]:
        if place > 1:
            if hash == first["hash"]:
                return DUPLICATE, None, "", ""
            where = f"{self._deciding.files[first['file']]}, row {first['row']}"
            return REJECTED, "conflict", "event", f"{where} has this id with other content"
        earlier = known.get(id)
        if earlier is not None:
            if earlier.hash == hash:
                return KNOWN, None, "", ""
            says = f"event {earlier.committed_id} of the log has this id with other content"
            return REJECTED, "conflict_in_log", "event", says
        if self._deciding.by_id and committed_id is None:
            return REJECTED, "no_committed_id", "committed_id", "other rows are ordered by theirs"
        return ACCEPTED, None, "", ""


class _Judging:
    """On an executor: judges components one after the other, each in order."""

    def __init__(self, deciding: Deciding) -> None:
        self._deciding = deciding

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        deciding = self._deciding
        log = open_reader(deciding.store) if deciding.base else None
        try:
            judge = Judge(deciding.model.load(), log, deciding.base)
            with gc_paused():
                for batch in batches:
                    yield self._judged(batch, judge)
        finally:
            if log is not None:
                log.close()

    def _judged(self, batch: Any, judge: Judge) -> Any:
        names = ("outcome", "component", "event", "partitions", "client_id", "author", "time")
        outcomes, numbers, events, partitions, *who = (batch.column(name).to_pylist() for name in names)
        clients, authors, times = who
        reasons = {name: batch.column(name).to_pylist() for name in ("reason", "field", "message")}
        for place, outcome in enumerate(outcomes):
            if outcome != ACCEPTED:
                continue
            judge.enter(numbers[place])
            by = authorship_of(clients[place], authors[place], times[place] or 0)
            error = judge.judge(events[place].encode(), partitions[place], by)
            if error is not None:
                outcomes[place] = REJECTED
                reasons["reason"][place] = "refused"
                reasons["field"][place], reasons["message"][place] = error.field, error.message
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns["outcome"] = pa.array(outcomes, pa.string())
        columns |= {name: pa.array(values, pa.string()) for name, values in reasons.items()}
        return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])
