"""The committed log as a Spark data source, for batches and streams.

    spark.dataSource.register(UnisonoSource)
    spark.read.format("unisono").option("store", "sqlite:DIRECTORY").load()
    spark.readStream.format("unisono").option("store", "postgresql://…").load()

With the option `lake` in place of `store` it reads a table of a lake: see `lake_source.py`. A table in a catalog has
the options that it was made with: see `catalog.py`. Options, beside `store`:

    from                  events after this committed_id (default: all of the log)
    to                    events up to this one (batch default: the head when `load` is called; stream: no end)
    partitions            only events in any of these: a name, or a JSON array of names
    columns               only these, separated by commas
    max_events_per_batch  of a stream (default 100,000)
    events_per_task       ids per input partition (default 100,000; of a PostgreSQL log, where each has a connection,
                          so many that there are 32 at most)
    push_down             true: conditions on committed_id narrow what is read, as from and to do. For a DataFrame
                          used in one query only: Spark 4.3 remembers what it pushed down, and a second query on
                          the same DataFrame would see the first one's rows. Off by default for that reason

What always holds: executors read ranges of committed_id in short reads that never delay the writer; nothing past
the contiguous durable prefix is read; the same range gives the same rows, however often it is read. A stream's
offset is the committed_id it has reached, with the id of that event: in a log that was put back from a backup and has
gone on it is another event's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from unisono.lake.columns import SPARK_LOG_SCHEMA, to_batch
from unisono.pipeline.errors import NoSuchRange, NoSuchStore, PipelineError
from unisono.pipeline.open_log import (
    LogExtent,
    event_ids,
    extent,
    gc_paused,
    normal_uri,
    open_reader,
    read_partitions,
    read_range,
    readers_at_once,
    require_range,
)
from unisono.pipeline.spark.catalog import given_options, is_of_table, options_in, table_schema
from unisono.pipeline.spark.lake_source import LakeTableRead
from unisono.pipeline.spark.options import (
    chosen_columns,
    column_types,
    flag_option,
    names_option,
    number_option,
)
from unisono.pipeline.spark.times import COMMITTED_AT, stored_columns, with_times
from unisono.pipeline.spark.worker import end_quietly

EVENTS_PER_TASK: Final = 100_000
"""At most a second of work, so that a lost task costs little and cores stay busy."""

EVENTS_PER_BATCH: Final = 100_000
"""Bound of a micro-batch, so that a stream that is far behind commits often."""

SPARSE_TASKS_MAX: Final = 16
"""Reading few partitions takes index lookups: more tasks cost more than they save."""

Offset: TypeAlias = dict[str, int | str]
"""Where a stream is: `committed_id`, the id of that event under EVENT_ID, and SINCE."""

EVENT_ID: Final = "event_id"

SINCE: Final = "since"
"""Where the batch that ends at an offset began. Spark remembers the end only, and asks again where a stream without
`from` begins: a log may have been pruned meanwhile."""

_OPTIONS: Final = frozenset(
    ("store", "from", "to", "partitions", "columns", "max_events_per_batch", "events_per_task", "push_down")
)

_NO_STORE: Final = (
    '.option("store", …) is missing: sqlite:DIRECTORY or postgresql://…, or .option("lake", …). A table in a catalog '
    "is made by CREATE TABLE … USING unisono OPTIONS (…) without columns"
)

SCHEMA: Final = f"{SPARK_LOG_SCHEMA}, {COMMITTED_AT} TIMESTAMP"
"""The columns of the source."""


class IdRange(InputPartition):
    """Events with `since < committed_id <= upto`."""

    def __init__(self, since: int, upto: int) -> None:
        super().__init__((since, upto))
        self.since = since
        self.upto = upto


class Reading(msgspec.Struct, frozen=True):
    """What every task needs: where the log is, and which events of a range to read."""

    store: str
    partitions: tuple[str, ...] | None
    events_per_task: int | None
    columns: tuple[str, ...]

    def ranges(self, since: int, upto: int) -> Sequence[InputPartition]:
        """`(since, upto]` as input partitions, at least one."""
        step, tasks_max = self.events_per_task or EVENTS_PER_TASK, []
        if self.partitions is not None:
            tasks_max.append(SPARSE_TASKS_MAX)
        if self.events_per_task is None and (readers := readers_at_once(self.store)) is not None:
            tasks_max.append(readers)
        step = max([step, *(-(-(upto - since) // count) for count in tasks_max)])
        starts = range(since, upto, step)
        return [IdRange(start, min(start + step, upto)) for start in starts] or [IdRange(since, since)]

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor: the events of one range. Stateless."""
        assert isinstance(part, IdRange)
        if part.since >= part.upto:
            return
        end_quietly()
        reader = open_reader(self.store)
        stored = stored_columns(self.columns)
        try:
            if self.partitions is None:
                stretches = read_range(reader, part.since, part.upto)
            else:
                stretches = read_partitions(reader, self.partitions, part.since, part.upto)
            with gc_paused():
                for records in stretches:
                    yield with_times(to_batch(records).select(stored), self.columns)
        finally:
            reader.close()


class BatchReader(DataSourceReader):
    """One batch: a range fixed when the DataFrame is made."""

    def __init__(self, reading: Reading, since: int, upto: int) -> None:
        self.reading = reading
        self.since = since
        self.upto = upto

    def partitions(self) -> Sequence[InputPartition]:
        return self.reading.ranges(self.since, max(self.since, self.upto))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.reading.read(partition)


class NarrowingReader(BatchReader):
    """A batch that evaluates conditions on committed_id, and narrows by conditions on partitions."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for condition in filters:
            if not self._take_over(condition):
                yield condition

    def _take_over(self, condition: Filter) -> bool:
        """Narrow the read; False when Spark must still filter the rows."""
        match condition:
            case EqualTo(("committed_id",), int(id)):
                self._narrow(id - 1, id)
            case GreaterThan(("committed_id",), int(id)):
                self._narrow(id, self.upto)
            case GreaterThanOrEqual(("committed_id",), int(id)):
                self._narrow(id - 1, self.upto)
            case LessThan(("committed_id",), int(id)):
                self._narrow(self.since, id - 1)
            case LessThanOrEqual(("committed_id",), int(id)):
                self._narrow(self.since, id)
            case In(("committed_id",), [*ids]) if ids and all(isinstance(id, int) for id in ids):
                self._narrow(min(ids) - 1, max(ids))
                return False
            case EqualTo(("partitions",), [str(name), *_]) if self.reading.partitions is None:
                self.reading = msgspec.structs.replace(self.reading, partitions=(name,))
                return False
            case IsNotNull(("committed_id",)):
                pass
            case _:
                return False
        return True

    def _narrow(self, since: int, upto: int) -> None:
        self.since = max(self.since, since)
        self.upto = min(self.upto, upto)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of the log. Its only state is the end of `availableNow`."""

    def __init__(self, reading: Reading, since: int | None, to: int | None, batch_max: int) -> None:
        self.reading = reading
        self.since = since
        self.to = to
        self.batch_max = batch_max

    def initialOffset(self) -> Offset:  # noqa: N802
        return {"committed_id": extent(self.reading.store).pruned_to if self.since is None else self.since}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.batch_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.to = self._bounded(extent(self.reading.store).head)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        since, head = _reached(start), extent(self.reading.store).head
        if since > head:
            raise NoSuchRange(
                f"the stream is at event {since} and the log ends at {head}: it is another log, or this log "
                "has lost events; use another checkpoint to start again"
            )
        end = self._bounded(head)
        if isinstance(limit, ReadMaxRows):
            end = min(end, since + limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            end = min(end, since + self.batch_max)
        if end <= since:
            return start
        first, last = event_ids(self.reading.store, (since, end))
        _require_same(start, first)
        return {"committed_id": end, SINCE: since, **({} if last is None else {EVENT_ID: last})}

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return {"committed_id": self._bounded(extent(self.reading.store).head)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        upto = _reached(end)
        since = int(end.get(SINCE, _reached(start)))
        if start == end:
            return []
        require_range(self.reading.store, since, upto)
        _require_same(end, *event_ids(self.reading.store, (upto,)))
        return self.reading.ranges(since, upto)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.reading.read(partition)

    def _bounded(self, head: int) -> int:
        return head if self.to is None else min(head, self.to)


def _reached(offset: Offset) -> int:
    return int(offset["committed_id"])


def _require_same(offset: Offset, found: str | None) -> None:
    """Refuse a log whose event at an offset is another one. A pruned event, and the offset of a checkpoint without an
    id, are not compared."""
    noted = offset.get(EVENT_ID, found)
    if found is not None and noted != found:
        raise NoSuchRange(
            f"event {_reached(offset)} was {noted!r} for this stream and is {found!r} in the log: it is another log, "
            "or one that was put back and has gone on; use another checkpoint to start again"
        )


class ReadRequest(msgspec.Struct, frozen=True):
    """The validated options of a read, and the extent of the log at that time."""

    reading: Reading
    since: int | None
    to: int | None
    batch_max: int
    push_down: bool
    log: LogExtent

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ReadRequest:
        unknown = sorted(set(given) - _OPTIONS)
        if unknown:
            raise PipelineError(
                f"option {unknown[0]!r} is unknown; known options are {', '.join(sorted(_OPTIONS))}"
            )
        if not given.get("store"):
            raise NoSuchStore(_NO_STORE)
        reading = Reading(
            normal_uri(given["store"]),
            names_option(given.get("partitions")),
            number_option(given, "events_per_task", 1),
            chosen_columns(SCHEMA, given.get("columns")),
        )
        return cls(
            reading,
            number_option(given, "from", 0),
            number_option(given, "to", 0),
            number_option(given, "max_events_per_batch", 1) or EVENTS_PER_BATCH,
            flag_option(given, "push_down"),
            extent(reading.store),
        )

    def place(self) -> dict[str, str]:
        return {"store": self.reading.store}

    def column_types(self) -> dict[str, str]:
        types = column_types(SCHEMA)
        return {name: types[name] for name in self.reading.columns}

    def reader(self) -> DataSourceReader:
        since = self.log.pruned_to if self.since is None else self.since
        upto = self.log.head if self.to is None else self.to
        require_range(self.reading.store, since, upto)
        return (NarrowingReader if self.push_down else BatchReader)(self.reading, since, upto)


class UnisonoSource(DataSource):
    """`spark.read.format("unisono")`. A DataFrame is the log at the time of `load`; on Spark Connect, which sends
    plans again with each query, only with the option `to` or as a temporary view."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._is_of_table = is_of_table(options)
        self._given = given_options(options)
        self._read = None if self._is_without_place() else _read_of(self._given)

    @classmethod
    def name(cls) -> str:
        return "unisono"

    def schema(self) -> str | StructType:
        if self._read is None and not self._given.get("url"):
            raise NoSuchStore(_NO_STORE)
        types = column_types(SCHEMA) if self._read is None else self._read.column_types()
        if self._is_of_table and self._read is not None:
            return table_schema(types, {**self._given, **self._read.place()})
        return ", ".join(f"{name} {kind}" for name, kind in types.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._reading(schema).reader()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """`df.write.format("unisono")`: submits events to a server."""
        from unisono.pipeline.spark.sink import EventWriter

        return EventWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """`stream.writeStream.format("unisono")`: the same for the micro-batches of a stream."""
        from unisono.pipeline.spark.sink import StreamEventWriter

        return StreamEventWriter(self.options, schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        request = self._reading(schema)
        if isinstance(request, LakeTableRead):
            raise PipelineError(
                "a lake cannot be read as a stream: read the log itself, with the option store"
            )
        if request.to is not None and (request.since or 0) > request.to:
            raise NoSuchRange(f"({request.since}, {request.to}] is not a range: 0 <= from <= to must hold")
        return StreamReader(request.reading, request.since, request.to, request.batch_max)

    def _is_without_place(self) -> bool:
        """A write, or a table of a catalog that is read: its schema has the options."""
        return not self._given.get("lake") and not self._given.get("store")

    def _reading(self, schema: StructType) -> ReadRequest | LakeTableRead:
        if self._read is not None:
            return self._read
        carried = options_in(schema)
        if not carried:
            raise NoSuchStore(_NO_STORE)
        if "columns" in self._given:
            raise PipelineError(
                "a table has its columns: choose among them in SELECT, not by the option columns"
            )
        # A table has the columns of its time, whatever later versions add.
        return _read_of({**carried, **self._given, "columns": ",".join(schema.names)})


def _read_of(given: Mapping[str, str]) -> ReadRequest | LakeTableRead:
    return LakeTableRead.of(given) if given.get("lake") else ReadRequest.of(given)
