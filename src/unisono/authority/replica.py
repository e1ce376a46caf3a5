"""This node's view of the log: head, identity and folded states, kept up to date with other nodes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from unisono.authority.client_claims import ClientClaims
from unisono.authority.clock import Clock
from unisono.authority.cluster_view import ClusterView
from unisono.authority.group_size import GROUP_BYTES_MAX, GROUP_EVENTS_MAX
from unisono.authority.outboxes import Outboxes
from unisono.authority.recent_activity import RecentActivity
from unisono.authority.states.resident import States
from unisono.ipc.channel import Channel
from unisono.ipc.messages import (
    AccessChanged,
    EventCommitted,
    LogFailed,
    ModelChanged,
    Offer,
    PresenceChanges,
    Replaced,
    RevokedName,
)
from unisono.protocol.codec import encode_event
from unisono.store.batching import in_batches
from unisono.store.port import CommitLog, Record

logger = logging.getLogger("unisono.authority")

ACCESS_READ_S: Final = 5.0
"""How late a revocation on another node counts here when its message was lost."""


class Replica:
    """What groups are judged on. Events of other nodes are applied here and staged for this node's clients.

    Invariants between two groups: `head` is the last event that was staged for the fronts; every resident state is
    the fold of the log up to `head`.
    """

    def __init__(
        self,
        store: CommitLog,
        states: States,
        cluster: ClusterView,
        clock: Clock,
        claims: ClientClaims,
        outboxes: Outboxes,
        node: Channel,
    ) -> None:
        self.states = states
        self.cluster = cluster
        self.head = store.head()
        self.recent = RecentActivity()
        self._store = store
        self._identity = store.identity()
        self._revoked: tuple[RevokedName, ...] = ()
        self._access_read_at = 0.0
        self.access_changes = 0
        self._clock = clock
        self._claims = claims
        self._out = outboxes
        self._node = node
        self.sole_front = len(outboxes.fronts) == 1 and not cluster.shared
        """All clients of the log connect to one front, which settles their claims itself."""

    def offer(self) -> Offer:
        states = self.states
        return Offer(
            self.head,
            states.model_version,
            states.profiles,
            states.model_digest,
            self._identity,
            states.model.claims,
            self.sole_front,
        )

    def adopt(self, states: States) -> None:
        """Judge by another model from the next group on, and announce it to every front (MODEL-02)."""
        old = self.states.model_version
        self.states = states
        self._out.stage_for_all(ModelChanged(old, self.offer()))

    def drop_states(self) -> None:
        """Forget all states in memory; they are loaded from the log again."""
        self.states = self.states.with_model(self.states.model)

    def _stage_event(self, record: Record) -> None:
        """Stage an event of another node for broadcast; it is sent when the outboxes are flushed."""
        payload = encode_event(
            record.committed_id,
            record.id,
            record.client_id,
            record.partitions,
            record.event,
            record.status_updated_at,
        )
        self._out.stage_for_all(
            EventCommitted(
                record.committed_id, 0, record.partitions, payload, answers=False, author=record.author
            )
        )

    def change_access(self, change: AccessChanged) -> None:
        """Tell the fronts who is refused from now on, as the log has it (AUTHZ-09, AUTH-11)."""
        self._revoked = self._read_revoked()
        self.access_changes += 1
        self._out.stage_for_all(
            msgspec.structs.replace(change, revoked=self._revoked, number=self.access_changes)
        )

    def refresh_access(self, now: float) -> None:
        """Read now and then who is refused: a message of another node can be lost, and nobody would notice."""
        if self.cluster.shared and now - self._access_read_at >= ACCESS_READ_S:
            self._access_read_at = now
            if self._read_revoked() != self._revoked:
                self.change_access(AccessChanged(()))
                self._out.flush()

    def _read_revoked(self) -> tuple[RevokedName, ...]:
        return tuple(RevokedName(each.kind, each.name, each.until_ms) for each in self._store.revocations())

    # -- other nodes ---------------------------------------------------------------------------------------

    def catch_up(self, *, fresh: bool) -> None:
        """Apply what other nodes did, and broadcast it to this node's clients (ORD-02).

        `fresh`: ask the log itself, so that nothing committed before the call is missing.
        """
        while (news := self.cluster.news(fresh=fresh)) is not None:
            self.apply_and_send(news.records)
            self.apply((), news.replaced)
            if news.messages:
                heard = self.cluster.heard(news.messages)
                if heard.presence:
                    self._out.stage_for_all(PresenceChanges(tuple(heard.presence)))
                for change in heard.access:
                    self.change_access(change)
                if heard.for_node:
                    self._out.send(self._node, heard.for_node)
            if news.log_epoch not in (None, self._identity.log_epoch):
                self._restart_clients()
            if news.erased:  # states folded before may contain erased text
                self.drop_states()
            if self.is_newer_model(news.model_version):
                self.adopt_published_model()
            if not news.more:
                break
        self._out.flush()

    def apply_and_send(self, records: Sequence[Record]) -> None:
        """Apply events in parts of a group's size: memory and frames do not grow with how far behind this node is."""
        for portion in in_batches(
            records, lambda record: len(record.event), count_max=GROUP_EVENTS_MAX, bytes_max=GROUP_BYTES_MAX
        ):
            self.apply(portion, ())
            self._out.flush()

    def apply(self, records: Sequence[Record], replaced: Sequence[int]) -> None:
        """Apply events of other nodes and replaced connections of this one, and stage both for the fronts."""
        if records:
            self.states.follow(records)
            for record in records:
                self._stage_event(record)
            self.head = records[-1].committed_id
            self._clock.observe(records[-1].status_updated_at)
        for conn in replaced:
            self._claims.replace(conn)
            self._out.stage_for_all(Replaced(conn))

    def is_newer_model(self, version: int | None) -> bool:
        """Versions only rise: the version last seen may be older than one that this node has published since."""
        own = self.states.model_version
        return version is not None and (own is None or version > own)

    def adopt_published_model(self) -> None:
        """Switch to the newer model that another node has published (MODEL-02)."""
        model = self.cluster.published_model()
        assert model is not None, "a version in force has a model"
        logger.info(
            "model version %s published by another node",
            model.version,
            extra={"model_version": model.version},
        )
        self.adopt(self.states.with_model(model))

    def reload_position(self) -> None:
        """Read head and identity again after the log was reopened, and what was missed meanwhile."""
        self.head, self._identity = self._store.head(), self._store.identity()
        self.catch_up(fresh=True)

    def _restart_clients(self) -> None:
        """The log's past may have changed (DUR-08): close all connections; clients see the new epoch on return."""
        self._identity = self._store.identity()
        logger.warning(
            "log_epoch changed to %d: closing %d connections, clients start over",
            self._identity.log_epoch,
            len(self._claims),
            extra={"log_epoch": self._identity.log_epoch, "connections": len(self._claims)},
        )
        self.drop_states()
        self._out.discard_and_send(LogFailed("the log's past may have changed", recovering=True))
        self._out.stage_for_all(self.offer())
