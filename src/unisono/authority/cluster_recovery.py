"""The shared database is unavailable: close all connections, reconnect, and let clients in again.

No request in flight was answered, so nothing is lost: clients retry, and deduplication tells them what was committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from unisono.authority.client_claims import ClientClaims
from unisono.authority.inbox import Inbox
from unisono.authority.outboxes import Outboxes
from unisono.authority.replica import Replica
from unisono.ipc.channel import Channel
from unisono.ipc.messages import AdminCommand, AskStats, CommandResult, Drain, LogFailed, Message, Release
from unisono.ipc.stats import Counters
from unisono.store.cluster import StoreLost

logger = logging.getLogger("unisono.authority")

RETRY_S: Final = 0.1
RETRY_MAX_S: Final = 2.0
"""Pause between two attempts to reconnect; it doubles from the first to the second."""

COMMAND_REFUSED: Final = b'{"error":"database unavailable"}'


class ClusterRecovery:
    """Runs in place of the group loop until the database is available again."""

    def __init__(
        self,
        replica: Replica,
        inbox: Inbox,
        outboxes: Outboxes,
        claims: ClientClaims,
        counters: Counters,
        *,
        perf: Callable[[], float],
        send_stats: Callable[[Channel, AskStats], None],
    ) -> None:
        self._replica = replica
        self._inbox = inbox
        self._out = outboxes
        self._claims = claims
        self._counters = counters
        self._perf = perf
        self._send_stats = send_stats

    def run(self, error: StoreLost) -> None:
        """Close all connections and return when the log is reopened, or when the authority is to end."""
        wait_s = RETRY_S
        logger.error(
            "database unavailable: closing %d connections, retrying in %g s: %s",
            len(self._claims),
            wait_s,
            error,
            extra={"connections": len(self._claims), "retry_s": wait_s},
        )
        self._counters.set("store_reachable", 0)
        self._out.discard_and_send(LogFailed("database unavailable", recovering=True))
        self._replica.drop_states()
        deferred = self._handle_queue()
        while not self._inbox.draining:
            deferred += self._collect(wait_s)
            try:
                self._replica.cluster.reopen()
                self._replica.reload_position()
            except StoreLost as again:
                wait_s = min(wait_s * 2, RETRY_MAX_S)
                logger.warning(
                    "database still unavailable, retrying in %g s: %s",
                    wait_s,
                    again,
                    extra={"retry_s": wait_s},
                )
                continue
            logger.info(
                "database available again, head %d",
                self._replica.head,
                extra={"committed_id": self._replica.head},
            )
            self._inbox.queue.extend(deferred)
            self._counters.set("store_reachable", 1)
            self._out.stage_for_all(self._replica.offer())
            self._out.flush()
            return

    def _collect(self, wait_s: float) -> list[tuple[Channel, Message]]:
        """Serve the node and the fronts for `wait_s`; returns the messages that need the log."""
        deferred: list[tuple[Channel, Message]] = []
        until = self._perf() + wait_s
        while (left := until - self._perf()) > 0 and not self._inbox.draining:
            self._inbox.collect(left)
            deferred += self._handle_queue()
        return deferred

    def _handle_queue(self) -> list[tuple[Channel, Message]]:
        """Empty the queue; returns the messages that need the log.

        Submissions, claims and heads are dropped: their connections are closed.
        """
        deferred: list[tuple[Channel, Message]] = []
        queue = self._inbox.queue
        while queue:
            channel, message = queue.popleft()
            match message:
                case AskStats():
                    self._send_stats(channel, message)
                case Drain():
                    self._inbox.draining = True
                case Release():
                    deferred.append((channel, message))
                case AdminCommand():
                    self._out.send(channel, [CommandResult(message.ticket, False, COMMAND_REFUSED)])
                case _:
                    pass
        return deferred
