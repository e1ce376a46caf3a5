"""Size, nesting and framing of messages, over real sockets: what passes, and what closes the connection."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed

from tests.behaviour.server.harness import Peer, Server, item, set_event
from tests.behaviour.server.pressure import (
    BINARY,
    CLOSE,
    CONTINUATION,
    MESSAGE_BYTES_MAX,
    PING,
    TEXT,
    RawSocket,
    settled,
    sized,
)

# -- size ----------------------------------------------------------------------------------------------------


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
