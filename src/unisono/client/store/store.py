"""A client's store: committed events with their cursors, drafts and snapshots in one file, one transaction per step.

What always holds, also after `kill -9`: every committed event of a partition above its `floor` and up to its `known`
is stored, each once; the partition's base replaces those up to the floor.
Committed data is written with synchronous NORMAL: a power cut may lose the newest transactions, but only as a suffix.
The cursor is in the transaction of its events, so lost events are fetched again (CLIENT-05). Drafts are written with
FULL (see `outbox`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import apsw
import msgspec
import orjson

from unisono.client.store.checksums import damaged, row_checksum, store_failure
from unisono.client.store.file import StoreFile
from unisono.client.store.outbox import DraftRecord, Outbox
from unisono.client.store.rows import Applied, PartitionRow, Settled, StoredEvent, ViewSnapshot
from unisono.client.store.server_notes import ServerNotes
from unisono.client.store.statements import SQL
from unisono.client.sync.inputs_effects import Accepted, DraftRejected, StartState
from unisono.model.authorship import authorship_of
from unisono.protocol.canonical import NotCanonical, canonical
from unisono.protocol.client_codec import CommittedEvent
from unisono.vocabulary import LogIdentity


class StoreContradiction(Exception):
    """A committed event contradicts a stored one (CLIENT-12); nothing was changed."""


Row: TypeAlias = tuple[Any, ...]

_encode = msgspec.json.encode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode

LAST: Final = 2**62
"""Above every committed_id."""


class Store:
    """One client's store. `followed` has the partitions in use; the file may have others, which stay as they are."""

    def __init__(self, path: str, client_id: str) -> None:
        self._file = StoreFile(path, client_id)
        self.client_id = client_id
        self._connection = self._file.connection
        self._path = path
        try:
            self.outbox = Outbox(self._connection, path)
            self.notes = ServerNotes(self._connection)
        except BaseException:
            self.close()
            raise
        self.followed: dict[str, PartitionRow] = {}
        known = self.notes.author()
        self.author_known = known is not None
        self.author = known or ""
        """Who this client submits as: what the server said last, or what its token says until then."""

    def close(self, *, failed: bool = False) -> None:
        self._file.close(failed=failed)

    # -- partitions ----------------------------------------------------------------------------------------

    def partitions(self) -> list[str]:
        """Every partition in the file."""
        return [str(name) for (name,) in self._connection.execute(SQL["partition_names"])]

    def follow(self, partition: str) -> PartitionRow:
        """Add a partition to `followed`, with the row the file has of it."""
        if partition not in self.followed:
            with self._transaction("adding a partition"):
                self._connection.execute(SQL["insert_partition"], (partition,))
                number, name, cursor, known, floor, checksum = self._connection.execute(
                    SQL["partition"], (partition,)
                ).get
            if checksum != row_checksum(name) + 3 * number + 5 * cursor + 7 * known + 11 * floor:
                raise damaged(self._path, f"the row of partition {partition!r} has another checksum")
            self.followed[partition] = PartitionRow(number, cursor, known, floor)
        return self.followed[partition]

    def leave(self, partition: str) -> None:
        """Drop a partition and the events that belong to no other one."""
        row = self.followed.pop(partition)
        with self._transaction("removing a partition"):
            self._drop_events(row)
            self._connection.execute(SQL["delete_base"], (row.number,))
            self._connection.execute(SQL["delete_partition"], (row.number,))

    def _drop_events(self, row: PartitionRow, upto: int = LAST) -> None:
        """Drop a partition's events and the snapshot made of them; an event of other partitions stays."""
        self._connection.execute(SQL["delete_snapshot"], (row.number,))
        self._connection.execute(SQL["delete_events_of_partition"], (row.number, upto))
        self._connection.execute(SQL["delete_event_partitions"], (row.number, upto))

    # -- committed events ----------------------------------------------------------------------------------

    def apply(
        self,
        events: Sequence[CommittedEvent],
        accepted: Sequence[Accepted] = (),
        refused: Sequence[DraftRejected] = (),
        cursors: Mapping[str, int] = {},
        starts: Mapping[str, StartState | None] = {},
        model_version: str = "",
    ) -> Applied:
        """Store all of it in one transaction, each event once; StoreContradiction and no change where an id differs.

        `model_version` is that of the start states.
        """
        applied = Applied()
        before = self.followed
        if starts:
            self.followed = before | {name: _restarted(before[name], base) for name, base in starts.items()}
        try:
            with self._transaction("storing events"):
                for name, base in starts.items():
                    self._start(before[name], self.followed[name], base, model_version)
                for event in events:
                    self._take(event, applied)
                for each in accepted:
                    self._accept(each, applied)
                for no in refused:
                    if (rejected := self.outbox.write_refused(no)) is not None:
                        applied.rejected.append(rejected)
                self._move(cursors)
        except BaseException:
            self.followed = before
            raise
        applied.started += starts
        for name, upto in cursors.items():
            row = self.followed[name]
            row.cursor, row.known = upto, max(row.known, upto)
        for settled in applied.settled:
            self.outbox.remove(settled.draft.id)
        for draft in applied.rejected:
            self.outbox.move_to_rejected(draft)
        return applied

    def _move(self, cursors: Mapping[str, int]) -> None:
        """Write the cursors, with one statement for all partitions that reach the same one."""
        numbers: dict[int, list[int]] = {}
        for name, upto in cursors.items():
            numbers.setdefault(upto, []).append(self.followed[name].number)
        for upto, moved in numbers.items():
            self._connection.execute(SQL["move_cursors"], (upto, _encode(moved).decode()))

    def _start(
        self, before: PartitionRow, row: PartitionRow, base: StartState | None, model_version: str
    ) -> None:
        """Replace what is stored of a partition up to its new floor by a base, or by nothing."""
        self._drop_events(row, row.floor if row.floor >= before.floor else LAST)
        self._connection.execute(SQL["delete_base"], (row.number,))
        if base is not None:
            self._connection.execute(SQL["insert_base"], (row.number, model_version, base.state))
        self._connection.execute(SQL["start_partition"], (row.known, row.floor, row.number))

    def _accept(self, accepted: Accepted, applied: Applied) -> None:
        """Store a committed draft as an event under its committed_id, without waiting for its broadcast."""
        draft = self.outbox.find(accepted.id)
        if draft is not None and not any(each.draft is draft for each in applied.settled):
            event = CommittedEvent(
                draft.id,
                accepted.committed_id,
                draft.partitions,
                msgspec.Raw(draft.event),
                self.client_id,
                accepted.status_updated_at,
            )
            self._insert(event, applied, self.author)
            self._settle(draft, event, applied)

    def _take(self, event: CommittedEvent, applied: Applied) -> None:
        self._insert(event, applied, event.author)
        draft = self.outbox.find(event.id)
        if draft is not None and _same(draft, event):
            self._settle(draft, event, applied)

    def _settle(self, draft: DraftRecord, event: CommittedEvent, applied: Applied) -> None:
        if not any(each.draft is draft for each in applied.settled):
            self.outbox.write_settled(draft.id)
            applied.settled.append(Settled(draft, event.committed_id, int(event.status_updated_at)))

    def _insert(self, event: CommittedEvent, applied: Applied, author: str) -> None:
        followed = [
            (name, row)
            for name in event.partitions
            if (row := self.followed.get(name)) and event.committed_id > row.floor
        ]
        if not followed:
            return
        body = bytes(event.event)
        self._connection.execute(
            SQL["insert_event"],
            (
                event.committed_id,
                event.id,
                event.client_id,
                _encode(event.partitions).decode(),
                body,
                int(event.status_updated_at),
                author,
            ),
        )
        changed = bool(self._connection.changes())
        if not changed:
            self._check(event)
        for name, row in dict(followed).items():
            self._connection.execute(SQL["insert_event_partition"], (row.number, event.committed_id))
            if not self._connection.changes():
                if changed and name not in applied.started:
                    applied.started.append(name)  # its author became known: the view has it without
                continue
            by = authorship_of(event.client_id, author, int(event.status_updated_at))
            applied.events.setdefault(name, []).append(StoredEvent(event.committed_id, body, by))
            if event.committed_id <= row.known:  # late: snapshots from there on lack it
                self._connection.execute(SQL["delete_snapshots_from"], (row.number, event.committed_id))

    def _check(self, event: CommittedEvent) -> None:
        stored = self._connection.execute(
            SQL["conflicting_events"], (event.committed_id, event.id)
        ).fetchall()
        for committed_id, id in stored:
            if (committed_id, id) != (event.committed_id, event.id):
                raise StoreContradiction(
                    f"event {event.id!r} came as {event.committed_id}, but {id!r} is stored as {committed_id}"
                )

    def events(self, partition: str, after: int, upto: int | None = None) -> Iterator[StoredEvent]:
        """The stored events of a followed partition, in order."""
        rows = self._connection.execute(
            SQL["events"], (self.followed[partition].number, after, LAST if upto is None else upto)
        )
        for *row, checksum in self._reading("reading events", rows):
            committed_id, partitions, event = row[0], row[3], row[4]
            if checksum != row_checksum(*row) or partition not in _decode_names(partitions):
                raise damaged(self._path, f"event {committed_id} of {partition!r} is not what was stored")
            yield StoredEvent(committed_id, event, authorship_of(row[2], row[6], row[5]))

    def newest_events(self, partition: str, upto: int, limit: int) -> Iterator[CommittedEvent]:
        """The stored events of a followed partition up to an id, newest first, at most `limit`."""
        asked = (self.followed[partition].number, upto, limit)
        rows = self._connection.execute(SQL["newest_events"], asked)
        for *row, checksum in self._reading("reading events", rows):
            committed_id, id, client_id, names, event, status_updated_at, author = row
            if checksum != row_checksum(*row):
                raise damaged(self._path, f"event {committed_id} of {partition!r} is not what was stored")
            by = authorship_of(client_id, author, status_updated_at)
            yield CommittedEvent(
                id,
                committed_id,
                tuple(_decode_names(names)),
                msgspec.Raw(event),
                client_id,
                status_updated_at,
                by.user_id,
                dict(by.claims) or None,
            )

    def _reading(self, doing: str, rows: Iterator[Row]) -> Iterator[Row]:
        """Pass rows on; reading each of them can fail."""
        try:
            yield from rows
        except (apsw.Error, UnicodeDecodeError) as error:
            raise store_failure(self._path, doing, error) from error

    def committed(self, id: str) -> bool:
        return self._connection.execute(SQL["has_event"], (id,)).get is not None

    # -- starting over -------------------------------------------------------------------------------------

    def reset(self, log: LogIdentity | None = None) -> None:
        """Drop everything committed; drafts stay. `log`: the log of the events to come."""
        with self._transaction("dropping committed data"):
            for table in ("events", "event_partitions", "snapshots", "bases"):
                self._connection.execute(SQL[f"delete_all_{table}"])
            self._connection.execute(SQL["reset_partitions"])
            if log is not None:
                self.notes.write_log(log)
        for row in self.followed.values():
            row.cursor = row.known = row.floor = 0

    def count_own(self) -> int:
        """How many of the stored events this client made."""
        return int(self._connection.execute(SQL["count_events_of_client"], (self.client_id,)).get)

    def rewind(self, model_version: int | None, model_digest: str | None = None) -> None:
        """Another model: drop the snapshots and fetch everything again."""
        with self._transaction("taking the cursors back"):
            self._connection.execute(SQL["delete_all_snapshots"])
            self._connection.execute(SQL["rewind_partitions"])
            self.notes.write_model(model_version, model_digest)
        for row in self.followed.values():
            row.cursor = 0

    def rewind_stale(self, model_version: str) -> None:
        """Fetch partitions again whose base was made by another model than the client has."""
        rows = self._connection.execute(SQL["bases_of_other_models"], (model_version,))
        if stale := [int(number) for (number,) in rows]:
            self._fetch_again(stale)

    def fetch_again(self, partition: str) -> None:
        self._fetch_again([self.followed[partition].number])

    def _fetch_again(self, numbers: Sequence[int]) -> None:
        with self._transaction("taking cursors back"):
            self._connection.executemany(SQL["rewind_partition"], [(number,) for number in numbers])
        for row in self.followed.values():
            row.cursor = 0 if row.number in numbers else row.cursor

    def note_model(self, version: int | None, digest: str | None = None) -> None:
        if self.notes.model() != (True, version, digest):
            with self._transaction("noting the model"):
                self.notes.write_model(version, digest)

    def note_author(self, author: str) -> None:
        with self._transaction("noting the identity"):
            self.notes.write_author(author)
        self.author, self.author_known = author, True

    def note_log(self, log: LogIdentity) -> None:
        with self._transaction("noting the log"):
            self.notes.write_log(log)

    # -- snapshots -----------------------------------------------------------------------------------------

    def snapshot(self, partition: str, model_version: str) -> ViewSnapshot | None:
        row = self._connection.execute(
            SQL["snapshot"], (self.followed[partition].number, model_version)
        ).fetchone()
        if row is None or row[4] != row_checksum(*row[:4]):
            return None  # it is rebuilt from the events
        return ViewSnapshot(*row[1:4])

    def put_snapshot(self, partition: str, snapshot: ViewSnapshot) -> None:
        with self._transaction("storing a snapshot"):
            number = self.followed[partition].number
            row = (number, snapshot.committed_id, snapshot.model_version, snapshot.state)
            self._connection.execute(SQL["put_snapshot"], row)

    def base(self, partition: str) -> ViewSnapshot | None:
        """The state that replaces the events up to the partition's floor, where it has one."""
        partition_row = self.followed[partition]
        row = self._connection.execute(SQL["base"], (partition_row.number,)).fetchone()
        if row is None:
            return None
        if row[3] != row_checksum(*row[:3]):
            raise damaged(self._path, f"the base of {partition!r} is not what was stored")
        return ViewSnapshot(partition_row.floor, *row[1:3])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction for everything within; a StoreContradiction still undoes only its own step."""
        with self._transaction("storing a batch"):
            yield

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[None]:
        try:
            with self._connection:
                yield
        except (apsw.Error, UnicodeDecodeError) as error:
            raise store_failure(self._path, doing, error) from error


def _restarted(row: PartitionRow, base: StartState | None) -> PartitionRow:
    """The row of a partition whose history begins again. Events above the base stay, if none is missing there."""
    floor = 0 if base is None else base.committed_id
    known = max(row.known, floor) if floor >= row.floor else floor
    return PartitionRow(row.number, row.cursor, known, floor)


def _same(draft: DraftRecord, event: CommittedEvent) -> bool:
    """Whether a committed event with a draft's id is that draft, not another event with the same id."""
    try:
        same_place = draft.partitions == tuple(sorted(set(event.partitions)))
        return same_place and draft.event == canonical(orjson.loads(bytes(event.event)))
    except (ValueError, NotCanonical):
        return False
