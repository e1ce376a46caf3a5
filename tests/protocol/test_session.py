"""The life of a connection, without a socket: every state, everything that can happen in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.protocol.sessions import CONNECT, ERRORS, MESSAGES, accept, error_code, in_state, item
from unisono.protocol.codec import encode_connected, encode_payload
from unisono.protocol.errors import (
    WIRE_ERRORS,
    BadRequest,
    CloseCode,
    ServerError,
)
from unisono.protocol.messages import (
    Connect,
    Disconnect,
    Heartbeat,
    SubmitEvent,
    SubmitEvents,
    Sync,
)
from unisono.protocol.profiles import connected_fields
from unisono.protocol.session import (
    TRANSITIONS,
    Effect,
    IllegalStep,
    Input,
    Leave,
    Reply,
    Session,
    SessionState,
    StartSync,
    SubmitItems,
    Verify,
)
from unisono.vocabulary import LogIdentity

# The table of 002, with what its prose adds (errors that keep open, sockets that are lost), written by hand.
TABLE = {
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


# -- the table -----------------------------------------------------------------------------------------------


@pytest.mark.req("CONN-01")
@pytest.mark.parametrize("happened", Input, ids=lambda happened: happened.name)
@pytest.mark.parametrize("state", SessionState, ids=lambda state: state.name)
def test_every_pair_of_the_table_and_every_pair_that_is_not_in_it(
    state: SessionState, happened: Input
) -> None:
    session = in_state(state)
    following = TABLE.get((state, happened))
    assert TRANSITIONS.get((state, happened)) is following
    if following is None:
        with pytest.raises(IllegalStep, match=f"{happened.name} in {state.name}"):
            session._step(happened)
        assert session.state is state
    else:
        session._step(happened)
        assert session.state is following


@pytest.mark.req("CONN-01")
def test_the_table_has_no_way_back() -> None:
    order = [SessionState.AWAIT_CONNECT, SessionState.ACTIVE, SessionState.CLOSED]
    assert all(order.index(before) <= order.index(after) for (before, _), after in TRANSITIONS.items())


# -- await_connect -------------------------------------------------------------------------------------------


@pytest.mark.req("CONN-01", "HB-01")
def test_a_heartbeat_before_connect_is_answered_whoever_it_names() -> None:
    session = Session()
    for who in (None, "anybody"):
        assert session.receive(Heartbeat(who)) == (Reply("heartbeat_ack", {}),)
    assert session.state is SessionState.AWAIT_CONNECT
    assert session.client_id is None


@pytest.mark.req("CONN-02")
@pytest.mark.parametrize("kind", sorted(MESSAGES.keys() - {"heartbeat"}))
def test_anything_else_before_connect_is_bad_request_and_changes_nothing(kind: str) -> None:
    session = Session()
    effects = session.receive(MESSAGES[kind]("mallory"))
    assert len(effects) == 1
    assert error_code(effects) == "bad_request"
    assert session.state is SessionState.AWAIT_CONNECT
    assert session.receive(CONNECT) == (Verify(CONNECT),)


@pytest.mark.req("CONN-01", "CONN-04")
def test_an_accepted_connect_makes_the_session_active() -> None:
    session = Session()
    assert session.receive(CONNECT) == (Verify(CONNECT),)
    assert session.state is SessionState.AWAIT_CONNECT
    session.verified("alice", "compatibility")
    assert (session.state, session.client_id, session.profile) == (
        SessionState.ACTIVE,
        "alice",
        "compatibility",
    )


@pytest.mark.req("CONN-04")
@pytest.mark.parametrize("model_version", [None, 3])
def test_connected_tells_everything_the_client_needs(model_version: int | None) -> None:
    fields = connected_fields(
        "compatibility",
        accepted_event_types=("set", "init"),
        limits={"max_batch_size": 100},
        model_version=model_version,
        model_digest="" if model_version is None else "ab12",
        log=LogIdentity("0f" * 16, 7),
    )
    payload = encode_connected('a"lice', 1000, 7, encode_payload(fields))
    expected: dict[str, Any] = {
        "client_id": 'a"lice',
        "server_time": 1000,
        "server_last_committed_id": 7,
        "capabilities": {
            "profile": "compatibility",
            "accepted_event_types": ["set", "init"],
            "tree_policy": "strict",
            "ordered_delivery": True,
        },
        "limits": {"max_batch_size": 100},
        "log_id": "0f" * 16,
        "log_epoch": 7,
    }
    model = {} if model_version is None else {"model_version": model_version, "model_digest": "ab12"}
    assert json.loads(payload) == expected | model


# -- active --------------------------------------------------------------------------------------------------


@pytest.mark.req("CONN-03", "PROF-06")
def test_a_second_connect_is_bad_request_and_changes_nothing() -> None:
    session = in_state(SessionState.ACTIVE)
    effects = session.receive(Connect("other", "bob", supported_profiles=["compatibility"]))
    assert len(effects) == 1
    assert error_code(effects) == "bad_request"
    assert (session.state, session.client_id, session.profile) == (SessionState.ACTIVE, "alice", "canonical")
    with pytest.raises(IllegalStep):
        accept(session, "bob", "compatibility")
    assert (session.state, session.client_id, session.profile) == (SessionState.ACTIVE, "alice", "canonical")


@pytest.mark.req("CONN-01", "HB-01", "SUBMIT-06")
@pytest.mark.parametrize("who", [None, "alice"])
def test_every_request_of_an_active_connection_has_its_effect(who: str | None) -> None:
    session = in_state(SessionState.ACTIVE)
    assert session.receive(Heartbeat(who)) == (Reply("heartbeat_ack", {}),)
    sync = Sync(0, ["p"], client_id=who)
    assert session.receive(sync) == (StartSync(sync),)
    single = SubmitEvent("e", Raw(b"{}"), ["p"], client_id=who)
    assert session.receive(single) == (SubmitItems((single,), single=True),)
    batch = [item("a", who), item("b")]
    assert session.receive(SubmitEvents(batch, who)) == (SubmitItems(batch, single=False),)
    assert session.receive(Disconnect(who)) == (Leave(CloseCode.NORMAL, "disconnect"),)
    assert session.state is SessionState.CLOSED


@pytest.mark.req("AUTH-05")
@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("who", ["bob", "", "Alice", "alice "])
def test_speaking_for_another_ends_the_connection(kind: str, who: str) -> None:
    session = in_state(SessionState.ACTIVE)
    effects = session.receive(MESSAGES[kind](who))
    assert error_code(effects) == "auth_failed"
    assert effects[1:] == (Leave(CloseCode.AUTH_FAILED, "auth_failed"),)
    assert session.state is SessionState.CLOSED


@pytest.mark.req("AUTH-05")
def test_one_item_that_speaks_for_another_ends_the_connection() -> None:
    session = in_state(SessionState.ACTIVE)
    effects = session.receive(SubmitEvents([item("a"), item("b", "alice"), item("c", "bob")], "alice"))
    assert error_code(effects) == "auth_failed"
    assert not any(isinstance(effect, SubmitItems) for effect in effects)
    assert session.state is SessionState.CLOSED


# -- errors and endings --------------------------------------------------------------------------------------


def test_every_error_of_the_wire_is_tried_here() -> None:
    assert {type(error) for error in ERRORS.values()} == set(WIRE_ERRORS)
    assert all(error.code == name for name, error in ERRORS.items())


@pytest.mark.req("ERR-01", "CONN-10")
@pytest.mark.parametrize(
    "state", [SessionState.AWAIT_CONNECT, SessionState.ACTIVE], ids=lambda state: state.name
)
@pytest.mark.parametrize(
    ("code", "closes_with"),
    [
        ("bad_request", None),
        ("validation_failed", None),
        ("forbidden", None),
        ("rate_limited", None),
        ("auth_failed", 4001),
        ("protocol_version_unsupported", 4002),
        ("profile_unsupported", 4002),
        ("server_error", 1011),
    ],
)
def test_an_error_closes_exactly_when_its_code_says_so(
    state: SessionState, code: str, closes_with: int | None
) -> None:
    session = in_state(state)
    effects = session.refuse(ERRORS[code])
    assert error_code(effects) == code
    if closes_with is None:
        assert len(effects) == 1
        assert session.state is state
    else:
        assert effects[1:] == (Leave(CloseCode(closes_with), code),)
        assert session.state is SessionState.CLOSED


@pytest.mark.req("ERR-02")
@pytest.mark.parametrize("code", ERRORS)
def test_an_error_has_code_message_and_perhaps_details(code: str) -> None:
    payload = ERRORS[code].payload()
    assert payload["code"] == code
    assert isinstance(payload["message"], str)
    assert payload["message"]
    assert isinstance(payload.get("details", {}), dict)
    assert payload.keys() <= {"code", "message", "details", "retry_after_ms", "supported_versions"}


@pytest.mark.req("CONN-10")
def test_close_codes_are_stable() -> None:
    assert {code.name: int(code) for code in CloseCode} == {
        "NORMAL": 1000,
        "GOING_AWAY": 1001,
        "PROTOCOL_ERROR": 1002,
        "INVALID_TEXT": 1007,
        "TOO_BIG": 1009,
        "SERVER_ERROR": 1011,
        "AUTH_FAILED": 4001,
        "UNSUPPORTED": 4002,
        "REPLACED": 4003,
        "TIMEOUT": 4004,
        "SLOW_CONSUMER": 4005,
        "OVERLOAD": 4006,
    }


@pytest.mark.req("CONN-01")
@pytest.mark.parametrize(
    "state", [SessionState.AWAIT_CONNECT, SessionState.ACTIVE], ids=lambda state: state.name
)
def test_leaving_and_losing_close_from_everywhere(state: SessionState) -> None:
    session = in_state(state)
    assert session.leave(CloseCode.REPLACED, "newer") == (Leave(CloseCode.REPLACED, "newer"),)
    assert session.state is SessionState.CLOSED
    session = in_state(state)
    session.lost()
    assert session.state is SessionState.CLOSED


@pytest.mark.req("CONN-01")
def test_once_closed_nothing_is_received_any_more() -> None:
    session = in_state(SessionState.CLOSED)
    attempts: list[Callable[[], object]] = [
        *(lambda kind=kind: session.receive(MESSAGES[kind](None)) for kind in MESSAGES),
        lambda: session.receive(CONNECT),
        lambda: accept(session),
        lambda: session.refuse(BadRequest("no")),
        lambda: session.refuse(ServerError()),
    ]
    for attempt in attempts:
        with pytest.raises(IllegalStep):
            attempt()
        assert session.state is SessionState.CLOSED
    session.lost()
    assert session.state is SessionState.CLOSED


Step = tuple[str, Any]
steps = st.one_of(
    st.tuples(st.sampled_from(sorted(MESSAGES)), st.sampled_from([None, "alice", "bob"])),
    st.tuples(st.just("connect"), st.none()),
    st.tuples(st.just("verified"), st.sampled_from(["alice", "bob"])),
    st.tuples(st.just("refuse"), st.sampled_from(sorted(ERRORS))),
    st.tuples(st.just("lost"), st.none()),
)


def apply(session: Session, step: Step) -> Sequence[Effect]:
    kind, argument = step
    match kind:
        case "connect":
            return session.receive(CONNECT)
        case "verified":
            return accept(session, argument)
        case "refuse":
            return session.refuse(ERRORS[argument])
        case "lost":
            session.lost()
            return ()
        case _:
            return session.receive(MESSAGES[kind](argument))


@pytest.mark.req("CONN-01", "PROF-06", "AUTH-05")
@given(st.lists(steps, max_size=12))
def test_whatever_happens_the_invariants_hold(history: list[Step]) -> None:
    session = Session()
    accepted: str | None = None
    for step in history:
        before = session.state
        try:
            effects = apply(session, step)
        except IllegalStep:
            assert session.state is before
            assert before is SessionState.CLOSED or step[0] == "verified"
            continue
        if step[0] == "verified":
            accepted = step[1]
        assert session.client_id == accepted
        assert (session.profile is None) == (accepted is None)
        assert session.state is not SessionState.ACTIVE or accepted is not None
        leaves = [effect for effect in effects if isinstance(effect, Leave)]
        closed_now = before is not SessionState.CLOSED and session.state is SessionState.CLOSED
        assert bool(leaves) == (closed_now and step[0] != "lost")
        assert not leaves or effects[-1] is leaves[0]
        if any(isinstance(effect, SubmitItems | StartSync) for effect in effects):
            assert before is SessionState.ACTIVE
            assert step[1] in (None, accepted)
