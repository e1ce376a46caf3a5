"""One connection: whole messages → session, and the session's effects → messages, requests, an end."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from unisono.front.auth.verify import Identity
from unisono.front.backpressure import RETRY_MS
from unisono.front.catchup import Ask, CatchUp
from unisono.front.heartbeats import PING_FRAME, missed, ping_every
from unisono.front.hub import text_frame
from unisono.front.intake import check_shape, named_partitions, prepare
from unisono.front.timers import Timer
from unisono.front.websocket import WebSocket
from unisono.ipc.messages import (
    AskPage,
    BatchOutcome,
    Candidate,
    PageResult,
    SingleOutcome,
    SnapshotStart,
    Submit,
)
from unisono.protocol.codec import decode, encode, encode_payload
from unisono.protocol.errors import AuthFailed, BadRequest, CloseCode, RateLimited, ServerError, WireError
from unisono.protocol.messages import Connect, Heartbeat, Sync
from unisono.protocol.profiles import negotiate
from unisono.protocol.session import (
    Effect,
    Leave,
    Reply,
    Session,
    SessionState,
    StartSync,
    SubmitItems,
    Verify,
)
from unisono.vocabulary import LogIdentity

if TYPE_CHECKING:
    from unisono.front.server import Front

log = logging.getLogger("unisono.front")

T = TypeVar("T")

MAX_UNVERIFIED_BYTES = 64 * 1024
"""Bytes of a message before `connected`, and of all that are held behind a connect: nobody has proven anything yet,
so little memory is lent (LIM-07)."""

MAX_EARLY_MESSAGES = 64
"""Messages a client may send behind its connect before it is answered; one more is overload (CONN-02)."""


class ClientConnection(WebSocket):
    """A client's socket, its session and its place in the hub.

    Invariants: in-flight counts are of requests handed to the authority and not answered yet; while a connect is
    being verified messages are held, in order.
    """

    def __init__(self, front: Front, number: int) -> None:
        super().__init__(
            max_message_bytes=min(MAX_UNVERIFIED_BYTES, front.settings.max_message_bytes),
            max_unsent_bytes=front.settings.max_send_buffer_bytes,
            flush_later=front.flush_later,
            read_buffer=front.read_buffer,
        )
        self._front = front
        self.number = number
        self.session = Session()
        self.subscriptions: tuple[str, ...] = ()
        self.wants_snapshots = False
        self.identity: Identity | None = None
        self.in_flight_items = 0
        self._requests: deque[int] = deque()
        self._catchup: CatchUp | None = CatchUp(self, front.settings)
        self._held: deque[bytes] | None = None
        self._verifying: asyncio.Task[None] | None = None
        self._timers: list[Timer] = []
        self._asked = 0
        self._sent = 0
        now = front.loop.time()
        self._heartbeat_by = now + front.settings.heartbeat_timeout_s

    # -- the socket ----------------------------------------------------------------------------------------

    def opened(self) -> None:
        if not self._front.admit(self):
            self.leave(CloseCode.OVERLOAD, "too many connections")
            return
        if self._front.draining:
            self.leave(CloseCode.GOING_AWAY, "server going away")
            return
        if not self._front.serving:
            self.fail()
            return
        self._at(self._heartbeat_by, self._heartbeat_due)
        if self._front.settings.heartbeat_any_message:
            self._at(self._front.loop.time(), self._ping_due)
        self._at(self._front.loop.time() + self._front.settings.handshake_timeout_s, self._handshake_due)

    def left(self) -> None:
        if self.session.state is not SessionState.CLOSED:
            self.session.lost()
        self._let_go()
        self._cut_after_grace()

    def ended(self, code: int | None) -> None:
        """Nothing that lasts may hold this connection from here on, nor may it hold itself (LIM-05)."""
        if code is not None:
            self._front.counters.add(f"closes|{code}")
        for timer in self._timers:
            self._front.timers.cancel(timer)
        self._timers.clear()
        if self._verifying is not None:
            self._verifying.cancel()
            self._verifying = None
        self._catchup = self._held = None
        self._front.forget(self)

    def alive(self) -> None:
        if self._front.settings.heartbeat_any_message:
            self._heartbeat_by = self._front.loop.time() + self._front.settings.heartbeat_timeout_s

    def _at(self, when: float, call: Callable[[float], float | None]) -> None:
        self._timers.append(self._front.timers.at(when, call))

    def fell_behind(self) -> None:
        self._front.loop.call_soon(self._too_slow)

    # -- messages ------------------------------------------------------------------------------------------

    def heard(self, data: bytes) -> None:
        if self._held is not None:
            self._hold(data)
        else:
            self.guard(lambda: self._handle(data))

    def _hold(self, data: bytes) -> None:
        assert self._held is not None
        size = sum(map(len, self._held)) + len(data)
        if len(self._held) >= MAX_EARLY_MESSAGES or size > self.max_message_bytes:
            self.leave(CloseCode.OVERLOAD, "too many messages before connected")
        else:
            self._held.append(data)

    def _handle(self, data: bytes) -> None:
        settings = self._front.settings
        try:
            if not data:
                raise BadRequest("a message is one JSON object in a text frame")
            message = decode(data, depth_max=settings.max_json_depth)
            self._front.counters.add("messages_in")
            if isinstance(message, Heartbeat) or settings.heartbeat_any_message:
                self._heartbeat_by = self._front.loop.time() + settings.heartbeat_timeout_s
            for effect in self.session.receive(message):
                self._perform(effect, len(data))
        except WireError as error:
            self._refuse(error)

    def _perform(self, effect: Effect, size: int) -> None:
        match effect:
            case Reply():
                if effect.kind == "error":
                    self._front.counters.add(f"errors|{effect.payload['code']}")
                self._reply(effect.kind, encode_payload(effect.payload))
            case SubmitItems():
                self._submit(effect, size)
            case StartSync():
                self._sync(effect.sync)
            case Verify():
                self._held = deque()
                self._verifying = self._front.spawn(self._verify(effect.connect))
            case Leave():
                self._leave(effect)

    def _refuse(self, error: WireError) -> None:
        for effect in self.session.refuse(error):
            self._perform(effect, 0)

    def guard(self, work: Callable[[], None]) -> None:
        """Do something for this connection; an unexpected error ends this one only (ERR-03)."""
        try:
            work()
        except Exception:
            log.exception("connection %d: unexpected error", self.number, extra={"connection": self.number})
            self.fail()

    def fail(self, error: WireError | None = None) -> None:
        """Something unexpected: this connection ends, the others go on (ERR-03)."""
        if self.session.state is not SessionState.CLOSED:
            self._refuse(error or ServerError())

    def leave(self, code: CloseCode, reason: str) -> None:
        if self.session.state is not SessionState.CLOSED:
            for effect in self.session.leave(code, reason):
                self._perform(effect, 0)

    # -- connect -------------------------------------------------------------------------------------------

    async def _verify(self, connect: Connect) -> None:
        front = self._front
        try:
            identity = await front.verifier.verify(connect.token, connect.client_id, front.now_ms() / 1000)
            if self.session.state is not SessionState.AWAIT_CONNECT:
                return
            profile = negotiate(connect, front.offered_profiles(), front.settings.default_profile)
        except WireError as error:
            if self.session.state is SessionState.AWAIT_CONNECT:
                self._refuse(error)
            return
        except Exception:
            log.exception(
                "connection %d: unexpected error while verifying its token",
                self.number,
                extra={"connection": self.number},
            )
            self.fail()
            return
        self.identity = identity
        self.wants_snapshots = connect.snapshots is True and front.settings.max_sync_snapshot_bytes > 0
        front.claim(self, lambda head: self.guard(lambda: self._claimed(identity, profile, head)))

    def _claimed(self, identity: Identity, profile: str, head: int) -> None:
        if self.session.state is not SessionState.AWAIT_CONNECT:
            return
        front = self._front
        effects = self.session.verified(
            identity.client_id,
            profile,
            accepted_event_types=front.accepted_event_types(profile),
            server_time=front.now_ms(),
            head=head,
            limits=front.limits,
            model_version=front.model[0],
            model_digest=front.model[1],
            log=front.log,
            snapshots=self.wants_snapshots,
        )
        self.max_message_bytes = front.settings.max_message_bytes
        for effect in effects:
            self._perform(effect, 0)
        self._at(front.loop.time(), self._expiry_due)
        held, self._held = self._held, None
        while held and not self._leaving:
            self.heard(held.popleft())

    # -- submit --------------------------------------------------------------------------------------------

    def _submit(self, submit: SubmitItems, size: int) -> None:
        front, settings, identity = self._front, self._front.settings, self.identity
        assert identity is not None
        assert self.session.profile is not None
        check_shape(submit.items, settings, single=submit.single)
        named = [named_partitions(item.partitions, item.partition, settings) for item in submit.items]
        count = len(submit.items)
        if self.in_flight_items + count > settings.max_in_flight_drafts:
            raise RateLimited(f"more than {settings.max_in_flight_drafts} drafts in flight", RETRY_MS)
        front.check_pressure(count, size)
        front.check_rate(identity.client_id, count)
        items = tuple(
            prepare(item, names, identity, front.access, settings.max_message_bytes)
            for item, names in zip(submit.items, named, strict=True)
        )
        written = sum(len(item.event) for item in items if isinstance(item, Candidate))
        if count > 1 and written > settings.max_message_bytes:
            raise BadRequest(
                f"the events of this request have {written} bytes in canonical form,"
                f" at most {settings.max_message_bytes} are allowed; send them in several requests"
            )
        size = max(size, written)
        self.in_flight_items += count
        self._requests.append(count)
        front.submit(
            Submit(self.number, identity.client_id, self.session.profile, submit.single, items), size
        )

    def answer(self, outcome: BatchOutcome | SingleOutcome) -> None:
        """The authority's word on the oldest request in flight."""
        if not self._requests:
            return  # given up when the connection began to close
        self.in_flight_items -= self._requests.popleft()
        if isinstance(outcome, BatchOutcome):
            self._reply("submit_events_result", encode_payload({"results": outcome.results}))
        else:
            self._reply("event_committed" if outcome.committed else "event_rejected", outcome.payload)
        self._finish_drain()

    # -- sync (the Host of a CatchUp) ----------------------------------------------------------------------

    def _sync(self, sync: Sync) -> None:
        assert self._catchup is not None, "a connection that hears has not ended"
        self._catchup.start(sync)

    def denied(self, partitions: tuple[str, ...]) -> list[str]:
        assert self.identity is not None
        return self._front.access.denied(self.identity, partitions)

    def subscribe(self, partitions: tuple[str, ...]) -> None:
        self._front.hub.subscribe(self, partitions)

    def admit_sync(self, size: int) -> None:
        self._front.admit_sync(size)

    def settle_sync(self, size: int) -> None:
        self._front.settle_sync(size)

    def cancel_sync(self, size: int) -> None:
        self._front.cancel_sync(self._asked, size)

    def ask_head(self, then: Callable[[int], None]) -> None:
        self._asked = self._front.ask_head(self._while_open(then))

    def ask_page(
        self, ask: Ask, upto: int, floors: dict[str, int] | None, then: Callable[[PageResult], None]
    ) -> None:
        def answered(page: PageResult | None) -> None:
            if page is None:
                self.fail()
            else:
                then(page)

        settings = self._front.settings
        # A page must leave room in the send buffer, or a slow link could never take one.
        room = settings.max_send_buffer_bytes // 2
        bytes_max = min(settings.max_sync_page_bytes, room)
        start = None
        if floors is None:
            version, digest = self.model()
            start = SnapshotStart(version, min(settings.max_sync_snapshot_bytes, room), room, digest)
        self._asked = self._front.ask_page(
            lambda ticket: AskPage(
                ticket,
                ask.partitions,
                ask.since,
                upto,
                ask.limit,
                bytes_max,
                floors or {},
                start,
                self.log(),
            ),
            self._while_open(answered),
        )

    def answer_sync(self, payload: bytes) -> None:
        self._reply("sync_response", payload)
        self._front.loop.call_soon(self._finish_drain)

    def model(self) -> tuple[int | None, str]:
        return self._front.model

    def log(self) -> LogIdentity | None:
        return self._front.log

    def _while_open(self, then: Callable[[T], None]) -> Callable[[T], None]:
        """An answer that comes when the connection is closing changes nothing any more."""

        def guarded(value: T) -> None:
            if self.session.state is SessionState.ACTIVE:
                self.guard(lambda: then(value))

        return guarded

    # -- timers: each returns its next time, or None -------------------------------------------------------

    def _heartbeat_due(self, now: float) -> float | None:
        if self.session.state is SessionState.CLOSED:
            return None
        if self._heartbeat_by > now:
            return self._heartbeat_by
        self.leave(CloseCode.TIMEOUT, missed(self._front.settings.heartbeat_timeout_s))
        return None

    def _ping_due(self, now: float) -> float | None:
        """Where every message counts as a heartbeat a pong does too: whoever cannot send any is asked for one."""
        if self.session.state is SessionState.CLOSED:
            return None
        self.send(PING_FRAME)
        return now + ping_every(self._front.settings.heartbeat_timeout_s)

    def _handshake_due(self, now: float) -> None:  # noqa: ARG002
        if self.session.state is SessionState.AWAIT_CONNECT:
            self.leave(CloseCode.TIMEOUT, "no connect")

    def _expiry_due(self, now: float) -> float | None:
        """AUTH-04: by the wall clock, so a timer that fires early waits for the rest.

        It never waits longer than for a heartbeat, so that a clock that is set forward is noticed.
        """
        if self.session.state is SessionState.CLOSED or self.identity is None:
            return None
        front = self._front
        left_s = self.identity.expires_at_s + front.settings.jwt_leeway_s - front.now_ms() / 1000
        if left_s > 0:
            return now + min(left_s, front.settings.heartbeat_timeout_s)
        self._refuse(AuthFailed("the token has expired; connect again with a new one"))
        return None

    def _grace_over(self, now: float) -> None:  # noqa: ARG002
        self.cut()

    # -- ending --------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Hear nothing more; leave once what is in flight is answered."""
        self._deaf = True
        self._finish_drain()

    def _finish_drain(self) -> None:
        busy = self._catchup is not None and self._catchup.busy
        if self._deaf and not self.in_flight_items and not busy:
            self.leave(CloseCode.GOING_AWAY, "server going away")

    def _too_slow(self) -> None:
        if self.session.state is not SessionState.CLOSED:
            self._leaving = False
            self.leave(CloseCode.SLOW_CONSUMER, "too slow; sync to catch up")

    def _leave(self, effect: Leave) -> None:
        self._let_go()
        self._front.counters.add(f"closes|{int(effect.code)}")
        if self.close(int(effect.code), effect.reason):
            self._cut_after_grace()

    def _cut_after_grace(self) -> None:
        """Whoever does not answer a close, or does not take what was said before it, is not waited for."""
        grace_s = self._front.settings.close_grace_s
        self._at(self._front.loop.time() + grace_s, self._grace_over)

    def _let_go(self) -> None:
        """Give up the subscriptions, the syncs and the claim, once (CONN-06, CONN-08)."""
        self._front.hub.subscribe(self, ())
        if self._catchup is not None:
            self._catchup.give_up()
        if self.identity is not None:
            self._front.release(self)
            self.identity = None
        self._requests.clear()
        self.in_flight_items = 0

    # -- sending -------------------------------------------------------------------------------------------

    def _reply(self, kind: str, payload: bytes) -> None:
        self._sent += 1
        self.send(text_frame(encode(kind, f"s{self._sent}", self._front.now_ms(), payload)))

    def tell(self, kind: str, payload: bytes) -> None:
        """A message nobody asked for, such as version_changed."""
        self._reply(kind, payload)


def leave_all(connections: Iterable[ClientConnection], error: WireError) -> None:
    """The node cannot go on: everybody is told and closed (DUR-04)."""
    for connection in list(connections):
        connection.fail(error)
