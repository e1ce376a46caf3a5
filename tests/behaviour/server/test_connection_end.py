"""Connections that do not connect in time, and connections of a node that ends."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.behaviour.server.harness import Server, item, running, running_by_window, tree_event
from tests.behaviour.server.pressure import authority_stopped, still_active
from tests.waiting import PATIENCE_S, in_a_window, until

# -- handshake window ----------------------------------------------------------------------------------------


WINDOWS_S = (0.4, 3.0, 20.0)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[float], Server]]:
    """Two fronts, which ask the authority at each connect."""
    place, options = tmp_path_factory.mktemp("hasty"), ("--handshake-timeout-s", "{}", "--fronts", "2")
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
            with authority_stopped(server):
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
        with authority_stopped(server):
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
        with authority_stopped(server):
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
