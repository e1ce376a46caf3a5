"""RFC 6455 at the raw socket, in the manner of the Autobahn test suite: what the server does with each frame.

Where another answer would be as good, the case says so.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from tests.behaviour.server.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    FrameSocket,
    close,
    frame,
    heartbeat,
)
from tests.behaviour.server.harness import Server

ALIVE = b"still there"

Answer = tuple[str, object]
ACK: Answer = ("heartbeat_ack", None)
BAD: Answer = ("error", "bad_request")


def pong(payload: bytes = b"") -> Answer:
    return ("pong", payload)


def closed(code: int) -> Answer:
    return ("close", code)


class Case(NamedTuple):
    """What is sent, each piece in a segment of its own, and every answer. Without a close the connection lives."""

    name: str
    sent: Sequence[bytes]
    answers: Sequence[Answer] = ()

    def __repr__(self) -> str:
        return self.name


def begin(payload: bytes) -> bytes:
    return frame(TEXT, payload, fin=False)


def go_on(payload: bytes) -> bytes:
    return frame(CONTINUATION, payload, fin=False)


def end(payload: bytes) -> bytes:
    return frame(CONTINUATION, payload)


PROTOCOL_ERROR = [closed(1002)]
INVALID_TEXT = [closed(1007)]

HALF = heartbeat(60)[:30]
REST = heartbeat(60)[30:]
ACCENTS = heartbeat(200, "é")
CUT = ACCENTS.index("é".encode()) + 1
"""Within a character."""

SIZES = [125, 126, 127, 128, 3443, 3444, 65_535, 65_536]
BAD_UTF8 = {
    "stray continuation byte": b"\x80",
    "overlong": b"\xc0\xaf",
    "surrogate": b"\xed\xa0\x80",
    "above U+10FFFF": b"\xf4\x90\x80\x80",
    "cut off": b"\xe2\x82",
    "0xFF": b"\xff",
    "five bytes": b"\xf8\x88\x80\x80\x80",
}
VALID_CODES = [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999]
INVALID_CODES = [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535]

FRAMING = [
    *(Case(f"text of {size} bytes", [frame(TEXT, heartbeat(size))], [ACK]) for size in SIZES),
    *(Case(f"binary of {size} bytes", [frame(BINARY, b"\xfe" * size)], [BAD]) for size in [0, 1, *SIZES]),
    Case("empty text", [frame(TEXT)], [BAD]),
    Case("masked with zeros", [frame(TEXT, heartbeat(), mask=bytes(4))], [ACK]),
    Case("octet by octet", [bytes([byte]) for byte in frame(TEXT, heartbeat())], [ACK]),
    Case("two messages in one segment", [2 * frame(TEXT, heartbeat())], [ACK, ACK]),
    Case("unmasked text", [frame(TEXT, heartbeat(), mask=None)], PROTOCOL_ERROR),
    Case("unmasked ping", [frame(PING, mask=None)], PROTOCOL_ERROR),
    Case("unmasked close", [frame(CLOSE, mask=None)], PROTOCOL_ERROR),
    # What is queued for the end of this pass is not sent any more; it could be.
    Case(
        "a message before an unmasked one",
        [frame(TEXT, heartbeat()) + frame(PING, mask=None)],
        PROTOCOL_ERROR,
    ),
]

LENGTHS = [
    Case("125 in 16 bits", [frame(TEXT, b"x" * 125, form=16)], PROTOCOL_ERROR),
    Case("0 in 16 bits", [frame(TEXT, b"", form=16)], PROTOCOL_ERROR),
    Case("125 in 64 bits", [frame(TEXT, b"x" * 125, form=64)], PROTOCOL_ERROR),
    Case("65535 in 64 bits", [frame(TEXT, b"x" * 65_535, form=64)], PROTOCOL_ERROR),
    Case("64 bits, the highest set", [frame(TEXT, form=64, announced=2**63)], PROTOCOL_ERROR),
    Case("64 bits, all set", [frame(TEXT, form=64, announced=2**64 - 1)], PROTOCOL_ERROR),
    Case("64 bits, all but the highest set", [frame(TEXT, form=64, announced=2**63 - 1)], [closed(1009)]),
    Case("one byte too many", [frame(TEXT, announced=65_537)], [closed(1009)]),
    Case("fragments that are too long together", [begin(b"x" * 65_536), end(b"x")], [closed(1009)]),
    Case("ping of 126 bytes", [frame(PING, b"x" * 126)], PROTOCOL_ERROR),
    Case("pong of 126 bytes", [frame(PONG, b"x" * 126)], PROTOCOL_ERROR),
    Case("close of 126 bytes", [frame(CLOSE, struct.pack("!H", 1000) + b"x" * 124)], PROTOCOL_ERROR),
    Case("ping of 5 bytes in 16 bits", [frame(PING, b"12345", form=16)], PROTOCOL_ERROR),
    Case("ping of 5 bytes in 64 bits", [frame(PING, b"12345", form=64)], PROTOCOL_ERROR),
]

PINGS = [
    Case("empty ping", [frame(PING)], [pong()]),
    Case("ping with text", [frame(PING, b"Hello")], [pong(b"Hello")]),
    Case("ping with bytes that are no text", [frame(PING, b"\x00\xff\xfe\xfd")], [pong(b"\x00\xff\xfe\xfd")]),
    Case("ping of 125 bytes", [frame(PING, b"\xfe" * 125)], [pong(b"\xfe" * 125)]),
    Case("ping octet by octet", [bytes([byte]) for byte in frame(PING, b"\xfe" * 20)], [pong(b"\xfe" * 20)]),
    Case("unsolicited pong", [frame(PONG)]),
    Case("unsolicited pong with a payload", [frame(PONG, b"payload")]),
    Case("unsolicited pong, then ping", [frame(PONG, b"a"), frame(PING, b"b")], [pong(b"b")]),
    Case(
        "pings in one segment: the last is answered",
        [b"".join(frame(PING, b"%d" % n) for n in range(9))],
        [pong(b"8")],
    ),
    Case("fragmented ping", [frame(PING, b"x", fin=False)], PROTOCOL_ERROR),
    Case("fragmented pong", [frame(PONG, b"x", fin=False)], PROTOCOL_ERROR),
    Case("fragmented close", [frame(CLOSE, b"\x03\xe8", fin=False)], PROTOCOL_ERROR),
]

RESERVED = [
    *(
        Case(
            f"reserved bits {bits:#x} in opcode {opcode}", [frame(opcode, payload, bits=bits)], PROTOCOL_ERROR
        )
        for opcode, payload in [
            (TEXT, heartbeat()),
            (BINARY, b"x"),
            (PING, b"x"),
            (PONG, b"x"),
            (CLOSE, b"\x03\xe8"),
        ]
        for bits in (0x10, 0x20, 0x40, 0x70)
    ),
    Case("reserved bit in a long frame", [frame(TEXT, b"x" * 5000, bits=0x40)], PROTOCOL_ERROR),
    Case(
        "reserved bit in a continuation", [begin(HALF), frame(CONTINUATION, REST, bits=0x40)], PROTOCOL_ERROR
    ),
    *(
        Case(f"opcode {opcode}", [frame(opcode, b"x")], PROTOCOL_ERROR)
        for opcode in [*range(3, 8), *range(11, 16)]
    ),
    Case("opcode 3 in a long frame", [frame(3, b"x" * 5000)], PROTOCOL_ERROR),
    Case("opcode 3 within fragments", [begin(HALF), frame(3, REST)], PROTOCOL_ERROR),
    Case("opcode 11 within fragments", [begin(HALF), frame(11)], PROTOCOL_ERROR),
]

FRAGMENTS = [
    Case("text in two", [begin(HALF), end(REST)], [ACK]),
    Case("text in two, one segment", [begin(HALF) + end(REST)], [ACK]),
    Case(
        "text in single bytes",
        [b"".join([begin(b""), *(go_on(bytes([byte])) for byte in heartbeat()), end(b"")])],
        [ACK],
    ),
    Case("a ping in between", [begin(HALF), frame(PING, b"p"), end(REST)], [pong(b"p"), ACK]),
    Case("a pong in between", [begin(HALF), frame(PONG, b"p"), end(REST)], [ACK]),
    Case("binary in two", [frame(BINARY, b"x", fin=False), end(b"y")], [BAD]),
    Case("all fragments empty", [begin(b""), go_on(b""), end(b"")], [BAD]),
    Case("empty first and last", [begin(b""), go_on(heartbeat()), end(b"")], [ACK]),
    Case("continuation of nothing", [end(b"x")], PROTOCOL_ERROR),
    Case("unfinished continuation of nothing", [go_on(b"x")], PROTOCOL_ERROR),
    Case("continuation after the end", [begin(HALF), end(REST), end(b"x")], [ACK, closed(1002)]),
    Case("text within fragments", [begin(HALF), frame(TEXT, heartbeat())], PROTOCOL_ERROR),
    Case("binary within fragments", [begin(HALF), frame(BINARY, b"x")], PROTOCOL_ERROR),
    Case("a second beginning", [begin(HALF), begin(REST)], PROTOCOL_ERROR),
    Case("close within fragments", [begin(HALF), close(1000)], [closed(1000)]),
]

TEXTS = [
    Case("text beyond ASCII", [frame(TEXT, heartbeat(300, "é€😀"))], [ACK]),
    Case("noncharacters", [frame(TEXT, heartbeat(200, "\uffff\U0010ffff\ufdd0"))], [ACK]),
    Case("a character in two fragments", [begin(ACCENTS[:CUT]), end(ACCENTS[CUT:])], [ACK]),
    Case(
        "a character in two fragments, a ping in between",
        [begin(ACCENTS[:CUT]), frame(PING), end(ACCENTS[CUT:])],
        [pong(), ACK],
    ),
    Case("a byte order mark", [frame(TEXT, b"\xef\xbb\xbf" + heartbeat())], [BAD]),
    Case("no JSON", [frame(TEXT, b"Hello")], [BAD]),
    *(
        Case(f"not UTF-8: {name}", [frame(TEXT, b'{"x":"' + bad + b'"}')], INVALID_TEXT)
        for name, bad in BAD_UTF8.items()
    ),
    # The server looks at a text when it is whole: an early end is a courtesy to the sender (RFC 6455, 8.1).
    *(
        Case(f"not UTF-8 in fragments: {name}", [begin(b"x" + bad), end(b"x")], INVALID_TEXT)
        for name, bad in BAD_UTF8.items()
    ),
    Case("not UTF-8 in a long frame", [frame(TEXT, b"x" * 9000 + b"\xff")], INVALID_TEXT),
    Case("bytes that are no text are welcome in a binary frame", [frame(BINARY, b"\xff")], [BAD]),
]

CLOSES = [
    Case("close without a code", [close()], [closed(1000)]),
    *(Case(f"close {code}", [close(code)], [closed(code)]) for code in VALID_CODES),
    *(Case(f"close {code}, which no frame has", [close(code)], PROTOCOL_ERROR) for code in INVALID_CODES),
    Case("close with one byte", [frame(CLOSE, b"\x03")], PROTOCOL_ERROR),
    Case("close with a reason", [close(1000, b"Hello")], [closed(1000)]),
    Case("close with the longest reason", [close(1000, b"x" * 123)], [closed(1000)]),
    Case(
        "close whose reason is not UTF-8", [close(1000, b"\xce\xba\xe1\xbd\xb9\xed\xa0\x80")], [closed(1007)]
    ),
    Case("a message before the close", [frame(TEXT, heartbeat()) + close(1000)], [ACK, closed(1000)]),
    Case("a ping before the close", [frame(PING, b"p") + close(1000)], [pong(b"p"), closed(1000)]),
    Case("a ping after the close", [close(1000) + frame(PING)], [closed(1000)]),
    Case("a message after the close", [close(1000) + frame(TEXT, heartbeat())], [closed(1000)]),
    # The first could be answered as well.
    Case("two closes in one segment", [close(1000) + close(1001)], [closed(1002)]),
]

CASES = [*FRAMING, *LENGTHS, *PINGS, *RESERVED, *FRAGMENTS, *TEXTS, *CLOSES]


@pytest.mark.req("ENV-01", "ENV-02", "CONN-10", "LIM-02")
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_frame_gets_the_answer_of_the_standard(server: Server, case: Case) -> None:
    ends = any(kind == "close" for kind, _ in case.answers)
    with FrameSocket(server.url) as raw:
        try:
            for piece in case.sent:
                raw.send(piece)
            if not ends:
                answers = [_read(*raw.receive()) for _ in case.answers]
                assert sorted(answers, key=repr) == sorted(case.answers, key=repr)  # a pong may be overtaken
                raw.send(frame(PING, ALIVE))
                assert _read(*raw.receive()) == pong(ALIVE)
                raw.send(close(1000))
        except ConnectionError:  # the server has ended it while the test still spoke
            assert ends
        rest = [_read(*each) for each in raw.until_closed()]
    assert rest == (list(case.answers) if ends else [closed(1000)])


def _read(opcode: int, payload: bytes) -> Answer:
    if opcode == CLOSE:
        payload[2:].decode()
        return closed(*struct.unpack("!H", payload[:2]))
    if opcode == PONG:
        return pong(payload)
    assert opcode == TEXT
    message = json.loads(payload)
    return message["type"], message["payload"].get("code")


@pytest.mark.parametrize("start", [b"\x81", b"\x81\xfe\x01", frame(TEXT, announced=1000), begin(HALF), b""])
def test_who_ends_within_a_frame_is_gone_without_a_word(server: Server, start: bytes) -> None:
    with FrameSocket(server.url) as raw:
        raw.send(start)
        raw.socket.shutdown(1)
        assert raw.until_closed() == []
