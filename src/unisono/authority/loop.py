"""The group loop: take what is there, judge it in order, make it durable, then tell.

One turn takes messages from the queue in the order they arrived, up to a bound, never waiting for more.
Submissions among them form one group and one transaction; heads and claims between them keep their place in
what each front is told, so everything a connection hears comes in commit order (BCAST-06) and a head is exact
at the point of the stream where it stands (SYNC-06). Nothing is sent before the group is durable (SUBMIT-07).
"""

from __future__ import annotations

import logging
import selectors
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from unisono.authority.answers import result_of, single_outcome
from unisono.authority.client_claims import ClientClaims
from unisono.authority.clock import Clock
from unisono.authority.cluster_view import ClusterView
from unisono.authority.judge import Commit, Reject, judge
from unisono.authority.outboxes import Outboxes
from unisono.authority.parked_requests import (
    GROUP_BYTES_MAX,
    GROUP_EVENTS_MAX,
    GROUP_S,
    REQUEST_S,
    GroupSize,
    ParkedRequests,
    needed,
)
from unisono.authority.states.resident import States
from unisono.ipc.channel import Channel, ChannelAborted, ChannelClosed
from unisono.ipc.messages import (
    AdminCommand,
    AskHead,
    AskStats,
    BatchOutcome,
    Candidate,
    Claim,
    Claimed,
    CommandResult,
    Drain,
    Dropped,
    EventCommitted,
    HeadAnswer,
    ItemResult,
    LogFailed,
    Message,
    ModelChanged,
    Offer,
    PeerFailed,
    Ready,
    Release,
    Replaced,
    Stats,
    Submit,
)
from unisono.ipc.stats import SECONDS_BUCKETS, SIZE_BUCKETS, Counters
from unisono.protocol.codec import encode_event
from unisono.store.batching import in_batches
from unisono.store.cluster import StoreLost
from unisono.store.port import Behind, CommitLog, Opening, Record, RememberedId, StorageError

log = logging.getLogger("unisono.authority")

ORDERS_MAX: Final = 16
"""Operators' orders waiting for their turn; one more is refused."""

IDLE_S: Final = 0.25
"""How long to wait for work before housekeeping, and how late news of other nodes is without a wake-up."""

BESIDE_S: Final = 0.005
"""Between two looks at what a thread is doing for a request that waits."""

REOPEN_WAIT_S: Final = 0.1
REOPEN_WAIT_MAX_S: Final = 2.0
"""Between two tries to reach a lost log: soon at first, then patiently."""


class Authority:
    """Who decides. Runs in one thread of one process and shares nothing.

    Invariants between two turns: the log holds everything that was ever told and nothing was told that it does
    not hold; every resident state is the fold of the log.
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
        obey: Callable[[Authority, AdminCommand], CommandResult | None],
        neighbours: ClusterView | None = None,
        group_s: float = GROUP_S,
        request_s: float = REQUEST_S,
    ) -> None:
        """`group_s`: how long a group is judged before what has not begun goes into another; `request_s`: how long
        a request is, before its rest does."""
        self._store = store
        self._group_s = group_s
        self._request_s = request_s
        self._begun: dict[int, list[ItemResult]] = {}
        self.neighbours = neighbours or ClusterView(None)
        self.states = states
        self._node = node
        self._clock = clock
        self._perf = perf
        self._obey = obey
        self._queue: deque[tuple[Channel, Message]] = deque()
        self._waiting = ParkedRequests()
        self._orders: deque[tuple[Channel, AdminCommand]] = deque()
        self._owners = ClientClaims()
        self._selector = selectors.DefaultSelector()
        self._channels = {node, *fronts}
        for channel in (node, *fronts):
            self._selector.register(channel, selectors.EVENT_READ, channel)
        if self.neighbours.wake_fd is not None:
            self._selector.register(self.neighbours.wake_fd, selectors.EVENT_READ, None)
        self._out = Outboxes(fronts, self._lose)
        self._head = store.head()
        self._log = store.identity()
        self._draining = False
        self.turns = 0
        self.counters = Counters()
        self.counters.set("store_reachable", 1)

    @property
    def fronts(self) -> list[Channel]:
        """Those that are still there."""
        return self._out.fronts

    # -- the loop ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until told to drain, or the node is gone, or the log fails (StorageError, after telling)."""
        self._out.tell_all(self._offer())
        self._out.flush()
        self._node.send([Ready()])
        try:
            while not (self._draining and not self._queue and not self._waiting):
                try:
                    self._pass()
                except StoreLost as error:
                    self._recover(error)
        except StorageError as error:
            log.critical("the log failed, stopping: %s", error)
            self._out.tell_only(LogFailed("the log failed"))
            raise

    def _pass(self) -> None:
        self._collect()
        self.states.refill()
        self._learn_news(fresh=False)
        if self._queue:
            self._turn()
        self.states.advance()
        if self._orders:
            self._follow_order()
        if self._waiting:
            self._resume_waiting()
        self._store.maintain()

    def _collect(self, wait_s: float = IDLE_S) -> None:
        """Queue what has arrived; wait for something only when there is nothing else to do."""
        if self._queue or self._draining:
            timeout = 0.0
        elif self._waiting or self._orders:
            timeout = BESIDE_S if self.states.only_waits else 0.0
        else:
            timeout = wait_s
        for key, _ in self._selector.select(timeout):
            channel: Channel | None = key.data
            if channel is None:
                continue  # other nodes did something; it is looked at in this pass
            try:
                for message in channel.receive():
                    self._queue.append((channel, message))
            except ChannelClosed as error:
                self._lose(channel, error)

    def _lose(self, channel: Channel, why: ChannelClosed) -> None:
        """A channel has ended, or was given up: a front that is stalled cannot end by itself, so the node is told."""
        if channel not in self._channels:
            return  # found again by a later send
        self._channels.remove(channel)
        self._selector.unregister(channel)
        if channel is self._node:
            log.info("the node disconnected, ending")
            self._draining = True
        elif channel in self._out:
            self._out.forget(channel)
            if isinstance(why, ChannelAborted):
                log.error("channel to %s aborted: %s", channel.peer, why, extra={"peer": channel.peer})
                self._out.send(self._node, [PeerFailed(channel.peer, str(why))])
            else:
                log.info("%s disconnected: %s", channel.peer, why)

    def _turn(self) -> None:
        """One group, of what is there now."""
        taken: list[tuple[Channel, Message]] = []
        size = GroupSize()
        try:
            while self._queue:
                channel, message = self._queue[0]
                if isinstance(message, Submit) and not size.admits(message):
                    break
                self._queue.popleft()
                if isinstance(message, Submit):
                    if self._waiting.holds(message.conn) or not self._ready(message):
                        self._waiting.enter(channel, message)
                        continue
                    size.add(message)
                taken.append((channel, message))
            if taken:
                self._run_group(taken, size.events)
        except StoreLost:
            self._queue.extendleft(reversed(taken))  # not all of it is void
            raise

    def _ready(self, submit: Submit) -> bool:
        return self.states.ready(submit.profile, needed(submit))

    def _resume_waiting(self) -> None:
        """A group of those whose states are in memory now.

        They go at once and not through the queue: there a request would have to wait again, behind a later one
        of its connection, and the two would change places (SUBMIT-09).
        """
        self.states.refill()  # what came last has used its share; those who wait have their own
        free, size = self._waiting.release(self._ready)
        first = self._waiting.longest_waiting()
        self.states.hold(needed(first) if first is not None else ())
        if free:
            self._run_group(free, size.events)

    # -- one group -----------------------------------------------------------------------------------------

    def _run_group(self, taken: Sequence[tuple[Channel, Message]], events: int) -> None:
        started = self._perf()
        self.turns += 1
        ids = [
            item.id
            for _, message in taken
            if isinstance(message, Submit)
            for item in message.items
            if isinstance(item, Candidate)
        ]
        submits = [message for _, message in taken if isinstance(message, Submit)]
        self.neighbours.claim([message for _, message in taken if isinstance(message, Claim)])
        known: dict[str, RememberedId] = {}
        if ids:
            opening = self._open(ids, submits)
            if opening is None:
                self._start_over(taken)
                return
            known.update(opening.known)
        elif any(isinstance(message, AskHead | Claim) for _, message in taken):
            self._learn_news(fresh=True)
        now = self._clock()
        records: list[Record] = []
        left: list[tuple[Channel, Message]] = []
        judging = self._perf()
        try:
            for place, (channel, message) in enumerate(taken):
                if not isinstance(message, Submit):
                    self._other(channel, message, self._head + len(records))
                    continue
                if place and self._perf() - judging > self._group_s:
                    left = list(taken[place:])
                    break
                rest = self._submit(channel, message, known, records, now)
                if rest is not None:
                    left = [(channel, rest), *taken[place + 1 :]]
                    break
            if records:
                self._store.commit(records)
            elif ids:
                self._store.abandon()
        except BaseException:
            self.states.rollback()
            raise
        self.states.settle()
        self._head += len(records)
        events -= sum(len(message.items) for _, message in left if isinstance(message, Submit))
        if events:
            self.counters.observe("group_events", events, SIZE_BUCKETS)
            self.counters.observe("commit_seconds", self._perf() - started, SECONDS_BUCKETS)
            self.counters.add("commits", len(records))
        self._out.flush()
        if left:
            self._start_over(left)

    def _start_over(self, taken: Sequence[tuple[Channel, Message]]) -> None:
        """Queue a group again, and all who wait behind it, so that each connection keeps its order (SUBMIT-09)."""
        self._queue.extendleft(reversed([*taken, *self._waiting.leave()]))

    def _open(self, ids: Sequence[str], submits: Sequence[Submit]) -> Opening | None:
        """Begin a group on all that other nodes did before it; None when another model is to judge it."""
        self.neighbours.fence(submits)
        opening = self._begin(ids)
        self._learn(opening.foreign, opening.replaced)
        if not self._is_newer(opening.model_version):
            return opening
        self._store.abandon()
        self._adopt_model_in_force()
        return None

    def _begin(self, ids: Sequence[str]) -> Opening:
        """Open a group. A node that is far behind takes over what others did part by part, and lets it be heard."""
        while True:
            try:
                return self._store.begin(ids)
            except Behind as behind:
                self._learn_and_tell(behind.records)

    def _submit(
        self,
        channel: Channel,
        submit: Submit,
        known: dict[str, RememberedId],
        records: list[Record],
        now: int,
    ) -> Submit | None:
        """Judge a request; what is left of it when that takes long, for the next group to begin with.

        What was judged of it becomes durable with this group; its one result follows when all of it is (SUBMIT-07).
        """
        results = self._begun.pop(submit.conn, [])
        if not self._owners.has(submit.client_id, submit.conn):
            # Replaced before its turn came (CONN-05): the successor retries.
            self._out.tell(channel, Dropped(submit.conn))
            return None
        judging = self._perf()
        for place, item in enumerate(submit.items):
            if place and self._perf() - judging > self._request_s:
                self._begun[submit.conn] = results
                return msgspec.structs.replace(submit, items=submit.items[place:])
            verdict = judge(item, submit.profile, known, self.states)
            if isinstance(verdict, Commit):
                assert isinstance(item, Candidate)
                record = Record(
                    self._head + len(records) + 1,
                    item.id,
                    submit.client_id,
                    item.partitions,
                    item.event,
                    item.hash,
                    now,
                )
                records.append(record)
                known[item.id] = RememberedId(record.committed_id, record.hash, record.client_id, now)
                self._publish(record, submit.conn)
            elif isinstance(verdict, Reject):
                self.counters.add(f"rejections|{verdict.reason}")
            else:
                self.counters.add("duplicates")
            results.append(result_of(item, verdict, known, now))
        if submit.single:
            self._out.tell(channel, single_outcome(submit, submit.items[0], results[0], known))
        else:
            self._out.tell(channel, BatchOutcome(submit.conn, tuple(results)))
        return None

    def _publish(self, record: Record, origin: int) -> None:
        payload = encode_event(
            record.committed_id,
            record.id,
            record.client_id,
            record.partitions,
            record.event,
            record.status_updated_at,
        )
        self._out.tell_all(EventCommitted(record.committed_id, origin, record.partitions, payload))

    # -- everything that is not a submission ---------------------------------------------------------------

    def _other(self, channel: Channel, message: Message, head: int) -> None:
        match message:
            case AskHead():
                self._out.tell(channel, HeadAnswer(message.ticket, head))
            case Claim():
                self._claim(channel, message, head)
            case Release():
                self._release(message.conn)
            case AskStats():
                self._stats(channel, message)
            case AdminCommand():
                if len(self._orders) < ORDERS_MAX:
                    self._orders.append((channel, message))
                else:
                    self._out.send(
                        channel,
                        [CommandResult(message.ticket, False, b'{"error":"too many orders at once"}')],
                    )
            case Drain():
                self._draining = True
            case _:
                log.error("an authority is not told %s", type(message).__name__)

    def _claim(self, channel: Channel, claim: Claim, head: int) -> None:
        older = self._owners.claim(claim.client_id, claim.conn)
        if older is not None:
            self._out.tell_all(Replaced(older))
        self._out.tell(channel, Claimed(claim.conn, head))

    def _release(self, conn: int) -> None:
        client_id = self._owners.release(conn)
        if client_id is not None:
            self.neighbours.release(client_id, conn)

    # -- other nodes ---------------------------------------------------------------------------------------

    def _learn_news(self, *, fresh: bool) -> None:
        """Hear what other nodes did, and let this node's clients hear it (ORD-02)."""
        while (news := self.neighbours.news(fresh=fresh)) is not None:
            self._learn_and_tell(news.records)
            self._learn((), news.replaced)
            if news.log_epoch not in (None, self._log.log_epoch):
                self._start_anew()
            if news.erased:  # states folded before may hold what was erased
                self.states = self.states.renewed(self.states.model)
            if self._is_newer(news.model_version):
                self._adopt_model_in_force()
            if not news.more:
                break
        self._out.flush()

    def _learn_and_tell(self, records: Sequence[Record]) -> None:
        """As much at a time as a group has: neither memory nor frames grow with how far behind this node is."""
        for portion in in_batches(
            records, lambda record: len(record.event), count_max=GROUP_EVENTS_MAX, bytes_max=GROUP_BYTES_MAX
        ):
            self._learn(portion, ())
            self._out.flush()

    def _learn(self, records: Sequence[Record], replaced: Sequence[int]) -> None:
        if records:
            self.states.follow(records)
            for record in records:
                self._publish(record, origin=0)
            self._head = records[-1].committed_id
            self._clock.saw(records[-1].status_updated_at)
        for conn in replaced:
            self._owners.replaced(conn)
            self._out.tell_all(Replaced(conn))

    def _is_newer(self, version: int | None) -> bool:
        """Versions only rise: what a last look saw may be older than what this node put into force since."""
        own = self.states.model_version
        return version is not None and (own is None or version > own)

    def _adopt_model_in_force(self) -> None:
        """Another node put a newer model into force (MODEL-02)."""
        model = self.neighbours.model_in_force()
        assert model is not None, "a version in force has a model"
        log.info("model version %s came into force on another node", model.version)
        self.adopt(self.states.renewed(model))

    def _start_anew(self) -> None:
        """The log's past may be another now (DUR-08): everybody is let go, and told of it when they come back."""
        self._log = self._store.identity()
        log.warning("the log has log_epoch %d now: clients are let go and start over", self._log.log_epoch)
        self.states = self.states.renewed(self.states.model)
        self._out.tell_only(LogFailed("the log's past may have changed", recovering=True))
        self._out.tell_all(self._offer())

    def _recover(self, error: StoreLost) -> None:
        """The shared log is out of reach: everybody is let go, and back in once it is found again.

        Nothing that was in flight was answered, so nothing is lost: clients retry and deduplication tells.
        """
        log.error("the log is out of reach, clients are let go: %s", error)
        self.counters.set("store_reachable", 0)
        self._waiting.leave()
        self._begun.clear()
        self._queue.extend(self._orders)
        self._orders.clear()
        self._out.tell_only(LogFailed("the log is out of reach", recovering=True))
        self.states = self.states.renewed(self.states.model)
        wait_s = REOPEN_WAIT_S
        released = self._sort_while_lost()
        while not self._draining:
            released += self._collect_while_lost(wait_s)
            try:
                self.neighbours.reopen()
                self._head, self._log = self._store.head(), self._store.identity()
                self._learn_news(fresh=True)
            except StoreLost as again:
                log.warning("the log is still out of reach: %s", again)
                wait_s = min(wait_s * 2, REOPEN_WAIT_MAX_S)
                continue
            log.info("the log is back at %d", self._head)
            self._queue.extend(released)
            self.counters.set("store_reachable", 1)
            self._out.tell_all(self._offer())
            self._out.flush()
            return

    def _collect_while_lost(self, wait_s: float) -> list[tuple[Channel, Message]]:
        """Hear the node and the fronts for a while; what of it has to wait for the log."""
        waiting: list[tuple[Channel, Message]] = []
        until = self._perf() + wait_s
        while (left := until - self._perf()) > 0 and not self._draining:
            self._collect(left)
            waiting += self._sort_while_lost()
        return waiting

    def _sort_while_lost(self) -> list[tuple[Channel, Message]]:
        """Empty the queue: some is done at once, some has to wait for the log.

        Submissions, claims and heads are void: whoever sent them is let go.
        """
        waiting: list[tuple[Channel, Message]] = []
        while self._queue:
            channel, message = self._queue.popleft()
            match message:
                case AskStats():
                    self._stats(channel, message)
                case Drain():
                    self._draining = True
                case Release():
                    waiting.append((channel, message))
                case AdminCommand():
                    report = CommandResult(message.ticket, False, b'{"error":"the log is out of reach"}')
                    self._out.send(channel, [report])
                case _:
                    pass
        return waiting

    def _stats(self, channel: Channel, ask: AskStats) -> None:
        self.counters.set("queue_requests", len(self._queue))
        self.counters.set("parked_requests", len(self._waiting))
        self.counters.set("last_committed_id", self._head)
        self.counters.reset("clock_corrections", self._clock.corrections)
        self.states.report(self.counters)
        self._out.send(channel, [Stats(ask.ticket, self.counters.dump())])

    def _follow_order(self) -> None:
        """Between two groups; an order that needs a long load goes on by a slice each time."""
        channel, order = self._orders[0]
        report = self._obey(self, order)
        if report is not None:
            self._orders.popleft()
            self._out.send(channel, [report])
            self._out.flush()

    def adopt(self, states: States) -> None:
        """Judge by another model from the next group on, and say so to every front (MODEL-02)."""
        old = self.states.model_version
        self.states = states
        self._out.tell_all(ModelChanged(old, self._offer()))

    def _offer(self) -> Offer:
        states = self.states
        return Offer(self._head, states.model_version, states.profiles, states.model_digest, self._log)
