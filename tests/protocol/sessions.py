"""Sessions in every state, and one message and one error of each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Raw

from unisono.protocol.errors import (
    AuthFailed,
    BadRequest,
    Forbidden,
    ProfileUnsupported,
    ProtocolVersionUnsupported,
    RateLimited,
    ServerError,
    ValidationFailed,
    WireError,
)
from unisono.protocol.messages import (
    Connect,
    Disconnect,
    Heartbeat,
    Item,
    Message,
    SetPresence,
    SubmitEvent,
    SubmitEvents,
    Sync,
)
from unisono.protocol.session import (
    Effect,
    Reply,
    Session,
    SessionState,
)
from unisono.vocabulary import FieldError

ERRORS: dict[str, WireError] = {
    "bad_request": BadRequest("no"),
    "validation_failed": ValidationFailed([FieldError("partitions", "too many")]),
    "forbidden": Forbidden(["p"]),
    "rate_limited": RateLimited("slower", 250),
    "auth_failed": AuthFailed("who?"),
    "protocol_version_unsupported": ProtocolVersionUnsupported("2.0"),
    "profile_unsupported": ProfileUnsupported("none in common", ["canonical"]),
    "server_error": ServerError(),
}


def item(id: str = "e", client_id: str | None = None) -> Item:
    return Item(id, Raw(b"{}"), ["p"], client_id=client_id)


MESSAGES: dict[str, Callable[[str | None], Message]] = {
    "heartbeat": Heartbeat,
    "disconnect": Disconnect,
    "submit_event": lambda who: SubmitEvent("e", Raw(b"{}"), ["p"], client_id=who),
    "submit_events": lambda who: SubmitEvents([item()], who),
    "sync": lambda who: Sync(0, ["p"], client_id=who),
    "presence": lambda who: SetPresence("p", client_id=who),
}

CONNECT = Connect("token", "alice")


def accept(session: Session, client_id: str = "alice", profile: str = "canonical") -> Sequence[Effect]:
    session.verified(client_id, profile)
    return ()


def in_state(state: SessionState) -> Session:
    session = Session()
    if state is SessionState.ACTIVE:
        accept(session)
    elif state is SessionState.CLOSED:
        session.lost()
    assert session.state is state
    return session


def error_code(effects: Sequence[Effect]) -> Any:
    told = effects[0]
    assert isinstance(told, Reply)
    assert told.kind == "error"
    return told.payload["code"]
