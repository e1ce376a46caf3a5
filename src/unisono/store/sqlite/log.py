"""The embedded log: one SQLite file, one writing process, readers beside it.

The SQLite library comes from apsw. `SqliteLog` reads like `SqliteReader`, over the writer's connection, and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn, Self, TypeVar

import apsw
import msgspec

from unisono.protocol.codec import encode_names
from unisono.store.batching import in_batches
from unisono.store.cluster import ModelBundle, ModelRefused
from unisono.store.maintenance import (
    PRUNE_EVENTS_MAX,
    EraseResult,
    MaintenanceRefused,
    ReclaimProgress,
    Tombstone,
)
from unisono.store.port import Opening, Record, RememberedId, Revocation, Snapshot, StorageError
from unisono.store.sqlite import files, maintenance
from unisono.store.sqlite import identity as identities
from unisono.store.sqlite.event_ids import EventIdWriter, id_keys
from unisono.store.sqlite.pages import READ_ERRORS
from unisono.store.sqlite.reader import SqliteReader, unusable
from unisono.store.sqlite.recent_partitions import EventPartitionWriter, partitions_indexed_to
from unisono.store.sqlite.wal import WalCheckpointer
from unisono.store.statements import load_queries
from unisono.vocabulary import LogIdentity

__all__ = ["SqliteLog", "SqliteReader"]

SNAPSHOTS_PER_TRANSACTION_MAX = 128
SNAPSHOT_BYTES_PER_TRANSACTION_MAX = 4 << 20
"""Upper bounds of one transaction that stores snapshots, because groups wait for it."""

_SQL = load_queries("sqlite")

T = TypeVar("T")


class _Indexes(msgspec.Struct, frozen=True):
    """The indexes that are written behind the log."""

    ids: EventIdWriter
    partitions: EventPartitionWriter


class SqliteLog(SqliteReader):
    """The one writer of an embedded log.

    - Between `begin` and `commit` or `abandon` a group is open; nothing else may write meanwhile.
    - Any error while writing is a StorageError and final: every later call raises it again (DUR-04). SQLite
      itself would go on after a failed sync of its WAL, with a hole behind it.
    - When `commit` raises, the group was rolled back and no reader sees it. If its frames had all reached the
      file and only the sync failed, the next opening may find the whole group: all of it or none, made
      durable before anything else happens. No client was answered, and a retry meets deduplication (DUR-03).
    """

    def __init__(
        self,
        connection: apsw.Connection,
        lock: files.DirectoryLock,
        checkpointer: WalCheckpointer,
        *,
        for_groups: bool = True,
    ) -> None:
        super().__init__(connection)
        self._lock = lock
        self._checkpointer = checkpointer
        self._indexes = self._read_indexes() if for_groups else None
        self._keys: dict[str, int] = {}
        self._known: Mapping[str, RememberedId] = {}
        """Of the open group: the keys of its ids, and the ids that are in the log."""
        self._group_head: int | None = None
        self._failure: str | None = None
        self._closed = False

    @classmethod
    def open(
        cls, directory: Path, *, lock_wait_s: float = files.LOCK_WAIT_S, for_groups: bool = True
    ) -> Self:
        """Open the log in `directory` for writing, making it if there is none; raises StoreUnusable.

        `for_groups`: read now what is not in the indexes yet, which takes up to a second. Otherwise the first group
        waits for it.
        """
        try:
            files.prepare_directory(directory)
            with ExitStack() as undo:
                lock = files.DirectoryLock(directory, lock_wait_s)
                undo.callback(lock.release)
                connection = files.connect_writer(directory)
                undo.callback(connection.close)
                checkpointer = WalCheckpointer(connection, directory)
                undo.callback(checkpointer.close)
                log = cls(connection, lock, checkpointer, for_groups=for_groups)
                undo.pop_all()
                return log
        except (apsw.Error, OSError) as error:
            raise unusable(directory, error) from error

    def _read_indexes(self) -> _Indexes:
        return _Indexes(
            EventIdWriter(self._connection), EventPartitionWriter(self._connection, self._look_up)
        )

    def _writing(self) -> _Indexes:
        if self._indexes is None:
            self._indexes = self._read_indexes()
        return self._indexes

    @property
    def wal_bytes(self) -> int:
        """Size of the WAL after the last commit."""
        return self._checkpointer.frames * files.PAGE_BYTES

    def begin(self, ids: Sequence[str]) -> Opening:
        self._require(group=False)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            head = int(self._connection.execute(_SQL["head"]).get)
            keys = id_keys(ids)
            self._keys = dict(zip(ids, keys, strict=True))
            known = dict(self._writing().ids.find(ids, keys))
        except Exception as error:
            self._fail("opening a group", error)
        self._known = known
        self._group_head = head
        return Opening(head, known)

    def commit(self, records: Sequence[Record]) -> None:
        head = self._require(group=True)
        if not records:
            self.abandon()
            return
        rows = [
            (
                r.committed_id,
                r.id,
                r.client_id,
                r.status_updated_at,
                r.hash,
                encode_names(r.partitions).decode(),
                r.event,
                r.author,
            )
            for r in records
        ]
        try:
            _require_numbered_from(head + 1, records)
            keys = self._require_new_ids(records)
            numbers = self._intern(name for record in records for name in record.partitions)
            places = [(numbers[name], r.committed_id) for r in records for name in r.partitions]
            indexes = self._writing()
            self._connection.executemany(_SQL["insert_event"], rows)
            ids_indexed_to = indexes.ids.write_some(head, len(records))
            partitions_indexed_to = indexes.partitions.write_some(head, len(places))
            last = records[-1]
            self._connection.execute(
                _SQL["advance_head"],
                (last.committed_id, last.status_updated_at, ids_indexed_to, partitions_indexed_to),
            )
            self._connection.execute("COMMIT")
        except Exception as error:
            self._fail("committing a group", error)
        indexes.ids.add(keys, range(head + 1, head + 1 + len(records)))
        indexes.partitions.add(places)
        self._group_head = None

    def abandon(self) -> None:
        self._require(group=True)
        try:
            self._connection.execute("ROLLBACK")
        except Exception as error:
            self._fail("abandoning a group", error)
        self._group_head = None

    def put_snapshots(
        self, snapshots: Sequence[Snapshot], *, per_transaction: int = SNAPSHOTS_PER_TRANSACTION_MAX
    ) -> None:
        self._require(group=False)
        for batch in in_batches(
            snapshots,
            lambda snapshot: len(snapshot.state),
            count_max=per_transaction,
            bytes_max=SNAPSHOT_BYTES_PER_TRANSACTION_MAX,
        ):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                numbers = self._intern(snapshot.partition for snapshot in batch)
                self._connection.executemany(
                    _SQL["put_snapshot"],
                    [
                        (
                            numbers[s.partition],
                            s.model_version,
                            s.committed_id,
                            s.created_at,
                            s.state,
                            s.model_digest,
                        )
                        for s in batch
                    ],
                )
                self._connection.execute("COMMIT")
                self._checkpointer.step()
            except Exception as error:
                self._fail("storing snapshots", error)

    # -- maintenance (see `unisono.store.maintenance`) ---------------------------------------------------------

    def set_archive(self, location: str) -> None:
        self._change("setting the archive", lambda: maintenance.set_archive(self._connection, location))

    def record_model(self, bundle: ModelBundle | None, *, replace: bool = False) -> str | None:
        return self._change(
            "recording the model", lambda: maintenance.record_model(self._connection, bundle, replace=replace)
        )

    def new_epoch(self) -> LogIdentity:
        """Start a new epoch: the log's history may have changed, and clients start over (DUR-08)."""
        self._change("giving the log a new epoch", lambda: identities.new_epoch(self._connection))
        self._identity = None
        return self.identity()

    def set_identity(self, own: LogIdentity) -> None:
        """Give a copy the identity of its source, or one of its own."""
        self._change("giving the log its identity", lambda: identities.set_identity(self._connection, own))
        self._identity = None
        identities.write_identity_file(self._connection)

    def revoke(self, revocation: Revocation, now_ms: int) -> None:
        def store() -> None:
            kept = (revocation.kind, revocation.name, revocation.until_ms)
            self._connection.execute(_SQL["put_revocation"], kept)
            self._connection.execute(_SQL["drop_revocations"], (now_ms,))

        self._change("storing a revocation", store)

    def revocations(self) -> list[Revocation]:
        self._check()
        try:
            return [Revocation(*row) for row in self._connection.execute(_SQL["revocations"])]
        except READ_ERRORS as error:
            self._fail("reading the revocations", error)

    def prune_batch(self, upto: int, *, limit: int = PRUNE_EVENTS_MAX) -> int:
        self._require(group=False)
        try:
            maintenance.return_excess(self._connection, self._checkpointer, limit)
        except Exception as error:
            self._fail("returning free space", error)
        # The rows of the newest events are read where groups need them, and here only if such events leave: a process
        # that prunes alone opens the log for each step.
        partitions = None if self._indexes is None else self._indexes.partitions
        indexed_to = partitions_indexed_to(self._connection) if partitions is None else partitions.indexed_to
        if min(upto, self.extent().pruned_to + limit) > indexed_to:
            # What has left a partition is known by its rows (see `sweep`), so they are there before the events leave.
            writer = partitions or EventPartitionWriter(self._connection, self._look_up)
            self._change("indexing the newest events", writer.write_all)
        return self._change(
            "pruning", lambda: maintenance.delete_oldest_events(self._connection, upto, limit)
        )

    def erase(self, tombstones: Sequence[Tombstone], partitions: Sequence[str] = ()) -> EraseResult:
        return self._change(
            "erasing", lambda: maintenance.erase(self._connection, tombstones, partitions, self._look_up)
        )

    def reclaim(self, *, alone: bool = False) -> ReclaimProgress:
        rows = maintenance.SWEEP_ROWS_ALONE if alone else maintenance.SWEEP_ROWS
        sweeping = self._change("sweeping the index", lambda: maintenance.sweep(self._connection, rows))
        try:
            return sweeping or maintenance.reclaim(self._connection, self._checkpointer, alone=alone)
        except Exception as error:
            self._fail("reclaiming space", error)

    def rewrite(self) -> None:
        """Rewrite the whole file, which nobody else may have open: no trace of erased text is left, and from now on
        free pages can be returned some at a time."""
        self._require(group=False)
        try:
            maintenance.rewrite(self._connection, self._checkpointer)
        except Exception as error:
            self._fail("rewriting the log", error)

    def _change(self, doing: str, work: Callable[[], T]) -> T:
        """Run one transaction outside any group; a refused change leaves the log usable."""
        self._require(group=False)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                outcome = work()
            except (MaintenanceRefused, ModelRefused):
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
            self._checkpointer.step()
        except (MaintenanceRefused, ModelRefused):
            raise
        except Exception as error:
            self._fail(doing, error)
        return outcome

    def maintain(self) -> None:
        self._require(group=False)
        try:
            self._checkpointer.maintain()
        except Exception as error:
            self._fail("checkpointing", error)

    def close(self) -> None:
        """Close the log. An open group is rolled back; a failed log is left as it is for recovery."""
        if self._closed:
            return
        self._closed = True
        self._failure = self._failure or "the log is closed"
        try:
            self._checkpointer.close()
            self._connection.close()
        finally:
            self._lock.release()

    def _intern(self, names: Iterable[str]) -> dict[str, int]:
        """name → number for all of `names`, giving numbers to new ones within the open transaction."""
        wanted = dict.fromkeys(names)
        found = self._look_up(wanted)
        if len(found) < len(wanted):
            fresh = [name for name in wanted if name not in found]
            rows = self._connection.executemany(_SQL["insert_partition"], [(name,) for name in fresh])
            numbers = msgspec.convert([number for (number,) in rows], list[int])
            self._remember(dict(zip(fresh, numbers, strict=True)), found)
        return found

    def _require_new_ids(self, records: Sequence[Record]) -> list[int]:
        """The keys of the records' ids, none of which is in the log (ORD-03)."""
        ids = [record.id for record in records]
        unasked = [id for id in ids if id not in self._keys]
        if unasked:
            self._keys.update(zip(unasked, id_keys(unasked), strict=True))
            self._known = {**self._known, **dict(self._writing().ids.find(unasked))}
        if len(set(ids)) < len(ids) or not self._known.keys().isdisjoint(ids):
            raise StorageError("an id of this group is in the log or comes twice")
        return [self._keys[id] for id in ids]

    def _check(self) -> None:
        if self._failure is not None:
            raise StorageError(self._failure)

    def _require(self, *, group: bool) -> int:
        """Refuse calls on a failed log and out of turn; returns the head of the open group."""
        self._check()
        if (self._group_head is not None) != group:
            raise StorageError("no group is open" if group else "a group is still open")
        return self._group_head or 0

    def _fail(self, doing: str, error: Exception) -> NoReturn:
        if self._failure is None:
            self._failure = f"{doing} failed, the log is closed for all further work: {error}"
            # Leave every file as it is; recovery at the next opening decides from what is on disk.
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            if self._connection.in_transaction:
                try:
                    self._connection.execute("ROLLBACK")
                except apsw.Error as second:
                    error.add_note(f"rolling back failed too: {second}")
        raise StorageError(self._failure) from error


def _require_numbered_from(first: int, records: Sequence[Record]) -> None:
    if [record.committed_id for record in records] != list(range(first, first + len(records))):
        raise StorageError(f"this group must be numbered from {first} without gaps")
