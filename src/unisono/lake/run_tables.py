"""The tables `_runs` and `_audit`: what the pipeline did and found, kept in the lake as data.

They are plain append-only Delta tables that any reader can query; no job depends on them. They hold counts, ids and
partition names, never event text: an erasure needs not look for it here.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from unisono.lake.errors import LakeUnusable, one_line
from unisono.lake.log_retention import LOG_KEPT, LOG_RETENTION, VACUUM_HOURS_MAX, hooks_after
from unisono.lake.storage import Storage, delta_name

RUNS: Final = "_runs"
AUDIT: Final = "_audit"

JOINED_FILES: Final = 64
"""Small files, one per commit, that are joined into one when there are so many."""

_TIME: Final = pa.timestamp("us", "UTC")
_SCHEMAS: Final = {
    RUNS: pa.schema(
        [
            ("run_id", pa.string()),
            ("job", pa.string()),
            ("began_at", _TIME),
            ("seconds", pa.float64()),
            ("items", pa.int64()),
            ("ok", pa.bool_()),
            ("note", pa.string()),
            ("error", pa.string()),
            ("document", pa.string()),
        ]
    ),
    AUDIT: pa.schema(
        [
            ("run_id", pa.string()),
            ("began_at", _TIME),
            ("kind", pa.string()),
            ("meaning", pa.string()),
            ("warning", pa.bool_()),
            ("count", pa.int64()),
            ("committed_ids", pa.list_(pa.int64())),
        ]
    ),
}
_SETTINGS: Final[dict[str, str | None]] = {
    "delta.checkpointInterval": "32",
    LOG_RETENTION: LOG_KEPT,
}


class RunRecord(msgspec.Struct, frozen=True):
    """A row of `_runs`. `document`: JSON with more, such as the certificate of an erasure."""

    run_id: str
    job: str
    began_ms: int
    seconds: float
    items: int
    ok: bool
    note: str = ""
    error: str = ""
    document: str = ""


class AuditRecord(msgspec.Struct, frozen=True):
    """A row of `_audit`: one kind of finding in one audit, with the events of the first findings."""

    run_id: str
    began_ms: int
    kind: str
    meaning: str
    warning: bool
    count: int
    committed_ids: list[int]


def new_run_id() -> str:
    return uuid.uuid4().hex


def record_runs(storage: Storage, rows: Sequence[RunRecord]) -> None:
    """Append to `_runs`, which is made if it is missing."""
    _append(storage, RUNS, rows)


def record_findings(storage: Storage, rows: Sequence[AuditRecord]) -> None:
    """Append to `_audit`; a table is made also for an audit without findings, so that it can be queried."""
    _append(storage, AUDIT, rows)


def _append(storage: Storage, name: str, rows: Sequence[RunRecord] | Sequence[AuditRecord]) -> None:
    schema = _SCHEMAS[name]
    columns = [[_value(row, field.name) for row in rows] for field in schema]
    table = pa.Table.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )
    try:
        found = _opened(storage, name)
        version = -1 if found is None else found.version()
        write_deltalake(
            storage.table(name) if found is None else found,
            table,
            mode="append",
            name=delta_name(name),
            configuration=_SETTINGS,
            storage_options=storage.options or None,
            post_commithook_properties=hooks_after(version + 1),
        )
    except (DeltaError, OSError, ValueError) as error:
        raise LakeUnusable(f"{storage.table(name)} cannot be written: {one_line(error)}") from error
    storage.sync_commits(name, version)


def _opened(storage: Storage, name: str) -> DeltaTable | None:
    try:
        return DeltaTable(storage.table(name), storage_options=storage.options or None)
    except TableNotFoundError:
        return None


def _value(row: RunRecord | AuditRecord, column: str) -> Any:
    return row.began_ms * 1_000 if column == "began_at" else getattr(row, column)


def data_paths(storage: Storage, name: str) -> list[str]:
    """The files of `_runs` or `_audit`; none when the table is missing."""
    table = _opened(storage, name)
    return [] if table is None else list(pa.table(table.get_add_actions()).column("path").to_pylist())


def read_rows(storage: Storage, name: str) -> pa.Table:
    """All rows of `_runs` or `_audit`; none when the table is missing."""
    return read_files(storage, name, data_paths(storage, name))


def read_files(storage: Storage, name: str, paths: Sequence[str]) -> pa.Table:
    """The rows of these files of `_runs` or `_audit`."""
    parts = [_SCHEMAS[name].empty_table()]
    for path in paths:
        with storage.read(name, path) as source:
            parts.append(pq.read_table(source, columns=_SCHEMAS[name].names).cast(_SCHEMAS[name]))
    return pa.concat_tables(parts)


def join_small_files(storage: Storage, vacuum_hours: int) -> None:
    """Join the files of many runs into one, and remove those that were replaced so many hours ago."""
    hours = min(vacuum_hours, VACUUM_HOURS_MAX)
    for name in _SCHEMAS:
        table = _opened(storage, name)
        if table is None:
            continue
        if len(table.file_uris()) >= JOINED_FILES:
            table.optimize.compact()
        table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
