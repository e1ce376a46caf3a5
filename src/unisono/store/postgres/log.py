"""The shared log: one PostgreSQL database, written by any number of nodes.

`PostgresLog` implements both `CommitLog` and `Cluster` for a node's authority. It reads like `PostgresReader`, over
the writer's connection. A second connection only listens for wake-ups.
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
from unisono.store.port import Behind, Opening, Record, RememberedId, Revocation, Snapshot, StorageError
from unisono.store.postgres import models, schema
from unisono.store.postgres import snapshots as snapshots_sent
from unisono.store.postgres.connect import connect, raise_unusable
from unisono.store.postgres.listen import NotificationListener
from unisono.store.postgres.log_tail import Tail
from unisono.store.postgres.node_messages import NODE_MESSAGES_CHANNEL, message_payloads, messages_of_others
from unisono.store.postgres.open_pipeline import open_pipeline
from unisono.store.postgres.pipeline_connection import PipelineConnection
from unisono.store.postgres.presence import Presence
from unisono.store.postgres.reader import READ_ERRORS, PostgresReader
from unisono.store.postgres.rows import Texts, columns, escape, unescape
from unisono.store.postgres.timeouts import Timeouts
from unisono.vocabulary import LogIdentity

__all__ = ["PostgresLog", "PostgresReader"]

POLL_S: Final = 0.25
"""How late news arrives when its wake-up was lost."""

HEARTBEAT_S: Final = 5.0
"""Between two heartbeats of a node."""

EXPIRE_NODES_S: Final = 60.0
"""Between two searches for dead nodes."""

_CHANNEL: Final = "unisono"


class GroupTimes(msgspec.Struct, frozen=True):
    """Where the last group spent its time: during `opened_s` it waited for other nodes, during the rest they wait."""

    opened_s: float = 0.0
    judged_s: float = 0.0
    committed_s: float = 0.0


class PostgresLog(PostgresReader):
    """One node's access to the shared log.

    - Between `begin` and `commit` or `abandon` the head row is locked: no node appends meanwhile, and everything
      appended before was given out by `catch_up`, by Behind or as `Opening.foreign`, each record once and in order,
      a bounded part at a time.
    - Any error is a StorageError and closes the connection, so the server rolls back the open transaction and
      releases every lock. Every later call raises it again until `reopen`.
    - StoreLost means that a retry may succeed. When `commit` raises it, the group may be durable or not: after
      `reopen` it is among the news and known to deduplication, or it was not committed.
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

        Catching up starts at the head: what was committed before is not news.
        """
        timeouts = timeouts or Timeouts()
        pipeline = open_pipeline(dsn, timeouts, record_location=True)
        try:
            presence = Presence(node, schema.newest_known())
            presence.register(pipeline)
            channels = (_CHANNEL, presence.channel, NODE_MESSAGES_CHANNEL)
            listener = NotificationListener(lambda: connect(dsn, timeouts), channels)
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
        """After StoreLost: connect again, with the same claims and the same position in the log.

        Raises StoreLost while the database is unavailable, and StorageError when it is another database or a failover
        lost committed events: then the node must be restarted.
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
        """The last record given to this node; later ones of other nodes are still to come as news."""
        self._check()
        return self._tail.seen

    def identity(self) -> LogIdentity:
        """As of the last read of the head: another node, or an operator, may start a new epoch."""
        return LogIdentity(super().identity().log_id, self._tail.log_epoch)

    # -- the group -----------------------------------------------------------------------------------------

    def begin(self, ids: Sequence[str]) -> Opening:
        self._require(group=False)
        started = time.perf_counter()
        opening = None
        with self._doing("opening a group"):
            # A node far behind reads what it lacks before it locks: under the lock every node waits.
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
                    f"group not committed: judging took {judged_at - self._opened_at:.1f} s, and the lock may be "
                    f"held for {self._timeouts.lock_hold_s:.1f} s"
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
                    f"group not committed: the server answered {ended.statusmessage}, and {advanced.rowcount} "
                    "head rows changed instead of 1"
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
        """Lock the head and read everything under the lock, in one round trip. None when too far behind."""
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
        """Reads nothing when no wake-up arrived and the last read is less than POLL_S ago."""
        self._require(group=False)
        called = self._listener.drain(self._tail.seen)
        if not (fresh or called or self._tail.has_backlog) and time.monotonic() - self._news_read_at < POLL_S:
            head = self._tail.seen
        else:
            with self._doing("catching up"):
                self._presence.send_releases(self._pipeline)
                head = self._read_news()
        messages = messages_of_others(self._listener.take_messages(), self._presence.node_id)
        records, replaced = self._tail.take_backlog(), self._replaced
        self._replaced = []
        erased = self._erasures != self._erasures_reported
        self._erasures_reported = self._erasures
        more = self._tail.seen < head
        if more:
            self._news_read_at = 0.0
        return News(
            head, records, replaced, self._tail.model_version, more, erased, self._tail.log_epoch, messages
        )

    def _read_news(self) -> int:
        """Read news into the backlog and into `_replaced`, without the lock, in one round trip; the head."""
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

    def tell(self, messages: Sequence[bytes]) -> None:
        self._require(group=False)
        with self._doing("sending messages to other nodes"):
            payloads = Texts(message_payloads(messages, self._presence.node_id))
            self._pipeline.execute_async_commit("tell", {"payloads": payloads})

    def revoke(self, revocation: Revocation, now_ms: int) -> None:
        self._require(group=False)
        with self._doing("storing a revocation"):
            kept = {"kind": revocation.kind, "name": escape(revocation.name), "until": revocation.until_ms}
            self._pipeline.ask("put_revocation", kept)
            self._pipeline.ask("drop_revocations", {"now": now_ms})

    def revocations(self) -> list[Revocation]:
        return [Revocation(kind, unescape(name), until) for kind, name, until in self.list("revocations")]

    def connected_clients(self, limit: int) -> list[tuple[str, str]]:
        rows = self.list("connected_clients", {"limit": limit})
        return [(unescape(client_id), node) for client_id, node in rows]

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

    def put_snapshots(self, snapshots: Sequence[Snapshot]) -> None:
        self._require(group=False)
        with self._doing("storing snapshots"):
            snapshots_sent.put(self._pipeline, snapshots, self._erasures_reported)

    def maintain(self) -> None:
        """Send a heartbeat every HEARTBEAT_S, and expire dead nodes every EXPIRE_NODES_S."""
        self._require(group=False)
        now = time.monotonic()
        if now - self._heartbeat_at < HEARTBEAT_S:
            return
        with self._doing("sending a heartbeat"):
            self._presence.send_releases(self._pipeline)
            if not self._presence.heartbeat(self._pipeline):
                self._presence.register(self._pipeline)
                self._replaced += self._presence.lost_claims(self._pipeline)
            if now - self._expired_at >= EXPIRE_NODES_S:
                self._presence.expire_dead_nodes(self._pipeline)
                self._expired_at = now
        self._heartbeat_at = now

    def close(self) -> None:
        """Close the log and release every claim. An open group is rolled back."""
        if self._closed:
            return
        if self._failure is None and self._group_head is None:
            with suppress(*READ_ERRORS):  # rows left behind expire later
                self._presence.unregister(self._pipeline)
        super().close()
        self._listener.close()

    def _on_notice(self, notice: Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "a warning")

    def _require_synchronous_commit(self) -> None:
        """Raise StoreLost when PostgreSQL warned that it did not wait for its synchronous standby.

        It still answers COMMIT, but a failover may lose the data, so nothing may depend on it (DUR-02).
        """
        if self._warnings:
            raise StoreLost(f"commit not confirmed by the standby: {'; '.join(self._warnings)}")

    def _require(self, *, group: bool) -> int:
        """Refuse calls on a failed log and out of turn; returns the head of the open group."""
        self._check()
        if (self._group_head is not None) != group:
            raise StorageError("no group is open" if group else "a group is still open")
        return self._group_head or 0

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Turn an error into a StorageError that lasts until `reopen`."""
        try:
            yield
        except (*READ_ERRORS, StorageError) as error:
            self._fail(what, error)
