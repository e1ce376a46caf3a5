"""SQL over a lake, for people: one SELECT at a time in DuckDB, which reads the lake's rows and nothing else.

DuckDB has no access to files, networks, extensions or variables of this process: it gets the tables as datasets of
Arrow. A query is bounded in time, threads, rows and characters, and DuckDB's memory is; memory beside it (of one
huge value) is bounded by the limit of the process that calls this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.fs as pa_fs
from deltalake.fs import DeltaStorageHandler

from unisono.display import shorten
from unisono.lake.columns import LOG_SCHEMA, PARTITION_SCHEMA, SNAPSHOT_SCHEMA
from unisono.lake.lake import Lake
from unisono.lake.rearranged import stored_paths
from unisono.lake.run_tables import AUDIT, RUNS, read_rows
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS, Storage
from unisono.lake.write import DataFile

MEMORY_BYTES: Final = 256 << 20
QUERY_S: Final = 15.0
ROWS_MAX: Final = 500
CELL_CHARS_MAX: Final = 2_000
ANSWER_CHARS_MAX: Final = 2_000_000

_VIEWS: Final = Path(__file__).with_name("views.sql").read_text("utf-8")


class QueryRefused(Exception):
    """The query was not run to its end; the text says why."""


class QueryResult(msgspec.Struct, frozen=True):
    """Rows as texts, null where there is no value. `more`: there are further rows, or texts were cut."""

    columns: list[str]
    types: list[str]
    rows: list[list[str | None]]
    more: bool
    seconds: float
    head: int


def query(lake: Lake, sql: str) -> QueryResult:
    """Run one SELECT over the lake as it is now; QueryRefused, or LakeUnusable for a lake that cannot be read."""
    began = time.monotonic()
    view = lake.view()
    connection = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{MEMORY_BYTES >> 20}MiB",
            "threads": 1,
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        },
    )
    interrupt = threading.Timer(QUERY_S, connection.interrupt)
    interrupt.daemon = True
    try:
        _make_views(connection, lake, view.log_files, view.partition_files, view.head)
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        interrupt.start()
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise QueryRefused("write one SELECT: the lake cannot be changed here")
        found = connection.sql(sql).limit(ROWS_MAX + 1)
        columns, types = list(found.columns), [str(each) for each in found.types]
        rows = found.fetchall()
    except duckdb.InterruptException:
        raise QueryRefused(f"stopped: the query took longer than {QUERY_S:g} s") from None
    except duckdb.OutOfMemoryException:
        raise QueryRefused(f"stopped: the query needs more than {MEMORY_BYTES >> 20} MiB of memory") from None
    except duckdb.Error as error:
        raise QueryRefused(str(error)) from None
    finally:
        interrupt.cancel()
        connection.close()
    texts, cut = _texts(rows[:ROWS_MAX])
    more = cut or len(rows) > ROWS_MAX
    return QueryResult(columns, types, texts, more, round(time.monotonic() - began, 3), view.head)


def _make_views(
    connection: duckdb.DuckDBPyConnection,
    lake: Lake,
    log_files: Sequence[DataFile],
    partition_files: Sequence[DataFile],
    head: int,
) -> None:
    storage = lake.storage
    stored = lake.find(SNAPSHOTS)
    snapshot_files = () if stored is None else stored.readable_files()
    snapshot_schema = SNAPSHOT_SCHEMA.append(pa.field("model_version", pa.int64()))
    connection.register("lake_log", _dataset(storage, LOG, log_files, LOG_SCHEMA))
    connection.register("lake_partitions", _dataset(storage, BY_PARTITION, partition_files, PARTITION_SCHEMA))
    connection.register("lake_snapshots", _dataset(storage, SNAPSHOTS, snapshot_files, snapshot_schema))
    connection.register("runs", read_rows(storage, RUNS))
    connection.register("audit", read_rows(storage, AUDIT))
    connection.execute("SET VARIABLE head = ?", [head])
    connection.execute(_VIEWS)


def _dataset(storage: Storage, table: str, files: Sequence[DataFile], schema: pa.Schema) -> Any:
    """The files of a table. Those of snapshots have their model version in the Delta log only."""
    form = pa_dataset.ParquetFileFormat()
    if storage.is_local:
        system: Any = pa_fs.LocalFileSystem()
    else:
        system = pa_fs.PyFileSystem(DeltaStorageHandler(storage.table(table), storage.options))
    fragments = []
    versions = {file.path: file.model_version for file in files}
    for stored in stored_paths(files):
        path = storage.uri(table, stored) if storage.is_local else stored
        known = pa_dataset.field("model_version") == versions[stored] if table == SNAPSHOTS else None
        fragments.append(form.make_fragment(path, system, known))
    return pa_dataset.FileSystemDataset(fragments, schema, form, system)


def _texts(rows: Sequence[Sequence[Any]]) -> tuple[list[list[str | None]], bool]:
    """The rows as texts, as many as fit, and whether something was left out."""
    texts: list[list[str | None]] = []
    left, cut = ANSWER_CHARS_MAX, False
    for row in rows:
        found = [_text(value) for value in row]
        shown = [None if text is None else shorten(text, CELL_CHARS_MAX) for text in found]
        left -= sum(len(text or "") for text in shown)
        if left < 0:
            return texts, True
        cut = cut or shown != found
        texts.append(shown)
    return texts, cut


def _text(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bytes():
            return value[:CELL_CHARS_MAX].hex()
        case bool():
            return "true" if value else "false"
        case list() | dict() | tuple():
            return msgspec.json.encode(value, enc_hook=str).decode()
        case _:
            return str(value)
