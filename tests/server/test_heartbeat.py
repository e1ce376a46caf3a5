"""Heartbeats over a real socket: who answers, what counts, and when silence ends a connection."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import Peer, Server, item, running, set_event

WINDOW_S = 0.7


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Closes after a short time without a heartbeat."""
    data: Path = tmp_path_factory.mktemp("impatient") / "data"
    with running(data, "--access-default", "allow", "--heartbeat-timeout-s", str(WINDOW_S)) as started:
        yield started


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same window, and any message counts."""
    data: Path = tmp_path_factory.mktemp("lenient") / "data"
    options = ("--heartbeat-timeout-s", str(WINDOW_S), "--heartbeat-any-message")
    with running(data, "--access-default", "allow", *options) as started:
        yield started


def keep_sending(peer: Peer, seconds: float, kind: str, payload: dict[str, Any], answer: str) -> None:
    """One request after the other for so long, each answered."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        peer.send(kind, payload)
        peer.expect(answer)
        time.sleep(0.1)


def silence_lasts(peer: Peer, since: float) -> None:
    """The close comes a window after `since`, not before and not much later."""
    assert peer.expect_close(4004) == "no heartbeat"
    assert WINDOW_S - 0.05 < time.monotonic() - since < WINDOW_S + 2


@pytest.mark.req("HB-01")
@pytest.mark.parametrize("payload", [{}, {"anything": 1}, {"client_id": None}])
def test_a_heartbeat_is_answered_in_both_states(server: Server, who: str, payload: dict[str, Any]) -> None:
    with server.peer() as peer:
        for _ in range(3):
            peer.send("heartbeat", payload)
        for _ in range(3):
            assert peer.expect("heartbeat_ack") == {}
        peer.connect(who, server.token(who))
        for _ in range(3):
            peer.send("heartbeat", payload)
        for _ in range(3):
            assert peer.expect("heartbeat_ack") == {}
        peer.send("heartbeat", {"client_id": who})
        peer.expect("heartbeat_ack")


@pytest.mark.req("HB-02", "CONN-10")
def test_silence_ends_a_connection_in_either_state(impatient: Server, who: str) -> None:
    waiting_since = time.monotonic()
    with impatient.peer() as waiting, impatient.client(who) as active:
        silence_lasts(waiting, waiting_since)
        active.expect_close(4004)


@pytest.mark.req("HB-02")
def test_heartbeats_keep_a_connection_open_and_their_end_closes_it(impatient: Server, who: str) -> None:
    with impatient.peer() as waiting, impatient.client(who) as active:
        until = time.monotonic() + 2 * WINDOW_S
        while time.monotonic() < until:
            for peer in (waiting, active):
                peer.send("heartbeat", {})
                peer.expect("heartbeat_ack")
            time.sleep(0.1)
        last = time.monotonic()
        active.send("heartbeat", {})
        active.expect("heartbeat_ack")
        silence_lasts(active, last)
        waiting.expect_close(4004)


@pytest.mark.req("HB-02")
def test_only_heartbeats_reset_the_window(impatient: Server, who: str, part: str) -> None:
    since = time.monotonic()
    with impatient.client(who) as peer:
        peer.subscribe(part)
        keep_sending(
            peer, WINDOW_S / 2, "sync", {"partitions": [part], "since_committed_id": 0}, "sync_response"
        )
        peer.send("submit_event", item([part], set_event("x", 1)))
        peer.expect("event_committed")
        peer.send("nonsense", {})
        peer.expect_error("bad_request")
        peer.socket.ping()
        silence_lasts(peer, since)


@pytest.mark.req("HB-02")
def test_connecting_is_no_heartbeat(impatient: Server, who: str) -> None:
    since = time.monotonic()
    with impatient.peer() as peer:
        time.sleep(WINDOW_S / 2)
        peer.connect(who, impatient.token(who), supported_profiles=["compatibility"])
        silence_lasts(peer, since)


@pytest.mark.req("HB-02")
def test_any_message_counts_where_the_operator_says_so(lenient: Server, who: str, part: str) -> None:
    with lenient.client(who) as peer:
        request = {"partitions": [part], "since_committed_id": 0}
        keep_sending(peer, 2 * WINDOW_S, "sync", request, "sync_response")
        last = time.monotonic()
        peer.send("sync", request)
        peer.expect("sync_response")
        silence_lasts(peer, last)


@pytest.mark.req("HB-02")
def test_what_is_no_message_never_counts(lenient: Server) -> None:
    since = time.monotonic()
    with lenient.peer() as peer:
        keep_sending(peer, WINDOW_S / 2, "nonsense", {}, "error")
        silence_lasts(peer, since)
