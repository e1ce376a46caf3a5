"""A connection from its socket to its close code: 002's state table, takeover, timeouts, endings."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed

from tests.behaviour.server.harness import (
    Closed,
    Peer,
    Server,
    item,
    running,
    running_by_window,
    set_event,
    tree_event,
)
from tests.waiting import PATIENCE_S, in_a_window, until
from unisono.samples import sample_model

REQUESTS: dict[str, dict[str, Any]] = {
    "submit_event": {"id": "early", "partitions": ["early"], "event": set_event("x", 1)},
    "submit_events": {"events": [{"id": "early", "partitions": ["early"], "event": set_event("x", 1)}]},
    "sync": {"partitions": ["early"], "since_committed_id": 0, "subscription_partitions": ["early"]},
    "disconnect": {"reason": "changed my mind"},
}


@contextlib.contextmanager
def standing_still(server: Server, role: int = 0) -> Iterator[None]:
    """The authority (or another child) stopped, so that what waits for it waits."""
    pid = list(server.children())[role]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def send_late(peer: Peer, kind: str, payload: dict[str, Any]) -> None:
    """Send what comes behind the end of the connection, unless that has already been heard of."""
    with contextlib.suppress(ConnectionClosed):
        peer.send(kind, payload)


def still_active(peer: Peer) -> None:
    """It answers what only a connected client may ask."""
    assert peer.sync(["nothing"])["events"] == []


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


# -- takeover ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_fronts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("two") / "data"
    with running(data, "--model", "open", "--access-default", "allow", "--fronts", "2") as started:
        yield started


@pytest.fixture(params=["one front", "two fronts"])
def node(request: pytest.FixtureRequest) -> Server:
    """A node with one front, and one with two on the same port."""
    name = "server" if request.param == "one front" else "two_fronts"
    started: Server = request.getfixturevalue(name)
    return started


@pytest.mark.req("CONN-05", "CONN-08", "CONN-10")
def test_a_newer_connection_closes_the_older_and_inherits_nothing(node: Server, who: str, part: str) -> None:
    with node.client(who) as older, node.client(f"{who}-b") as other:
        older.subscribe(part)
        with node.client(who) as newer:
            assert "newer" in older.expect_close(4003)
            other.commit([part], tree_event("A"))
            newer.expect_quiet()
            assert newer.sync([part])["effective_subscriptions"] == []
            newer.subscribe(part)
            committed_id = other.commit([part], tree_event("B"))
            assert newer.expect("event_broadcast")["committed_id"] == committed_id
            newer.commit([part], tree_event("C"))


@pytest.mark.req("CONN-05")
def test_fifty_quick_takeovers_always_leave_the_newest(node: Server, who: str, part: str) -> None:
    peers = [node.peer() for _ in range(50)]
    token = node.token(who)
    for number, peer in enumerate(peers):
        peer.connect(who, token, supported_profiles=["compatibility"])
        peer.send("submit_event", item([part], set_event("n", number)))
    for peer in peers[:-1]:
        answered = [message["type"] for message in until_closed(peer, 4003)]
        assert answered in ([], ["event_committed"])  # dropped whole when it was replaced first
    peers[-1].expect("event_committed")
    still_active(peers[-1])
    for peer in peers:
        peer.close()
    if node.arguments[-2:] == ("--fronts", "2"):
        for process in ("front 0", "front 1"):
            assert node.metric("unisono_connections_opened_total", process=process) > 0


def until_closed(peer: Peer, code: int) -> list[dict[str, Any]]:
    """Everything that comes before the close, which must have this code."""
    messages: list[dict[str, Any]] = []
    with pytest.raises(Closed) as closed:
        messages.extend(iter(peer.receive, None))
    assert closed.value.code == code, (closed.value, messages)
    return messages


@pytest.mark.req("CONN-05")
def test_takeovers_that_race_leave_exactly_one(node: Server, who: str) -> None:
    peers = [node.peer() for _ in range(20)]
    token = node.token(who)
    for peer in peers:
        peer.send("connect", {"token": token, "client_id": who})
    for peer in peers:
        peer.expect("connected")

    def alive() -> list[Peer]:
        return [peer for peer in peers if peer.socket.protocol.close_code is None]

    until(lambda: len(alive()) <= 1, "more than one is left")
    (left,) = alive()
    still_active(left)
    for peer in peers:
        if peer is not left:
            peer.expect_close(4003)
        peer.close()


@pytest.mark.req("CONN-05")
def test_what_an_older_connection_had_in_flight_is_answered_or_dropped_whole(
    node: Server, who: str, part: str
) -> None:
    """Its successor retries, and the log then holds each draft once."""
    drafts = [item([part], tree_event(f"n{n}"), f"{part}-{n}") for n in range(50)]
    with node.client(who) as older, node.peer() as newer:
        older.send("submit_events", {"events": drafts})
        newer.connect(who, node.token(who), supported_profiles=["compatibility"])
        until_closed(older, 4003)
        results = newer.submit(*drafts)
        assert {result["status"] for result in results} == {"committed"}
        assert [event["id"] for event in newer.history([part])] == [draft["id"] for draft in drafts]


# -- handshake window ----------------------------------------------------------------------------------------


WINDOWS_S = (0.4, 3.0, 20.0)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[float], Server]]:
    place, options = tmp_path_factory.mktemp("hasty"), ("--handshake-timeout-s", "{}")
    with running_by_window(place, "--model", "open", "--access-default", "allow", *options) as started:
        yield started


@pytest.mark.req("CONN-07", "CONN-10")
def test_a_socket_that_does_not_connect_in_time_is_closed(hasty: Callable[[float], Server], who: str) -> None:
    def in_time(window_s: float) -> None:
        server = hasty(window_s)
        with server.peer() as silent, server.client(who) as connected:
            started = time.monotonic()
            with server.peer() as busy:
                while time.monotonic() < started + window_s / 2:
                    busy.send("heartbeat", {})
                    busy.expect("heartbeat_ack")
                beat = time.monotonic()
                assert busy.expect_close(4004) == "no connect"
                assert time.monotonic() - started > window_s - 0.05
                assert time.monotonic() - beat < window_s, "a heartbeat is no handshake"
            assert silent.expect_close(4004) == "no connect"
            time.sleep(window_s / 2)
            still_active(connected)

    in_a_window(in_time, *WINDOWS_S)


@pytest.mark.req("CONN-07")
def test_a_socket_that_never_becomes_a_websocket_is_closed(hasty: Callable[[float], Server]) -> None:
    address = urlsplit(hasty(WINDOWS_S[0]).url)
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as silent:
        silent.sendall(b"GET /sync HTTP/1.1\r\nHost: x\r\n")
        assert silent.recv(100) == b""


@pytest.mark.req("CONN-07")
def test_a_connect_that_cannot_be_completed_in_time_is_closed(
    hasty: Callable[[float], Server], who: str
) -> None:
    def in_time(window_s: float) -> None:
        server = hasty(window_s)
        with server.peer() as peer:
            with standing_still(server):
                peer.send("connect", {"token": server.token(who), "client_id": who})
                assert peer.expect_close(4004) == "no connect"
            with server.client(who) as again:
                still_active(again)

    in_a_window(in_time, *WINDOWS_S)


# -- endings of the whole node -------------------------------------------------------------------------------


@pytest.mark.req("CONN-10")
def test_sigterm_finishes_what_is_queued_then_closes_with_1001(tmp_path: Path, who: str, part: str) -> None:
    with running(tmp_path / "data", "--access-default", "allow") as server:
        waiting, idle = server.peer(), server.client(f"{who}-idle")
        busy, syncing = server.client(f"{who}-busy"), server.client(f"{who}-syncing")
        with standing_still(server):
            busy.send("submit_events", {"events": [item([part], tree_event("A"), f"{part}-1")]})
            syncing.send("sync", {"partitions": [part], "since_committed_id": 0})
            for peer in (busy, syncing):
                peer.send("heartbeat", {})
                peer.expect("heartbeat_ack")  # so what came before it is queued
            server.process.send_signal(signal.SIGTERM)
            assert idle.expect_close(1001) == "server going away"
            waiting.expect_close(1001)
            until(lambda: not server.accepts(), "new connections are accepted")
            busy.send("submit_events", {"events": [item([part], tree_event("B"), f"{part}-2")]})
            busy.expect_quiet()
            syncing.expect_quiet()
        (result,) = busy.expect("submit_events_result")["results"]
        assert result["status"] == "committed"
        busy.expect_close(1001)
        syncing.expect("sync_response")
        syncing.expect_close(1001)
        assert server.stop() == 0
        server.start()
        with server.client(who) as peer:
            assert [event["id"] for event in peer.history([part])] == [f"{part}-1"]


@pytest.mark.req("CONN-10", "ERR-01", "DUR-04")
def test_when_the_authority_dies_everybody_is_told_and_the_node_fails(
    tmp_path: Path, who: str, part: str
) -> None:
    with running(tmp_path / "data", "--access-default", "allow") as server:
        waiting, idle, busy = server.peer(), server.client(f"{who}-idle"), server.client(f"{who}-busy")
        idle.subscribe(part)
        with standing_still(server):
            busy.send("submit_events", {"events": [item([part], tree_event("A"))]})
            busy.send("heartbeat", {})
            busy.expect("heartbeat_ack")
            os.kill(next(iter(server.children())), signal.SIGKILL)
        for peer in (waiting, idle, busy):
            told = peer.expect_error("server_error")
            assert told.keys() == {"code", "message"}
            peer.expect_close(1011)
        assert server.process.wait(timeout=PATIENCE_S) not in (0, None)


@pytest.mark.req("CONN-10")
def test_a_message_above_the_limit_is_closed_with_1009(server: Server, who: str) -> None:
    with server.client(who) as peer:
        peer.raw("x" * (1024 * 1024 + 1))
        peer.expect_close(1009)
