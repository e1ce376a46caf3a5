"""Checks every guarantee of a log, row by row, for any store.

It only reads, by short statements, while a server may write: records committed meanwhile are not checked, and records
pruned meanwhile are not reported missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final, Protocol

import msgspec

from unisono.store.check_rows import (
    HASH_BYTES,
    PrunedIdSet,
    Row,
    names_of,
    record_findings,
    time_findings,
)
from unisono.store.port import LogFinding

BATCH_ROWS: Final = 500
"""Rows read at once: a read this short delays nobody."""

BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Event bytes read at once, but at least one event."""

Progress = Callable[[int, int], None]
"""Called with rows checked and rows in total."""


class Unreadable(Exception):
    """The log cannot be read any further; the text says why."""


class LogEnds(msgspec.Struct, frozen=True):
    """The head row, and the first and the last event, read at one moment."""

    committed_id: int
    pruned_to: int
    time: int | None
    first: int | None
    last: int | None


class PartitionIndexRow(msgspec.Struct, frozen=True):
    """A row of the index of partitions; `name` is None when the partition is unknown.

    `partitions` is the set of the event it points to; None when there is no such event.
    """

    label: str
    name: str | None
    committed_id: int
    partitions: str | None


class OpenedLog(Protocol):
    """How one store is read for checking. Every call is one short consistent read, and may raise Unreadable."""

    finds_by_id: bool
    """Whether events can be looked up by their id; valid after `structure_findings`."""

    def structure_findings(self) -> Iterator[LogFinding]:
        """Defects of the file, the tables and the indexes."""
        ...

    def head(self) -> LogEnds | None: ...

    def extent(self) -> tuple[int | None, int | None]:
        """The first and the last event, for a log without a head row."""
        ...

    def pruned_to(self) -> int: ...

    def maintenance_row(self) -> tuple[str | None, bool] | None:
        """The archive, and whether the model in force is present."""
        ...

    def estimated_index_rows(self) -> int:
        """About how many rows the index of partitions has."""
        ...

    def events(self, since: int, upto: int) -> Sequence[Row]:
        """Some events, ascending: committed_id, id, client_id, partitions, event, hash, status_updated_at, author."""
        ...

    def events_of(self, ids: Sequence[str]) -> Sequence[tuple[str, int]]:
        """Which events have these ids."""
        ...

    def id_findings(self) -> Iterator[LogFinding]:
        """Entries of the index of ids that point to no event, or to one with another id."""
        ...

    def pruned_among(self, ids: Sequence[str]) -> Sequence[str]:
        """Which of these ids are remembered as pruned."""
        ...

    def missing_index_rows(self, places: Sequence[tuple[str, int]]) -> Sequence[tuple[str, int]]:
        """Which of these (partition, committed_id) the index of partitions lacks."""
        ...

    def duplicates(self) -> Iterator[tuple[str, int, int]]:
        """Ids that belong to several events: id, first event, how many. Reads the whole log at once."""
        ...

    def pruned_ids(self) -> Iterator[Sequence[tuple[int, int]]]:
        """All remembered pruned events in batches: committed_id, bytes of the hash."""
        ...

    def name_findings(self) -> Iterator[LogFinding]:
        """Defects of the rows kept for each partition."""
        ...

    def index_rows(self) -> Iterator[Sequence[PartitionIndexRow]]:
        """The index of partitions in batches."""
        ...

    def snapshot_findings(self) -> Iterator[LogFinding]: ...

    def close(self) -> None: ...


class LogAuditor:
    """Finds the defects of one log; its attributes say what was checked."""

    def __init__(self, open_log: Callable[[], OpenedLog], progress: Progress | None = None) -> None:
        self._open_log = open_log
        self._progress = progress or (lambda _done, _total: None)
        self._done = 0
        self._total = 0
        self._first = 0
        self._last = 0
        self._head_time: int | None = None
        self.events = 0
        self.head = 0
        self.pruned_to = 0

    def findings(self) -> Iterator[LogFinding]:
        try:
            with closing(self._open_log()) as log:
                yield from self._all_findings(log)
        except Unreadable as error:
            yield LogFinding("file", f"reading stopped: {error}")
        self._progress(self._done, self._done)

    def _all_findings(self, log: OpenedLog) -> Iterator[LogFinding]:
        yield from log.structure_findings()
        yield from self._head_findings(log)
        yield from self._maintenance_findings(log)
        self._total = self._last - self._first + self.pruned_to + log.estimated_index_rows()
        yield from self._event_findings(log)
        if log.finds_by_id:
            yield from log.id_findings()
        else:
            yield from self._duplicate_findings(log)
        yield from self._pruned_findings(log)
        yield from log.name_findings()
        yield from self._index_findings(log)
        yield from log.snapshot_findings()

    def _head_findings(self, log: OpenedLog) -> Iterator[LogFinding]:
        head = log.head()
        if head is None:
            yield LogFinding("head", "the head row is missing")
            first, last = log.extent()
            head = LogEnds(last or 0, (first or 1) - 1, None, first, last)
        self.head, self.pruned_to, self._head_time = head.committed_id, head.pruned_to, head.time
        if head.last is None:
            if self.head != self.pruned_to:
                yield LogFinding("head", f"the head is {self.head} but there are no events")
        elif head.last != self.head:
            yield LogFinding("head", f"the head is {self.head} but the last event is {head.last}", head.last)
        self._first = self.pruned_to if head.first is None else min(head.first - 1, self.pruned_to)
        self._last = self.pruned_to if head.last is None else head.last

    def _maintenance_findings(self, log: OpenedLog) -> Iterator[LogFinding]:
        row = log.maintenance_row()
        if row is None:
            yield LogFinding("keeping", "the row that names the archive is missing")
            return
        archive, has_model = row
        if self.pruned_to and archive is None:
            yield LogFinding("keeping", f"events have left up to {self.pruned_to}, and no archive is named")
        if not has_model:
            yield LogFinding("model", "the model in force is not among those that are kept")

    def _event_findings(self, log: OpenedLog) -> Iterator[LogFinding]:
        reached, expected, time = self._first, self.pruned_to + 1, 0
        while rows := log.events(reached, self._last):
            if rows[0][0] > expected and _is_pruned(log, rows[0][0] - 1):
                expected = rows[0][0]
            for row in rows:
                reached = row[0]
                yield from self._gap_findings(reached, expected)
                yield from record_findings(row)
                yield from time_findings(reached, row[6], time)
                expected, time = max(expected, reached + 1), row[6]
                if reached == self.head and self._head_time not in (None, time):
                    yield LogFinding(
                        "head", f"the head row has time {self._head_time}, the event {time}", reached
                    )
            yield from _id_findings(log, rows)
            yield from _missing_index_findings(log, rows)
            self.events += len(rows)
            self._advance(len(rows))

    def _gap_findings(self, committed_id: int, expected: int) -> Iterator[LogFinding]:
        if committed_id < expected:
            yield LogFinding(
                "gap", f"still there, though the log is pruned to {self.pruned_to}", committed_id
            )
        elif committed_id == expected + 1:
            yield LogFinding("gap", f"{expected} is missing before it", committed_id)
        elif committed_id > expected:
            yield LogFinding("gap", f"{expected} to {committed_id - 1} are missing before it", committed_id)

    def _duplicate_findings(self, log: OpenedLog) -> Iterator[LogFinding]:
        for id, first, count in log.duplicates():
            yield _duplicate(id, first, count)

    def _pruned_findings(self, log: OpenedLog) -> Iterator[LogFinding]:
        """Every pruned id is remembered exactly once."""
        seen = PrunedIdSet(self.pruned_to)
        for rows in log.pruned_ids():
            for committed_id, hash_bytes in rows:
                if not 0 < committed_id <= self.pruned_to:
                    if not _is_pruned(log, committed_id):
                        what = f"remembered as gone, and the log is pruned to {self.pruned_to}"
                        yield LogFinding("pruned", what, committed_id)
                    continue
                if committed_id in seen:
                    yield LogFinding("pruned", "two ids are remembered for it", committed_id)
                seen.add(committed_id)
                if hash_bytes != HASH_BYTES:
                    yield LogFinding(
                        "pruned", f"the hash remembered of it has {hash_bytes} bytes", committed_id
                    )
            self._advance(len(rows))
        for first, last in seen.missing_ranges():
            what = "has left and is" if first == last else f"to {last} have left and are"
            yield LogFinding("pruned", f"{what} not remembered: it could be committed again", first)

    def _index_findings(self, log: OpenedLog) -> Iterator[LogFinding]:
        for places in log.index_rows():
            for place in places:
                if place.name is None:
                    yield LogFinding("index", f"listed under {place.label}, unknown", place.committed_id)
                elif place.partitions is None:
                    what = f"listed under {place.name!r}, but there is no such event"
                    yield LogFinding("index", what, place.committed_id)
                elif place.name not in names_of(place.partitions):
                    what = f"listed under {place.name!r}, which it is not in"
                    yield LogFinding("index", what, place.committed_id)
            self._advance(len(places))

    def _advance(self, rows: int) -> None:
        self._done += rows
        self._total = max(self._total, self._done)
        self._progress(self._done, self._total)


def _id_findings(log: OpenedLog, rows: Sequence[Row]) -> Iterator[LogFinding]:
    """Every event is found by its id, no other event has it, and it is not remembered as pruned."""
    having: dict[str, set[int]] = {}
    for committed_id, id, *_ in rows:
        having.setdefault(id, set()).add(committed_id)
    gone = set(log.pruned_among(list(having)))
    found = set(log.events_of(list(having))) if log.finds_by_id else set()
    for id, committed_id in found:
        having[id].add(committed_id)
    for committed_id, id, *_ in rows:
        if id in gone and not _is_pruned(log, committed_id):
            yield LogFinding("pruned", f"its id {id!r} is in the log and remembered as gone", committed_id)
        if log.finds_by_id:
            if (id, committed_id) not in found and not _is_pruned(log, committed_id):
                yield LogFinding("index", f"cannot be found by its id {id!r}", committed_id)
            if len(having[id]) > 1 and committed_id == min(having[id]):
                yield _duplicate(id, committed_id, len(having[id]))


def _duplicate(id: str, first: int, count: int) -> LogFinding:
    return LogFinding("id", f"its id {id!r} belongs to {count} events", first)


def _missing_index_findings(log: OpenedLog, rows: Sequence[Row]) -> Iterator[LogFinding]:
    places = [(name, row[0]) for row in rows for name in names_of(row[3])]
    for name, committed_id in log.missing_index_rows(places):
        if not _is_pruned(log, committed_id):
            yield LogFinding("index", f"not listed under {name!r}, which it is in", committed_id)


def _is_pruned(log: OpenedLog, committed_id: int) -> bool:
    """Whether an event read before has been pruned since."""
    return committed_id <= log.pruned_to()
