"""States and items as Delta tables that any engine reads: Trino, Polars, pandas, Spark with Delta.

A snapshot in the lake holds its state in a form of our own; these have it as JSON text. Each run replaces them in one
commit. They are outside of the lake: an erasure does not reach them, the next run does.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from unisono.lake.errors import one_line
from unisono.lake.lake import Lake
from unisono.lake.storage import Storage
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.lake_tables import arrow_schema, table_rows

KEEP_HOURS: Final = 1
"""Replaced files are kept so long, for queries that read them."""

_TURN: Final = "unisono.copy"
"""Counts runs: of two at the same time delta-rs refuses one. Both would remove the same files and add their own."""

FILE_BYTES: Final = 64 << 20
"""Bytes of rows in a file, which is written in memory first."""


class DeltaCopies(msgspec.Struct, frozen=True):
    """Where the tables are, up to which event, and their rows."""

    location: str
    head: int
    states: int
    items: int


def write_delta_copies(lake: Lake, target: Storage, prefix: str = "") -> DeltaCopies:
    """Write `states` and `items`, or replace those of an earlier run."""
    if f"{target.location}/".startswith(f"{lake.storage.location}/"):
        raise PipelineError(f"{target.location} is in the lake: name a place outside of it")
    head = lake.head()
    rows = {table: _write(lake, target, table, f"{prefix}{table}", head) for table in ("states", "items")}
    return DeltaCopies(target.location, head, **rows)


def _write(lake: Lake, target: Storage, table: str, name: str, head: int) -> int:
    rows = table_rows(lake, table, head)  # refuses states that are not there, before a table is made
    try:
        delta = _opened(target, table, name)
        before = delta.version() - 1  # a new table's first commit is synced too
        turn = Transaction(_TURN, (delta.transaction_version(_TURN) or 0) + 1)
        present = pa.table(delta.get_add_actions()).to_pylist()
        count, adds = 0, []
        for path, content, own in _files(rows):
            target.write(name, path, content)
            stats = json.dumps({"numRecords": own})
            adds.append(AddAction(path, content.size, {}, _now_ms(), True, stats))
            count += own
        removes = [RemoveAction(file["path"], True, _now_ms(), file["size_bytes"], {}) for file in present]
        delta.create_write_transaction(
            [*adds, *removes],
            "append",
            arrow_schema(table),
            [],
            # As the next version or not at all: of an OPTIMIZE meanwhile the rows would stay as well.
            commit_properties=CommitProperties(app_transactions=[turn], max_commit_retries=0),
        )
        # Full: what a killed run wrote is named by no commit. On the old handle a vacuum conflicts with the commit.
        _opened(target, table, name).vacuum(
            KEEP_HOURS, dry_run=False, enforce_retention_duration=False, full=True
        )
        target.sync_commits(name, before)
    except CommitFailedError as error:
        raise PipelineError(
            f"{target.table(name)}: another process replaced the table meanwhile, run it again"
        ) from error
    except (DeltaError, OSError, ValueError) as error:
        raise PipelineError(f"{target.table(name)} cannot be written: {one_line(error)}") from error
    return count


def _opened(target: Storage, table: str, name: str) -> DeltaTable:
    """The table, made if it is missing; one of somebody else is refused."""
    uri, options, title = target.table(name), target.options or None, f"unisono copy of {table}"
    if not DeltaTable.is_deltatable(uri, options):
        target.require_unused(name)
    delta = DeltaTable.create(uri, arrow_schema(table), mode="ignore", name=title, storage_options=options)
    if delta.metadata().name != title:
        raise PipelineError(f"{uri} is a table of somebody else: choose another --prefix")
    return delta


def _files(rows: pa.RecordBatchReader) -> Iterator[tuple[str, pa.Buffer, int]]:
    """Parquet files of bounded size: name, content and rows of each."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        waiting.append(batch)
        size += batch.nbytes
        if size >= FILE_BYTES:
            yield _file(waiting)
            waiting, size = [], 0
    if waiting:
        yield _file(waiting)


def _file(batches: list[pa.RecordBatch]) -> tuple[str, pa.Buffer, int]:
    table, sink = pa.Table.from_batches(batches), pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return f"{uuid.uuid4().hex}.parquet", sink.getvalue(), table.num_rows


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
