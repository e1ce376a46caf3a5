"""Heartbeats over a real socket: who answers, what counts, and when silence ends a connection."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.behaviour.server.harness import Peer, Server, item, running_by_window, set_event
from tests.behaviour.server.pressure import CLOSE, PING, TEXT, RawSocket
from tests.waiting import in_a_window
from unisono.front.heartbeats import missed

PONG = 0xA
WINDOWS_S = (0.7, 3.0, 20.0)
EARLY_S = 0.05
"""By which a clock may be read too early."""

ByWindow = Callable[[float], Server]


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ByWindow]:
    """Closes after so long without a heartbeat."""
    place, options = tmp_path_factory.mktemp("impatient"), ("--heartbeat-timeout-s", "{}")
    with running_by_window(place, "--access-default", "allow", *options) as started:
        yield started


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ByWindow]:
    """The same, and any message counts."""
    place, options = (
        tmp_path_factory.mktemp("lenient"),
        ("--heartbeat-timeout-s", "{}", "--heartbeat-any-message"),
    )
    with running_by_window(place, "--access-default", "allow", *options) as started:
        yield started


def keep_sending(peer: Peer | Mute, seconds: float, kind: str, payload: dict[str, Any], answer: str) -> None:
    """One request after the other for so long, each answered."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        peer.send(kind, payload)
        peer.expect(answer)
        time.sleep(0.1)


def silence_lasts(peer: Peer | Mute, since: float, window_s: float) -> None:
    """The close comes a window after `since` and not before, and says what to do about it."""
    reason = peer.expect_close(4004)
    assert reason == missed(window_s)
    assert time.monotonic() - since > window_s - EARLY_S


class Mute:
    """A client that answers no pings; each one that comes is counted."""

    def __init__(self, server: Server, who: str | None = None) -> None:
        self._raw = RawSocket(server.url)
        self.pings = 0
        if who is not None:
            token = server.token(who)
            self.send("connect", {"token": token, "client_id": who, "supported_profiles": ["compatibility"]})
            self.expect("connected")

    def send(self, kind: str, payload: dict[str, Any]) -> None:
        self._raw.send(kind, payload)

    def frame(self, opcode: int) -> None:
        self._raw.frame(opcode, b"")

    def receive(self) -> tuple[int, bytes]:
        while (message := self._raw.receive())[0] == PING:
            self.pings += 1
        return message

    def expect(self, kind: str) -> None:
        opcode, data = self.receive()
        assert opcode == TEXT, data
        assert json.loads(data)["type"] == kind, data

    def expect_close(self, code: int) -> str:
        opcode, data = self.receive()
        assert opcode == CLOSE, data
        assert struct.unpack("!H", data[:2]) == (code,)
        return data[2:].decode()

    def __enter__(self) -> Mute:
        return self

    def __exit__(self, *exc: object) -> None:
        self._raw.socket.close()


@pytest.mark.req("HB-02", "CONN-10")
def test_a_missed_heartbeat_is_explained_within_a_close_frame() -> None:
    assert missed(30) == "no heartbeat for 30 s; send heartbeat every 10 to 25 s"
    assert missed(0.7) == "no heartbeat for 0.7 s; send heartbeat every 0.23 to 0.58 s"
    assert len(missed(86_400 * 366 - 0.123).encode()) <= 123


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
def test_silence_ends_a_connection_in_either_state(impatient: ByWindow, who: str) -> None:
    def silent(window_s: float) -> None:
        server = impatient(window_s)
        since = time.monotonic()
        with server.peer() as waiting, server.client(who) as active:
            silence_lasts(waiting, since, window_s)
            active.expect_close(4004)

    in_a_window(silent, *WINDOWS_S)


@pytest.mark.req("HB-02")
def test_heartbeats_keep_a_connection_open_and_their_end_closes_it(impatient: ByWindow, who: str) -> None:
    def beating(window_s: float) -> None:
        with impatient(window_s).peer() as waiting, impatient(window_s).client(who) as active:
            until = time.monotonic() + 2 * window_s
            while time.monotonic() < until:
                for peer in (waiting, active):
                    peer.send("heartbeat", {})
                    peer.expect("heartbeat_ack")
                time.sleep(0.1)
            last = time.monotonic()
            active.send("heartbeat", {})
            active.expect("heartbeat_ack")
            silence_lasts(active, last, window_s)
            waiting.expect_close(4004)

    in_a_window(beating, *WINDOWS_S)


@pytest.mark.req("HB-02")
def test_only_heartbeats_reset_the_window(impatient: ByWindow, who: str, part: str) -> None:
    def talking(window_s: float) -> None:
        server = impatient(window_s)
        since = time.monotonic()
        with server.client(who) as peer:
            peer.subscribe(part)
            request = {"partitions": [part], "since_committed_id": 0}
            keep_sending(peer, window_s / 2, "sync", request, "sync_response")
            peer.send("submit_event", item([part], set_event("x", 1)))
            peer.expect("event_committed")
            peer.send("nonsense", {})
            peer.expect_error("bad_request")
            peer.socket.ping()
            spoke = time.monotonic()
            silence_lasts(peer, since, window_s)
            assert time.monotonic() - spoke < window_s, "what is no heartbeat does not count"

    in_a_window(talking, *WINDOWS_S)


@pytest.mark.req("HB-02")
def test_connecting_is_no_heartbeat(impatient: ByWindow, who: str) -> None:
    def connecting(window_s: float) -> None:
        server = impatient(window_s)
        since = time.monotonic()
        with server.peer() as peer:
            time.sleep(window_s / 2)
            spoke = time.monotonic()
            peer.connect(who, server.token(who), supported_profiles=["compatibility"])
            silence_lasts(peer, since, window_s)
            assert time.monotonic() - spoke < window_s, "connecting does not count"

    in_a_window(connecting, *WINDOWS_S)


@pytest.mark.req("HB-02")
def test_pings_and_pongs_alone_keep_nobody_alive(impatient: ByWindow, who: str) -> None:
    def pinging(window_s: float) -> None:
        server = impatient(window_s)
        since = time.monotonic()
        with Mute(server, who) as peer:
            while time.monotonic() < since + window_s / 2:
                peer.frame(PING)
                peer.frame(PONG)
                assert peer.receive()[0] == PONG
                time.sleep(0.05)
            spoke = time.monotonic()
            silence_lasts(peer, since, window_s)
            assert time.monotonic() - spoke < window_s, "neither pings nor pongs count"
            assert peer.pings == 0

    in_a_window(pinging, *WINDOWS_S)


@pytest.mark.req("HB-02")
def test_any_message_counts_where_the_operator_says_so(lenient: ByWindow, who: str, part: str) -> None:
    def talking(window_s: float) -> None:
        with Mute(lenient(window_s), who) as peer:
            request = {"partitions": [part], "since_committed_id": 0}
            keep_sending(peer, 2 * window_s, "sync", request, "sync_response")
            last = time.monotonic()
            peer.send("sync", request)
            peer.expect("sync_response")
            silence_lasts(peer, last, window_s)

    in_a_window(talking, *WINDOWS_S)


@pytest.mark.req("HB-02")
def test_there_a_client_that_says_nothing_is_pinged_and_its_pongs_count(lenient: ByWindow, who: str) -> None:
    """The library of this client answers pings by itself, as browsers do."""

    def silent(window_s: float) -> None:
        server = lenient(window_s)
        with server.client(who) as peer, Mute(server) as mute:
            peer.expect_quiet(2.5 * window_s)
            mute.expect_close(4004)
            assert mute.pings >= 2
            peer.send("heartbeat", {})
            peer.expect("heartbeat_ack")

    in_a_window(silent, *WINDOWS_S)


@pytest.mark.req("HB-02")
def test_what_is_no_message_never_counts(lenient: ByWindow) -> None:
    def nonsense(window_s: float) -> None:
        server = lenient(window_s)
        since = time.monotonic()
        with Mute(server) as peer:
            keep_sending(peer, window_s / 2, "nonsense", {}, "error")
            spoke = time.monotonic()
            silence_lasts(peer, since, window_s)
            assert time.monotonic() - spoke < window_s, "what is no message does not count"

    in_a_window(nonsense, *WINDOWS_S)
