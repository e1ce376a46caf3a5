"""Who a connection is, over a real socket: proven at connect, enforced until the token ends."""

from __future__ import annotations

import time
from typing import Any

import jwt
import pytest

from tests.behaviour.server.harness import SECRET, Server, item, set_event, tree_event
from tests.behaviour.server.signing import HS256, TTLS_S, accepted, by_hand, claims, refused
from tests.waiting import in_a_window

# -- a shared secret -----------------------------------------------------------------------------------------


@pytest.mark.req("AUTH-01", "AUTH-03", "AUTH-04", "ERR-01", "CONN-10")
@pytest.mark.parametrize(
    ("header", "changes"),
    [
        pytest.param({"alg": "none"}, {}, id="alg none"),
        pytest.param({"alg": "None"}, {}, id="alg None"),
        pytest.param({"alg": "HS1"}, {}, id="unknown alg"),
        pytest.param({"alg": "RS256"}, {}, id="alg of another family"),
        pytest.param({}, {}, id="no alg"),
        pytest.param(HS256, {"exp": ...}, id="no exp"),
        pytest.param(HS256, {"exp": 1}, id="expired long ago"),
        pytest.param(HS256, {"exp": "later"}, id="exp no number"),
        pytest.param(HS256, {"exp": None}, id="exp null"),
        pytest.param(HS256, {"nbf": 9_999_999_999}, id="not yet valid"),
        pytest.param(HS256, {"client_id": ...}, id="no client_id"),
        pytest.param(HS256, {"client_id": ""}, id="empty client_id"),
        pytest.param(HS256, {"client_id": 5}, id="client_id no string"),
        pytest.param(HS256, {"client_id": "somebody else"}, id="another client_id"),
        pytest.param(HS256, {"sub": "x", "client_id": ["x"]}, id="client_id a list"),
    ],
)
def test_a_token_that_proves_nothing_is_refused(
    server: Server, who: str, header: dict[str, Any], changes: dict[str, Any]
) -> None:
    refused(server, who, by_hand(header, claims(who, **changes)))


@pytest.mark.req("AUTH-01")
def test_a_changed_or_foreign_signature_is_refused(server: Server, who: str) -> None:
    token = server.token(who)
    head, body, signature = token.split(".")
    other = by_hand(HS256, claims("admin")).split(".")[1]
    for bad in (
        "", "x", "..", f"{head}.{body}.", f"{head}.{body}", f"{head}.{other}.{signature}", token + "A",
        by_hand(HS256, claims(who), secret=SECRET[:-1] + b"!"), by_hand(HS256, claims(who), secret=b""),
        f"{head}.{body}.{signature[:-4]}AAAA", token.upper(), f" {token}",
    ):  # fmt: skip
        refused(server, who, bad)
    accepted(server, who, by_hand(HS256, claims(who)))  # the hand that writes the bad ones writes good ones


@pytest.mark.req("AUTH-02")
@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_shared_secret_serves_the_hmac_family(server: Server, who: str, algorithm: str) -> None:
    accepted(server, who, jwt.encode(claims(who), SECRET, algorithm=algorithm))


@pytest.mark.req("AUTH-03")
def test_the_claimed_client_id_must_be_the_tokens(server: Server, who: str) -> None:
    assert "another client_id" in refused(server, f"{who}-x", server.token(who))
    refused(server, "", server.token(who))
    refused(server, who.upper(), server.token(who))


@pytest.mark.req("AUTH-03")
@pytest.mark.parametrize("payload", [{"client_id": "x"}, {"token": "x"}, {"token": 5, "client_id": "x"}, {}])
def test_a_connect_without_token_or_client_id_is_bad_request(server: Server, payload: dict[str, Any]) -> None:
    with server.peer() as peer:
        peer.send("connect", payload)
        peer.expect_error("bad_request")


# -- after connect -------------------------------------------------------------------------------------------


@pytest.mark.req("AUTH-04", "CONN-10")
def test_the_end_of_a_token_ends_an_idle_connection(server: Server, who: str, part: str) -> None:
    def idle(ttl_s: float) -> None:
        with server.peer() as peer, server.client(f"{who}-b") as other:
            ends = time.time() + ttl_s
            peer.connect(who, server.token(who, ttl_s=ttl_s), supported_profiles=["compatibility"])
            peer.subscribe(part)
            other.commit([part], set_event("n", 1))
            peer.expect("event_broadcast")
            error = peer.expect_error("auth_failed")
            assert ends - 0.02 <= time.time() < ends + ttl_s
            assert "expired" in error["message"]
            peer.expect_close(4001)
            other.commit([part], set_event("n", 2))

    in_a_window(idle, *TTLS_S)


@pytest.mark.req("AUTH-04")
def test_activity_does_not_lengthen_a_token(server: Server, who: str, part: str) -> None:
    def active(ttl_s: float) -> None:
        with server.peer() as peer:
            ends = time.time() + ttl_s
            peer.connect(who, server.token(who, ttl_s=ttl_s), supported_profiles=["compatibility"])
            while time.time() < ends - ttl_s / 6:
                peer.send("heartbeat", {})
                peer.expect("heartbeat_ack")
            peer.expect_error("auth_failed")
            peer.expect_close(4001)
        assert time.time() < ends + ttl_s
        accepted(server, who, server.token(who))

    in_a_window(active, *TTLS_S)


def speaking_for(kind: str, part: str, other: str) -> dict[str, Any]:
    """A request whose payload, or whose second item, names another client."""
    good, bad = item([part], tree_event("A")), item([part], tree_event("B"), client_id=other)
    requests: dict[str, dict[str, Any]] = {
        "heartbeat": {"client_id": other},
        "disconnect": {"client_id": other},
        "sync": {"partitions": [part], "since_committed_id": 0, "client_id": other},
        "submit_event": bad,
        "submit_events": {"events": [good], "client_id": other},
        "item of submit_events": {"events": [good, bad, item([part], tree_event("C"))]},
    }
    return requests[kind]


@pytest.mark.req("AUTH-05", "ERR-01", "CONN-10")
@pytest.mark.parametrize(
    "kind", ["heartbeat", "disconnect", "sync", "submit_event", "submit_events", "item of submit_events"]
)
def test_speaking_for_another_ends_the_connection_and_takes_no_effect(
    server: Server, who: str, part: str, kind: str
) -> None:
    with server.client(f"{who}-other") as other, server.client(who) as peer:
        other.subscribe(part)
        peer.send(kind.rpartition(" ")[2], speaking_for(kind, part, f"{who}-other"))
        peer.expect_error("auth_failed")
        peer.expect_close(4001)
        other.expect_quiet()
        assert other.history([part]) == []


@pytest.mark.req("AUTH-05")
def test_naming_oneself_or_nobody_is_fine(server: Server, who: str, part: str) -> None:
    with server.client(who) as peer:
        for named in ({}, {"client_id": who}, {"client_id": None}):
            peer.send("submit_event", item([part], set_event("x", 1), **named))
            peer.expect("event_committed")
            peer.send("submit_events", {"events": [item([part], set_event("x", 1), client_id=who)], **named})
            peer.expect("submit_events_result")
            peer.send("sync", {"partitions": [part], "since_committed_id": 0, **named})
            peer.expect("sync_response")
            peer.send("heartbeat", named)
            peer.expect("heartbeat_ack")


@pytest.mark.req("AUTH-06")
@pytest.mark.parametrize("name", ["plain", "ünï 😀 \\ \" '", "x" * 200])
def test_events_carry_the_authenticated_client_id(server: Server, who: str, part: str, name: str) -> None:
    me = f"{who} {name}"
    with server.client(f"{who}-b") as other, server.client(me) as peer:
        other.subscribe(part)
        peer.send("submit_event", item([part], {**tree_event("A"), "client_id": "forged"}))
        assert peer.expect("event_committed")["client_id"] == me
        assert other.expect("event_broadcast")["client_id"] == me
        assert [held["client_id"] for held in other.history([part])] == [me]
        peer.send("submit_event", item([part], tree_event("A")))
        assert peer.expect("event_rejected")["client_id"] == me
