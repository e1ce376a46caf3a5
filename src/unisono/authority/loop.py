"""The group loop: take what has arrived, judge it in order, make it durable, then answer.

One turn takes messages from the queue in order of arrival, up to the limits of a group, without waiting for more. Its
submissions form one transaction. Heads and claims keep their place between them, so everything a connection receives
is in commit order (BCAST-06), and a head is exact at its place in the stream (SYNC-06). Nothing is sent before the
group is durable (SUBMIT-07).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from unisono.authority.atomic import ATOMIC_S
from unisono.authority.client_claims import ClientClaims
from unisono.authority.clock import Clock
from unisono.authority.cluster_recovery import ClusterRecovery
from unisono.authority.cluster_view import ClusterView
from unisono.authority.group import GroupCommitter
from unisono.authority.group_size import GROUP_S, REQUEST_S, GroupSize
from unisono.authority.inbox import Inbox
from unisono.authority.outboxes import Outboxes
from unisono.authority.parked_requests import ParkedRequests, partitions_of
from unisono.authority.replica import Replica
from unisono.authority.shared_presence import SharedPresence
from unisono.authority.states.resident import States
from unisono.ipc.channel import Channel, ChannelAborted, ChannelClosed
from unisono.ipc.messages import (
    AccessChanged,
    AdminCommand,
    AskHead,
    AskStats,
    Claim,
    Claimed,
    CommandResult,
    Drain,
    HeadAnswer,
    LogFailed,
    Message,
    PeerFailed,
    PresenceChanges,
    Ready,
    Release,
    Replaced,
    Stats,
    Submit,
)
from unisono.ipc.stats import Counters
from unisono.ipc.tracing import Tracer
from unisono.store.cluster import StoreLost
from unisono.store.port import CommitLog, StorageError

logger = logging.getLogger("unisono.authority")

ADMIN_COMMANDS_MAX: Final = 16
"""Admin commands that wait for execution; one more is refused."""

IDLE_S: Final = 0.25
"""Longest wait for messages before housekeeping; also how late news of other nodes is when a wake-up is lost."""

LOADING_POLL_S: Final = 0.005
"""Between two checks of the threads that load states for parked requests."""


class Authority:
    """The one writer of this node. Runs in one thread of one process and shares nothing.

    Invariants between two turns: everything that was sent is in the log; every resident state is the fold of the log.
    """

    def __init__(
        self,
        store: CommitLog,
        states: States,
        *,
        node: Channel,
        fronts: Sequence[Channel],
        clock: Clock,
        perf: Callable[[], float],
        execute: Callable[[Replica, AdminCommand], CommandResult | None],
        cluster: ClusterView | None = None,
        group_s: float = GROUP_S,
        request_s: float = REQUEST_S,
        atomic_s: float = ATOMIC_S,
        tracer: Tracer | None = None,
    ) -> None:
        """`execute` runs an admin command; None: not finished, call again after the next group. For `group_s`,
        `request_s` and `atomic_s` see GroupCommitter."""
        cluster = cluster or ClusterView(None)
        self._store = store
        self._node = node
        self._clock = clock
        self._execute = execute
        self._perf = perf
        self._alone = False
        """Whether the last group was a single request."""
        self._parked = ParkedRequests()
        self._commands: deque[tuple[Channel, AdminCommand]] = deque()
        self._claims = ClientClaims()
        self._inbox = Inbox((node, *fronts), cluster.wake_fd, self._disconnect)
        self._out = Outboxes(fronts, self._disconnect)
        self._counters = Counters()
        self._counters.set("store_reachable", 1)
        self._replica = Replica(store, states, cluster, clock, self._claims, self._out, node)
        self.groups = GroupCommitter(
            store,
            self._replica,
            self._claims,
            self._out,
            self._counters,
            clock=clock,
            perf=perf,
            handle=self._handle,
            group_s=group_s,
            request_s=request_s,
            atomic_s=atomic_s,
            tracer=tracer,
        )
        self._presence = SharedPresence(cluster, self._out)
        self._recovery = ClusterRecovery(
            self._replica,
            self._inbox,
            self._out,
            self._claims,
            self._counters,
            perf=perf,
            send_stats=self._send_stats,
        )

    @property
    def fronts(self) -> list[Channel]:
        """The fronts that are connected."""
        return self._out.fronts

    # -- the loop ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until drained or the node is gone; raises StorageError when the log fails, after sending LogFailed."""
        self.start()
        while not (self._inbox.draining and not self._inbox.queue and not self._parked):
            self.step()

    def start(self) -> None:
        """Let the fronts accept clients."""
        self._out.stage_for_all(self._replica.offer())
        self._replica.change_access(AccessChanged(()))
        self._out.flush()
        self._node.send([Ready()])

    def step(self) -> None:
        """Take what has arrived, waiting for it when there is nothing else to do, and work on it."""
        try:
            try:
                self._pass()
            except StoreLost as error:
                self._recover(error)
        except StorageError as error:
            logger.critical("log failed, stopping: %s", error)
            self._out.discard_and_send(LogFailed("log failed"))
            raise

    @property
    def busy(self) -> bool:
        """Whether a step has work without further messages."""
        return bool(self._inbox.queue or self._parked or self._commands)

    def _pass(self) -> None:
        self._inbox.collect(self._timeout_s(), alone=self._alone)
        self._replica.states.reset_fold_budget()
        self._replica.catch_up(fresh=False)
        if self._inbox.queue:
            self._turn()
        self._presence.send()
        self._replica.refresh_access(self._perf())
        self._replica.states.advance()
        if self._commands:
            self._execute_command()
        if self._parked:
            self._resume_parked()
        self._store.maintain()

    def _timeout_s(self) -> float:
        """How long to wait for messages: only when there is nothing else to do."""
        if self._inbox.queue or self._inbox.draining:
            return 0.0
        if self._parked or self._commands:
            return LOADING_POLL_S if self._replica.states.only_waits else 0.0
        return IDLE_S

    def _turn(self) -> None:
        """Form a group of what is queued, and commit it."""
        queue = self._inbox.queue
        taken: list[tuple[Channel, Message]] = []
        size = GroupSize()
        try:
            while queue:
                channel, message = queue[0]
                if isinstance(message, Submit) and not size.admits(message):
                    break
                queue.popleft()
                if isinstance(message, Submit):
                    if self._parked.has_conn(message.conn) or not self._states_loaded(message):
                        self._parked.park(channel, message)
                        continue
                    size.add(message)
                taken.append((channel, message))
            if taken:
                self._commit(taken, size)
        except StoreLost:
            queue.extendleft(reversed(taken))  # recovery drops submissions and keeps the rest
            raise

    def _states_loaded(self, submit: Submit) -> bool:
        states = self._replica.states
        return not states.stateful(submit.profile) or states.ready(partitions_of(submit))

    def _resume_parked(self) -> None:
        """Commit a group of parked requests whose states are loaded now.

        They bypass the queue: there a request could be parked again behind a later one of its connection, and the two
        would change places (SUBMIT-09).
        """
        states = self._replica.states
        states.reset_fold_budget()  # parked requests get a budget of their own, beside that of new ones
        taken, size = self._parked.take_ready(self._states_loaded)
        oldest = self._parked.oldest()
        states.pin(partitions_of(oldest) if oldest is not None else ())
        if taken:
            self._commit(taken, size)

    def _commit(self, taken: Sequence[tuple[Channel, Message]], size: GroupSize) -> None:
        self._alone = len(taken) == 1 and size.events > 0
        left = self.groups.commit(taken, size.events)
        if left:
            # All parked requests are queued behind it, so that each connection keeps its order (SUBMIT-09).
            self._inbox.queue.extendleft(reversed([*left, *self._parked.take_all()]))

    def _recover(self, error: StoreLost) -> None:
        """Wait for the shared database. Parked requests are dropped and admin commands refused."""
        self._parked.take_all()
        self.groups.discard_partial_results()
        self._inbox.queue.extend(self._commands)
        self._commands.clear()
        self._recovery.run(error)

    def _disconnect(self, channel: Channel, error: ChannelClosed) -> None:
        """A channel has ended. The node learns if it was aborted here: a stalled front does not end by itself."""
        if not self._inbox.remove(channel):
            return
        if channel is self._node:
            logger.info("node disconnected, stopping")
            self._inbox.draining = True
        elif channel in self._out:
            self._out.remove(channel)
            if isinstance(error, ChannelAborted):
                logger.error("channel to %s aborted: %s", channel.peer, error, extra={"peer": channel.peer})
                self._out.send(self._node, [PeerFailed(channel.peer, str(error))])
            else:
                logger.info("%s disconnected: %s", channel.peer, error, extra={"peer": channel.peer})

    # -- everything that is not a submission ---------------------------------------------------------------

    def _handle(self, channel: Channel, message: Message, head: int) -> None:
        match message:
            case AskHead():
                self._out.stage(channel, HeadAnswer(message.ticket, head))
            case Claim():
                older = self._claims.claim(message.client_id, message.conn)
                if self._replica.sole_front:
                    return
                if older is not None:
                    self._out.stage_for_all(Replaced(older))
                self._out.stage(channel, Claimed(message.conn, head))
            case Release():
                client_id = self._claims.release(message.conn)
                if client_id is not None:
                    self._replica.cluster.release(client_id, message.conn)
            case PresenceChanges():
                self._presence.add(channel, message)
            case AskStats():
                self._send_stats(channel, message)
            case AdminCommand():
                if len(self._commands) < ADMIN_COMMANDS_MAX:
                    self._commands.append((channel, message))
                else:
                    refusal = CommandResult(message.ticket, False, b'{"error":"too many admin commands"}')
                    self._out.send(channel, [refusal])
            case Drain():
                self._inbox.draining = True
            case _:
                logger.error("unexpected message %s from %s", type(message).__name__, channel.peer)

    def _send_stats(self, channel: Channel, ask: AskStats) -> None:
        self._counters.set("queue_requests", len(self._inbox.queue))
        self._counters.set("parked_requests", len(self._parked))
        self._counters.set("last_committed_id", self._replica.head)
        self._counters.reset("clock_corrections", self._clock.corrections)
        self._replica.states.report(self._counters)
        self._out.send(channel, [Stats(ask.ticket, self._counters.dump())])

    def _execute_command(self) -> None:
        """Run the oldest admin command, or one step of it, between two groups."""
        channel, command = self._commands[0]
        result = self._execute(self._replica, command)
        if result is not None:
            self._commands.popleft()
            self._out.flush()  # whoever has the answer may rely on the fronts having been told before
            self._out.send(channel, [result])
