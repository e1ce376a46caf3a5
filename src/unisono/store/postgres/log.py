"""The shared log: one PostgreSQL database, any number of nodes that write it.

`PostgresLog` is both the commit log of a node's authority and its view of the cluster. It reads the way
`PostgresReader` does, through the writer's own connection. A second connection only listens for wake-ups.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Self

import msgspec
import psycopg
from psycopg.errors import Diagnostic

from unisono.store.cluster import ModelBundle, News, StoreLost
from unisono.store.port import Behind, Opening, Record, RememberedId, Snapshot, StorageError
from unisono.store.postgres import models, schema
from unisono.store.postgres import snapshots as snapshots_sent
from unisono.store.postgres.connect import connect, raise_unusable
from unisono.store.postgres.listen import NotificationListener
from unisono.store.postgres.log_tail import Tail
from unisono.store.postgres.pipeline_connection import PipelineConnection
from unisono.store.postgres.presence import Presence
from unisono.store.postgres.reader import READ_ERRORS, PostgresReader, open_pipeline
from unisono.store.postgres.rows import Texts, columns, escape, unescape
from unisono.store.postgres.timeouts import Timeouts
from unisono.vocabulary import LogIdentity

__all__ = ["PostgresLog", "PostgresReader"]

POLL_S: Final = 0.25
"""How late news is when its wake-up was lost."""

HEARTBEAT_S: Final = 5.0
"""Between two signs of life of a node."""

EXPIRE_NODES_S: Final = 60.0
"""Between two looks for nodes long dead."""

_CHANNEL: Final = "unisono"


class GroupTimes(msgspec.Struct, frozen=True):
    """Where the last group spent its time: `opened_s` waits for other nodes, the rest makes them wait."""

    opened_s: float = 0.0
    judged_s: float = 0.0
    committed_s: float = 0.0


class PostgresLog(PostgresReader):
    """One node's hand on the shared log.

    - Between `begin` and `commit` or `abandon` the head row is locked: no node appends meanwhile, and everything
      appended before has been handed out, by `catch_up`, by Behind or as `Opening.foreign`, each record once and
      in order, a bounded part at a time.
    - Any error is a StorageError and closes the connection, so the server rolls back what was open and frees
      every lock. Every later call raises it again until `reopen`.
    - StoreLost says that another try may succeed. When it comes out of `commit`, the group may be durable or not;
      after `reopen` it is found among the news and by deduplication, or never was.
    """

    def __init__(
        self,
        dsn: str,
        timeouts: Timeouts,
        pipeline: PipelineConnection,
        presence: Presence,
        listener: NotificationListener,
    ) -> None:
        super().__init__(dsn, timeouts, pipeline)
        self._presence = presence
        self._listener = listener
        self._tail = Tail(pipeline)
        self._group_head: int | None = None
        self._far_behind = False
        self._fences: Sequence[tuple[str, int]] = ()
        self._replaced: list[int] = []
        self._warnings: list[str] = []
        self._erasures = self._erasures_reported = self._read_erasures()
        self._news_read_at = self._heartbeat_at = self._expired_at = 0.0
        self._opened_at = self._opened_s = 0.0
        self.times = GroupTimes()
        pipeline.connection.add_notice_handler(self._on_notice)

    @classmethod
    def open(cls, dsn: str, node: str, *, timeouts: Timeouts | None = None) -> Self:  # type: ignore[override]
        """Open the log of `dsn` as the node called `node`; raises StoreUnusable.

        What was committed before is not news: catching up starts at the head.
        """
        timeouts = timeouts or Timeouts()
        pipeline = open_pipeline(dsn, timeouts, record_location=True)
        try:
            presence = Presence(node, schema.newest_known())
            presence.register(pipeline)
            listener = NotificationListener(lambda: connect(dsn, timeouts), (_CHANNEL, presence.channel))
            try:
                listener.listen()
                return cls(dsn, timeouts, pipeline, presence, listener)
            except BaseException:
                listener.close()
                raise
        except (psycopg.Error, StorageError) as error:
            pipeline.close()
            raise_unusable(dsn, error)
        except BaseException:
            pipeline.close()
            raise

    def reopen(self) -> None:
        """After StoreLost: connect again, with the same claims and the same place in the log.

        Raises StoreLost while the log is out of reach, and StorageError when what comes back is not the log that
        was left: a failover that lost committed events, or another database. Then only a new start helps.
        """
        super().reopen()
        self._group_head = None
        self._fences = ()
        self._pipeline.connection.add_notice_handler(self._on_notice)
        with self._doing("reopening"):
            self._tail.resume(self._pipeline)
            self._presence.register(self._pipeline)
            self._replaced += self._presence.lost_claims(self._pipeline)
            self._erasures = self._read_erasures()
        self._listener.renew()
        self._news_read_at = 0.0

    def head(self) -> int:
        """As far as this node has been handed the log; what others appended since is still to come as news."""
        self._check()
        return self._tail.seen

    def identity(self) -> LogIdentity:
        """As of the last look at the head: another node, or an operator, may give the log a new epoch."""
        return LogIdentity(super().identity().log_id, self._tail.log_epoch)

    # -- the group -----------------------------------------------------------------------------------------

    def begin(self, ids: Sequence[str]) -> Opening:
        self._require(group=False)
        started = time.perf_counter()
        opening = None
        with self._doing("opening a group"):
            # What a node lacks that is far behind is read before the lock: under it, everybody waits.
            if not self._far_behind or self._read_news() <= self._tail.read_upto:
                opening = self._lock_and_read(ids, self._fences)
                if opening is None:
                    self._pipeline.release_locks()
        self._far_behind = opening is None
        if opening is None:
            raise Behind(self._tail.take_backlog())
        self._fences = ()
        self._group_head = opening.head
        self._opened_at = time.perf_counter()
        self._opened_s = self._opened_at - started
        return opening

    def commit(self, records: Sequence[Record]) -> None:
        head = self._require(group=True)
        if not records:
            self.abandon()
            return
        judged_at = time.perf_counter()
        with self._doing("committing a group"):
            if judged_at - self._opened_at > self._timeouts.lock_hold_s:
                raise StoreLost(
                    f"judging took {judged_at - self._opened_at:.1f} s, and a group may hold the lock for "
                    f"{self._timeouts.lock_hold_s:.1f} s: nothing of it was committed"
                )
            if [r.committed_id for r in records] != list(range(head + 1, head + 1 + len(records))):
                raise StorageError(f"this group must be numbered from {head + 1} without gaps")
            parameters = columns(records)
            self._warnings.clear()
            advanced = self._pipeline.send("append_events", parameters)
            ended = self._pipeline.control("COMMIT")
            self._pipeline.sync()
            if (advanced.rowcount, ended.statusmessage) != (1, "COMMIT"):
                raise StorageError(
                    f"the group ended with {ended.statusmessage}, {advanced.rowcount} heads moved"
                )
            self._require_synchronous_commit()
        self._group_head = None
        self._tail.mark_seen(records)
        ended_at = time.perf_counter()
        self.times = GroupTimes(self._opened_s, judged_at - self._opened_at, ended_at - judged_at)

    def abandon(self) -> None:
        self._require(group=True)
        with self._doing("abandoning a group"):
            self._pipeline.release_locks()
        self._group_head = None

    def _lock_and_read(self, ids: Sequence[str], holders: Sequence[tuple[str, int]]) -> Opening | None:
        """One round trip: lock the head, and see everything under the lock. None when too far behind."""
        asked = {"ids": Texts(map(escape, ids))}
        clients = {"clients": Texts(escape(client_id) for client_id, _ in holders)}
        self._pipeline.control("BEGIN")
        locked = self._pipeline.send("lock_head")
        fresh = self._tail.send_query(self._pipeline)
        known = self._pipeline.send("find_ids", asked) if ids else None
        fences = self._pipeline.send("lock_claims", clients) if holders else None
        self._pipeline.sync()
        head = self._tail.receive(locked, fresh)
        if self._tail.read_upto < head:
            return None
        return Opening(
            head,
            {
                unescape(id): RememberedId(committed_id, hash, unescape(client_id), status_updated_at)
                for id, committed_id, hash, client_id, status_updated_at in known or ()
            },
            self._tail.take_backlog(),
            self._presence.replaced(holders, fences.fetchall()) if fences else (),
            self._tail.model_version,
        )

    # -- the cluster ---------------------------------------------------------------------------------------

    def wake_fd(self) -> int:
        return self._listener.fileno()

    def catch_up(self, *, fresh: bool = False) -> News:
        """Costs nothing when there is nothing to look for: no wake-up, and the last look is not long ago."""
        self._require(group=False)
        called = self._listener.drain(self._tail.seen)
        if not (fresh or called or self._tail.has_backlog) and time.monotonic() - self._news_read_at < POLL_S:
            head = self._tail.seen
        else:
            with self._doing("catching up"):
                self._presence.send_releases(self._pipeline)
                head = self._read_news()
        records, replaced = self._tail.take_backlog(), self._replaced
        self._replaced = []
        erased = self._erasures != self._erasures_reported
        self._erasures_reported = self._erasures
        more = self._tail.seen < head
        if more:
            self._news_read_at = 0.0
        return News(head, records, replaced, self._tail.model_version, more, erased, self._tail.log_epoch)

    def _read_news(self) -> int:
        """Outside the lock, one round trip: what is new goes to the backlog and to `_replaced`; the head."""
        looked = self._pipeline.send("read_head")
        fresh = self._tail.send_query(self._pipeline)
        taken = self._pipeline.send("take_replacements", {"node_id": self._presence.node_id})
        counted = self._pipeline.send("erasures")
        self._pipeline.sync()
        head = self._tail.receive(looked, fresh)
        ((self._erasures,),) = counted.fetchall()
        replaced = [conn for (conn,) in taken]
        self._presence.drop_claims(replaced)
        self._replaced += replaced
        self._news_read_at = time.monotonic()
        return head

    def _read_erasures(self) -> int:
        ((erasures,),) = self._pipeline.ask("erasures")
        return int(erasures)

    def claim(self, client_id: str, conn: int) -> int:
        return self.claim_many([(client_id, conn)])[0]

    def claim_many(self, claims: Sequence[tuple[str, int]]) -> Sequence[int]:
        self._require(group=False)
        with self._doing("claiming clients"):
            self._warnings.clear()
            epochs = self._presence.claim(self._pipeline, claims)
            self._require_synchronous_commit()
        return epochs

    def release(self, client_id: str, conn: int) -> None:
        self._check()
        if self._presence.release(client_id, conn) and self._group_head is None:
            with self._doing("releasing clients"):
                self._presence.send_releases(self._pipeline)

    def fence(self, holders: Sequence[tuple[str, int]]) -> None:
        self._require(group=False)
        self._fences = holders

    def published_model(self) -> ModelBundle | None:
        self._check()
        with self._doing("reading the model"):
            return models.published(self._pipeline)

    def publish_model(self, bundle: ModelBundle) -> None:
        self._require(group=False)
        with self._doing("publishing a model"):
            models.publish(self._pipeline, bundle, self._presence.name)

    # -- the rest ------------------------------------------------------------------------------------------

    def last_status_updated_at(self) -> int:
        return int(self.ask("last_status_updated_at")[0])

    def put_snapshots(self, snapshots: Sequence[Snapshot]) -> None:
        self._require(group=False)
        with self._doing("storing snapshots"):
            snapshots_sent.put(self._pipeline, snapshots, self._erasures_reported)

    def maintain(self) -> None:
        """A sign of life every HEARTBEAT_S, and now and then a look for nodes that have none."""
        self._require(group=False)
        now = time.monotonic()
        if now - self._heartbeat_at < HEARTBEAT_S:
            return
        with self._doing("giving a sign of life"):
            self._presence.send_releases(self._pipeline)
            if not self._presence.heartbeat(self._pipeline):
                self._presence.register(self._pipeline)
                self._replaced += self._presence.lost_claims(self._pipeline)
            if now - self._expired_at >= EXPIRE_NODES_S:
                self._presence.expire_dead_nodes(self._pipeline)
                self._expired_at = now
        self._heartbeat_at = now

    def close(self) -> None:
        """Give the log up, and every claim with it. An open group is rolled back."""
        if self._closed:
            return
        if self._failure is None and self._group_head is None:
            with suppress(*READ_ERRORS):  # what is left behind is found to be dead later
                self._presence.unregister(self._pipeline)
        super().close()
        self._listener.close()

    def _on_notice(self, notice: Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "a warning")

    def _require_synchronous_commit(self) -> None:
        """PostgreSQL that was told not to wait for its standby says COMMIT, and warns.

        What it committed may be missing where a failover would look for it: nothing may rest on it (DUR-02).
        """
        if self._warnings:
            raise StoreLost(f"the outcome of a commit is not certain: {'; '.join(self._warnings)}")

    def _require(self, *, group: bool) -> int:
        """Refuse work on a failed log, and calls out of turn; gives the head the open group stands on."""
        self._check()
        if (self._group_head is not None) != group:
            raise StorageError("no group is open" if group else "a group is still open")
        return self._group_head or 0

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """An error in here is final until `reopen`."""
        try:
            yield
        except (*READ_ERRORS, StorageError) as error:
            self._fail(what, error)
