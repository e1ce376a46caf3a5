"""The SQLite file of the JavaScript library: its table `committed_events`.

Its columns changed from version to version, so they are taken by name:

    draft        committed_id, id, client_id, partitions (JSON), event (JSON), status_updated_at
    1.x          committed_id, id, project_id, user_id, partitions (JSON), type, payload (JSON), meta (JSON), created
    2.x          committed_id, id, project_id, user_id, partition, type, schema_version, payload (JSON as bytes),
                 payload_compression, client_ts, server_ts, created_at

A `type` that is one of the protocol's own (tree actions, `event`) makes `{type, payload}`. Any other is what the
library calls the type of a command; it becomes the schema of a canonical event, `payload` its data, and what the
protocol has no place for (project, user, schema version, the client's clock) its `meta`. The event belongs to the
client named in `client_id` or in `meta`, else to the user. Drafts are not history and stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.import_.outcomes import RefusedRow
from unisono.pipeline.jobs.import_.rows import SourceRow, canonical_text, tree_text
from unisono.pipeline.jobs.import_.sources import SPLIT_ROWS, FieldMapping, SourceFile, Split

TABLE: Final = "committed_events"

PROTOCOL_TYPES: Final = frozenset(
    ("event", "set", "unset", "init", "treePush", "treeDelete", "treeUpdate", "treeMove")
)
"""Values of `event.type` that mean themselves (PROF-01)."""

TIMES: Final = ("status_updated_at", "server_ts", "created", "created_at")
"""Where the time of the commit stands, the best first."""

READ_ROWS: Final = 1_000
"""Rows of one statement: a server that still writes to the file is not kept from its work."""

_one_value: Final = msgspec.json.Decoder(msgspec.Raw).decode


class Columns(msgspec.Struct, frozen=True):
    """The columns of the table, and the mapped ones among them."""

    present: tuple[str, ...]

    def take(self, row: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.present, row, strict=True))


def splits(file: int, source: SourceFile, mapped: FieldMapping, size: int = SPLIT_ROWS) -> list[Split]:
    """Stretches of `size` rows by SQLite's own row ids: in the library's tables they are the committed ids."""
    with closing(_connect(source.path)) as connection:
        _columns(connection, source.path, mapped)
        try:
            edges = [*_edges(connection, size)]
        except apsw.Error as error:
            raise PipelineError(f"{TABLE} in {source.path} cannot be read: {error}") from error
    return [Split(file, source.path, source.format, start, end) for start, end in pairwise(edges)]


def _edges(connection: apsw.Connection, size: int) -> Iterator[int]:
    """Where stretches begin, and where the last one ends; ids may be far apart, so rows are counted."""
    first, last = _ids(connection, f"SELECT min(rowid), max(rowid) FROM {TABLE}")  # noqa: S608
    step = f"SELECT (SELECT rowid FROM {TABLE} WHERE rowid >= ? ORDER BY rowid LIMIT 1 OFFSET ?)"  # noqa: S608
    while first is not None:
        yield first
        (first,) = _ids(connection, step, first, size)
    if last is not None:
        yield last + 1


def _ids(connection: apsw.Connection, query: str, *values: int) -> tuple[int | None, ...]:
    return msgspec.convert(connection.execute(query, values).fetchall()[0], tuple[int | None, ...])


def read(split: Split, mapped: FieldMapping) -> Iterator[SourceRow]:
    """The rows of a stretch, in short reads."""
    with closing(_connect(split.path)) as connection:
        columns = _columns(connection, split.path, mapped)
        listed = ", ".join(f'"{mapped.column(name)}"' for name in columns.present)
        query = f"SELECT rowid, {listed} FROM {TABLE} WHERE rowid >= ? AND rowid < ? ORDER BY rowid LIMIT ?"  # noqa: S608
        reached = split.start
        while rows := connection.execute(query, (reached, split.end, READ_ROWS)).fetchall():
            for number, *values in msgspec.convert(rows, list[tuple[Any, ...]]):
                yield _row(number, columns.take(values))
                reached = number + 1


def _connect(path: str) -> apsw.Connection:
    """Read only. A WAL file that no process has open is not locked, so it may be on a read-only disk."""
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    name = f"file:{quoted}?{'immutable=1' if _at_rest(path) else 'mode=ro'}"
    try:
        connection = apsw.Connection(name, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        connection.set_busy_timeout(5_000)
        connection.execute("SELECT count(*) FROM sqlite_schema")
    except apsw.Error as error:
        raise PipelineError(f"{path} cannot be read as SQLite: {error}") from error
    return connection


def _at_rest(path: str) -> bool:
    """A process that has a file in WAL mode open, or was killed with it open, leaves two files beside it."""
    with Path(path).open("rb") as file:
        in_wal_mode = file.read(20)[18:] == b"\2\2"
    return in_wal_mode and not any(Path(f"{path}-{beside}").exists() for beside in ("wal", "shm"))


def _columns(connection: apsw.Connection, path: str, mapped: FieldMapping) -> Columns:
    present = {row[1] for row in connection.execute(f"PRAGMA table_info({TABLE})")}
    if not present:
        raise PipelineError(f"{path} has no table {TABLE}: it is not a store of the JavaScript library")
    known = (
        "committed_id", "id", "client_id", "user_id", "project_id", "partitions", "partition", "event", "type",
        "payload", "meta", "payload_compression", "schema_version", "client_ts", *TIMES,
    )  # fmt: skip
    for field, column in mapped.names.items():
        if column not in present:
            raise PipelineError(f"{path} has no column {column!r} for {field}")
    found = tuple(name for name in known if mapped.column(name) in present)
    if not {"committed_id", "id"}.issubset(found) or not {"event", "type"}.intersection(found):
        raise PipelineError(f"{TABLE} in {path} has no columns committed_id, id and event (or type)")
    return Columns(found)


def _row(number: int, found: dict[str, Any]) -> SourceRow:
    row = SourceRow(
        number, id=found["id"], committed_id=found["committed_id"], partition=found.get("partition")
    )
    row.time = next((found[name] for name in TIMES if found.get(name) is not None), None)
    try:
        meta = _object(found.get("meta"))
        row.text = _bytes(found.get("event") if found.get("event") is not None else found.get("payload"))
        if found.get("partitions") is not None:
            row.partitions = msgspec.json.decode(_bytes(found["partitions"]))
        row.client_id = found.get("client_id") or meta.get("clientId") or found.get("user_id") or None
        row.user_id = found.get("user_id") or None
        row.event = _event(found, meta)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        row.fault = RefusedRow("unreadable", f"a column that should hold JSON does not: {error}")
    return row


def _event(found: dict[str, Any], meta: dict[str, Any]) -> bytes | None:
    if found.get("event") is not None:
        return _bytes(found["event"])
    if compression := found.get("payload_compression"):
        raise ValueError(f"payload is compressed with {compression!r}, which is not known here")
    kind, payload = found.get("type"), found.get("payload")
    if kind is None or payload is None:
        return None
    text = bytes(_one_value(_bytes(payload)))
    if kind in PROTOCOL_TYPES:
        return tree_text(kind, text)
    kept = {
        "project_id": found.get("project_id"),
        "user_id": found.get("user_id"),
        "schema_version": found.get("schema_version"),
        "client_ts": found.get("client_ts", meta.get("clientTs")),
    }
    rest = msgspec.json.encode({name: value for name, value in kept.items() if value is not None})
    return canonical_text(kind, text, rest)


def _object(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    found = msgspec.json.decode(_bytes(value))
    return found if isinstance(found, dict) else {}


def _bytes(value: Any) -> bytes:
    if value is None:
        return b""
    return value if isinstance(value, bytes) else str(value).encode()
