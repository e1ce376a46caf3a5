"""Scenarios of the protocol about connections: heartbeats, refusals, takeover, expiry and slow consumers."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from tests.behaviour.server.harness import (
    Closed,
    Peer,
    Server,
    item,
    running_by_window,
    set_event,
    tree_event,
)
from tests.waiting import in_a_window
from unisono.front.auth.verify import sign_token

WINDOWS_S = (0.7, 4.0, 20.0)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[float], Server]]:
    """A server whose timers can be waited for."""
    options = ("--heartbeat-timeout-s", "{}", "--handshake-timeout-s", "{}")
    place = tmp_path_factory.mktemp("impatient")
    with running_by_window(place, "--access-default", "allow", *options) as started:
        yield started


def until_closed(peer: Peer, code: int) -> Iterator[int]:
    """The committed_ids of the broadcasts that come before the close."""
    try:
        while True:
            yield peer.expect("event_broadcast")["committed_id"]
    except Closed as closed:
        if closed.code != code:
            raise


@pytest.mark.req("HB-01", "HB-02", "CONN-06", "CONN-07", "CONN-10")
def test_heartbeat_disconnect_and_timeout(impatient: Callable[[float], Server], part: str) -> None:
    def in_time(window_s: float) -> None:
        server = impatient(window_s)
        with server.peer() as silent, server.peer() as beating:
            beating.send("heartbeat", {})
            beating.expect("heartbeat_ack")
            silent.expect_close(4004)
            beating.expect_close(4004)  # a heartbeat is not a handshake

        with server.client(f"{part}-a") as leaving, server.client(f"{part}-b") as writer:
            leaving.subscribe(part)
            leaving.send("disconnect", {"reason": "enough"})
            writer.commit([part], set_event("a", 1))
            leaving.expect_close(1000)

        with server.client(f"{part}-a") as idle, server.client(f"{part}-b") as beating:
            started = time.monotonic()
            while time.monotonic() < started + 2 * window_s:
                beating.send("heartbeat", {})
                beating.expect("heartbeat_ack")
                if time.monotonic() < started + window_s / 2:
                    idle.sync([part])  # no heartbeat, and so it does not count
                time.sleep(window_s / 8)
            idle.expect_close(4004)
            beating.send("heartbeat", {})
            beating.expect("heartbeat_ack")

    in_a_window(in_time, *WINDOWS_S)


@pytest.mark.req("AUTH-01", "AUTH-03", "AUTH-05", "ENV-02", "ENV-04", "ENV-05", "CONN-02", "ERR-01")
def test_auth_failure_bad_request_bad_version(server: Server, who: str, part: str) -> None:
    forged = sign_token(b"another secret that is just as long as the real", who, ttl_s=60, now_s=time.time())
    expired = sign_token(
        server.secret_file.read_bytes(), who, ttl_s=60, now_s=time.time() - 120, partitions=[part]
    )
    for token in (forged, expired, server.token("somebody-else"), "no token at all"):
        with server.peer() as peer:
            peer.send("connect", {"token": token, "client_id": who})
            error = peer.expect_error("auth_failed")
            assert token not in error["message"]
            peer.expect_close(4001)

    with server.peer() as peer:
        for nonsense in ("not JSON", "[]", "{}", b"{}"):
            peer.raw(nonsense)
            peer.expect_error("bad_request")
        peer.send("sing", {})
        peer.expect_error("bad_request")
        peer.send("sync", {"partitions": [part], "since_committed_id": 0})
        peer.expect_error("bad_request")
        peer.connect(who, server.token(who), supported_profiles=["compatibility"])
        peer.send("submit_events", {"events": []})
        peer.expect_error("bad_request")
        peer.commit([part], set_event("a", 1))
        draft = item([part], set_event("a", 2), client_id="somebody-else")
        peer.send("submit_events", {"events": [item([part], set_event("a", 3)), draft]})
        peer.expect_error("auth_failed")
        peer.expect_close(4001)

    with server.peer() as peer:
        peer.send("connect", {"token": server.token(who), "client_id": who}, protocol_version="2.0")
        error = peer.expect_error("protocol_version_unsupported")
        assert error["supported_versions"] == error["details"]["supported_versions"] == ["1.0"]
        peer.expect_close(4002)

    with server.client(who) as peer:
        assert len(peer.sync([part])["events"]) == 1, "nothing of the message with a foreign item took effect"


@pytest.mark.req("AUTHZ-01", "AUTHZ-03", "AUTHZ-04", "AUTHZ-05")
def test_forbidden_sync_and_submit(server: Server, part: str) -> None:
    mine, theirs = f"{part}/mine", f"{part}/theirs"
    token = server.token(f"{part}-a", partitions=[mine], prefixes=[f"{mine}/"])
    with server.client(f"{part}-b") as other, server.peer() as peer:
        other.commit([theirs], tree_event("A"))
        peer.connect(f"{part}-a", token, supported_profiles=["compatibility"])
        peer.subscribe(mine)
        for request in (
            {"partitions": [theirs]},
            {"partitions": [mine, theirs]},
            {"partitions": [mine], "subscription_partitions": [mine, theirs]},
        ):
            peer.send("sync", {"since_committed_id": 0, **request})
            error = peer.expect_error("forbidden")
            assert error["details"]["partitions"] == [theirs]
        assert peer.sync([mine])["effective_subscriptions"] == [mine], "a refused sync changes nothing"

        results = peer.submit(
            item([f"{mine}/below"], tree_event("B")),
            item([mine, theirs], tree_event("C")),
            item([mine], tree_event("D")),
        )
        assert [result["status"] for result in results] == ["committed", "rejected", "committed"]
        assert results[1]["reason"] == "forbidden"
        assert theirs in results[1]["errors"][0]["message"]
        other.commit([theirs], tree_event("E"))
        peer.expect_quiet()
        assert len(other.sync([mine, theirs, f"{mine}/below"])["events"]) == 4


@pytest.mark.req("CONN-05", "CONN-08", "CONN-10")
def test_takeover(server: Server, who: str, part: str) -> None:
    with server.client(f"{who}-w") as writer, server.client(who) as first:
        first.subscribe(part)
        with server.client(who) as second:
            first.expect_close(4003)
            writer.commit([part], set_event("a", 1))
            second.expect_quiet()
            assert second.sync([part])["effective_subscriptions"] == [], "subscriptions went with the first"
            second.subscribe(part)
            writer.commit([part], set_event("a", 2), id=f"{part}-2")
            assert second.expect("event_broadcast")["id"] == f"{part}-2"
            second.commit([part], set_event("a", 3))


@pytest.mark.req("AUTH-04")
def test_token_expiry_on_an_idle_connection(server: Server, who: str, part: str) -> None:
    def idle(ttl_s: float) -> None:
        with server.peer() as peer, server.client(f"{who}-w") as writer:
            started = time.time()
            peer.connect(who, server.token(who, ttl_s=ttl_s), supported_profiles=["compatibility"])
            head = peer.subscribe(part)["sync_to_committed_id"]
            error = peer.expect_error("auth_failed")  # nothing was sent: a timer did it
            assert ttl_s - 0.1 < time.time() - started < 2 * ttl_s
            assert "expired" in error["message"]
            peer.expect_close(4001)
            writer.commit([part], set_event("a", 1))
            with server.client(who) as again:
                assert len(again.sync([part], head)["events"]) == 1

    in_a_window(idle, *WINDOWS_S)


@pytest.mark.req("BCAST-03", "BCAST-04", "LIM-05", "CONN-10")
def test_slow_consumer_closed_while_its_neighbours_are_unaffected(server: Server, part: str) -> None:
    address = urlsplit(server.url)
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    small.connect((address.hostname, address.port))
    closes = server.metric("unisono_closes_total", code="4005")
    text = "x" * 400_000
    with (
        server.client(f"{part}-w") as writer,
        server.client(f"{part}-n") as neighbour,
        server.peer(sock=small, max_queue=1) as slow,
    ):
        slow.connect(f"{part}-s", server.token(f"{part}-s"), supported_profiles=["compatibility"])
        slow.subscribe(part)
        neighbour.subscribe(part)
        committed: list[int] = []
        while server.metric("unisono_closes_total", code="4005") == closes:
            assert len(committed) < 60, "nothing stops the unread bytes from piling up"
            committed.append(writer.commit([part], set_event("text", text)))
            assert neighbour.expect("event_broadcast")["committed_id"] == committed[-1]

        committed.append(writer.commit([part], set_event("text", "after the close")))
        assert neighbour.expect("event_broadcast")["committed_id"] == committed[-1]

        heard = list(until_closed(slow, 4005))
        assert heard == committed[: len(heard)], "no gap up to the close"
        assert len(heard) < len(committed)
    with server.client(f"{part}-s") as again:
        caught_up = again.history([part], since=heard[-1] if heard else 0)
        assert heard + [event["committed_id"] for event in caught_up] == committed
