"""Damage done on purpose: rows of a lake's files changed behind its back, and committed as the table's files."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from unisono.lake.file_actions import add_action, remove_actions
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.lake.write import FILE_SCHEMAS, DataFile

Row = dict[str, Any]


class Held:
    """One file's rows, to be changed; `said` is what the table shall say of the file, true unless changed."""

    def __init__(self, file: DataFile, rows: list[Row]) -> None:
        self.file = file
        self.rows = rows
        self.said: Row = {}
        self.bytes_: Callable[[bytes], bytes] = bytes
        self.options: Row = {}
        self.dirty = False


class Planter:
    """Changes a lake in memory; `commit` makes its tables name the changed files."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.held: dict[str, list[Held]] = {}

    def files(self, table: str) -> list[Held]:
        if table not in self.held:
            self.held[table] = [
                Held(
                    file,
                    pq.read_table(self.lake.storage.uri(table, file.path), partitioning=None).to_pylist(),
                )
                for file in self.lake.table(table).listed_files()
            ]
        return self.held[table]

    def file(self, table: str, **wanted: Any) -> Held:
        """The one file that has a row like this; it is going to be changed."""
        (found,) = (held for held in self.files(table) if any(_is(row, wanted) for row in held.rows))
        found.dirty = True
        return found

    def row(self, table: str, **wanted: Any) -> Row:
        (found,) = (row for row in self.file(table, **wanted).rows if _is(row, wanted))
        return found

    def event(self, committed_id: int) -> Row:
        """A row of `log`, not to be changed."""
        (found,) = (row for h in self.files(LOG) for row in h.rows if row["committed_id"] == committed_id)
        return found

    def change(
        self, committed_id: int, *, tables: tuple[str, ...] = (LOG, BY_PARTITION), **columns: Any
    ) -> None:
        """Set columns of an event, wherever it stands."""
        for table in tables:
            for held in self.files(table):
                for row in held.rows:
                    if row["committed_id"] == committed_id:
                        row.update(columns)
                        held.dirty = True

    def remove(self, committed_id: int, *, tables: tuple[str, ...] = (LOG, BY_PARTITION)) -> None:
        for table in tables:
            for held in self.files(table):
                left = [row for row in held.rows if row["committed_id"] != committed_id]
                held.dirty = held.dirty or len(left) < len(held.rows)
                held.rows = left

    def commit(self) -> None:
        for name, files in self.held.items():
            dirty = [held for held in files if held.dirty]
            if dirty:
                table = self.lake.table(name)
                old, new = [held.file for held in dirty], [self.write(held) for held in dirty]
                dropped = sum(file.rows for file in old) - sum(file.rows for file in new)
                adds = [add_action(file, data_change=True) for file in new]
                table._commit(
                    adds, remove_actions(old, data_change=True), table._rewrite_transactions(old, dropped), {}
                )
        self.held = {}

    def write(self, held: Held) -> DataFile:
        """A new file with these rows, and what is to be said of it."""
        sink = pa.BufferOutputStream()
        rows = pa.Table.from_pylist(held.rows, FILE_SCHEMAS[held.file.table])
        pq.write_table(rows, sink, **{"row_group_size": 200, "store_schema": False, **held.options})
        content = sink.getvalue().to_pybytes()
        folder = held.file.path.rpartition("/")[0]
        ids = [row["committed_id"] for row in held.rows if row["committed_id"] is not None]
        true: Row = {"first_id": min(ids, default=0), "last_id": max(ids, default=0)}
        name = f"{true['first_id']:012d}-{true['last_id']:012d}-{uuid.uuid4().hex}.parquet"
        path = f"{folder}/{name}".lstrip("/")
        for said, column in (("times", "status_updated_at"), ("clients", "client_id")):
            values: list[Any] = [row.get(column) for row in held.rows]
            true[said] = None if None in values or not values else (min(values), max(values))
        true |= {"path": path, "rows": len(held.rows), "bytes": len(content)}
        if held.file.table != LOG:
            names = sorted((row["partition"] for row in held.rows), key=str.encode)
            true |= {"first_partition": names[0], "last_partition": names[-1]}
        self.lake.storage.write(held.file.table, path, pa.py_buffer(held.bytes_(content)))
        return msgspec.structs.replace(held.file, **(true | held.said))

    def path(self, held: Held) -> Path:
        """Where the file is that the table names now."""
        return Path(self.lake.storage.uri(held.file.table, held.file.path))


def _is(row: Row, wanted: Row) -> bool:
    return all(row[name] == value for name, value in wanted.items())
