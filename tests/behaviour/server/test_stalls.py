"""Processes of a server that stand still: what waits for them is bounded, and who is given up learns of it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from tests.behaviour.server.harness import Closed, Peer, Server, item, running, set_event
from tests.waiting import PATIENCE_S, until

SERVE = ("--access-default", "allow", "--stall-timeout-s", "1", "--drain-timeout-s", "5")

EVENT_BYTES = 20_000
PAGE_EVENTS = 50
"""So one page has about a megabyte, and a few of them are more than a channel holds."""

CLIENTS = 8

MANY = 60
"""Requests of 100 kB: more than a channel holds, and fewer than a client may have in flight."""


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process stands still; it goes on afterwards, if it is still there."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def handed_on(peer: Peer) -> None:
    """Whatever was sent before has been passed on by the front."""
    for _ in range(2):
        peer.send("heartbeat", {})
        peer.expect("heartbeat_ack")


def says(server: Server, words: str) -> None:
    until(lambda: words in server.log.read_text(), lambda: f"no {words!r} in:\n{server.log.read_text()}")


def ask_more_than_the_channel_holds(server: Server, peers: ExitStack) -> list[Peer]:
    """Pages that the reader begins to send only when this returns; it and the front are at work until then."""
    writer = peers.enter_context(server.client("writer"))
    for _ in range(2 * PAGE_EVENTS // 20):
        writer.submit(*(item(["p"], set_event("x", "x" * EVENT_BYTES)) for _ in range(20)))
    clients = [peers.enter_context(server.client(f"client {number}")) for number in range(CLIENTS)]
    since = [client.sync(["p"], limit=PAGE_EVENTS)["next_since_committed_id"] for client in clients]
    _, reader, front = server.children()
    with stopped(reader):
        for client, after in zip(clients, since, strict=True):
            client.send("sync", {"partitions": ["p"], "since_committed_id": after, "limit": PAGE_EVENTS})
            handed_on(client)
        os.kill(front, signal.SIGSTOP)
    return clients


@pytest.mark.req("LIM-05", "DUR-04")
def test_a_front_that_the_reader_gave_up_does_not_leave_its_clients_waiting(tmp_path: Path) -> None:
    with running(tmp_path / "data", *SERVE) as server, ExitStack() as peers:
        clients = ask_more_than_the_channel_holds(server, peers)
        says(server, "channel to front 0 aborted: stalled")
        says(server, "reader gave up front 0")
        assert not server.is_ready()
        os.kill(list(server.children())[2], signal.SIGCONT)
        for client in clients:
            heard, code = until_closed(client)
            assert (heard[-1], code) == ("error", 1011), "nobody is left without an answer"
        assert server.process.wait(PATIENCE_S) == 1
        says(server, "front 0 lost the reader")


def until_closed(peer: Peer) -> tuple[list[str], int | None]:
    """What comes until the server closes, and the code it closes with."""
    heard: list[str] = []
    while True:
        try:
            heard.append(peer.receive()["type"])
        except Closed as closed:
            return heard, closed.code


@pytest.mark.req("LIM-05", "DUR-04")
def test_a_front_that_never_goes_on_is_killed_and_the_node_ends(tmp_path: Path) -> None:
    with (
        running(tmp_path / "data", *SERVE, "--close-grace-s", "0.5") as server,
        ExitStack() as peers,
    ):
        ask_more_than_the_channel_holds(server, peers)
        assert server.process.wait(PATIENCE_S) == 1
        says(server, "front 0 does not exit: killing it")
        assert not server.children()


@pytest.mark.req("LIM-05", "DUR-04", "ERR-03")
def test_a_front_that_the_authority_gave_up_ends_the_node_and_the_others_are_drained(tmp_path: Path) -> None:
    with (
        running(tmp_path / "data", *SERVE, "--close-grace-s", "0.5", "--fronts", "2") as server,
        ExitStack() as peers,
    ):
        writer = peers.enter_context(server.client("writer"))
        _, _, *fronts = server.children()
        other = 1 if server.metric("unisono_connections", process="front 0") else 0
        with stopped(fronts[other]):
            for _ in range(MANY):
                with contextlib.suppress(ConnectionClosed):
                    writer.send("submit_events", {"events": [item(["p"], set_event("x", "x" * 100_000))]})
            heard, code = until_closed(writer)
            assert (set(heard), code) == ({"submit_events_result"}, 1001)
            assert len(heard) == MANY, "what was submitted is answered before the end"
            says(server, f"authority gave up front {other}")
            assert server.process.wait(PATIENCE_S) == 1


@pytest.mark.req("LIM-05", "LIM-03")
def test_syncs_that_the_reader_has_not_answered_count_also_when_their_connection_is_gone(
    tmp_path: Path,
) -> None:
    names = [f"{number:0128}" for number in range(64)]
    with running(tmp_path / "data", *SERVE, "--max-sync-queue-bytes", str(1 << 20)) as server:
        with server.client("writer") as writer:
            writer.commit(["p"], set_event("x", 1))
        reader = list(server.children())[1]
        with stopped(reader):
            for _ in range(1000):  # each leaves as soon as its page was asked for
                with server.client("greedy") as greedy:
                    greedy.send("sync", {"partitions": names, "since_committed_id": 0})
                    greedy.send("heartbeat", {})
                    if greedy.receive()["type"] == "error":
                        break
                    handed_on(greedy)
            with server.client("patient") as patient:
                patient.send("sync", {"partitions": names, "since_committed_id": 0})
                assert patient.expect_error("rate_limited")["retry_after_ms"] > 0
            assert 1 << 19 < server.metric("unisono_sync_queue_bytes") <= 1 << 20
        with server.client("patient") as patient:
            until(
                lambda: server.metric("unisono_sync_queue_bytes") == 0, "what was cancelled counts for ever"
            )
            assert patient.sync(["p"])["events"]
            assert server.metric("unisono_sync_pages_cancelled_total") > 0
