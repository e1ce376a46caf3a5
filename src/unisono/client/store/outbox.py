"""Drafts: events of this client that the server has not answered yet, or has rejected (CLIENT-01, -03).

They are in memory as in the store, in draft_clock order. Writing a draft returns once it is on the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import apsw
import msgspec

from unisono.client.errors import StoreFull
from unisono.client.store.checksums import damaged, row_checksum, store_failure
from unisono.client.store.statements import SQL
from unisono.client.sync.inputs_effects import DraftRejected
from unisono.vocabulary import FieldError


class DraftRecord(msgspec.Struct, frozen=True):
    """One stored draft; `event` is canonical JSON.

    `batch` is the same for the drafts of one transaction: the draft_clock of its first. The fields from `reason` to
    `status_updated_at` are set once it is rejected.
    """

    draft_clock: int
    id: str
    partitions: tuple[str, ...]
    event: bytes
    created_at: int
    reason: str | None = None
    errors: tuple[FieldError, ...] = ()
    status_updated_at: int | None = None
    batch: int | None = None


_encode = msgspec.json.encode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_errors = msgspec.json.Decoder(tuple[FieldError, ...]).decode


class Outbox:
    """The drafts of one store.

    Invariant: outside of a write, `pending` and `rejected` are exactly what the table holds, in draft_clock order.
    """

    def __init__(self, connection: apsw.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self.pending: dict[str, DraftRecord] = {}
        self.rejected: dict[str, DraftRecord] = {}
        self.transactions: dict[int, dict[str, None]] = {}
        """The ids of the pending drafts of each transaction, oldest first."""
        try:
            for *row, checksum in connection.execute(SQL["drafts"]):
                if checksum != row_checksum(*row):
                    raise damaged(path, f"draft {row[0]} is not what was stored")
                draft = _draft(row)
                (self.pending if draft.reason is None else self.rejected)[draft.id] = draft
            last_clock = connection.execute(SQL["last_draft_clock"]).get
        except (apsw.Error, UnicodeDecodeError) as error:
            raise store_failure(path, "reading drafts", error) from error
        self._group(self.pending.values())
        drafts = [*self.pending.values(), *self.rejected.values()]
        self._clock = max(int(last_clock or 0), *(draft.draft_clock for draft in drafts), 0)

    def find(self, id: str) -> DraftRecord | None:
        return self.pending.get(id) or self.rejected.get(id)

    def _group(self, drafts: Iterable[DraftRecord]) -> None:
        for draft in drafts:
            if draft.batch is not None:
                self.transactions.setdefault(draft.batch, {})[draft.id] = None

    def transaction(self, draft: DraftRecord) -> list[DraftRecord]:
        """The pending drafts of a pending draft's transaction, oldest first; itself alone without one."""
        if draft.batch is None:
            return [draft]
        return [self.pending[id] for id in self.transactions[draft.batch]]

    def rejected_with(self, draft: DraftRecord) -> list[DraftRecord]:
        """The rejected drafts of a rejected draft's transaction, oldest first; itself alone without one."""
        if draft.batch is None:
            return [draft]
        return [each for each in self.rejected.values() if each.batch == draft.batch]

    def in_partition(self, partition: str) -> Iterator[DraftRecord]:
        return (draft for draft in self.pending.values() if partition in draft.partitions)

    def next_clock(self) -> int:
        """A draft_clock above all that were ever used (CLIENT-01)."""
        self._clock += 1
        return self._clock

    def add(self, drafts: Sequence[DraftRecord], replacing: Sequence[str] = ()) -> None:
        """Store drafts in one transaction that survives a power cut.

        `replacing` names rejected drafts that are removed in it, because they are submitted again.
        """
        connection = self._connection
        rows = [
            (
                draft.draft_clock,
                draft.id,
                _encode(draft.partitions).decode(),
                draft.event,
                draft.created_at,
                draft.batch,
            )
            for draft in drafts
        ]
        try:
            # FULL syncs the WAL at the commit; it cannot be set within a transaction.
            connection.pragma("synchronous", "full")
            try:
                with connection:
                    connection.executemany(SQL["delete_draft"], [(id,) for id in replacing])
                    connection.executemany(SQL["insert_draft"], rows)
            finally:
                connection.pragma("synchronous", "normal")
        except apsw.FullError as error:
            raise StoreFull(f"there is no room for the draft: {error}") from error
        except apsw.Error as error:
            raise store_failure(self._path, "storing the draft", error) from error
        for id in replacing:
            self.rejected.pop(id, None)
        self.pending.update((draft.id, draft) for draft in drafts)
        self._group(drafts)

    def discard(self, ids: Sequence[str]) -> None:
        """Forget rejected drafts."""
        try:
            with self._connection:
                self._connection.executemany(SQL["delete_rejected_draft"], [(id,) for id in ids])
        except apsw.Error as error:
            raise store_failure(self._path, "removing the draft", error) from error
        for id in ids:
            del self.rejected[id]

    # -- within the store's transaction; `remove` and `move_to_rejected` follow once it is committed -------------

    def write_settled(self, id: str) -> None:
        self._connection.execute(SQL["delete_draft"], (id,))

    def write_refused(self, refused: DraftRejected) -> DraftRecord | None:
        draft = self.pending.get(refused.id)
        if draft is None:
            return None
        self._connection.execute(
            SQL["reject_draft"],
            (refused.reason, _encode(refused.errors).decode(), refused.status_updated_at, refused.id),
        )
        return msgspec.structs.replace(
            draft,
            reason=refused.reason,
            errors=refused.errors,
            status_updated_at=refused.status_updated_at,
        )

    def remove(self, id: str) -> None:
        self._end(id)
        self.rejected.pop(id, None)

    def move_to_rejected(self, rejected: DraftRecord) -> None:
        self._end(rejected.id)
        self.rejected[rejected.id] = rejected

    def _end(self, id: str) -> None:
        """A draft is pending no more."""
        draft = self.pending.pop(id, None)
        if draft is not None and draft.batch is not None:
            others = self.transactions[draft.batch]
            del others[id]
            if not others:
                del self.transactions[draft.batch]


def _draft(row: Sequence[apsw.SQLiteValue]) -> DraftRecord:
    clock, id, partitions, event, status, reason, errors, created_at, status_updated_at, batch = row
    assert isinstance(clock, int)
    assert isinstance(id, str)
    assert isinstance(partitions, str)
    assert isinstance(event, bytes)
    assert isinstance(created_at, int)
    rejected = status == "rejected"
    return DraftRecord(
        clock,
        id,
        _decode_names(partitions),
        event,
        created_at,
        str(reason) if rejected else None,
        _decode_errors(errors) if isinstance(errors, str) else (),
        status_updated_at if isinstance(status_updated_at, int) else None,
        batch if isinstance(batch, int) else None,
    )
