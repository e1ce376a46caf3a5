"""A real authority in a thread, and the ends of its channels: the node's, and one or more fronts'.

The log is a real SQLite log, the channels are real socket pairs. What a front receives is kept in the order it
came, so that a test can wait for one message and still look at all that came before it.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from tests.waiting import PATIENCE_S
from unisono.authority.admin_commands import AdminCommands
from unisono.authority.clock import Clock
from unisono.authority.cluster_view import ClusterView
from unisono.authority.loop import Authority
from unisono.authority.states.resident import States
from unisono.config import Settings
from unisono.ipc.channel import Channel, ChannelClosed, socket_pair
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
    EventCommitted,
    HeadAnswer,
    Message,
    Offer,
    Ready,
    RefusedItem,
    SingleOutcome,
    Stats,
    Submit,
)
from unisono.ipc.stats import CounterValues as Figures
from unisono.ipc.stats import parse
from unisono.model.model import COMPATIBILITY, Model, no_model
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import CommitLog
from unisono.store.sqlite.log import SqliteLog, SqliteReader
from unisono.vocabulary import FieldError

STATES_BYTES = 64 * 1024 * 1024

M = TypeVar("M", bound=Message)
L = TypeVar("L", bound=CommitLog)
_serial = count(1)


def new_id(prefix: str = "evt") -> str:
    """An event id that no other call in this process gives."""
    return f"{prefix}-{os.getpid()}-{next(_serial)}"


def candidate(partitions: Sequence[str], event: Any, id: str | None = None) -> Candidate:
    """An item as a front hands it over."""
    body, names = canonical(event), tuple(sorted(partitions, key=str.encode))
    return Candidate(id or new_id(), names, body, content_hash(body, canonical(list(names))))


def put(target: str, value: Any) -> Any:
    """An event that is valid in any state the tests make, as often as you like."""
    return {"type": "set", "payload": {"target": target, "value": value, "options": {"replace": True}}}


def push(id: str, target: str = "explorer", **options: Any) -> Any:
    return {"type": "treePush", "payload": {"target": target, "value": {"id": id}, "options": options}}


def note(schema: str, **data: Any) -> Any:
    return {"type": "event", "payload": {"schema": schema, "data": data}}


class ItemResult(msgspec.Struct, frozen=True):
    """One entry of a `submit_events_result`."""

    id: str
    status: Literal["committed", "rejected"]
    status_updated_at: int
    committed_id: int | None = None
    reason: str | None = None
    errors: tuple[FieldError, ...] | None = None


class _Results(msgspec.Struct, frozen=True):
    results: tuple[ItemResult, ...]


def results_of(outcome: BatchOutcome) -> tuple[ItemResult, ...]:
    return msgspec.json.decode(outcome.payload, type=_Results).results


class End:
    """One side of a channel, with everything that came through it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.received: list[Message] = []
        self._taken: set[int] = set()

    def send(self, *messages: Message) -> None:
        self.channel.send(messages)

    def wait(self, wanted: Callable[[Message], bool]) -> Message:
        """The first message not waited for before that is wanted; AssertionError when none comes."""
        deadline, looked_at = time.monotonic() + PATIENCE_S, 0
        while True:
            for index in range(looked_at, len(self.received)):
                if index not in self._taken and wanted(self.received[index]):
                    self._taken.add(index)
                    return self.received[index]
            looked_at = len(self.received)
            left = deadline - time.monotonic()
            assert left > 0, f"no answer; the last messages were {self.received[-3:]}"
            if select.select([self.channel], [], [], left)[0]:
                self.received += self.channel.receive()

    def of(self, kind: type[M], matching: Callable[[M], bool] = lambda _: True) -> M:
        found = self.wait(lambda message: isinstance(message, kind) and matching(message))
        assert isinstance(found, kind)
        return found

    def rest(self) -> list[Message]:
        """Everything received until the other side ends, from the beginning."""
        while True:
            assert select.select([self.channel], [], [], PATIENCE_S)[0], "it does not end"
            try:
                self.received += self.channel.receive()
            except ChannelClosed:
                return self.received

    def forget(self) -> list[Message]:
        """Return everything received so far, and forget it."""
        received, self.received, self._taken = self.received, [], set()
        return received

    def close(self) -> None:
        self.channel.close()


class FrontEnd(End):
    """A front, as the authority sees it."""

    def connect(self, client_id: str | None = None) -> Caller:
        """Claim a client_id with a connection of its own, and wait until the claim stands."""
        caller = self.caller(client_id or new_id("client"))
        self.send(Claim(caller.conn, caller.client_id))
        self.head()  # an only front gets no other answer
        return caller

    def caller(self, client_id: str) -> Caller:
        return Caller(self, next(_serial), client_id)

    def head(self) -> int:
        ticket = next(_serial)
        self.send(AskHead(ticket))
        return self.of(HeadAnswer, lambda head: head.ticket == ticket).committed_id

    def committed(self) -> list[EventCommitted]:
        return [message for message in self.received if isinstance(message, EventCommitted)]


class Caller:
    """One connection behind a front."""

    def __init__(self, front: FrontEnd, conn: int, client_id: str) -> None:
        self.front, self.conn, self.client_id = front, conn, client_id

    def request(
        self, *items: Candidate | RefusedItem, profile: str = COMPATIBILITY, single: bool = False
    ) -> Submit:
        event_bytes = sum(len(item.event) for item in items if isinstance(item, Candidate))
        return Submit(self.conn, self.client_id, profile, single, items, event_bytes)

    def send(self, *items: Candidate | RefusedItem, profile: str = COMPATIBILITY) -> None:
        self.front.send(self.request(*items, profile=profile))

    def results(self) -> tuple[ItemResult, ...]:
        """The answer to the oldest request that was not looked at yet."""
        return results_of(self.front.of(BatchOutcome, lambda outcome: outcome.conn == self.conn))

    def submit(self, *items: Candidate | RefusedItem, profile: str = COMPATIBILITY) -> tuple[ItemResult, ...]:
        self.send(*items, profile=profile)
        return self.results()

    def submit_single(self, item: Candidate | RefusedItem) -> SingleOutcome | EventCommitted:
        """The answer to a `submit_event`; a new event is its own."""
        self.front.send(self.request(item, single=True))
        answer = self.front.wait(self._is_answer)
        assert isinstance(answer, SingleOutcome | EventCommitted)
        return answer

    def _is_answer(self, message: Message) -> bool:
        match message:
            case SingleOutcome():
                return message.conn == self.conn
            case EventCommitted():
                return message.answers and message.origin == self.conn
        return False


class Seat(Generic[L]):
    """An authority at work on a log. `failure` is what ended it, if anything did."""

    def __init__(
        self,
        store: L,
        states: States,
        fronts: int,
        now_ms: Callable[[], int],
        cluster: ClusterView | None = None,
        **bounds: float,
    ) -> None:
        node, self._node_socket = socket_pair()
        pairs = [socket_pair() for _ in range(fronts)]
        self._inside = [self._node_socket, *(inside for _, inside in pairs)]
        self.node = End(Channel(node))
        self.fronts = [FrontEnd(Channel(outside)) for outside, _ in pairs]
        self.store = store
        self.failure: BaseException | None = None
        self.authority = Authority(
            store,
            states,
            node=Channel(self._node_socket),
            fronts=[Channel(inside) for _, inside in pairs],
            clock=Clock(now_ms, store.last_status_updated_at()),
            perf=time.perf_counter,
            execute=AdminCommands(Settings()).execute,
            cluster=cluster,
            tracer=None,
            **bounds,
        )
        self._thread = threading.Thread(target=self._run, name="authority", daemon=True)

    def _run(self) -> None:
        try:
            self.authority.run()
        except BaseException as error:
            self.failure = error
        finally:
            for sock in self._inside:
                sock.close()

    @property
    def front(self) -> FrontEnd:
        return self.fronts[0]

    def start(self) -> None:
        self._thread.start()
        self.node.of(Ready)
        for front in self.fronts:
            front.of(Offer)

    def stats(self) -> Figures:
        ticket = next(_serial)
        self.node.send(AskStats(ticket))
        return parse(self.node.of(Stats, lambda stats: stats.ticket == ticket).body)

    def command(self, command: str, argument: str) -> tuple[bool, Any]:
        ticket = next(_serial)
        self.node.send(AdminCommand(ticket, command, argument))
        report = self.node.of(CommandResult, lambda report: report.ticket == ticket)
        return report.ok, msgspec.json.decode(report.body)

    def drain(self) -> None:
        """Have it end, and wait until it has; it may have ended already."""
        with suppress(ChannelClosed):
            self.node.send(Drain())
        self.join()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the authority does not end"

    def close(self) -> None:
        self.node.close()
        for front in self.fronts:
            front.close()
        self.store.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def seated_on(
    store: L,
    model: Model | None = None,
    *,
    fronts: int = 1,
    states_bytes: int = STATES_BYTES,
    snapshot_every: int = 0,
    now_ms: Callable[[], int] = now_ms,
    fails: bool = False,
    cluster: ClusterView | None = None,
    rule_timeout_s: float | None = None,
    **bounds: float,
) -> Iterator[Seat[L]]:
    """An authority on a log, both drained and closed at the end; `fails`: it is meant to fail.

    `bounds` are those of a group's time.
    """
    states = States(
        model or no_model(),
        store,
        bytes_max=states_bytes,
        snapshot_every=snapshot_every,
        now_ms=now_ms,
        rule_timeout_s=rule_timeout_s,
    )
    seat = Seat(store, states, fronts, now_ms, cluster, **bounds)
    try:
        seat.start()
        yield seat
        seat.drain()
        assert (seat.failure is not None) == fails, seat.failure
    finally:
        seat.node.close()  # whatever happened, the authority ends with its node
        seat.join()
        seat.close()


def seated(data: Path, model: Model | None = None, **more: Any) -> AbstractContextManager[Seat[SqliteLog]]:
    """An authority on the log in `data`; see `seated_on`."""
    return seated_on(SqliteLog.open(data), model, **more)


@contextmanager
def reading(data: Path) -> Iterator[SqliteReader]:
    """A reader of its own on the log in `data`."""
    reader = SqliteReader.open(data)
    try:
        yield reader
    finally:
        reader.close()


def check_order(received: list[Message]) -> int:
    """BCAST-03, BCAST-06 and SYNC-06 on one channel; the number of commits received."""
    commits = 0
    answered: dict[int, int] = {}
    for message in received:
        match message:
            case EventCommitted(committed_id=committed_id):
                commits += 1
                assert committed_id == commits
            case HeadAnswer(committed_id=head) | Claimed(head=head):
                assert head == commits, "a head stands where it is exact"
            case BatchOutcome(conn=conn):
                ids = [r.committed_id for r in results_of(message) if r.committed_id is not None]
                assert ids == sorted(ids), "SUBMIT-03"
                assert all(committed_id <= commits for committed_id in ids), "received after its broadcast"
                assert not ids or ids[0] > answered.get(conn, 0), "SUBMIT-09"
                answered[conn] = ids[-1] if ids else answered.get(conn, 0)
    return commits
