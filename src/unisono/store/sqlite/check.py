"""The embedded log, read for checking (see `store/check_log.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import apsw
import msgspec

from unisono.store.check_log import BATCH_BYTES_MAX, BATCH_ROWS, LogEnds, PartitionIndexRow, Unreadable
from unisono.store.check_rows import Row, name_complaint
from unisono.store.port import LogFinding, StoreUnusable
from unisono.store.sqlite import files
from unisono.store.sqlite.event_ids import EventIds, register_functions
from unisono.store.statements import load_migrations, load_queries

FILE_FINDINGS_MAX: Final = 100
"""Findings after which SQLite's own check stops."""

_READ_ERRORS = (apsw.Error, UnicodeDecodeError)

_SQL = load_queries("sqlite")


def open_directory(directory: Path) -> SqliteOpened:
    """StoreUnusable when there is no log this program can read; Unreadable when the file is damaged."""
    try:
        connection = files.connect_reader(directory)
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise Unreadable(f"{files.LOG_FILE} cannot be read at all: {error}") from error
    except (apsw.Error, OSError) as error:
        raise StoreUnusable(f"the log in {directory} cannot be opened: {error}") from error
    try:
        files.refuse_other_versions(connection, directory)
        connection.pragma("cache_size", -files.CHECK_CACHE_KIB)
    except apsw.Error as error:
        connection.close()
        raise Unreadable(str(error)) from error
    except BaseException:
        connection.close()
        raise
    return SqliteOpened(connection)


class SqliteOpened:
    """Short reads, so that a running server's WAL can start over."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._ids = EventIds(connection)
        self.finds_by_id = True

    def structure_findings(self) -> Iterator[LogFinding]:
        yield from self._schema_findings()
        for (message,) in self._read(f"PRAGMA integrity_check({FILE_FINDINGS_MAX})"):
            if message != "ok":
                yield LogFinding("file", message)
        for head, *marks in self._rows("check_marks"):
            for index, mark in zip(("ids", "partitions"), marks, strict=True):
                if mark > head:
                    what = f"the index of {index} is said to have all events up to {mark}, and the head is {head}"
                    yield LogFinding("head", what)

    def _schema_findings(self) -> Iterator[LogFinding]:
        """Compare every table and index with the migrations; additions of an operator are ignored."""
        present = {name: definition for name, *definition in self._rows("check_schema")}
        for name, *definition in _wanted_schema():
            if name not in present:
                yield LogFinding("schema", f"the {definition[0]} {name} is missing")
            elif present[name] != definition:
                yield LogFinding("schema", f"the {definition[0]} {name} is not what this version makes it")
            else:
                continue
            self.finds_by_id &= name != "event_ids"

    def head(self) -> LogEnds | None:
        row = next(self._rows("check_head"), None)
        return None if row is None else LogEnds(*row)

    def extent(self) -> tuple[int | None, int | None]:
        first, last = next(self._rows("check_extent"))
        return first, last

    def pruned_to(self) -> int:
        return sum(pruned_to for (pruned_to,) in self._rows("pruned_to"))

    def maintenance_row(self) -> tuple[str | None, bool] | None:
        row = next(self._rows("check_maintenance"), None)
        return None if row is None else (row[0], bool(row[1]))

    def estimated_index_rows(self) -> int:
        return int(next(self._rows("check_index_size"))[0])

    def events(self, since: int, upto: int) -> Sequence[Row]:
        rows, size = [], 0
        for row in self._rows("scan", since, upto, BATCH_ROWS):
            rows.append(row)
            size += len(row[4])
            if size >= BATCH_BYTES_MAX:
                break
        return rows

    def events_of(self, ids: Sequence[str]) -> Sequence[tuple[str, int]]:
        try:
            self._ids.read_new()
            return [(id, known.committed_id) for id, known in self._ids.find(ids)]
        except _READ_ERRORS as error:
            raise _unreadable(error) from error

    def pruned_among(self, ids: Sequence[str]) -> Sequence[str]:
        if not self.finds_by_id:
            return []
        pruned_to = self.pruned_to()
        return [id for id, committed_id in self.events_of(ids) if committed_id <= pruned_to]

    def missing_index_rows(self, places: Sequence[tuple[str, int]]) -> Sequence[tuple[str, int]]:
        return [
            (name, committed_id)
            for name, committed_id in self._rows("check_missing_partitions", _array(places))
        ]

    def duplicates(self) -> Iterator[tuple[str, int, int]]:
        return ((id, first, count) for id, first, count in self._rows("check_duplicates"))

    def pruned_ids(self) -> Iterator[Sequence[tuple[int, int]]]:
        return ([row[1:] for row in rows] for rows in self._pruned())

    def _pruned(self) -> Iterator[list[tuple[str, int, int]]]:
        after = -(2**63)
        while rows := [
            (id, at, hash_bytes) for id, at, hash_bytes in self._rows("check_pruned", after, BATCH_ROWS)
        ]:
            yield rows
            after = rows[-1][1]

    def name_findings(self) -> Iterator[LogFinding]:
        before = None
        for number, name in self._rows("check_names"):
            if name == before:
                yield LogFinding("partitions", f"{name!r} has more than one number, {number} is one of them")
            before = name
            if complaint := name_complaint(name):
                yield LogFinding("partitions", f"partition number {number}: {complaint}")
        for name, last in self._rows("check_pruned_partitions"):
            if last > self.pruned_to():
                yield LogFinding("pruned", f"events of {name!r} are said to have left up to it", last)

    def id_findings(self) -> Iterator[LogFinding]:
        at = (-(2**63), -1)
        while rows := list(self._rows("check_event_ids", *at, BATCH_ROWS)):
            for _, committed_id, right in rows:
                if not right:
                    yield LogFinding("index", "listed under an id it does not have", committed_id)
            at = rows[-1][:2]
        for pruned in self._pruned():
            found = set(self.events_of([id for id, *_ in pruned]))
            for id, committed_id, _ in pruned:
                if (id, committed_id) not in found:
                    what = f"has left and cannot be found by its id {id!r}: it could be committed again"
                    yield LogFinding("pruned", what, committed_id)

    def index_rows(self) -> Iterator[Sequence[PartitionIndexRow]]:
        at = (-(2**63), 0)
        while rows := list(self._rows("check_index", *at, BATCH_ROWS)):
            yield [
                PartitionIndexRow(f"partition number {number}", name, committed_id, partitions)
                for number, committed_id, name, partitions in rows
            ]
            at = rows[-1][:2]

    def snapshot_findings(self) -> Iterator[LogFinding]:
        for number, name, committed_id in self._rows("check_snapshots"):
            if name is None:
                yield LogFinding("snapshot", f"of partition number {number}, unknown", committed_id)
            else:
                yield LogFinding("snapshot", f"of {name!r} goes past the head", committed_id)

    def close(self) -> None:
        self._connection.close()

    def _rows(self, query: str, *parameters: int | str) -> Iterator[Row]:
        return self._read(_SQL[query], *parameters)

    def _read(self, sql: str, *parameters: int | str) -> Iterator[Row]:
        try:
            yield from self._connection.execute(sql, parameters)
        except _READ_ERRORS as error:
            raise _unreadable(error) from error


def _unreadable(error: Exception) -> Unreadable:
    if isinstance(error, UnicodeDecodeError):
        return Unreadable(f"there is text that is not UTF-8: {error.object!r:.200}")
    return Unreadable(str(error))


def _wanted_schema() -> list[Row]:
    reference = apsw.Connection(":memory:")
    try:
        register_functions(reference)
        for migration in load_migrations("sqlite"):
            reference.execute(migration.script)
        return list(reference.execute(_SQL["check_schema"]))
    finally:
        reference.close()


def _array(values: Sequence[object]) -> str:
    return msgspec.json.encode(values).decode()
