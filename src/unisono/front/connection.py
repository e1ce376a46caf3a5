"""One client connection: messages go into its session; the session's effects become answers, requests or a close."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from unisono.front.auth.verify import Identity
from unisono.front.catchup import CatchUp
from unisono.front.client_sockets import READ_BYTES
from unisono.front.connecting import Connecting
from unisono.front.deadlines import Deadlines
from unisono.front.early_messages import (
    MAX_UNVERIFIED_BYTES,
    MAX_UNVERIFIED_UNSENT_BYTES,
    REFUSED_READ_BYTES,
    UNVERIFIED_READ_BYTES,
)
from unisono.front.history_requests import HistoryRequests
from unisono.front.hub import message_frame
from unisono.front.intake import Intake
from unisono.front.own_presence import OwnPresence
from unisono.front.services import ConnectionOwner, FrontServices, now_ms
from unisono.front.submits import submit_items
from unisono.front.sync_requests import SyncRequests
from unisono.front.websocket import WebSocket
from unisono.protocol.codec import decode, encode_payload
from unisono.protocol.errors import (
    BadRequest,
    CloseCode,
    ServerError,
    WireError,
)
from unisono.protocol.extensions import ATOMIC, IDENTITY, PRESENCE, grant
from unisono.protocol.messages import Connect, Heartbeat
from unisono.protocol.session import (
    Effect,
    Leave,
    ReadHistory,
    Reply,
    Session,
    SessionState,
    StartSync,
    SubmitItems,
    TellPresence,
    Verify,
)

log = logging.getLogger("unisono.front")

T = TypeVar("T")


class ClientConnection(WebSocket):
    """A client's socket, its session and its subscriptions.

    Invariants: `in_flight_items` counts items sent to the authority and not answered yet. While a connect is being
    verified, later messages wait in `_connecting`, in order. What an idle connection does without is made when it is
    needed.
    """

    __slots__ = (
        "_connecting",
        "_deadlines",
        "_messages_sent",
        "_settings",
        "catchup",
        "extensions",
        "history",
        "identity",
        "in_flight_items",
        "intake",
        "number",
        "own_presence",
        "owner",
        "sees_authors",
        "sees_presence",
        "services",
        "session",
        "subscriptions",
        "takes_whole_batches",
        "wants_snapshots",
    )

    def __init__(self, services: FrontServices, owner: ConnectionOwner, number: int) -> None:
        settings = services.settings
        super().__init__(min(MAX_UNVERIFIED_BYTES, settings.max_message_bytes), owner.flush_later)
        self.services = services
        self.owner = owner
        self.number = number
        self.session = Session()
        self.subscriptions: tuple[str, ...] = ()
        self.wants_snapshots = False
        self.extensions: tuple[str, ...] | None = None
        """Those granted at connect; None when the client asked for none (EXT-01)."""
        self.sees_authors = self.sees_presence = self.takes_whole_batches = False
        self.own_presence: OwnPresence | None = None
        self.history: HistoryRequests | None = None
        self.identity: Identity | None = None
        self.in_flight_items = 0
        self.intake: Intake | None = None
        self._settings = settings
        self.catchup: CatchUp | None = None
        self._connecting: Connecting | None = None
        self._deadlines = Deadlines(self, services)
        self._messages_sent = 0

    # -- the socket ----------------------------------------------------------------------------------------

    def on_open(self) -> None:
        self._lend_little(UNVERIFIED_READ_BYTES)
        if not self.owner.admit(self):
            self.leave(CloseCode.OVERLOAD, "too many connections")
            return
        if self.owner.draining:
            self.leave(CloseCode.GOING_AWAY, "server going away")
            return
        if self.owner.offer is None:
            self.fail()
            return
        self._deadlines.opened()

    def on_peer_closed(self) -> None:
        self._lose()
        if self.unsent_bytes:
            self._cut_after_grace()

    def on_gone(self) -> None:
        """From here on nothing may keep a reference to this connection, nor may it refer to itself (LIM-05)."""
        self._lose()
        self._deadlines.close()
        if self._connecting is not None:
            self._connecting.cancel()
        self.catchup = self._connecting = None
        self.owner.forget(self)

    def on_ping_or_pong(self) -> None:
        if self._settings.heartbeat_any_message:
            self._deadlines.beat()

    def on_send_buffer_full(self) -> None:
        self.services.loop.call_soon(self._close_slow_consumer)

    # -- messages ------------------------------------------------------------------------------------------

    def on_message(self, data: bytes) -> None:
        if self._connecting is not None:
            if not self._connecting.add_early(data):
                self.leave(CloseCode.OVERLOAD, "too many messages before connected")
            return
        settings = self._settings
        try:
            try:
                if not data:
                    raise BadRequest("a message is one JSON object in a text frame")
                message = decode(data, settings.max_json_depth, self.extensions or ())
                self.services.requests.messages_in += 1
                if settings.heartbeat_any_message or isinstance(message, Heartbeat):
                    self._deadlines.beat()
                for effect in self.session.receive(message):
                    if isinstance(effect, SubmitItems):
                        submit_items(self, effect, len(data))
                    else:
                        self._perform(effect)
            except WireError as error:
                if isinstance(error, BadRequest):
                    self._read_less()
                self._refuse(error)
        except Exception:
            self.fail_unexpected()

    def _read_less(self) -> None:
        """Something that is no message has come: others are served more often from now on (LIM-07)."""
        if self.session.state is SessionState.AWAIT_CONNECT:
            self._lend_little(REFUSED_READ_BYTES)
        else:
            self.lend(UNVERIFIED_READ_BYTES, self._settings.max_send_buffer_bytes)

    def _lend_little(self, read_bytes: int) -> None:
        """The client is not verified yet (LIM-05)."""
        self.lend(read_bytes, min(MAX_UNVERIFIED_UNSENT_BYTES, self._settings.max_send_buffer_bytes))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Reply():
                if effect.kind == "error":
                    self.services.counters.add(f"errors|{effect.payload['code']}")
                self.send_message(effect.kind, encode_payload(effect.payload))
            case StartSync():
                if self.catchup is None:
                    self.catchup = CatchUp(SyncRequests(self), self._settings)
                self.catchup.start(effect.sync)
            case TellPresence():
                if self.own_presence is None:
                    self.own_presence = OwnPresence(self._settings.presence_per_s, self.services.loop.time())
                self.own_presence.set(self, effect.presence)
            case ReadHistory():
                self.history = self.history or HistoryRequests()
                self.history.start(self, effect.asked)
            case Verify():
                self._connecting = Connecting(self)
                self._connecting.start(effect.connect)
            case Leave():
                self._leave(effect)

    def _refuse(self, error: WireError) -> None:
        for effect in self.session.refuse(error):
            self._perform(effect)

    def guard(self, work: Callable[[], None]) -> None:
        """Do something for this connection; an unexpected error ends this one only (ERR-03)."""
        try:
            work()
        except Exception:
            self.fail_unexpected()

    def fail_unexpected(self) -> None:
        """End this connection because of the exception that is being handled."""
        self.log_unexpected("unexpected error")
        self.fail()

    def while_active(self, on_answer: Callable[[T], None]) -> Callable[[T], None]:
        """A callback that does nothing once the connection is closing."""

        def guarded(value: T) -> None:
            if self.session.state is SessionState.ACTIVE:
                self.guard(lambda: on_answer(value))

        return guarded

    def fail(self, error: WireError | None = None) -> None:
        """End this connection with an error; the others go on (ERR-03)."""
        if self.session.state is not SessionState.CLOSED:
            self._refuse(error or ServerError())

    def leave(self, code: CloseCode, reason: str) -> None:
        if self.session.state is not SessionState.CLOSED:
            for effect in self.session.leave(code, reason):
                self._perform(effect)

    def log_unexpected(self, what: str) -> None:
        log.exception("connection %d: %s", self.number, what, extra={"connection": self.number})

    # -- connect -------------------------------------------------------------------------------------------

    def claim(self, connect: Connect, identity: Identity, on_claimed: Callable[[int], None]) -> None:
        """The token is good: claim the client_id; `on_claimed` gets the head of the log."""
        self.identity = identity
        self.wants_snapshots = connect.snapshots is True and self._settings.max_sync_snapshot_bytes > 0
        if connect.extensions is not None:
            self.extensions = extensions = grant(connect.extensions) or ()
            self.sees_authors = IDENTITY in extensions
            self.sees_presence = PRESENCE in extensions
            self.takes_whole_batches = ATOMIC in extensions
        claims = self.services.requests.claims
        claims.claim(self.number, identity.client_id, self.owner.replace, on_claimed)

    def connected(self, identity: Identity, profile: str, head: int) -> None:
        """The client_id is this connection's: tell the client, and take what it has sent since."""
        if self.session.state is not SessionState.AWAIT_CONNECT:
            return
        offer = self.owner.offer
        assert offer is not None, "a connection is closed when the offer is withdrawn"
        self.session.verified(identity.client_id, profile)
        self.max_message_bytes = self._settings.max_message_bytes
        self.lend(READ_BYTES, self._settings.max_send_buffer_bytes)
        payload = self.services.connected_answers.payload(self, offer, identity, head, now_ms())
        self.send_message("connected", payload)
        self._deadlines.verified()
        connecting, self._connecting = self._connecting, None
        while connecting is not None and not self._leaving and (data := connecting.take_early()) is not None:
            self.on_message(data)

    # -- answers -------------------------------------------------------------------------------------------

    def answer(self, kind: str, payload: bytes, items: int) -> None:
        """Answer the oldest request in flight, which had so many items, with the authority's outcome."""
        if self.identity is None:
            return  # dropped when the connection began to close
        self.in_flight_items -= items
        self.send_message(kind, payload)
        if self._ignores_messages:
            self._finish_drain()

    def answer_sync(self, payload: bytes) -> None:
        self.send_message("sync_response", payload)
        self.answered_page()

    def answered_page(self) -> None:
        self.services.loop.call_soon(self._finish_drain)

    def forget_access(self) -> None:
        """Access has changed: nothing counts any more of what was found allowed."""
        self.intake = None

    # -- ending --------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Ignore further messages; leave once everything in flight is answered."""
        self._ignores_messages = True
        self._finish_drain()

    @property
    def syncing(self) -> bool:
        """Whether a sync, or a request for history, is being answered."""
        return (self.catchup is not None and self.catchup.busy) or (
            self.history is not None and self.history.busy
        )

    def _finish_drain(self) -> None:
        if self._ignores_messages and not self.in_flight_items and not self.syncing:
            self.leave(CloseCode.GOING_AWAY, "server going away")

    def _close_slow_consumer(self) -> None:
        if self.session.state is not SessionState.CLOSED:
            self._leaving = False
            self.leave(CloseCode.SLOW_CONSUMER, "too slow; sync to catch up")

    def _leave(self, effect: Leave) -> None:
        self._release()
        self.services.counters.add(f"closes|{int(effect.code)}")
        if self.close(int(effect.code), effect.reason):
            self._cut_after_grace()

    def _cut_after_grace(self) -> None:
        """Cut the socket when the client does not answer the close, or does not take what was sent before it."""
        self._deadlines.closing()

    def _lose(self) -> None:
        if self.session.state is not SessionState.CLOSED:
            self.session.lost()
        self._release()

    def _release(self) -> None:
        """Give up the subscriptions, the syncs and the claim, once (CONN-06, CONN-08)."""
        if self.sees_presence:
            self.services.presence.forget(self.number, self.subscriptions)
        if self.own_presence is not None:
            self.own_presence.leave(self)
        if self.subscriptions:
            self.services.hub.subscribe(self, ())
        if self.catchup is not None:
            self.catchup.give_up()
        if self.history is not None:
            self.history.give_up(self)
        if self.identity is not None:
            self.services.requests.release(self.number, self.identity.client_id)
            self.identity = self.intake = None
        self.in_flight_items = 0

    # -- sending -------------------------------------------------------------------------------------------

    def send_message(self, kind: str, payload: bytes) -> None:
        """Send one message; also for messages without a request, such as version_changed."""
        self._messages_sent += 1
        self.send(message_frame(kind, f"s{self._messages_sent}", now_ms(), payload))
