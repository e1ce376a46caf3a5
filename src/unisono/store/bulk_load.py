"""Bulk loading: many prepared events appended to a log in groups, each exactly once.

Rows are in their final order and get their committed ids when they are committed, after whatever the log has by then.
A row whose id the log has with the same content is skipped, so an interrupted load continues from any row at or
before the first one missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import apsw
import msgspec

from unisono.store.batching import in_batches
from unisono.store.copy import directory_of, is_dsn
from unisono.store.port import Behind, CommitLog, Opening, Record, RememberedId, StoreUnusable
from unisono.store.sqlite import files
from unisono.store.sqlite.event_ids import EventIds
from unisono.store.sqlite.log import SqliteLog

GROUP_ROWS_MAX: Final = 10_000
GROUP_BYTES_MAX: Final = 16 << 20
"""Upper bounds of one transaction: a fraction of a second, in which no other node commits to a shared log."""

NODE: Final = "import"
"""The node name of a running load."""


class LogMovedOn(Exception):
    """Another writer committed since the rows were judged, and it may affect them."""


class UnnumberedEvent(msgspec.Struct, frozen=True):
    """An event without a committed id. `time`: when its source committed it, None if unknown. `committed_at`: the
    time with which it was judged, None where no rule reads it."""

    id: str
    client_id: str
    partitions: tuple[str, ...]
    event: bytes
    hash: bytes
    time: int | None
    author: str = ""
    committed_at: int | None = None


class LoadProgress(msgspec.Struct):
    """Rows in the log, rows committed by this run, events of other writers, and rows whose time was changed."""

    rows: int
    committed: int = 0
    foreign: int = 0
    moved_times: int = 0


Concerns = Callable[[Sequence[Record]], bool]
"""Whether records of other writers are in a partition of the load."""


def earliest_time(last_ms: int, first_ms: int, now_ms: int) -> int:
    """The time before which no row of a load is stored. An event of the log that is dated in the future by a wrong
    clock does not move the times of loaded rows."""
    return max(1, min(last_ms, now_ms), min(first_ms, now_ms))


class Loader:
    """Appends rows to one log.

    With `concerns` given, rows were judged against the states at event `base`. Invariant: the log's head is then
    `base` plus the rows of this load that are in it plus `foreign`. What others commit meanwhile is counted there
    when it does not concern the load, and ends the load when it does. Without it, only ids count.
    """

    def __init__(
        self, log: CommitLog, *, base: int, rows: int, first_ms: int, now_ms: int, concerns: Concerns | None
    ) -> None:
        """`rows` of the load are already in the log. Times are between `first_ms` and `now_ms`."""
        self._log = log
        self._base = base
        self._concerns = concerns
        self._now_ms = now_ms
        self._time = earliest_time(log.last_status_updated_at(), first_ms, now_ms)
        self.progress = LoadProgress(rows)

    def add(self, group: Sequence[UnnumberedEvent]) -> int:
        """Append the rows that are missing; how many. Durable when it returns."""
        opening, concerned = self._begin([row.id for row in group])
        try:
            missing = [row for row in group if not _is(row, opening.known.get(row.id))]
            self.progress.foreign += len(opening.foreign)
            if self._concerns is not None and missing:
                self._require_unmoved(concerned, opening, group, missing)
            records = [self._record(opening.head + place, row) for place, row in enumerate(missing, 1)]
        except BaseException:
            self._log.abandon()
            raise
        self._log.commit(records)
        self._log.maintain()
        self.progress.rows += len(group)
        self.progress.committed += len(records)
        return len(records)

    def _begin(self, ids: Sequence[str]) -> tuple[Opening, Sequence[Record]]:
        """An open group, and the first events of other writers since the last group that affect this load."""
        concerned: Sequence[Record] = ()
        while True:
            try:
                opening = self._log.begin(ids)
            except Behind as behind:
                self.progress.foreign += len(behind.records)
                concerned = concerned or self._concerned(behind.records)
            else:
                return opening, concerned or self._concerned(opening.foreign)

    def _concerned(self, foreign: Sequence[Record]) -> Sequence[Record]:
        return foreign if foreign and self._concerns is not None and self._concerns(foreign) else ()

    def _require_unmoved(
        self,
        concerned: Sequence[Record],
        opening: Opening,
        group: Sequence[UnnumberedEvent],
        missing: Sequence[UnnumberedEvent],
    ) -> None:
        if concerned:
            raise LogMovedOn(
                f"events {concerned[0].committed_id} to {concerned[-1].committed_id} came in between"
            )
        present = len(group) - len(missing)
        expected = self._base + self.progress.rows + present + self.progress.foreign
        if opening.head != expected:
            raise LogMovedOn(f"the log ends at {opening.head}, {expected} was expected")
        if present and group[present] is not missing[0]:
            raise LogMovedOn("some rows are in the log out of their turn")

    def _record(self, committed_id: int, row: UnnumberedEvent) -> Record:
        """With a time that is not before the previous one and not after the start of the load."""
        wanted = row.committed_at or row.time or self._time
        self._time = max(self._time, min(wanted, self._now_ms))
        if row.committed_at not in (None, self._time):
            raise LogMovedOn(f"other events were committed after {row.committed_at}, the time of {row.id!r}")
        self.progress.moved_times += row.time not in (None, self._time)
        return Record(
            committed_id, row.id, row.client_id, row.partitions, row.event, row.hash, self._time, row.author
        )


def _is(row: UnnumberedEvent, known: RememberedId | None) -> bool:
    if known is None:
        return False
    if known.hash != row.hash:
        raise LogMovedOn(f"event {known.committed_id} of the log has id {row.id!r} with other content")
    return True


def groups(
    rows: Iterator[UnnumberedEvent], rows_max: int = GROUP_ROWS_MAX
) -> Iterator[list[UnnumberedEvent]]:
    """Rows in transactions of a bounded size."""
    return in_batches(rows, lambda row: len(row.event), count_max=rows_max, bytes_max=GROUP_BYTES_MAX)


def open_log(store: str) -> CommitLog:
    """The log to load into; an embedded one is created if missing. StoreUnusable while a server uses it."""
    if is_dsn(store):
        from unisono.store.postgres.log import PostgresLog

        log: CommitLog = PostgresLog.open(store, NODE)
        return log
    return SqliteLog.open(directory_of(store))


# -- looking up ids beside the writer --------------------------------------------------------------------------


class Ids(Protocol):
    """Looks up event ids in a log, also of pruned events."""

    def known(self, ids: Sequence[str]) -> dict[str, RememberedId]: ...

    def close(self) -> None: ...


class SqliteIds:
    """Ids of an embedded log."""

    def __init__(self, directory: Path) -> None:
        try:
            self._connection = files.connect_reader(directory)
            files.refuse_other_versions(self._connection, directory)
            self._ids = EventIds(self._connection)
        except apsw.Error as error:
            raise StoreUnusable(f"{directory} cannot be read: {error}") from error

    def known(self, ids: Sequence[str]) -> dict[str, RememberedId]:
        self._ids.read_new()
        return dict(self._ids.find(ids))

    def close(self) -> None:
        self._connection.close()


def open_ids(store: str) -> Ids:
    """The ids of the log at `store`."""
    if is_dsn(store):
        from unisono.store.postgres.bulk_load import PostgresIds

        return PostgresIds(store)
    return SqliteIds(directory_of(store))
