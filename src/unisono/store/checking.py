"""Is a data directory sound? Everything the log promises about itself, looked at row by row.

Reads only, and may run beside a server: what is committed meanwhile is left for the next time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import apsw
import msgspec

from unisono.protocol.canonical import NotCanonical, canonical, content_hash, parse_canonical
from unisono.protocol.partitions import normalise
from unisono.protocol.tombstones import is_tombstone
from unisono.store import sqlite_files as files
from unisono.store.port import Finding, StoreUnusable
from unisono.store.statements import load_migrations, load_queries

FINDINGS_KEPT_MAX = 100
"""Findings listed in a report; a broken disk can have millions, which are counted."""

BATCH_ROWS = 500
"""Rows read in one go: a read this short does not keep a running server's WAL from starting over."""

ID_BYTES_MAX = 128
"""UTF-8 bytes of an event id (SUBMIT-10)."""

HASH_BYTES = 32
"""Of SHA-256."""

TIME_MAX_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: what is later was never a clock's answer."""

Progress = Callable[[int, int], None]
"""Called with rows looked at and rows in all."""

_SQL = load_queries("sqlite")


class CheckReport(msgspec.Struct, frozen=True):
    """The verdict. `findings` holds the first ones, `counts` tells how many of each kind there are."""

    directory: str
    events: int
    head: int
    pruned_to: int
    findings: tuple[Finding, ...]
    counts: Mapping[str, int]

    @property
    def ok(self) -> bool:
        return not self.counts

    def text(self) -> str:
        """What a person reads: the verdict first, then every finding with its event."""
        pruned = f", pruned to {self.pruned_to}" if self.pruned_to else ""
        extent = f"{self.events} events, head {self.head}{pruned}"
        if self.ok:
            return f"{self.directory}: sound ({extent})"
        total = sum(self.counts.values())
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.counts.items()))
        lines = [f"{self.directory}: NOT SOUND, {total} findings ({kinds}) in {extent}"]
        for finding in self.findings:
            place = "" if finding.committed_id is None else f"event {finding.committed_id}: "
            lines.append(f"  {finding.kind}: {place}{finding.message}")
        if total > len(self.findings):
            lines.append(f"  and {total - len(self.findings)} more")
        lines.append("Keep a copy of the directory as it is before anything else is done with it.")
        return "\n".join(lines)


def check_directory(directory: Path, progress: Progress | None = None) -> CheckReport:
    """Look at everything in the log of `directory`; StoreUnusable when there is none this program can read."""
    auditor = SqliteAuditor(directory, progress)
    kept: list[Finding] = []
    counts: Counter[str] = Counter()
    for finding in auditor.findings():
        counts[finding.kind] += 1
        if len(kept) < FINDINGS_KEPT_MAX:
            kept.append(finding)
    return CheckReport(
        str(directory), auditor.events, auditor.head, auditor.pruned_to, tuple(kept), dict(counts)
    )


class SqliteAuditor:
    """Tells what is wrong with one embedded log; its attributes tell what was looked at."""

    def __init__(self, directory: Path, progress: Progress | None = None) -> None:
        self._directory = directory
        self._progress = progress or (lambda _done, _total: None)
        self._done = 0
        self._total = 0
        self._first = 0
        self._last = 0
        self._head_time: int | None = None
        self.events = 0
        self.head = 0
        self.pruned_to = 0

    def findings(self) -> Iterator[Finding]:
        try:
            connection = files.connect_reader(self._directory)
        except (apsw.NotADBError, apsw.CorruptError) as error:
            yield Finding("file", f"{files.LOG_FILE} cannot be read at all: {error}")
            return
        except (apsw.Error, OSError) as error:
            raise StoreUnusable(f"the log in {self._directory} cannot be opened: {error}") from error
        try:
            files.refuse_other_versions(connection, self._directory)
            connection.pragma("cache_size", -files.WRITER_CACHE_KIB)
            yield from _schema_findings(connection)
            yield from _file_findings(connection)
            yield from self._head_findings(connection)
            self._total = self._last - self._first + next(_rows(connection, "check_index_size"))[0]
            yield from self._event_findings(connection)
            yield from _duplicate_findings(connection)
            yield from _pruned_findings(connection, self.pruned_to)
            yield from _name_findings(connection)
            yield from self._index_findings(connection)
            yield from _snapshot_findings(connection)
        except apsw.Error as error:
            yield Finding("file", f"reading stopped: {error}")
        finally:
            connection.close()

    def _head_findings(self, connection: apsw.Connection) -> Iterator[Finding]:
        row = next(_rows(connection, "check_head"), None)
        if row is None:
            yield Finding("head", "the head row is missing")
            first, last = next(_rows(connection, "check_extent"))
            self.pruned_to, self.head = (first or 1) - 1, last or 0
        else:
            self.head, self.pruned_to, self._head_time, first, last = row
        if last is None:
            if self.head != self.pruned_to:
                yield Finding("head", f"the head is {self.head} but there are no events")
        elif last != self.head:
            yield Finding("head", f"the head is {self.head} but the last event is {last}", last)
        self._first = self.pruned_to if first is None else min(first - 1, self.pruned_to)
        self._last = self.pruned_to if last is None else last

    def _event_findings(self, connection: apsw.Connection) -> Iterator[Finding]:
        reached, expected, time = self._first, self.pruned_to + 1, 0
        while rows := list(_rows(connection, "scan", reached, self._last, BATCH_ROWS)):
            if rows[0][0] > expected and _has_left(connection, rows[0][0] - 1):
                expected = rows[0][0]
            for row in rows:
                reached = row[0]
                yield from self._gap_findings(reached, expected)
                yield from _record_findings(row)
                yield from _place_findings(connection, reached, row[3])
                yield from self._time_findings(reached, row[6], time)
                expected, time = max(expected, reached + 1), row[6]
            self.events += len(rows)
            self._advance(len(rows))

    def _gap_findings(self, committed_id: int, expected: int) -> Iterator[Finding]:
        if committed_id < expected:
            yield Finding("gap", f"still there, though the log is pruned to {self.pruned_to}", committed_id)
        elif committed_id == expected + 1:
            yield Finding("gap", f"{expected} is missing before it", committed_id)
        elif committed_id > expected:
            yield Finding("gap", f"{expected} to {committed_id - 1} are missing before it", committed_id)

    def _time_findings(self, committed_id: int, time: int, before: int) -> Iterator[Finding]:
        if not 0 < time <= TIME_MAX_MS:
            yield Finding("time", f"{time} is not a time in milliseconds", committed_id)
        elif time < before:
            yield Finding("time", f"{time} is before {before}, the time of the event before it", committed_id)
        if committed_id == self.head and self._head_time not in (None, time):
            yield Finding("head", f"the head row has time {self._head_time}, the event {time}", committed_id)

    def _index_findings(self, connection: apsw.Connection) -> Iterator[Finding]:
        place = (-(2**63), 0)
        while rows := list(_rows(connection, "check_index", *place, BATCH_ROWS)):
            for number, committed_id, name, partitions in rows:
                if name is None:
                    yield Finding("index", f"listed under partition number {number}, unknown", committed_id)
                elif partitions is None:
                    yield Finding("index", f"listed under {name!r}, but there is no such event", committed_id)
                elif name not in _names(partitions):
                    yield Finding("index", f"listed under {name!r}, which it is not in", committed_id)
            place = (number, committed_id)
            self._advance(len(rows))

    def _advance(self, rows: int) -> None:
        self._done += rows
        self._total = max(self._total, self._done)
        self._progress(self._done, self._total)


def _rows(connection: apsw.Connection, query: str, *parameters: int | str) -> Iterator[tuple[Any, ...]]:
    return connection.execute(_SQL[query], parameters)


def _schema_findings(connection: apsw.Connection) -> Iterator[Finding]:
    """Every table and index as the migrations make it; what an operator added is no concern of ours."""
    reference = apsw.Connection(":memory:")
    try:
        for migration in load_migrations("sqlite"):
            reference.execute(migration.script)
        wanted = list(_rows(reference, "check_schema"))
    finally:
        reference.close()
    present = {name: definition for name, *definition in _rows(connection, "check_schema")}
    for name, *definition in wanted:
        if name not in present:
            yield Finding("schema", f"the {definition[0]} {name} is missing")
        elif present[name] != definition:
            yield Finding("schema", f"the {definition[0]} {name} is not what this version makes it")


def _file_findings(connection: apsw.Connection) -> Iterator[Finding]:
    """SQLite's own check: pages, trees, and every index against its table."""
    for (message,) in connection.execute(f"PRAGMA integrity_check({FINDINGS_KEPT_MAX})"):
        if message != "ok":
            yield Finding("file", message)


def _record_findings(row: tuple[Any, ...]) -> Iterator[Finding]:
    """What one event says about itself: id, partitions, canonical form, hash.

    An erased event keeps the hash of what it said, which nobody can compare any more.
    """
    committed_id, id, _client_id, partitions, event, hash, _time = row
    if not 0 < len(id.encode()) <= ID_BYTES_MAX:
        yield Finding("id", f"its id has {len(id.encode())} bytes", committed_id)
    if complaint := _partitions_complaint(partitions):
        yield Finding("partitions", complaint, committed_id)
    try:
        _, text = parse_canonical(event)
    except NotCanonical as error:
        yield Finding("event", f"its JSON cannot be read: {error}", committed_id)
    else:
        if text != event:
            yield Finding("event", "its JSON is not in canonical form", committed_id)
    if not is_tombstone(event) and hash != content_hash(event, partitions.encode()):
        yield Finding("hash", "its hash is not that of its content", committed_id)


def _place_findings(connection: apsw.Connection, committed_id: int, partitions: str) -> Iterator[Finding]:
    for name in _names(partitions):
        listed = next(_rows(connection, "check_indexed", name, committed_id), None)
        if listed is None and not _has_left(connection, committed_id):
            yield Finding("index", f"not listed under {name!r}, which it is in", committed_id)


def _has_left(connection: apsw.Connection, committed_id: int) -> bool:
    """Whether an event that was there a moment ago is pruned by now."""
    return any(committed_id <= pruned_to for (pruned_to,) in _rows(connection, "pruned_to"))


def _pruned_findings(connection: apsw.Connection, pruned_to: int) -> Iterator[Finding]:
    """Every id that has left is remembered, once, and none of them is also in the log."""
    seen = bytearray(pruned_to // 8 + 1)
    after = ""
    while rows := list(_rows(connection, "check_pruned", after, BATCH_ROWS)):
        for _, committed_id, hash_bytes in rows:
            if not 0 < committed_id <= pruned_to:
                if not _has_left(connection, committed_id):
                    yield Finding(
                        "pruned", f"remembered as gone, and the log is pruned to {pruned_to}", committed_id
                    )
                continue
            if seen[committed_id >> 3] >> (committed_id & 7) & 1:
                yield Finding("pruned", "two ids are remembered for it", committed_id)
            seen[committed_id >> 3] |= 1 << (committed_id & 7)
            if hash_bytes != HASH_BYTES:
                yield Finding("pruned", f"the hash remembered of it has {hash_bytes} bytes", committed_id)
        after = rows[-1][0]
    if sum(map(int.bit_count, seen)) != pruned_to:
        yield from _forgotten_findings(seen, pruned_to)
    for id, committed_id in _rows(connection, "check_twice"):
        yield Finding("pruned", f"its id {id!r} is in the log and remembered as gone", committed_id)
    for name, last in _rows(connection, "check_pruned_partitions"):
        if not _has_left(connection, last):
            yield Finding("pruned", f"events of {name!r} are said to have left up to it", last)


def _forgotten_findings(seen: bytearray, pruned_to: int) -> Iterator[Finding]:
    """The stretches of ids up to `pruned_to` that nobody remembers."""
    first = None
    for committed_id in range(1, pruned_to + 2):
        missing = committed_id <= pruned_to and not seen[committed_id >> 3] >> (committed_id & 7) & 1
        if missing and first is None:
            first = committed_id
        elif not missing and first is not None:
            last = committed_id - 1
            what = "has left and is" if first == last else f"to {last} have left and are"
            yield Finding("pruned", f"{what} not remembered: it could be committed again", first)
            first = None


def _duplicate_findings(connection: apsw.Connection) -> Iterator[Finding]:
    for id, first, count in _rows(connection, "check_duplicates"):
        yield Finding("id", f"its id {id!r} belongs to {count} events", first)


def _name_findings(connection: apsw.Connection) -> Iterator[Finding]:
    before = None
    for number, name in _rows(connection, "check_names"):
        if name == before:
            yield Finding("partitions", f"{name!r} has more than one number, {number} is one of them")
        before = name
        if complaint := _partitions_complaint(canonical([name]).decode()):
            yield Finding("partitions", f"partition number {number}: {complaint}")


def _snapshot_findings(connection: apsw.Connection) -> Iterator[Finding]:
    for number, name, committed_id in _rows(connection, "check_snapshots"):
        if name is None:
            yield Finding("snapshot", f"of partition number {number}, unknown", committed_id)
        else:
            yield Finding("snapshot", f"of {name!r} goes past the head", committed_id)


@lru_cache(maxsize=4096)
def _names(partitions: str) -> tuple[str, ...]:
    """The names in a stored set; none when it cannot be read, which is a finding of its own."""
    try:
        return msgspec.json.decode(partitions, type=tuple[str, ...])
    except msgspec.MsgspecError:
        return ()


@lru_cache(maxsize=4096)
def _partitions_complaint(partitions: str) -> str | None:
    names = _names(partitions)
    try:
        normal = normalise(names)
    except ValueError as error:
        return f"its partitions {partitions[:200]} are not valid: {error}"
    if canonical(list(normal)).decode() != partitions:
        return f"its partitions {partitions[:200]} are not normalised"
    return None
