"""The lake's tables through the data source, without Delta jars: `format("unisono")` with the option `lake`.

    spark.read.format("unisono").option("lake", "DIRECTORY").option("table", "events").load()
    CREATE TEMPORARY VIEW events USING unisono OPTIONS (lake 'DIRECTORY', table 'events')

Tables: `events`, one row per event; `partition_events`, one row per partition and event; `states`, the newest
snapshot of each partition; `items`, one row per item of a tree in those states; `runs` and `audit`, what the pipeline
did and found. Options, beside `lake` and `table`:

    from            events after this committed_id (`events`, `partition_events`)
    to              events up to this one; of `states` and `items` snapshots at or before it
    partitions      only these: a name, or a JSON array of names (`partition_events`, `states`, `items`)
    columns         only these, separated by commas; others are not read
    model_version   of `states` and `items` (default: the one in force at the log, see jobs/snapshot/in_force.py)
    storage.KEY     an option of the object store, as delta-rs takes it

A DataFrame and a view are the lake at the time when they are made. A table in a catalog (CREATE TABLE … USING unisono
OPTIONS …) is the lake at the time of each query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from unisono.lake.columns import SPARK_LOG_SCHEMA, SPARK_PARTITION_SCHEMA
from unisono.lake.lake import Lake
from unisono.lake.merge import NamedPartitions, PartitionSubset
from unisono.lake.run_tables import AUDIT, RUNS, data_paths, read_files
from unisono.lake.scan import RowRange, files_with, scan_file
from unisono.lake.snapshots import StateRow, files_of
from unisono.lake.storage import SNAPSHOTS, Storage
from unisono.lake.write import DataFile
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.snapshot.frames import (
    SNAPSHOTS_SCHEMA,
    newest_states,
    require_all_folded,
    require_model_version,
    require_some_folded,
    state_batches,
)
from unisono.pipeline.jobs.snapshot.in_force import shown_version
from unisono.pipeline.jobs.snapshot.items import ITEMS_SCHEMA, item_rows
from unisono.pipeline.jobs.snapshot.job import by_bucket
from unisono.pipeline.lake_range import end_of_range
from unisono.pipeline.spark.options import chosen_columns, column_types, names_option, number_option
from unisono.pipeline.spark.times import COMMITTED_AT, stored_columns, with_times
from unisono.pipeline.spark.worker import end_quietly

SCHEMAS: Final = {
    "events": f"{SPARK_LOG_SCHEMA}, {COMMITTED_AT} TIMESTAMP",
    "partition_events": f"{SPARK_PARTITION_SCHEMA}, {COMMITTED_AT} TIMESTAMP",
    "states": SNAPSHOTS_SCHEMA,
    "items": ITEMS_SCHEMA,
    "runs": "run_id STRING, job STRING, began_at TIMESTAMP, seconds DOUBLE, items BIGINT, ok BOOLEAN, note STRING, "
    "error STRING, document STRING",
    "audit": "run_id STRING, began_at TIMESTAMP, kind STRING, meaning STRING, warning BOOLEAN, count BIGINT, "
    "committed_ids ARRAY<BIGINT>",
}
"""The columns of each table, for Spark."""

STORAGE: Final = "storage."

TASK_BYTES: Final = 8 << 20
"""Of Parquet files in one task, some 100,000 events: at most a second of work."""
_OPTIONS: Final = frozenset(("lake", "table", "from", "to", "partitions", "columns", "model_version"))
_OF_EVENTS: Final = ("events", "partition_events")
_OF_STATES: Final = ("states", "items")
_RECORDS: Final = {"runs": RUNS, "audit": AUDIT}
_MEANT_FOR: Final = {
    "partitions": ("partition_events", *_OF_STATES),
    "from": _OF_EVENTS,
    "to": (*_OF_EVENTS, *_OF_STATES),
    "model_version": _OF_STATES,
}
"""The tables that an option narrows; for others it is refused."""


class _Part(InputPartition):
    """The rows that one task reads."""

    def __init__(self, read: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        super().__init__(None)
        self.read = read


class _EventRows(msgspec.Struct, frozen=True):
    """Rows of one file of events."""

    storage: Storage
    file: DataFile
    span: RowRange
    columns: tuple[str, ...]

    def __call__(self) -> Iterator[pa.RecordBatch]:
        for batch in scan_file(self.storage, self.file, self.span, stored_columns(self.columns)):
            yield with_times(batch, self.columns)


class _Several(msgspec.Struct, frozen=True):
    """Rows of several small files, one after the other."""

    parts: tuple[_EventRows, ...]

    def __call__(self) -> Iterator[pa.RecordBatch]:
        for part in self.parts:
            yield from part()


class _StateRows(msgspec.Struct, frozen=True):
    """The newest snapshots of some partitions, or their items."""

    storage: Storage
    table: str
    subset: PartitionSubset
    files: tuple[DataFile, ...]
    model_version: int
    upto: int
    columns: tuple[str, ...]
    required: tuple[str, ...] = ()
    """Partitions that must have one."""

    def __call__(self) -> Iterator[pa.RecordBatch]:
        states = self._states()
        rows = state_batches(states, self.model_version) if self.table == "states" else item_rows(states)
        for batch in rows:
            yield batch.select(list(self.columns))

    def _states(self) -> Iterator[StateRow]:
        missing = set(self.required)
        for state in newest_states(self.storage, self.subset, self.files, self.upto):
            missing.discard(state.partition)
            yield state
        if missing:
            raise PipelineError(
                f"partition {min(missing)!r} has no snapshot of model version {self.model_version} up to event "
                f"{self.upto}, and not all partitions are folded: `unisono lake snapshot` folds them"
            )


class _RecordRows(msgspec.Struct, frozen=True):
    """Rows of `_runs` or `_audit`."""

    storage: Storage
    table: str
    files: tuple[str, ...]
    columns: tuple[str, ...]

    def __call__(self) -> Iterator[pa.RecordBatch]:
        yield from read_files(self.storage, self.table, self.files).select(list(self.columns)).to_batches()


class LakeReader(DataSourceReader):
    """One read of one table."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts

    def partitions(self) -> Sequence[InputPartition]:
        return self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        end_quietly()
        return partition.read()


class LakeTableRead(msgspec.Struct, frozen=True):
    """A read of one table as it is at the time when this is made, however often and however late it is planned.

    Spark plans each query on a DataFrame by itself. Events up to an id stay the same; of snapshots, which are thinned
    out, the table's version counts, and of records the files.
    """

    lake: Lake
    table: str
    columns: tuple[str, ...]
    since: int
    upto: int
    names: tuple[str, ...] | None
    model_version: int | None
    snapshots: int | None
    """The version of the table `snapshots`; None when it is missing."""
    records: tuple[str, ...]

    @classmethod
    def of(cls, given: Mapping[str, str]) -> LakeTableRead:
        storage = {name[len(STORAGE) :]: value for name, value in given.items() if name.startswith(STORAGE)}
        unknown = sorted(name for name in given if name not in _OPTIONS and not name.startswith(STORAGE))
        if unknown:
            raise PipelineError(
                f"option {unknown[0]!r} is unknown; known options of a lake are {', '.join(sorted(_OPTIONS))}"
            )
        table = given.get("table", "events")
        if table not in SCHEMAS:
            raise PipelineError(f"there is no table {table!r}; there are {', '.join(SCHEMAS)}")
        for option, tables in _MEANT_FOR.items():
            if option in given and table not in tables:
                raise PipelineError(
                    f"option {option} is not for the table {table}, but for {', '.join(tables)}"
                )
        return cls.now(
            Lake.at(given["lake"], storage),
            table,
            chosen_columns(SCHEMAS[table], given.get("columns")),
            since=number_option(given, "from", 0) or 0,
            upto=number_option(given, "to", 0),
            names=names_option(given.get("partitions")),
            model_version=number_option(given, "model_version", 0),
        )

    @classmethod
    def now(
        cls,
        lake: Lake,
        table: str,
        columns: tuple[str, ...],
        *,
        since: int = 0,
        upto: int | None = None,
        names: tuple[str, ...] | None = None,
        model_version: int | None = None,
    ) -> LakeTableRead:
        end = end_of_range(lake.storage.location, lake.head(), since, upto)
        snapshots = lake.find(SNAPSHOTS) if table in _OF_STATES else None
        version = None if snapshots is None else snapshots.version
        records = data_paths(lake.storage, _RECORDS[table]) if table in _RECORDS else ()
        return cls(lake, table, columns, since, end, names, model_version, version, tuple(records))

    def place(self) -> dict[str, str]:
        return {"lake": self.lake.storage.location}

    def column_types(self) -> dict[str, str]:
        types = column_types(SCHEMAS[self.table])
        return {name: types[name] for name in self.columns}

    def reader(self) -> LakeReader:
        if self.table in _OF_EVENTS:
            parts: list[Callable[[], Iterator[pa.RecordBatch]]] = list(_joined(self._event_parts()))
        elif self.table in _OF_STATES:
            parts = list(self._state_parts())
        else:
            name = _RECORDS[self.table]
            parts = [_RecordRows(self.lake.storage, name, self.records, self.columns)]
        return LakeReader([_Part(part) for part in parts] or [_Part(_no_rows)])

    def _event_parts(self) -> Iterator[_EventRows]:
        view, upto = self.lake.view(), self.upto
        if self.names is not None:
            for name in self.names:
                for file in files_with(view.partition_files, view.buckets, [name], self.since, upto):
                    yield _EventRows(view.storage, file, RowRange(self.since, upto, name), self.columns)
            return
        files = view.log_files if self.table == "events" else view.partition_files
        for file in files:
            if file.last_id <= self.since or file.first_id > upto:
                continue
            for since, last in self._ranges(file, upto):
                yield _EventRows(view.storage, file, RowRange(since, last), self.columns)

    def _ranges(self, file: DataFile, upto: int) -> Iterator[tuple[int, int]]:
        """The ids of a file, in parts of TASK_BYTES: of `log`, whose rows are in the order of ids."""
        first, last = max(self.since, file.first_id - 1), min(upto, file.last_id)
        count = max(1, min(last - first, file.bytes // TASK_BYTES)) if self.table == "events" else 1
        edges = [first + (last - first) * part // count for part in range(count + 1)]
        return pairwise(edges)

    def _state_parts(self) -> Iterator[_StateRows]:
        table = None if self.snapshots is None else self.lake.find(SNAPSHOTS, self.snapshots)
        if table is None and self.snapshots is not None:
            raise PipelineError(
                f"the table {SNAPSHOTS} no longer has its version {self.snapshots}, that of this DataFrame or view: "
                "load it again"
            )
        files = [] if table is None else table.readable_files()
        version = 0 if table is None else shown_version(table, files)
        if self.model_version is not None:
            version = self.model_version
            require_model_version(files, version)
        require_folded = require_all_folded if self.names is None else require_some_folded
        require_folded(table, version, self.upto)
        if table is None:
            return
        upto, buckets = self.upto, table.description().buckets
        if self.names is not None:
            own = files_with(files_of(files, version), buckets, self.names, -1, upto)
            encoded = tuple(sorted({name.encode() for name in self.names}))
            named = NamedPartitions(buckets, names=encoded)
            required = () if table.folded_upto(version) else self.names
            yield self._states(named, own, version, upto, required)
            return
        for subset, own in by_bucket(table, version):
            yield self._states(subset, own, version, upto)

    def _states(
        self,
        subset: PartitionSubset,
        files: Sequence[DataFile],
        version: int,
        upto: int,
        required: tuple[str, ...] = (),
    ) -> _StateRows:
        return _StateRows(
            self.lake.storage, self.table, subset, tuple(files), version, upto, self.columns, required
        )


def _joined(parts: Iterable[_EventRows]) -> Iterator[_Several]:
    """Neighbouring small files become one task."""
    waiting: list[_EventRows] = []
    size = 0
    for part in parts:
        if waiting and size + part.file.bytes > TASK_BYTES:
            yield _Several(tuple(waiting))
            waiting, size = [], 0
        waiting.append(part)
        size += part.file.bytes
    if waiting:
        yield _Several(tuple(waiting))


def _no_rows() -> Iterator[pa.RecordBatch]:
    return iter(())
