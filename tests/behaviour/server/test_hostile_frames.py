"""Messages and frames at the limits: what a server lends before connected, and how frames may be cut."""

from __future__ import annotations

import json
import socket
import struct
from itertools import product
from urllib.parse import urlsplit

import pytest

from tests.behaviour.server.harness import Server
from tests.behaviour.server.pressure import (
    BINARY,
    CONTINUATION,
    PING,
    TEXT,
    UPGRADE,
    RawSocket,
    authority_stopped,
    padded,
)
from unisono.front.client_sockets import READ_BYTES
from unisono.front.frame_reader import FEED_BYTES

# -- before connected, little is lent ------------------------------------------------------------------------


@pytest.mark.req("LIM-07", "LIM-02", "CONN-10")
def test_before_connected_a_message_has_at_most_64_kib(server: Server, who: str) -> None:
    with server.peer() as peer:
        peer.raw(padded(peer, 65_536))
        peer.expect("heartbeat_ack")
        peer.connect(who, server.token(who))
        peer.raw(padded(peer, 1_048_576))
        peer.expect("heartbeat_ack")
        peer.raw(padded(peer, 1_048_577))
        assert "1048576" in peer.expect_close(1009)
    with server.peer() as peer:
        peer.raw(padded(peer, 65_537))
        assert "65536" in peer.expect_close(1009)


@pytest.mark.req("LIM-07", "LIM-02")
@pytest.mark.parametrize("parts", [(65_537,), (65_000, 1000), (30_000, 30_000, 30_000), (65_536, 1)])
def test_before_connected_fragments_are_bounded_together(server: Server, parts: tuple[int, ...]) -> None:
    with RawSocket(server.url) as raw:
        for number, size in enumerate(parts):
            raw.frame(CONTINUATION if number else BINARY, b"x" * size, fin=False)
        raw.expect_close(1009)


@pytest.mark.req("LIM-07", "LIM-02")
def test_a_frame_that_announces_too_much_is_refused_before_it_comes(server: Server) -> None:
    with RawSocket(server.url) as raw:
        raw.frame(TEXT, b"", announced=65_537)
        raw.expect_close(1009)


@pytest.mark.req("CONN-02", "LIM-05")
def test_what_is_held_behind_a_connect_is_bounded_in_bytes(two_fronts: Server, who: str) -> None:
    with authority_stopped(two_fronts), two_fronts.peer() as peer:
        peer.send("connect", {"token": two_fronts.token(who), "client_id": who})
        for _ in range(3):
            peer.raw(padded(peer, 30_000))
        peer.expect_close(4006)


# -- frames --------------------------------------------------------------------------------------------------


@pytest.mark.req("ENV-01", "LIM-02")
@pytest.mark.parametrize(
    ("size", "piece"),
    [
        *product(
            [0, 20, 200, 5000],
            [1, 7, FEED_BYTES, 100_000],
        ),
        *product([READ_BYTES, 1_000_000], [7, FEED_BYTES, 100_000]),
    ],
)
def test_frames_of_any_size_come_through_however_they_are_cut(
    server: Server, who: str, size: int, piece: int
) -> None:
    with RawSocket(server.url) as raw:
        raw.send("connect", {"token": server.token(who), "client_id": who})
        raw.expect("connected")
        sent = raw.bytes_of(_heartbeats(size))
        for at in range(0, len(sent), piece):
            raw.socket.sendall(sent[at : at + piece])
        for _ in range(3):
            assert raw.expect("heartbeat_ack") == {}


def _heartbeats(size: int) -> list[tuple[int, bytes]]:
    """A long one between two short ones, and a ping that nobody waits for."""
    message = {"type": "heartbeat", "msg_id": "m", "timestamp": 1, "protocol_version": "1.0", "payload": {}}
    short = json.dumps(message).encode()
    long = json.dumps(message | {"payload": {"pad": "é" * (size // 2)}}, ensure_ascii=False).encode()
    return [(TEXT, short), (TEXT, long), (TEXT, short)]


@pytest.mark.req("ENV-01", "LIM-05")
def test_a_message_in_fragments_of_single_bytes_comes_through(server: Server) -> None:
    message = _heartbeats(3000)[1][1]
    first, *rest = (bytes([byte]) for byte in message)
    frames = [b"\x01\x81" + bytes(4) + first, *(b"\x00\x81" + bytes(4) + byte for byte in rest)]
    with RawSocket(server.url) as raw:
        raw.socket.sendall(b"".join(frames) + b"\x80\x80" + bytes(4))
        assert raw.expect("heartbeat_ack") == {}


@pytest.mark.req("LIM-05")
def test_pings_that_come_together_are_answered_by_one_pong(server: Server) -> None:
    with RawSocket(server.url) as raw:
        raw.socket.sendall(raw.bytes_of([(PING, b"%d" % number) for number in range(5000)]))
        pongs: list[bytes] = []
        while not pongs or pongs[-1] != b"4999":
            opcode, payload = raw.receive()
            assert opcode == 0xA
            pongs.append(payload)
        assert len(pongs) < 1000
        raw.send("heartbeat", {})
        raw.expect("heartbeat_ack")


@pytest.mark.req("CONN-10")
@pytest.mark.parametrize("tail", [b"\x89\x80\0\0\0\0", b"\x81\xfe\x04\x00\0\0\0\0" + b"x" * 100, b"\x81"])
def test_frames_sent_before_the_upgrade_is_answered_end_the_connection(server: Server, tail: bytes) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port)) as sock:
        sock.sendall(UPGRADE + tail)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += sock.recv(4096)
        sock.sendall(b"\x89\x80\0\0\0\0" * 3)
        rest = answer.partition(b"\r\n\r\n")[2]
        while len(rest) < 4:
            more = sock.recv(4096)
            assert more, "closed without a word"
            rest += more
        assert rest[0] == 0x88
        assert struct.unpack("!H", rest[2:4]) == (1002,)
