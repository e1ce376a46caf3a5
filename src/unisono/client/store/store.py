"""What a client keeps: committed events with their cursors, drafts, snapshots; one file, one transaction per step.

What always holds, also after `kill -9`: every committed event of a partition above its `floor` and up to its `known`
is stored, each once; the partition's base stands for those up to the floor, and none of them counts for it.
Committed data is written with synchronous NORMAL: a power cut may lose the newest transactions, but as a suffix, and
the cursor is in the transaction of its events, so what is lost is asked for again (CLIENT-05). Drafts are written
with FULL (see `outbox`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import apsw
import msgspec
import orjson

from unisono.client.net.wire import CommittedEvent
from unisono.client.store.checksums import damaged, row_checksum, told
from unisono.client.store.file import StoreFile
from unisono.client.store.outbox import DraftRecord, Outbox
from unisono.client.store.server_notes import Notes
from unisono.client.sync.inputs_effects import Accepted, DraftRejected, StartState
from unisono.protocol.canonical import NotCanonical, canonical
from unisono.vocabulary import LogIdentity


class StoreContradiction(Exception):
    """A committed event contradicts a stored one (CLIENT-12); nothing was changed."""


class StoredEvent(msgspec.Struct, frozen=True):
    """A committed event of one partition, as a view needs it."""

    committed_id: int
    event: bytes


class Settled(msgspec.Struct, frozen=True):
    """A draft that has become an event."""

    draft: DraftRecord
    committed_id: int
    status_updated_at: int


class Applied(msgspec.Struct):
    """What one transaction changed; `started` are partitions that begin anew, of which nothing shown still holds."""

    events: dict[str, list[StoredEvent]] = msgspec.field(default_factory=dict)
    settled: list[Settled] = msgspec.field(default_factory=list)
    rejected: list[DraftRecord] = msgspec.field(default_factory=list)
    started: list[str] = msgspec.field(default_factory=list)


class PartitionRow(msgspec.Struct):
    """A partition's row."""

    number: int
    cursor: int
    known: int
    floor: int = 0


class ViewSnapshot(msgspec.Struct, frozen=True):
    """The state of a partition after `committed_id`, folded by one model."""

    committed_id: int
    model_version: str
    state: bytes


Row: TypeAlias = tuple[Any, ...]

_encode = msgspec.json.encode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode

LAST: Final = 2**62
"""Above every committed_id."""


class Store:
    """One client's store. `places` are the partitions being followed; others may lie in the file, untouched."""

    def __init__(self, path: str, client_id: str) -> None:
        self._file = StoreFile(path, client_id)
        self._client_id = client_id
        self._connection = self._file.connection
        self._path = path
        try:
            self.outbox = Outbox(self._connection, path)
            self.notes = Notes(self._connection)
        except BaseException:
            self.close()
            raise
        self.places: dict[str, PartitionRow] = {}

    def close(self, *, failed: bool = False) -> None:
        self._file.close(failed=failed)

    # -- partitions ----------------------------------------------------------------------------------------

    def partitions(self) -> list[str]:
        """Every partition the file knows."""
        return [
            str(name) for (name,) in self._connection.execute("SELECT name FROM partitions ORDER BY number")
        ]

    def follow(self, partition: str) -> PartitionRow:
        """Start keeping a partition, from where the file has it."""
        if partition not in self.places:
            with self._transaction("adding a partition"):
                self._connection.execute("INSERT OR IGNORE INTO partitions (name) VALUES (?)", (partition,))
                number, name, cursor, known, floor, checksum = self._connection.execute(
                    "SELECT number, name, cursor, known, floor, checksum FROM partitions WHERE name = ?",
                    (partition,),
                ).get
            if checksum != row_checksum(name) + 3 * number + 5 * cursor + 7 * known + 11 * floor:
                raise damaged(self._path, f"the row of partition {partition!r} has another checksum")
            self.places[partition] = PartitionRow(number, cursor, known, floor)
        return self.places[partition]

    def leave(self, partition: str) -> None:
        """Drop a partition and the events that belong to no other one."""
        place = self.places.pop(partition)
        with self._transaction("removing a partition"):
            self._drop_events(place)
            self._connection.execute("DELETE FROM bases WHERE partition = ?", (place.number,))
            self._connection.execute("DELETE FROM partitions WHERE number = ?", (place.number,))

    def _drop_events(self, place: PartitionRow, upto: int = LAST) -> None:
        """Drop a partition's events and the snapshot made of them; an event of others too stays theirs."""
        self._connection.execute("DELETE FROM snapshots WHERE partition = ?", (place.number,))
        self._connection.execute(
            "DELETE FROM events WHERE committed_id IN (SELECT committed_id FROM event_partitions p"
            " WHERE partition = ?1 AND committed_id <= ?2 AND NOT EXISTS (SELECT 1 FROM partitions q"
            " CROSS JOIN event_partitions o ON o.partition = q.number AND o.committed_id = p.committed_id"
            " WHERE q.number <> p.partition))",
            (place.number, upto),
        )
        self._connection.execute(
            "DELETE FROM event_partitions WHERE partition = ? AND committed_id <= ?", (place.number, upto)
        )

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
        """All of it in one transaction, each event once; `StoreContradiction` and no change where an id contradicts.

        `model_version` is that of the bases partitions start from.
        """
        applied = Applied()
        before = self.places
        if starts:
            self.places = before | {name: _begun(before[name], base) for name, base in starts.items()}
        try:
            with self._transaction("storing events"):
                for name, base in starts.items():
                    self._start(before[name], self.places[name], base, model_version)
                for event in events:
                    self._take(event, applied)
                for each in accepted:
                    self._accept(each, applied)
                for no in refused:
                    if (rejected := self.outbox.write_refused(no)) is not None:
                        applied.rejected.append(rejected)
                self._move(cursors)
        except BaseException:
            self.places = before
            raise
        applied.started += starts
        for name, upto in cursors.items():
            place = self.places[name]
            place.cursor, place.known = upto, max(place.known, upto)
        for settled in applied.settled:
            self.outbox.forget(settled.draft.id)
        for draft in applied.rejected:
            self.outbox.keep(draft)
        return applied

    def _move(self, cursors: Mapping[str, int]) -> None:
        """Write how far partitions have got: those that got equally far in one statement."""
        numbers: dict[int, list[int]] = {}
        for name, upto in cursors.items():
            numbers.setdefault(upto, []).append(self.places[name].number)
        for upto, moved in numbers.items():
            self._connection.execute(
                "UPDATE partitions SET cursor = ?1, known = max(known, ?1)"
                " WHERE number IN (SELECT value FROM json_each(?2))",
                (upto, _encode(moved).decode()),
            )

    def _start(
        self, before: PartitionRow, place: PartitionRow, base: StartState | None, model_version: str
    ) -> None:
        """Put a base, or nothing, in the place of what was held of a partition up to there."""
        self._drop_events(place, place.floor if place.floor >= before.floor else LAST)
        self._connection.execute("DELETE FROM bases WHERE partition = ?", (place.number,))
        if base is not None:
            self._connection.execute(
                "INSERT INTO bases VALUES (?1, ?2, ?3, row_checksum(?1, ?2, ?3))",
                (place.number, model_version, base.state),
            )
        self._connection.execute(
            "UPDATE partitions SET known = ?, floor = ? WHERE number = ?",
            (place.known, place.floor, place.number),
        )

    def _accept(self, accepted: Accepted, applied: Applied) -> None:
        """The result for a draft: its event is stored under its committed_id, without waiting to be sent it."""
        draft = self.outbox.find(accepted.id)
        if draft is not None and not any(each.draft is draft for each in applied.settled):
            event = CommittedEvent(
                draft.id,
                accepted.committed_id,
                draft.partitions,
                msgspec.Raw(draft.event),
                self._client_id,
                accepted.status_updated_at,
            )
            self._insert(event, applied)
            self._settle(draft, event, applied)

    def _take(self, event: CommittedEvent, applied: Applied) -> None:
        self._insert(event, applied)
        draft = self.outbox.find(event.id)
        if draft is not None and _same(draft, event):
            self._settle(draft, event, applied)

    def _settle(self, draft: DraftRecord, event: CommittedEvent, applied: Applied) -> None:
        if not any(each.draft is draft for each in applied.settled):
            self.outbox.write_settled(draft.id)
            applied.settled.append(Settled(draft, event.committed_id, int(event.status_updated_at)))

    def _insert(self, event: CommittedEvent, applied: Applied) -> None:
        followed = [
            (name, place)
            for name in event.partitions
            if (place := self.places.get(name)) and event.committed_id > place.floor
        ]
        if not followed:
            return
        body = bytes(event.event)
        self._connection.execute(
            "INSERT INTO events VALUES (?1, ?2, ?3, ?4, ?5, ?6, row_checksum(?1, ?2, ?3, ?4, ?5, ?6))"
            " ON CONFLICT DO NOTHING",
            (
                event.committed_id,
                event.id,
                event.client_id,
                _encode(event.partitions).decode(),
                body,
                int(event.status_updated_at),
            ),
        )
        if not self._connection.changes():
            self._check(event)
        for name, place in dict(followed).items():
            self._connection.execute(
                "INSERT OR IGNORE INTO event_partitions VALUES (?, ?)", (place.number, event.committed_id)
            )
            if not self._connection.changes():
                continue
            applied.events.setdefault(name, []).append(StoredEvent(event.committed_id, body))
            if event.committed_id <= place.known:  # late: no snapshot from there on has it
                self._connection.execute(
                    "DELETE FROM snapshots WHERE partition = ? AND committed_id >= ?",
                    (place.number, event.committed_id),
                )

    def _check(self, event: CommittedEvent) -> None:
        held = self._connection.execute(
            "SELECT committed_id, id FROM events WHERE committed_id = ? OR id = ?",
            (event.committed_id, event.id),
        ).fetchall()
        for committed_id, id in held:
            if (committed_id, id) != (event.committed_id, event.id):
                raise StoreContradiction(
                    f"event {event.id!r} came as {event.committed_id}, but {id!r} is stored as {committed_id}"
                )

    def events(self, partition: str, after: int, upto: int | None = None) -> Iterator[StoredEvent]:
        """The stored events of a followed partition, in order."""
        rows = self._connection.execute(
            "SELECT p.committed_id, e.id, e.client_id, e.partitions, e.event, e.status_updated_at, e.checksum"
            " FROM event_partitions p LEFT JOIN events e USING (committed_id)"
            " WHERE p.partition = ? AND p.committed_id > ? AND p.committed_id <= ? ORDER BY p.committed_id",
            (self.places[partition].number, after, LAST if upto is None else upto),
        )
        for *row, checksum in self._reading("reading events", rows):
            committed_id, partitions, event = row[0], row[3], row[4]
            if checksum != row_checksum(*row) or partition not in _decode_names(partitions):
                raise damaged(self._path, f"event {committed_id} of {partition!r} is not what was stored")
            yield StoredEvent(committed_id, event)

    def _reading(self, doing: str, rows: Iterator[Row]) -> Iterator[Row]:
        """Rows as they are read, which can fail at each."""
        try:
            yield from rows
        except (apsw.Error, UnicodeDecodeError) as error:
            raise told(self._path, doing, error) from error

    def committed(self, id: str) -> bool:
        return self._connection.execute("SELECT 1 FROM events WHERE id = ?", (id,)).get is not None

    # -- starting over -------------------------------------------------------------------------------------

    def reset(self, log: LogIdentity | None = None) -> None:
        """Forget everything committed; drafts stay. `log`: what is to come is of this one."""
        with self._transaction("dropping committed data"):
            for table in ("events", "event_partitions", "snapshots", "bases"):
                self._connection.execute(f"DELETE FROM {table}")  # noqa: S608
            self._connection.execute("UPDATE partitions SET cursor = 0, known = 0, floor = 0")
            if log is not None:
                self.notes.write_log(log)
        for place in self.places.values():
            place.cursor = place.known = place.floor = 0

    def count_own(self) -> int:
        """How many committed events are held that this client made."""
        count = self._connection.execute(
            "SELECT count(*) FROM events WHERE client_id = ?", (self._client_id,)
        )
        return int(count.get)

    def rewind(self, model_version: int | None, model_digest: str | None = None) -> None:
        """Another model: no snapshot counts any more, and everything is to be fetched again."""
        with self._transaction("taking the cursors back"):
            self._connection.execute("DELETE FROM snapshots")
            self._connection.execute("UPDATE partitions SET cursor = 0")
            self.notes.write_model(model_version, model_digest)
        for place in self.places.values():
            place.cursor = 0

    def rewind_stale(self, model_version: str) -> None:
        """Partitions whose base was made by another model than the client has are to be fetched again."""
        rows = self._connection.execute(
            "SELECT partition FROM bases WHERE model_version <> ?", (model_version,)
        )
        if stale := [int(number) for (number,) in rows]:
            self._fetch_again(stale)

    def fetch_again(self, partition: str) -> None:
        self._fetch_again([self.places[partition].number])

    def _fetch_again(self, numbers: Sequence[int]) -> None:
        with self._transaction("taking cursors back"):
            self._connection.executemany(
                "UPDATE partitions SET cursor = 0 WHERE number = ?", [(number,) for number in numbers]
            )
        for place in self.places.values():
            place.cursor = 0 if place.number in numbers else place.cursor

    def note_model(self, version: int | None, digest: str | None = None) -> None:
        if self.notes.model() != (True, version, digest):
            with self._transaction("noting the model"):
                self.notes.write_model(version, digest)

    def note_log(self, log: LogIdentity) -> None:
        with self._transaction("noting the log"):
            self.notes.write_log(log)

    # -- snapshots -----------------------------------------------------------------------------------------

    def snapshot(self, partition: str, model_version: str) -> ViewSnapshot | None:
        row = self._connection.execute(
            "SELECT partition, committed_id, model_version, state, checksum FROM snapshots"
            " WHERE partition = ? AND model_version = ?",
            (self.places[partition].number, model_version),
        ).fetchone()
        if row is None or row[4] != row_checksum(*row[:4]):
            return None  # made of the events, which are still there
        return ViewSnapshot(*row[1:4])

    def put_snapshot(self, partition: str, snapshot: ViewSnapshot) -> None:
        with self._transaction("storing a snapshot"):
            self._connection.execute(
                "INSERT OR REPLACE INTO snapshots VALUES (?1, ?2, ?3, ?4, row_checksum(?1, ?2, ?3, ?4))",
                (
                    self.places[partition].number,
                    snapshot.committed_id,
                    snapshot.model_version,
                    snapshot.state,
                ),
            )

    def base(self, partition: str) -> ViewSnapshot | None:
        """What stands for the events up to the partition's floor, where it has one."""
        place = self.places[partition]
        row = self._connection.execute(
            "SELECT partition, model_version, state, checksum FROM bases WHERE partition = ?", (place.number,)
        ).fetchone()
        if row is None:
            return None
        if row[3] != row_checksum(*row[:3]):
            raise damaged(self._path, f"the base of {partition!r} is not what was stored")
        return ViewSnapshot(place.floor, *row[1:3])

    @contextmanager
    def together(self) -> Iterator[None]:
        """Everything within is one transaction; a StoreContradiction within still undoes its own step alone."""
        with self._transaction("storing a batch"):
            yield

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[None]:
        try:
            with self._connection:
                yield
        except (apsw.Error, UnicodeDecodeError) as error:
            raise told(self._path, doing, error) from error


def _begun(place: PartitionRow, base: StartState | None) -> PartitionRow:
    """A partition whose history begins anew: above a base what is held still counts, if nothing is missing there."""
    floor = 0 if base is None else base.committed_id
    known = max(place.known, floor) if floor >= place.floor else floor
    return PartitionRow(place.number, place.cursor, known, floor)


def _same(draft: DraftRecord, event: CommittedEvent) -> bool:
    """Whether a committed event with a draft's id is that draft, and not another's use of the id."""
    try:
        same_place = draft.partitions == tuple(sorted(set(event.partitions)))
        return same_place and draft.event == canonical(orjson.loads(bytes(event.event)))
    except (ValueError, NotCanonical):
        return False
