"""Clients that end at the worst moment, and crowds that speak before they are anybody."""

from __future__ import annotations

import re
import socket
import struct
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.behaviour.server.crowds import front_pid, settled_front
from tests.behaviour.server.frames import CLOSE, TEXT, UPGRADE, frame
from tests.behaviour.server.harness import Server, running, set_event
from tests.behaviour.server.pressure import RawSocket, still_active, stopped
from tests.waiting import PATIENCE_S, until
from unisono.front.early_messages import UNVERIFIED_READ_BYTES


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def leave_before_the_answer(server: Server) -> None:
    """Ask for an upgrade, and be gone when the server answers."""
    address = urlsplit(server.url)
    sock = socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S)
    sock.sendall(UPGRADE)
    reset(sock)


@pytest.mark.req("LIM-05", "CONN-07")
def test_who_resets_before_the_upgrade_is_answered_takes_no_room(tmp_path: Path, who: str) -> None:
    """The request comes with the connection, and the answer finds it reset."""
    with running(tmp_path / "data", "--access-default", "allow", "--max-connections", "5") as server:
        for _ in range(2):
            with stopped(front_pid(server)):
                for _ in range(20):
                    leave_before_the_answer(server)
            settled_front(server, 0)
        with server.client(who) as peer:
            still_active(peer)


@pytest.mark.req("LIM-05", "CONN-10")
def test_who_closes_and_never_takes_the_answers_is_cut(tmp_path: Path, who: str, part: str) -> None:
    """Nothing is unsent when the close is read; the answers to what came with it do not fit into the socket."""
    with (
        running(tmp_path / "data", "--access-default", "allow", "--close-grace-s", "0.2") as server,
        server.client(f"{who}-b") as writer,
        RawSocket(server.url, receive_buffer_bytes=4096) as slow,
    ):
        slow.send(
            "connect",
            {"token": server.token(who), "client_id": who, "supported_profiles": ["compatibility"]},
        )
        slow.expect("connected")
        slow.send("sync", {"partitions": [part], "since_committed_id": 0, "subscription_partitions": [part]})
        slow.expect("sync_response")
        for _ in range(4):
            writer.commit([part], set_event("x", "y" * 400_000))
        with stopped(front_pid(server)):
            slow.socket.sendall(frame(TEXT) * 10_000 + frame(CLOSE, struct.pack("!H", 1000)))
        until(lambda: server.metric("unisono_connections") == 1, "the socket is still there")
        still_active(writer)


# -- before connected ----------------------------------------------------------------------------------------


JUNK = frame(TEXT)
"""The shortest message: six bytes, and an answer of two hundred."""

JUNK_MESSAGES = 4_000


def told_last_at(raw: RawSocket, number: int) -> int:
    """The server's time in its message of this number."""
    heard = b""
    while (found := re.search(rb'"msg_id":"s%d","timestamp":(\d+)' % number, heard)) is None:
        more = raw.socket.recv(1 << 20)
        assert more, heard[-200:]
        heard = heard[-200:] + more
    return int(found[1])


@pytest.mark.req("LIM-07", "CONN-02")
@pytest.mark.parametrize("connected", [False, True], ids=["before connected", "connected"])
def test_many_small_frames_do_not_go_first(server: Server, who: str, connected: bool) -> None:
    """Who speaks after a crowd that has much to say has its answer before any of them has all of theirs."""
    assert len(JUNK) * JUNK_MESSAGES > 4 * UNVERIFIED_READ_BYTES
    last = JUNK_MESSAGES
    with ExitStack() as crowd, server.client(who) as peer:
        raws = [crowd.enter_context(RawSocket(server.url)) for _ in range(8)]
        if connected:
            last += 2
            for number, raw in enumerate(raws):
                raw.send(
                    "connect", {"token": server.token(f"{who}-{number}"), "client_id": f"{who}-{number}"}
                )
                raw.expect("connected")
                raw.socket.sendall(JUNK)
                assert raw.expect("error")["code"] == "bad_request"
        with stopped(front_pid(server)):
            for raw in raws:
                raw.socket.sendall(JUNK * JUNK_MESSAGES)
            peer.send("heartbeat", {})
        answered_at = peer.receive()["timestamp"]
        assert answered_at < min(told_last_at(raw, last) for raw in raws)


@pytest.mark.req("LIM-05", "CONN-10")
def test_before_connected_little_is_kept_for_who_takes_nothing(tmp_path: Path) -> None:
    with (
        running(tmp_path / "data", "--access-default", "allow", "--close-grace-s", "0.2") as server,
        RawSocket(server.url, receive_buffer_bytes=4096) as deaf,
    ):
        deaf.socket.sendall(JUNK * 25_000)  # answers of 5 MB; the kernel takes two or three of them
        until(lambda: server.metric("unisono_connections") == 0, "everything is kept")
        assert server.metric("unisono_closes_total", code="4005") == 1
