"""A connection from its socket to its close code: 002's state table, and requests sent without waiting."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.behaviour.server.harness import Peer, Server, item, running, set_event, tree_event
from tests.behaviour.server.pressure import still_active
from tests.waiting import until
from unisono.samples import sample_model

REQUESTS: dict[str, dict[str, Any]] = {
    "submit_event": {"id": "early", "partitions": ["early"], "event": set_event("x", 1)},
    "submit_events": {"events": [{"id": "early", "partitions": ["early"], "event": set_event("x", 1)}]},
    "sync": {"partitions": ["early"], "since_committed_id": 0, "subscription_partitions": ["early"]},
    "disconnect": {"reason": "changed my mind"},
}


def send_late(peer: Peer, kind: str, payload: dict[str, Any]) -> None:
    """Send what comes behind the end of the connection, unless that has already been heard of."""
    with contextlib.suppress(ConnectionClosed):
        peer.send(kind, payload)


# -- the table of 002: await_connect -------------------------------------------------------------------------


@pytest.mark.req("CONN-01", "CONN-04", "CONN-09")
def test_a_good_connect_makes_the_connection_active(server: Server, who: str, part: str) -> None:
    with server.client(f"{who}-other") as other:
        head = other.commit([part], tree_event("A"))
        with server.peer() as peer:
            peer.send("connect", {"token": server.token(who), "client_id": who, "last_committed_id": 10**9})
            connected = peer.expect("connected")
            assert connected.keys() == {
                "client_id", "server_time", "server_last_committed_id", "capabilities", "limits",
                "log_id", "log_epoch",
            }  # fmt: skip
            assert connected["client_id"] == who
            assert connected["server_last_committed_id"] == head
            assert peer.sync([part])["effective_subscriptions"] == []
            other.commit([part], tree_event("B"))
            peer.expect_quiet()


@pytest.mark.req("CONN-04", "SYNC-08")
def test_with_a_model_its_version_is_told(tmp_path: Path, who: str) -> None:
    with (
        running(tmp_path / "data", "--model", str(sample_model()), "--access-default", "allow") as server,
        server.peer() as peer,
    ):
        assert isinstance(version := peer.connect(who, server.token(who))["model_version"], int)
        assert peer.sync(["p"])["model_version"] == version


@pytest.mark.req("CONN-01", "CONN-10", "ERR-01")
def test_a_connect_that_is_not_authentic_ends_the_connection(server: Server, who: str) -> None:
    with server.peer() as peer:
        peer.send("connect", {"token": server.token(who)[:-3] + "AAA", "client_id": who})
        peer.expect_error("auth_failed")
        peer.expect_close(4001)


@pytest.mark.req("CONN-01", "CONN-10", "ERR-01")
def test_a_connect_in_another_version_ends_the_connection(server: Server, who: str) -> None:
    with server.peer() as peer:
        peer.send("connect", {"token": server.token(who), "client_id": who}, protocol_version="0.9")
        peer.expect_error("protocol_version_unsupported")
        peer.expect_close(4002)


@pytest.mark.req("CONN-01", "CONN-10", "ERR-01")
def test_a_connect_in_an_unknown_profile_ends_the_connection(server: Server, who: str) -> None:
    with server.peer() as peer:
        peer.send(
            "connect", {"token": server.token(who), "client_id": who, "supported_profiles": ["telepathy"]}
        )
        peer.expect_error("profile_unsupported")
        peer.expect_close(4002)


@pytest.mark.req("CONN-01", "HB-01")
def test_a_heartbeat_before_connect_is_answered(server: Server, who: str) -> None:
    with server.peer() as peer:
        for _ in range(3):
            peer.send("heartbeat", {})
            assert peer.expect("heartbeat_ack") == {}
        peer.connect(who, server.token(who))


@pytest.mark.req("CONN-01", "CONN-02")
def test_anything_else_before_connect_is_bad_request_and_has_no_effect(server: Server, who: str) -> None:
    with server.peer() as peer:
        for kind, payload in REQUESTS.items():
            peer.send(kind, payload | {"client_id": "somebody else"})
            assert "connect" in peer.expect_error("bad_request")["message"]
        peer.send("telepathy", {})
        peer.expect_error("bad_request")
        peer.send("sync", {"malformed": True})
        peer.expect_error("bad_request")
        peer.send("connect", {"client_id": who})
        peer.expect_error("bad_request")  # a connect of the wrong shape is no connect
        peer.connect(who, server.token(who))
        page = peer.sync(["early"])
        assert page["events"] == []
        assert page["effective_subscriptions"] == []


# -- the table of 002: active --------------------------------------------------------------------------------


@pytest.mark.req("CONN-01", "HB-01")
def test_requests_of_an_active_connection_are_processed(server: Server, who: str, part: str) -> None:
    with server.client(who) as peer:
        peer.send("heartbeat", {})
        assert peer.expect("heartbeat_ack") == {}
        peer.send("submit_event", item([part], tree_event("A")))
        first = peer.expect("event_committed")["committed_id"]
        assert peer.commit([part], tree_event("B")) == first + 1
        assert [event["committed_id"] for event in peer.sync([part])["events"]] == [first, first + 1]


@pytest.mark.req("CONN-03", "PROF-06")
def test_a_second_connect_is_bad_request_and_changes_nothing(server: Server, who: str, part: str) -> None:
    with server.client(who) as peer, server.client(f"{who}-b") as other:
        peer.subscribe(part)
        for client_id, profile in ((who, "compatibility"), (who, "canonical"), (f"{who}-b", "canonical")):
            token = server.token(client_id)
            peer.send("connect", {"token": token, "client_id": client_id, "supported_profiles": [profile]})
            peer.expect_error("bad_request")
        committed_id = other.commit([part], tree_event("A"))
        assert peer.expect("event_broadcast")["committed_id"] == committed_id
        peer.commit([part], tree_event("B"))  # still a tree event, still under its own name
        assert [event["client_id"] for event in other.history([part])] == [f"{who}-b", who]
        still_active(other)


@pytest.mark.req("CONN-01", "ERR-01")
def test_what_is_not_allowed_is_forbidden_and_the_connection_stays(
    server: Server, who: str, part: str
) -> None:
    with server.peer() as peer:
        token = server.token(who, partitions=[part])
        peer.connect(who, token, supported_profiles=["compatibility"])
        peer.subscribe(part)
        peer.send(
            "sync",
            {"partitions": [part, "not mine"], "since_committed_id": 0, "subscription_partitions": []},
        )
        assert peer.expect_error("forbidden")["details"]["partitions"] == ["not mine"]
        peer.send("submit_event", item(["not mine"], set_event("x", 1)))
        assert peer.expect("event_rejected")["reason"] == "forbidden"
        results = peer.submit(item(["not mine"], set_event("x", 1)), item([part], set_event("x", 1)))
        assert [result.get("reason", result["status"]) for result in results] == ["forbidden", "committed"]
        assert peer.sync([part])["effective_subscriptions"] == [part]


@pytest.mark.req("CONN-01", "ERR-01")
@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("sync", {}),
        ("sync", {"partitions": "p", "since_committed_id": 0}),
        ("sync", {"partitions": ["p"], "since_committed_id": "0"}),
        ("sync", {"partitions": ["p"], "since_committed_id": -1}),
        ("sync", {"partitions": ["p"], "since_committed_id": 0, "limit": "many"}),
        ("sync", {"partitions": ["p"], "since_committed_id": 0, "subscription_partitions": None}),
        ("submit_event", {}),
        ("submit_event", {"id": "x", "partitions": ["p"], "event": "text"}),
        ("submit_event", {"id": 5, "partitions": ["p"], "event": {}}),
        ("submit_events", {"events": []}),
        ("submit_events", {"events": {}}),
        ("submit_events", {"events": [5]}),
        ("heartbeat", {"client_id": 5}),
        ("disconnect", {"reason": 5}),
        ("connect", {}),
    ],
)
def test_a_malformed_payload_is_bad_request_and_the_connection_stays(
    server: Server, who: str, kind: str, payload: dict[str, Any]
) -> None:
    with server.client(who) as peer:
        peer.send(kind, payload)
        assert peer.expect_error("bad_request")["message"]
        still_active(peer)


@pytest.mark.req("CONN-01", "AUTH-05", "CONN-10", "ERR-01")
@pytest.mark.parametrize("kind", ["heartbeat", *REQUESTS])
def test_another_identity_in_a_request_ends_the_connection(server: Server, who: str, kind: str) -> None:
    with server.client(who) as peer:
        peer.send(kind, REQUESTS.get(kind, {}) | {"client_id": f"not-{who}"})
        peer.expect_error("auth_failed")
        peer.expect_close(4001)


@pytest.mark.req("CONN-01", "CONN-06", "CONN-10")
def test_disconnect_clears_the_subscriptions_at_once_and_closes(server: Server, who: str, part: str) -> None:
    def subscribed() -> float:
        return server.metric("unisono_subscribed_partitions")

    before = subscribed()
    with server.client(who) as peer, server.client(f"{who}-b") as other:
        peer.subscribe(part, f"{part}-2")
        assert subscribed() == before + 2
        peer.send("disconnect", {"reason": "client_shutdown"})
        send_late(peer, "submit_events", {"events": [item([part], tree_event("too late"))]})
        assert peer.expect_close(1000) == "disconnect"
        assert subscribed() == before
        other.commit([part], tree_event("A"))
        assert len(other.history([part])) == 1


@pytest.mark.req("CONN-08", "CONN-09")
def test_after_a_reconnect_there_are_no_subscriptions_until_a_sync_sets_them(
    server: Server, who: str, part: str
) -> None:
    with server.client(f"{who}-b") as other:
        with server.client(who) as peer:
            assert peer.subscribe(part)["effective_subscriptions"] == [part]
        with server.client(who) as peer:
            other.commit([part], tree_event("A"))
            peer.expect_quiet()
            page = peer.sync([part])
            assert page["effective_subscriptions"] == []
            assert len(page["events"]) == 1
            other.commit([part], tree_event("B"))
            peer.expect_quiet()
            peer.subscribe(part)
            committed_id = other.commit([part], tree_event("C"))
            assert peer.expect("event_broadcast")["committed_id"] == committed_id


@pytest.mark.req("CONN-06", "CONN-08")
def test_a_socket_that_just_goes_away_takes_its_subscriptions_along(
    server: Server, who: str, part: str
) -> None:
    before = server.metric("unisono_subscribed_partitions")
    peer = server.client(who)
    peer.subscribe(part)
    assert server.metric("unisono_subscribed_partitions") == before + 1
    peer.socket.socket.shutdown(socket.SHUT_RDWR)
    peer.close()
    until(lambda: server.metric("unisono_subscribed_partitions") == before, "it is still subscribed")


# -- pipelining ----------------------------------------------------------------------------------------------


@pytest.mark.req("CONN-01", "SUBMIT-09")
def test_requests_may_follow_a_connect_without_waiting(server: Server, who: str, part: str) -> None:
    with server.peer() as peer:
        peer.send("heartbeat", {})
        peer.send(
            "connect",
            {"token": server.token(who), "client_id": who, "supported_profiles": ["compatibility"]},
        )
        peer.send("submit_events", {"events": [item([part], tree_event("A"), f"{part}-1")]})
        peer.send("submit_event", item([part], tree_event("B"), f"{part}-2"))
        peer.send("sync", {"partitions": [part], "since_committed_id": 0, "subscription_partitions": [part]})
        peer.send("heartbeat", {})
        peer.send("connect", {"token": server.token(who), "client_id": who})
        peer.expect("heartbeat_ack")
        assert peer.expect("connected")["client_id"] == who
        rest = {message["type"]: message["payload"] for message in (peer.receive() for _ in range(5))}
        assert rest.keys() == {
            "submit_events_result", "event_committed", "sync_response", "heartbeat_ack", "error",
        }  # fmt: skip
        assert rest["error"]["code"] == "bad_request"
        assert [event["id"] for event in rest["sync_response"]["events"]] == [f"{part}-1", f"{part}-2"]
        assert rest["sync_response"]["effective_subscriptions"] == [part]


@pytest.mark.req("CONN-01", "AUTH-03")
def test_what_follows_a_refused_connect_has_no_effect(server: Server, who: str, part: str) -> None:
    with server.peer() as peer:
        peer.send("connect", {"token": server.token(f"not-{who}"), "client_id": who})
        send_late(peer, "submit_event", item([part], tree_event("A")))
        send_late(peer, "connect", {"token": server.token(who), "client_id": who})
        peer.expect_error("auth_failed")
        peer.expect_close(4001)
    with server.client(who) as peer:
        assert peer.history([part]) == []
