"""A DuckDB file with the lake's tables, for `duckdb FILE` and for programs that open it; needs no Spark.

`events`, `partition_events`, `runs` and `audit` are views of the lake's Parquet files, of the version that was
current when the file was made. `states` and `items` are copies, because a snapshot holds its state in a form of our
own; a file of a lake that was never folded has neither. The macro `history(name)` reads one partition from the few
files that can have it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from unisono.lake.columns import LOG_SCHEMA
from unisono.lake.lake import Lake, View
from unisono.lake.rearranged import stored_paths
from unisono.lake.run_tables import AUDIT, RUNS, data_paths
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.lake.write import UNBUCKETED
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.lake_tables import arrow_schema, has_states, table_rows
from unisono.pipeline.spark.lake_source import SCHEMAS

_COLUMNS: Final = ", ".join(f'"{name}"' for name in LOG_SCHEMA.names)
_TIME: Final = "make_timestamptz(status_updated_at * 1000) AS committed_at"
_EVENTS: Final = f"{_COLUMNS}, {_TIME}"

_COPIED: Final = ("states", "items")

_BUCKET: Final = re.compile(r"bucket=(-?\d+)/")

_SQL_TYPES: Final = {
    "string": "VARCHAR",
    "int64": "BIGINT",
    "binary": "BLOB",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "timestamp[us, tz=UTC]": "TIMESTAMPTZ",
    "list<item: string>": "VARCHAR[]",
    "list<item: int64>": "BIGINT[]",
}


class DuckdbFile(msgspec.Struct, frozen=True):
    """What was made: where, up to which event, and the rows that were copied."""

    path: str
    head: int
    states: int
    items: int


def make_duckdb_file(lake: Lake, path: Path, prefix: str = "") -> DuckdbFile:
    """Make the file, or replace what an earlier call put into it, in one transaction.

    A new file gets its name when it is complete, because DuckDB opens none whose making was cut off.
    """
    try:
        import duckdb
    except ImportError as error:
        raise PipelineError("a DuckDB file needs the package duckdb: pip install duckdb") from error
    if lake.storage.is_local and path.resolve().is_relative_to(Path(lake.storage.location).resolve()):
        raise PipelineError(
            f"{path} is in the lake: name a place outside of it, where no erasure searches for text"
        )
    view = lake.view()
    try:
        with _complete_file(path) as file, duckdb.connect(str(file)) as database:
            _run(database, "BEGIN")
            _require_own(database, prefix)
            _create_event_views(database, view, prefix)
            for table, name in (("runs", RUNS), ("audit", AUDIT)):
                files = [lake.storage.uri(name, each) for each in data_paths(lake.storage, name)]
                _create_view(database, f"{prefix}{table}", _parquet(table, files))
            copied = {table: _copy(database, lake, table, prefix, view.head) for table in _COPIED}
            _run(database, "COMMIT")
            _run(database, "CHECKPOINT")  # closing does it too, but says nothing when the disk is full
    except duckdb.Error as error:
        raise PipelineError(f"{path}: DuckDB cannot do it: {error}") from error
    except OSError as error:
        raise PipelineError(f"{path} cannot be made: {error.strerror or error}") from error
    return DuckdbFile(str(path), view.head, **copied)


@contextmanager
def _complete_file(path: Path) -> Iterator[Path]:
    """The file itself if it exists; else one in a directory beside it that becomes it at the end.

    The directory stays when its process is killed, and the next run clears it.
    """
    if path.exists():
        yield path
        return
    if (left := path.with_name(f"{path.name}.wal")).exists():
        raise PipelineError(
            f"{left} is left of a file that is gone, and no other can be opened beside it: remove it"
        )
    folder = path.with_name(f".{path.name}.new")
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, folder, path)
        for file in folder.iterdir():
            if file.is_dir():  # DuckDB's temporary files
                shutil.rmtree(file)
            else:
                file.unlink()
        try:
            yield folder / path.name
            if path.exists():
                raise PipelineError(f"{path} was made by another program meanwhile: run this again")
            (folder / path.name).rename(path)
        finally:
            shutil.rmtree(folder)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, path: Path) -> None:
    """Lock the directory, which must still have its name: whoever locked it before has removed it at the end."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            return
    except (BlockingIOError, FileNotFoundError):
        pass
    raise PipelineError(f"another process makes {path}: run this again when it has ended")


def _require_own(database: Any, prefix: str) -> None:
    """Refuse a file that has tables of somebody else under our names: they would be replaced."""
    found = dict(
        _run(
            database,
            "SELECT lower(table_name), list(column_name ORDER BY column_index) FROM duckdb_columns() "
            "WHERE database_name = current_database() AND schema_name = current_schema() GROUP BY 1",
        )
    )
    for table in SCHEMAS:
        own, present = arrow_schema(table).names, found.get(f"{prefix}{table}".lower())
        if present is not None and (present[:2] != own[:2] or set(present) - {*own, "bucket"}):
            raise PipelineError(
                f"{prefix}{table} is a table of somebody else in this file: choose another --prefix, or drop it"
            )


def _create_event_views(database: Any, view: View, prefix: str) -> None:
    log = [view.storage.uri(LOG, path) for path in stored_paths(view.log_files)]
    rows = [view.storage.uri(BY_PARTITION, path) for path in stored_paths(view.partition_files)]
    _create_view(database, f"{prefix}events", _parquet("events", log, _EVENTS))
    own = f"partition, {_EVENTS}, bucket"
    more = "NULL::INTEGER AS bucket"
    if "=" in view.storage.location:  # DuckDB would take a directory `type=x` above the lake for the column
        by_bucket: dict[str, list[str]] = {}
        for row in rows:
            by_bucket.setdefault(_BUCKET.findall(row)[-1], []).append(row)
        each = [
            _parquet("partition_events", files, f"partition, {_EVENTS}, {bucket}::INTEGER AS bucket")
            for bucket, files in sorted(by_bucket.items())
        ]
        joined = " UNION ALL ".join(each or [_parquet("partition_events", [], more=more)])
        found = f"SELECT * FROM ({joined}) WHERE true"  # noqa: S608
    else:
        hive = "hive_partitioning = true, hive_types = {'bucket': INTEGER}"
        found = _parquet("partition_events", rows, own, hive, more)
    partition_events = f"{prefix}partition_events"
    _create_view(database, partition_events, f"{found} AND committed_id <= {view.head}")
    bucket = f"(('0x' || substr(sha256(name), 1, 8))::UBIGINT % {view.buckets})::INTEGER"
    own_rows = f"bucket IN ({UNBUCKETED}, {bucket}) AND partition = name"
    _run(
        database,
        f"CREATE OR REPLACE MACRO {_name(f'{prefix}history')}(name) AS TABLE SELECT * EXCLUDE (bucket) "  # noqa: S608
        f"FROM {_name(partition_events)} WHERE {own_rows} ORDER BY committed_id",
    )


def _parquet(
    table: str,
    files: Sequence[str],
    columns: str = "*",
    option: str = "hive_partitioning = false",
    more: str = "",
) -> str:
    """A query of these files; without any, of no rows in the same columns."""
    if files:
        listed = ", ".join(_text(file) for file in files)
        return f"SELECT {columns} FROM read_parquet([{listed}], union_by_name = true, {option}) WHERE true"  # noqa: S608
    typed = [f'NULL::{_SQL_TYPES[str(field.type)]} AS "{field.name}"' for field in arrow_schema(table)]
    return f"SELECT {', '.join([*typed, *([more] if more else [])])} WHERE false"


def _create_view(database: Any, name: str, query: str) -> None:
    _run(database, f"CREATE OR REPLACE VIEW {_name(name)} AS {query}")


def _copy(database: Any, lake: Lake, table: str, prefix: str, head: int) -> int:
    """Rows are streamed: memory does not grow with their number. Of events without snapshots there is no table."""
    if head and not has_states(lake):
        _run(database, f"DROP TABLE IF EXISTS {_name(prefix + table)}")
        return 0
    rows = table_rows(lake, table, head)
    database.register("rows_to_copy", rows)
    _run(database, f"CREATE OR REPLACE TABLE {_name(prefix + table)} AS SELECT * FROM rows_to_copy")  # noqa: S608
    database.unregister("rows_to_copy")
    ((count,),) = _run(database, f"SELECT count(*) FROM {_name(prefix + table)}")  # noqa: S608
    return int(count)


def _run(database: Any, statement: str) -> list[tuple[Any, ...]]:
    """All rows, so that the connection is free for the next statement."""
    rows: list[tuple[Any, ...]] = database.execute(statement).fetchall()
    return rows


def _name(name: str) -> str:
    quoted = name.replace('"', '""')
    return f'"{quoted}"'


def _text(value: str) -> str:
    quoted = value.replace("'", "''")
    return f"'{quoted}'"
