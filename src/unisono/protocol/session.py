"""The life of one connection: what it may do now, and what happens when it does (CONN-*).

`TRANSITIONS` is the state table of the protocol, kept as data. `Session` is the only writer of its state: it
is handed what came in (`receive`) or what happened (`verified`, `refuse`, `expired`, …) and answers with
effects, which the transport performs. No socket, no clock, no key is touched here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final, TypeAlias

import msgspec

from unisono.protocol.errors import AuthFailed, BadRequest, CloseCode, WireError
from unisono.protocol.messages import (
    AskHistory,
    Connect,
    Disconnect,
    Heartbeat,
    Item,
    Message,
    SetPresence,
    SubmitEvent,
    SubmitEvents,
    SubmitMaybeAtomic,
    Sync,
)
from unisono.vocabulary import JsonObject


class SessionState(Enum):
    """Where a connection is in its life."""

    __hash__ = object.__hash__  # members are single objects; Enum's own hash is a call of Python code

    AWAIT_CONNECT = auto()
    ACTIVE = auto()
    CLOSED = auto()


class Input(Enum):
    """What can happen to a connection, as finely as the table distinguishes it."""

    __hash__ = object.__hash__

    CONNECT_ACCEPTED = auto()
    CONNECT_REFUSED = auto()
    HEARTBEAT = auto()
    OUT_OF_TURN = auto()
    DISCONNECT = auto()
    SUBMIT = auto()
    SYNC = auto()
    PRESENCE = auto()
    HISTORY = auto()
    REFUSED_OPEN = auto()
    REFUSED_CLOSING = auto()
    LOST = auto()


TRANSITIONS: Final[Mapping[tuple[SessionState, Input], SessionState]] = {
    (SessionState.AWAIT_CONNECT, Input.CONNECT_ACCEPTED): SessionState.ACTIVE,
    (SessionState.AWAIT_CONNECT, Input.CONNECT_REFUSED): SessionState.CLOSED,
    (SessionState.AWAIT_CONNECT, Input.HEARTBEAT): SessionState.AWAIT_CONNECT,
    (SessionState.AWAIT_CONNECT, Input.OUT_OF_TURN): SessionState.AWAIT_CONNECT,
    (SessionState.AWAIT_CONNECT, Input.REFUSED_OPEN): SessionState.AWAIT_CONNECT,
    (SessionState.AWAIT_CONNECT, Input.REFUSED_CLOSING): SessionState.CLOSED,
    (SessionState.AWAIT_CONNECT, Input.LOST): SessionState.CLOSED,
    (SessionState.ACTIVE, Input.HEARTBEAT): SessionState.ACTIVE,
    (SessionState.ACTIVE, Input.OUT_OF_TURN): SessionState.ACTIVE,
    (SessionState.ACTIVE, Input.DISCONNECT): SessionState.CLOSED,
    (SessionState.ACTIVE, Input.SUBMIT): SessionState.ACTIVE,
    (SessionState.ACTIVE, Input.SYNC): SessionState.ACTIVE,
    (SessionState.ACTIVE, Input.PRESENCE): SessionState.ACTIVE,
    (SessionState.ACTIVE, Input.HISTORY): SessionState.ACTIVE,
    (SessionState.ACTIVE, Input.REFUSED_OPEN): SessionState.ACTIVE,
    (SessionState.ACTIVE, Input.REFUSED_CLOSING): SessionState.CLOSED,
    (SessionState.ACTIVE, Input.LOST): SessionState.CLOSED,
    (SessionState.CLOSED, Input.LOST): SessionState.CLOSED,
}


class IllegalStep(Exception):
    """A (state, input) pair that the table does not have; the session is unchanged."""


class Reply(msgspec.Struct, frozen=True):
    """Send one message with this payload."""

    kind: str
    payload: JsonObject


class Verify(msgspec.Struct, frozen=True):
    """Check the token and the profile, then call `verified` or `refuse`."""

    connect: Connect


class SubmitItems(msgspec.Struct, frozen=True):
    """Have these items judged. `single`: asked by `submit_event`, to be answered in that generation's words.

    `atomic`: commit all of them or none (EXT-10).
    """

    items: Sequence[Item]
    single: bool
    atomic: bool = False


class StartSync(msgspec.Struct, frozen=True):
    """Answer this sync."""

    sync: Sync


class TellPresence(msgspec.Struct, frozen=True):
    """Tell others what this connection says of itself."""

    presence: SetPresence


class ReadHistory(msgspec.Struct, frozen=True):
    """Answer this request for history."""

    asked: AskHistory


class Leave(msgspec.Struct, frozen=True):
    """Drop the subscriptions and close the socket with this code."""

    code: CloseCode
    reason: str


Effect: TypeAlias = Reply | Verify | SubmitItems | StartSync | TellPresence | ReadHistory | Leave

_ACK: Final = (Reply("heartbeat_ack", {}),)

_AWAIT_CONNECT: Final = SessionState.AWAIT_CONNECT
_SUBMIT: Final = Input.SUBMIT
"""For what every submit passes: to look up a member of an Enum takes longer than to compare it."""


class Session:
    """One connection's state, its identity once it has one, and nothing else.

    Invariants: `client_id` is set exactly while a connect was accepted; it never changes afterwards, nor does
    `profile` (PROF-06). Once CLOSED, nothing is received any more.
    """

    __slots__ = ("_state", "client_id", "profile")

    def __init__(self) -> None:
        self._state = SessionState.AWAIT_CONNECT
        self.client_id: str | None = None
        self.profile: str | None = None

    @property
    def state(self) -> SessionState:
        return self._state

    def receive(self, message: Message) -> Sequence[Effect]:
        """What to do about a well-formed message."""
        if self._state is _AWAIT_CONNECT:
            match message:
                case Connect():
                    return (Verify(message),)
                case Heartbeat():
                    self._step(Input.HEARTBEAT)
                    return _ACK
                case _:
                    return self._out_of_turn("connect first: only connect and heartbeat are taken before it")
        if isinstance(message, SubmitEvents):  # as most
            if self._speaks_for_another(message):
                return self._refuse_other()
            self._step(_SUBMIT)
            atomic = isinstance(message, SubmitMaybeAtomic) and message.atomic is True
            return (SubmitItems(message.events, False, atomic),)
        if isinstance(message, Connect):
            return self._out_of_turn("already connected; open a new connection to connect again")
        if self._speaks_for_another(message):
            return self._refuse_other()
        match message:
            case SubmitEvent():
                self._step(Input.SUBMIT)
                return (SubmitItems((message,), True),)
            case Heartbeat():
                self._step(Input.HEARTBEAT)
                return _ACK
            case Disconnect():
                self._step(Input.DISCONNECT)
                return (Leave(CloseCode.NORMAL, "disconnect"),)
            case Sync():
                self._step(Input.SYNC)
                return (StartSync(message),)
            case SetPresence():
                self._step(Input.PRESENCE)
                return (TellPresence(message),)
            case AskHistory():
                self._step(Input.HISTORY)
                return (ReadHistory(message),)

    def verified(self, client_id: str, profile: str) -> None:
        """The token is good and the profile settled: the connection is active (CONN-04)."""
        self._step(Input.CONNECT_ACCEPTED)
        self.client_id = client_id
        self.profile = profile

    def refuse(self, error: WireError) -> Sequence[Effect]:
        """Tell the client of an error, and close where its code says so (ERR-01)."""
        reply = Reply("error", error.payload())
        if error.close_code is None:
            self._step(Input.REFUSED_OPEN)
            return (reply,)
        connecting = self._state is SessionState.AWAIT_CONNECT
        self._step(Input.CONNECT_REFUSED if connecting else Input.REFUSED_CLOSING)
        return (reply, Leave(error.close_code, error.code))

    def leave(self, code: CloseCode, reason: str) -> Sequence[Effect]:
        """Close without an error message: replaced, timed out, too slow, going away."""
        self._step(Input.LOST)
        return (Leave(code, reason),)

    def lost(self) -> None:
        """The socket is gone."""
        self._step(Input.LOST)

    def _out_of_turn(self, message: str) -> Sequence[Effect]:
        self._step(Input.OUT_OF_TURN)
        return (Reply("error", BadRequest(message).payload()),)

    def _refuse_other(self) -> Sequence[Effect]:
        return self.refuse(AuthFailed("client_id differs from the authenticated identity"))

    def _speaks_for_another(self, message: Message) -> bool:
        """AUTH-05: a named client_id must be the authenticated one, in the payload and in every item."""
        own = self.client_id
        if message.client_id is not None and message.client_id != own:
            return True
        if isinstance(message, SubmitEvents):
            for item in message.events:
                if item.client_id is not None and item.client_id != own:
                    return True
        return False

    def _step(self, happened: Input) -> None:
        following = TRANSITIONS.get((self._state, happened))
        if following is None:
            raise IllegalStep(f"{happened.name} in {self._state.name}")
        self._state = following
