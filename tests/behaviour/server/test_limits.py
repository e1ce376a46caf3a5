"""Limits and pressure, over real sockets: every bound, and what happens to whoever reaches it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed

from tests.behaviour.server.embedded import Embedded, connections_in_memory, nothing_collected
from tests.behaviour.server.harness import (
    SECRET,
    Peer,
    Server,
    item,
    running,
    running_by_window,
    set_event,
    tree_event,
)
from tests.behaviour.server.test_identity import OwnCommand
from tests.client.running import until as until_then
from tests.waiting import PATIENCE_S, in_a_window, until
from unisono.front.auth.verify import sign_token
from unisono.front.connection import MAX_EARLY_MESSAGES
from unisono.front.timers import Timers

MESSAGE_BYTES_MAX = 4096
TEXT, BINARY, CONTINUATION, CLOSE, PING = 0x1, 0x2, 0x0, 0x8, 0x9


class RawSocket:
    """A WebSocket made by hand: frames as a test wants them, and nothing read unless it says so."""

    def __init__(self, url: str, receive_buffer_bytes: int | None = None) -> None:
        address = urlsplit(url)
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE_S)
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.connect((address.hostname, address.port))
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._buffer = b""
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += self._read()
        status, _, rest = self._buffer.partition(b"\r\n")
        assert b" 101 " in status, status
        self._buffer = rest.partition(b"\r\n\r\n")[2]

    def frame(
        self, opcode: int, data: bytes, *, fin: bool = True, announced: int | None = None, first: int = 0
    ) -> None:
        """One masked frame; `announced` is the length its header claims, `first` adds bits to its first byte."""
        size = len(data) if announced is None else announced
        head = bytes([(0x80 if fin else 0) | opcode | first])
        if size < 126:
            head += bytes([0x80 | size])
        elif size < 65536:
            head += bytes([0x80 | 126]) + struct.pack("!H", size)
        else:
            head += bytes([0x80 | 127]) + struct.pack("!Q", size)
        mask = os.urandom(4)
        self.socket.sendall(head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data)))

    def bytes_of(self, frames: Sequence[tuple[int, bytes]]) -> bytes:
        """Whole frames as they stand on the wire, masked with what changes nothing."""
        made = []
        for opcode, data in frames:
            size = len(data)
            if size < 126:
                length = bytes([0x80 | size])
            elif size < 65536:
                length = b"\xfe" + struct.pack("!H", size)
            else:
                length = b"\xff" + struct.pack("!Q", size)
            made.append(bytes([0x80 | opcode]) + length + bytes(4) + data)
        return b"".join(made)

    def send(self, kind: str, payload: dict[str, Any]) -> None:
        message = {"type": kind, "msg_id": "m", "timestamp": 1, "protocol_version": "1.0", "payload": payload}
        self.frame(TEXT, json.dumps(message).encode())

    def receive(self) -> tuple[int, bytes]:
        """The opcode and payload of the next frame."""
        first, second = self._take(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", self._take(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self._take(8))
        return first & 0x0F, self._take(size)

    def expect(self, kind: str) -> dict[str, Any]:
        opcode, data = self.receive()
        assert opcode == TEXT, (opcode, data)
        message = json.loads(data)
        assert message["type"] == kind, message
        payload: dict[str, Any] = message["payload"]
        return payload

    def expect_close(self, code: int) -> None:
        opcode, data = self.receive()
        assert opcode == CLOSE, data
        assert struct.unpack("!H", data[:2]) == (code,), data

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._buffer += self._read()
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _read(self) -> bytes:
        data = self.socket.recv(1 << 20)
        if not data:
            raise EOFError("the server closed the socket")
        return data

    def __enter__(self) -> RawSocket:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()


@contextlib.contextmanager
def authority_stopped(server: Server) -> Iterator[None]:
    """Nothing is judged and no head is told until the block ends; the fronts go on."""
    pid = next(iter(server.children()))
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def settled(peer: Peer) -> None:
    """Everything sent before this has been read by the front."""
    peer.send("heartbeat", {})
    peer.expect("heartbeat_ack")


def sets(part: str, count: int) -> list[dict[str, Any]]:
    return [item([part], set_event("n", number)) for number in range(count)]


def rate_limited(peer: Peer) -> int:
    """The next message says so, in both places; after how many milliseconds to come again."""
    error = peer.expect_error("rate_limited")
    wait_ms: int = error["retry_after_ms"]
    assert isinstance(wait_ms, int)
    assert wait_ms > 0
    assert error["details"]["retry_after_ms"] == wait_ms
    assert error["message"]
    return wait_ms


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Every limit small."""
    data = tmp_path_factory.mktemp("small") / "data"
    with running(
        data, "--access-default", "allow", "--max-message-bytes", str(MESSAGE_BYTES_MAX),
        "--max-batch-size", "5", "--max-in-flight-drafts", "8", "--max-queued-syncs", "2",
        "--max-queue-events", "12", "--sync-limit-min", "2", "--sync-limit-max", "3", "--max-json-depth", "10",
        "--max-subscriptions", "3",
    ) as started:  # fmt: skip
        yield started


# -- advertised ----------------------------------------------------------------------------------------------


@pytest.mark.req("LIM-01")
def test_the_limits_are_advertised_with_their_defaults(server: Server, who: str) -> None:
    with server.peer() as peer:
        limits = peer.connect(who, server.token(who))["limits"]
    assert limits == {
        "max_batch_size": 100,
        "sync_limit_min": 50,
        "sync_limit_max": 1000,
        "max_message_bytes": 1024 * 1024,
        "max_in_flight_drafts": 200,
        "max_subscriptions": 1000,
    }


@pytest.mark.req("LIM-01", "SYNC-02", "SUBMIT-01")
def test_configured_limits_are_advertised_and_kept(small: Server, who: str, part: str) -> None:
    with small.peer() as peer:
        connected = peer.connect(who, small.token(who), supported_profiles=["compatibility"])
        assert connected["limits"] == {
            "max_batch_size": 5,
            "sync_limit_min": 2,
            "sync_limit_max": 3,
            "max_message_bytes": MESSAGE_BYTES_MAX,
            "max_in_flight_drafts": 8,
            "max_subscriptions": 3,
        }
        peer.send("submit_events", {"events": sets(part, 6)})
        peer.expect_error("bad_request")
        assert peer.history([part]) == []
        assert len(peer.submit(*sets(part, 5))) == 5
        for asked, given in ((1, 2), (2, 2), (3, 3), (1000, 3), (-5, 2)):
            assert len(peer.sync([part], limit=asked)["events"]) == given
        peer.send(
            "sync",
            {"partitions": [part], "since_committed_id": 0, "subscription_partitions": list("abcd")},
        )
        peer.expect_error("validation_failed")
        assert peer.sync([part], subscription_partitions=list("cba"))["effective_subscriptions"] == list(
            "abc"
        )


# -- size ----------------------------------------------------------------------------------------------------


def sized(size: int) -> bytes:
    """A heartbeat of exactly so many bytes."""
    message = {"type": "heartbeat", "msg_id": "m", "timestamp": 1, "protocol_version": "1.0", "payload": {}}
    room = size - len(json.dumps(message | {"padding": ""}).encode())
    whole = json.dumps(message | {"padding": "x" * room}).encode()
    assert len(whole) == size
    return whole


def cut(data: bytes, pieces: int) -> Iterator[bytes]:
    step = -(-len(data) // pieces)
    return (data[at : at + step] for at in range(0, len(data), step))


@pytest.mark.req("LIM-02", "CONN-10")
@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_a_message_of_the_limit_passes_and_one_byte_more_does_not(small: Server, pieces: int) -> None:
    with small.peer() as peer:
        peer.socket.send(cut(sized(MESSAGE_BYTES_MAX), pieces), text=True)
        peer.expect("heartbeat_ack")
        with contextlib.suppress(ConnectionClosed):  # it may be closed before the last fragment is written
            peer.socket.send(cut(sized(MESSAGE_BYTES_MAX + 1), pieces), text=True)
        peer.expect_close(1009)


@pytest.mark.req("LIM-02", "CONN-10")
@pytest.mark.parametrize("announced", [MESSAGE_BYTES_MAX + 1, 70_000, 2**40, 2**62])
@pytest.mark.parametrize("opcode", [TEXT, BINARY], ids=["text", "binary"])
def test_a_frame_is_refused_by_its_header_before_its_bytes_come(
    small: Server, announced: int, opcode: int
) -> None:
    with RawSocket(small.url) as peer:
        peer.frame(opcode, b"", announced=announced)
        peer.expect_close(1009)


@pytest.mark.req("LIM-02", "CONN-10")
def test_fragments_are_refused_as_soon_as_they_pass_the_limit(small: Server) -> None:
    """The message never ends; the server does not wait for its end."""
    with RawSocket(small.url) as peer:
        peer.frame(TEXT, b"x" * 3000, fin=False)
        peer.frame(CONTINUATION, b"x" * 1096, fin=False)
        peer.frame(PING, b"still there?")
        assert peer.receive() == (0xA, b"still there?")
        peer.frame(CONTINUATION, b"x", fin=False)
        peer.expect_close(1009)
    with RawSocket(small.url) as peer:
        peer.frame(BINARY, b"x" * 10, fin=False)
        peer.frame(CONTINUATION, b"", announced=MESSAGE_BYTES_MAX + 1)
        peer.expect_close(1009)


@pytest.mark.req("LIM-02")
def test_a_message_far_above_the_limit_does_not_trouble_the_others(small: Server, who: str) -> None:
    with small.client(who) as other:
        for _ in range(3):
            with small.peer() as peer, contextlib.suppress(ConnectionClosed):
                peer.raw("x" * (16 * 1024 * 1024))  # the server is gone before this is written
        settled(other)


@pytest.mark.req("LIM-02")
@pytest.mark.parametrize(
    "frames",
    [
        [(CONTINUATION, True, 0)],
        [(TEXT, False, 0), (TEXT, True, 0)],
        [(TEXT, False, 0), (BINARY, False, 0)],
        [(TEXT, True, 0x40)],
        [(TEXT, True, 0x10)],
        [(0x3, True, 0)],
        [(CLOSE, False, 0)],
    ],
    ids=["stray continuation", "text in text", "binary in text", "rsv1", "rsv3", "opcode 3", "cut close"],
)
def test_frames_against_the_rules_are_a_protocol_error(
    small: Server, frames: list[tuple[int, bool, int]]
) -> None:
    with RawSocket(small.url) as peer:
        for opcode, fin, first in frames:
            peer.frame(opcode, b"{}", fin=fin, first=first)
        peer.expect_close(1002)


# -- depth ---------------------------------------------------------------------------------------------------


def deep_submit(peer: Peer, part: str, levels: int) -> str:
    """A submission whose whole message nests so many levels, as text."""
    # The envelope, the payload, the event, its payload and `data` are five of them.
    event = {"type": "event", "payload": {"schema": "deep", "data": {"x": "HERE"}}}
    message = json.dumps(peer.envelope("submit_event", item([part], event)))
    return message.replace('"HERE"', "[" * (levels - 5) + "]" * (levels - 5))


@pytest.mark.req("LIM-06")
def test_nesting_is_counted_over_the_whole_message(server: Server, who: str, part: str) -> None:
    with server.client(who, "canonical") as peer:
        peer.raw(deep_submit(peer, part, 64))
        committed = peer.expect("event_committed")
        for levels in (65, 66, 1000, 200_000):
            peer.raw(deep_submit(peer, part, levels))
            assert "64" in peer.expect_error("bad_request")["message"]
        peer.raw("[" * 500_000)
        peer.expect_error("bad_request")
        peer.raw('{"a":' * 100_000)
        peer.expect_error("bad_request")
        assert peer.history([part]) == [committed]


@pytest.mark.req("LIM-06")
def test_brackets_in_text_are_no_levels_and_the_limit_can_be_set(small: Server, who: str, part: str) -> None:
    with small.client(who) as peer:
        peer.commit([part], set_event("x", '[[[[[[[[[[[[[[[["\\{{{{{{{{{{{{{'))
        peer.send("heartbeat", {"x": [[[[[[[[]]]]]]]]})
        peer.expect("heartbeat_ack")
        peer.send("heartbeat", {"x": [[[[[[[[[]]]]]]]]]})
        assert "10" in peer.expect_error("bad_request")["message"]


# -- in flight -----------------------------------------------------------------------------------------------


@pytest.mark.req("LIM-03", "LIM-05", "ERR-01")
def test_more_drafts_in_flight_than_allowed_are_not_processed(small: Server, who: str, part: str) -> None:
    with small.client(who) as peer:
        with authority_stopped(small):
            peer.send("submit_events", {"events": sets(part, 5)})
            peer.send("submit_event", sets(part, 1)[0])
            refused = sets(part, 3)
            peer.send("submit_events", {"events": refused})  # 6 + 3 > 8, and none of the three fits alone
            rate_limited(peer)
            peer.send("submit_events", {"events": sets(part, 2)})  # 6 + 2 = 8 is exactly the limit
            peer.send("submit_event", sets(part, 1)[0])
            rate_limited(peer)
            settled(peer)
        assert len(peer.expect("submit_events_result")["results"]) == 5
        peer.expect("event_committed")
        assert len(peer.expect("submit_events_result")["results"]) == 2
        assert len(peer.history([part])) == 8
        assert small.metric("unisono_in_flight_items") == 0
        results = peer.submit(*refused)
        assert {result["status"] for result in results} == {"committed"}
        assert len(peer.history([part])) == 11


@pytest.mark.req("LIM-05", "LIM-03")
def test_a_full_queue_to_the_authority_refuses_everybody_until_it_moves(small: Server, part: str) -> None:
    with small.client(f"{part}-a") as first, small.client(f"{part}-b") as second:
        with authority_stopped(small):
            first.send("submit_events", {"events": sets(part, 5)})
            first.send("submit_events", {"events": sets(part, 3)})
            settled(first)
            second.send("submit_events", {"events": sets(part, 5)})  # its own limit allows it: 8 + 5 > 12
            rate_limited(second)
            second.send("submit_events", {"events": sets(part, 4)})
            second.send("submit_event", sets(part, 1)[0])
            rate_limited(second)
        assert len(second.expect("submit_events_result")["results"]) == 4
        second.send("submit_event", sets(part, 1)[0])
        second.expect("event_committed")
        assert len(second.history([part])) == 13


@pytest.mark.req("LIM-03", "LIM-05")
def test_what_a_connection_that_ended_has_queued_counts_until_it_is_judged(
    small: Server, who: str, part: str
) -> None:
    with small.client(f"{who}-b") as other, small.client(who) as leaver:
        with authority_stopped(small):
            leaver.send("submit_events", {"events": sets(part, 5)})
            leaver.send("submit_events", {"events": sets(part, 3)})
            leaver.send("disconnect", {})
            leaver.expect_close(1000)
            other.send("submit_events", {"events": sets(part, 5)})  # 8 + 5 > 12
            rate_limited(other)
            other.send("submit_events", {"events": sets(part, 4)})
            settled(other)
        other.expect("submit_events_result")
        for _ in range(2):  # all twelve places are free again, for two requests each
            other.send("submit_events", {"events": sets(part, 5)})
            other.send("submit_events", {"events": sets(part, 3)})
            for _ in range(2):
                other.expect("submit_events_result")


@pytest.mark.req("LIM-05", "ERR-01")
def test_syncs_wait_their_turn_in_a_bounded_queue(small: Server, who: str, part: str) -> None:
    request = {"partitions": [part], "since_committed_id": 0}
    with small.client(who) as peer:
        with authority_stopped(small):
            for limit in (1, 2, 3):  # one under way, two waiting
                peer.send("sync", request | {"subscription_partitions": [f"{part}-{limit}"]})
            peer.send("sync", request | {"subscription_partitions": ["not this one"]})
            rate_limited(peer)
            settled(peer)
        for number in (1, 2, 3):
            assert peer.expect("sync_response")["effective_subscriptions"] == [f"{part}-{number}"]
        assert peer.sync([part])["effective_subscriptions"] == [f"{part}-3"]


@pytest.mark.req("LIM-05", "CONN-10")
def test_messages_behind_an_unanswered_connect_are_held_in_a_bounded_queue(small: Server, who: str) -> None:
    with small.peer() as patient, small.peer() as flooding, small.peer() as heavy:
        with authority_stopped(small):
            for peer, client_id in ((patient, who), (flooding, f"{who}-b"), (heavy, f"{who}-c")):
                profile = ["compatibility"]
                token = small.token(client_id)
                peer.send("connect", {"token": token, "client_id": client_id, "supported_profiles": profile})
            small_one = '{"a":1}'
            for peer in (patient, flooding):
                for _ in range(MAX_EARLY_MESSAGES):
                    peer.raw(small_one)
            flooding.raw(small_one)
            assert "before connected" in flooding.expect_close(4006)
            for _ in range(3):  # each may be sent, but not all of them before anything is proven
                heavy.raw(sized(MESSAGE_BYTES_MAX // 2).decode())
            assert "before connected" in heavy.expect_close(4006)
            patient.expect_quiet()
        patient.expect("connected")
        for _ in range(MAX_EARLY_MESSAGES):
            patient.expect_error("bad_request")
        settled(patient)


# -- rate and number of connections --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Few connections, and an event per minute after the first four."""
    data = tmp_path_factory.mktemp("strict") / "data"
    with running(
        data, "--access-default", "allow", "--rate-events-per-s", "0.0166", "--rate-burst-events", "4",
        "--max-connections", "3",
    ) as started:  # fmt: skip
        yield started


@pytest.mark.req("LIM-04", "ERR-01")
def test_a_client_above_its_rate_is_refused_by_itself(strict: Server, who: str, part: str) -> None:
    with strict.client(who) as peer, strict.client(f"{who}-b") as other:
        peer.submit(*sets(part, 3))
        peer.send("submit_events", {"events": sets(part, 4)})
        assert 120_000 < rate_limited(peer) <= 180_800  # three events, but for the time that has passed
        other.submit(*sets(part, 4))  # its own bucket
        assert len(peer.history([part])) == 7  # reading is not submitting


@pytest.mark.req("LIM-04", "ERR-01")
def test_a_client_above_its_rate_is_told_when_to_come_again(tmp_path: Path, who: str, part: str) -> None:
    def come_again(per_s: float) -> None:
        server = rated(per_s)
        with server.client(who) as peer:
            first, refused = sets(part, 3), sets(part, 4)
            peer.send("submit_events", {"events": first})
            peer.send("submit_events", {"events": refused})
            wait_ms = rate_limited(peer)  # told at once, while the first are still being judged
            told = time.monotonic()
            assert wait_ms <= 3_001 / per_s
            peer.expect("submit_events_result")
            time.sleep(max(0.0, wait_ms / 1000 - (time.monotonic() - told)))
            assert {result["status"] for result in peer.submit(*refused)} == {"committed"}

    rates = ("--rate-events-per-s", "{}", "--rate-burst-events", "4")
    with running_by_window(tmp_path, "--access-default", "allow", *rates) as rated:
        in_a_window(come_again, 10.0, 2.0, 0.2)


@pytest.mark.req("LIM-04")
def test_reconnecting_does_not_fill_the_bucket(strict: Server, who: str, part: str) -> None:
    with strict.client(who) as peer:
        peer.submit(*sets(part, 4))
    with strict.client(who) as peer:
        peer.send("submit_events", {"events": sets(part, 4)})
        rate_limited(peer)


@pytest.mark.req("LIM-04")
def test_without_the_option_there_is_no_rate_limit(server: Server, who: str, part: str) -> None:
    with server.client(who) as peer:
        for _ in range(5):
            peer.submit(*sets(part, 100))


@pytest.mark.req("LIM-05", "CONN-10")
def test_one_connection_too_many_is_closed_with_4006(strict: Server, who: str) -> None:
    until(lambda: strict.metric("unisono_connections") == 0, "somebody is still connected")
    with strict.client(who) as connected, strict.peer(), strict.peer() as third:
        for _ in range(3):
            with strict.peer() as fourth:
                assert "too many" in fourth.expect_close(4006)
        settled(connected)
        third.close()
        until(lambda: strict.metric("unisono_connections") == 2, "who left is still connected")
        with strict.client(f"{who}-b") as again:
            settled(again)


# -- slow consumers ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Small buffers towards clients and towards the authority."""
    data = tmp_path_factory.mktemp("narrow") / "data"
    with running(
        data, "--access-default", "allow", "--max-send-buffer-bytes", "1650000", "--max-subscriptions", "64",
        "--max-message-bytes", "700000", "--max-queue-bytes", str(1024 * 1024),
    ) as started:  # fmt: skip
        yield started


@pytest.mark.req("LIM-05", "BCAST-03", "BCAST-04", "CONN-10")
def test_a_slow_consumer_is_closed_and_its_neighbours_get_everything(narrow: Server, part: str) -> None:
    names = [f"{part}-{n}" for n in range(4)]
    with (
        RawSocket(narrow.url, receive_buffer_bytes=4096) as slow,
        narrow.client(names[1]) as near,
        narrow.client(names[2]) as far,
        narrow.client(names[3]) as writer,
    ):
        slow.send(
            "connect",
            {"token": narrow.token(names[0]), "client_id": names[0], "supported_profiles": ["compatibility"]},
        )
        slow.expect("connected")
        slow.send("sync", {"partitions": [part], "since_committed_id": 0, "subscription_partitions": [part]})
        slow.expect("sync_response")
        near.subscribe(part)
        far.subscribe(part)
        sent: list[int] = []
        while not narrow.metric("unisono_closes_total", code="4005"):
            assert len(sent) < 400, "the slow consumer was never closed"
            results = writer.submit(*(item([part], set_event("x", "y" * 50_000)) for _ in range(10)))
            committed = [result["committed_id"] for result in results]
            sent += committed
            for neighbour in (near, far):
                assert [neighbour.expect("event_broadcast")["committed_id"] for _ in committed] == committed
        sent.append(writer.commit([part], set_event("x", "after")))
        for neighbour in (near, far):
            assert neighbour.expect("event_broadcast")["committed_id"] == sent[-1]
            neighbour.expect_quiet(0.05)
        got: list[int] = []
        while (message := slow.receive())[0] == TEXT:
            got.append(json.loads(message[1])["payload"]["committed_id"])
        assert message[0] == CLOSE
        assert struct.unpack("!H", message[1][:2]) == (4005,)
        assert got == sent[: len(got)]  # a beginning without a gap; the rest comes by sync
        assert len(got) < len(sent)


@pytest.mark.req("LIM-05", "LIM-03")
def test_bytes_waiting_for_judgement_are_bounded(narrow: Server, who: str, part: str) -> None:
    with narrow.client(who) as peer:
        large = set_event("x", "y" * 600_000)
        with authority_stopped(narrow):
            peer.send("submit_event", item([part], large))
            peer.send("submit_event", item([part], large))
            rate_limited(peer)
            peer.send("submit_event", item([part], set_event("x", "small")))
            settled(peer)
        peer.expect("event_committed")
        peer.expect("event_committed")
        peer.send("submit_event", item([part], large))
        peer.expect("event_committed")


# -- errors --------------------------------------------------------------------------------------------------


@pytest.mark.req("ERR-01", "ERR-02")
@pytest.mark.parametrize(
    ("code", "kind", "payload"),
    [
        ("bad_request", "submit_events", {"events": []}),
        ("bad_request", "sync", {"partitions": ["p"], "since_committed_id": -1}),
        ("validation_failed", "sync", {"partitions": [], "since_committed_id": 0}),
        ("validation_failed", "sync", {"partitions": ["p"] * 1001, "since_committed_id": 0}),
        ("validation_failed", "sync", {"partitions": ["p", ""], "since_committed_id": 0}),
        ("forbidden", "sync", {"partitions": ["not mine"], "since_committed_id": 0}),
    ],
)
def test_errors_that_keep_the_connection_open(
    server: Server, who: str, part: str, code: str, kind: str, payload: dict[str, Any]
) -> None:
    with server.peer() as peer:
        peer.connect(who, server.token(who, partitions=[part, "p"]))
        peer.send(kind, payload)
        error = peer.expect_error(code)
        assert error.keys() <= {"code", "message", "details"}
        assert error["message"]
        for internal in ("Traceback", "unisono", "msgspec", ".py", "0x"):
            assert internal not in error["message"]
        assert peer.sync([part])["events"] == []


FAULTY = """
import sys
from pathlib import Path
from unisono.cli import logs
from unisono.cli.settings import load
from unisono.front.access import Access
from unisono.front.auth.verify import Verifier
from unisono.front.auth.sources import SharedSecret
from unisono.node.supervisor import serve
from unisono.model.model import open_model

class FaultyVerifier(Verifier):
    async def verify(self, token, claimed_client_id, now_s):
        if claimed_client_id.endswith("faulty verifier"):
            raise RuntimeError("the internals of a verifier")
        return await super().verify(token, claimed_client_id, now_s)

class FaultyAccess(Access):
    def denied(self, identity, partitions):
        if "faulty access" in partitions:
            raise ZeroDivisionError("the internals of access")
        return super().denied(identity, partitions)

data, secret = sys.argv[1:]
logs.set_up("text", "info")
settings = load(None, {}, {"data": data, "port": "0", "admin_port": "0"})
keys = lambda: FaultyVerifier(SharedSecret.from_file(secret))
sys.exit(serve(settings, open_model(), keys, FaultyAccess(None, "allow"), lambda line: print(line, flush=True)))
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real node that was handed a verifier and an access that raise what nobody expects."""
    data = tmp_path_factory.mktemp("faulty") / "data"
    secret = data.parent / "data.secret"
    started = OwnCommand(data, [sys.executable, "-c", FAULTY, str(data), str(secret)])
    started.start()
    yield started
    started.kill()


@pytest.mark.req("ERR-03", "ERR-01", "ERR-02", "CONN-10")
@pytest.mark.parametrize("where", ["connect", "sync", "subscription", "submit_event", "submit_events"])
def test_an_unexpected_error_ends_that_connection_and_no_other(
    faulty: Server, who: str, part: str, where: str
) -> None:
    with faulty.client(f"{who}-b") as other, faulty.peer() as peer:
        other.subscribe(part)
        me = f"{who} faulty verifier" if where == "connect" else who
        peer.send(
            "connect",
            {"token": faulty.token(me), "client_id": me, "supported_profiles": ["compatibility"]},
        )
        if where != "connect":
            peer.expect("connected")
            good, bad = item([part], tree_event("A")), item([part, "faulty access"], tree_event("B"))
            kind, payload = {
                "sync": ("sync", {"partitions": ["faulty access"], "since_committed_id": 0}),
                "subscription": (
                    "sync",
                    {
                        "partitions": [part],
                        "since_committed_id": 0,
                        "subscription_partitions": ["faulty access"],
                    },
                ),
                "submit_event": ("submit_event", bad),
                "submit_events": ("submit_events", {"events": [good, bad]}),
            }[where]
            peer.send(kind, payload)
        error = peer.expect_error("server_error")
        assert error.keys() == {"code", "message"}
        assert "internals" not in error["message"]
        peer.expect_close(1011)
        other.expect_quiet(0.05)
        assert other.history([part]) == []
        other.commit([part], tree_event("C"))
        assert faulty.metric("unisono_in_flight_items") == 0
    with faulty.client(who) as again:
        settled(again)
    assert faulty.process.poll() is None
    assert "internals" in faulty.log.read_text()  # for the operator, with its traceback


@pytest.mark.req("ERR-03")
def test_a_timer_that_fails_does_not_stop_the_others() -> None:
    rang: list[str] = []

    def fails(now: float) -> None:
        rang.append("fails")
        raise ZeroDivisionError

    def again(now: float) -> float | None:
        rang.append("again")
        return now + 0.01 if rang.count("again") < 3 else None

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        timers = Timers(loop)
        timers.at(loop.time() + 0.001, fails)
        timers.at(loop.time() + 0.002, again)
        await until_then(lambda: "again" in rang)
        timers.at(loop.time() + 0.01, fails)
        await until_then(lambda: len(rang) == 5)
        await asyncio.sleep(0.02)
        timers.close()

    asyncio.run(scenario())
    assert rang.count("fails") == 2
    assert rang.count("again") == 3


# -- memory --------------------------------------------------------------------------------------------------


@pytest.mark.req("LIM-05")
@pytest.mark.usefixtures("embedding")
def test_connections_that_are_gone_are_forgotten_long_before_their_timers_end(tmp_path: Path) -> None:
    embedded = Embedded(tmp_path, heartbeat_timeout_s=600, handshake_timeout_s=600, close_grace_s=600)

    async def come_and_go(url: str, client_id: str) -> None:
        token = sign_token(SECRET, client_id, ttl_s=86_400, now_s=time.time())
        payload = {"token": token, "client_id": client_id}
        message = {"type": "connect", "msg_id": "m", "timestamp": 1, "protocol_version": "1.0"}
        async with open_websocket(url, proxy=None) as peer:
            await peer.send(json.dumps(message | {"payload": payload}))
            assert json.loads(await peer.recv())["type"] == "connected"

    async def scenario() -> None:
        async with embedded.front() as (_, url):
            for number in range(20):
                await come_and_go(url, f"client-{number}")
            await until_then(lambda: not connections_in_memory())

    with embedded.running(), nothing_collected():
        asyncio.run(scenario())
