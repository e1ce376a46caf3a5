"""The wire of UmaDB for appends: gRPC, with as much of HTTP/2 as one call at a time needs.

The Python client of UmaDB appends with most of a core at 50 connections; this costs a fraction of it. Headers are
literal and not indexed, so that they are the same bytes each time. The flow control of the answers is opened wide at
the start; that of the requests is left to the server, whose windows have room for one batch.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from typing import Final

from benchmarks.generators.json_wires import body
from benchmarks.generators.order import EVENT_BYTES, Client, Order
from benchmarks.generators.tally import LoopConnection, Tally

DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = 4
FRAME_BYTES_MAX: Final = 16_384
WINDOW_MAX: Final = 2**31 - 1

_POST, _HTTP, _AUTHORITY, _PATH = b"\x83", b"\x86", b"\x01", b"\x04"
_CONTENT_TYPE = b"\x0f\x10"
"""Entries of HPACK's static table: the first two whole, the others as the name of a literal that is not indexed."""


def http2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack("!IBI", len(payload) << 8 | kind, flags, stream) + payload


def literal(text: bytes) -> bytes:
    """A string of HPACK without Huffman coding; shorter than 127 bytes."""
    return bytes([len(text)]) + text


def field(number: int, content: bytes) -> bytes:
    """A field of protobuf that has a length."""
    size, head = len(content), bytearray([number << 3 | 2])
    while size > 127:
        head.append(0x80 | size & 127)
        size >>= 7
    head.append(size)
    return bytes(head) + content


class UmaWriter(LoopConnection):
    """Appends a batch, waits for its position."""

    def __init__(self, tally: Tally, order: Order, client: Client) -> None:
        super().__init__(tally)
        self._batch = order.batch
        self._next = 0
        self._stream = 1
        self._waiting = b""
        self._answered = False
        self._headers = (
            _POST
            + _HTTP
            + _AUTHORITY + literal(f"{order.host}:{order.port}".encode())
            + _PATH + literal(b"/umadb.v1.DCB/Append")
            + b"\0" + literal(b"te") + literal(b"trailers")
            + _CONTENT_TYPE + literal(b"application/grpc")
        )  # fmt: skip
        run = zlib.crc32(f"{order.run}-{client.name}".encode())
        events = b""
        for number in range(order.batch):
            topic = client.topics[number % len(client.topics)].encode()
            data = body(number, EVENT_BYTES - 36 - len(topic) - 20).encode()
            uuid = b"%08x-0000-4000-8000-" % run + b"%012d"
            # The uuid is put in last: its place-holder is shorter than what stands for it.
            event = field(1, b"entry.posted") + field(2, topic) + field(3, data) + field(4, b"u" * 36)
            events += field(1, event).replace(b"u" * 36, uuid)
        length = len(events) + order.batch * (12 - len(b"%012d"))
        self._template = struct.pack("!BI", 0, length).replace(b"%", b"%%") + events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        settings = struct.pack("!HIHI", 2, 0, 4, WINDOW_MAX)  # no pushes; windows of streams
        self.transport.write(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + http2_frame(SETTINGS, 0, 0, settings)
            + http2_frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", WINDOW_MAX - 65_535))
        )

    def request(self) -> bytes:
        start = self._next
        self._next = start + self._batch
        message = self._template % tuple(range(start, self._next))
        stream, self._answered = self._stream, False
        self._stream += 2
        frames = [http2_frame(HEADERS, END_HEADERS, stream, self._headers)]
        for place in range(0, len(message), FRAME_BYTES_MAX):
            last = place + FRAME_BYTES_MAX >= len(message)
            part = message[place : place + FRAME_BYTES_MAX]
            frames.append(http2_frame(DATA, END_STREAM if last else 0, stream, part))
        return b"".join(frames)

    def data_received(self, data: bytes) -> None:
        data = self._waiting + data if self._waiting else data
        start, size = 0, len(data)
        while size - start >= 9:
            end = start + 9 + int.from_bytes(data[start : start + 3], "big")
            if size < end:
                break
            self._frame(data[start + 3], data[start + 4], data[start + 9 : end])
            start = end
        self._waiting = data[start:]

    def _frame(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == DATA and payload:
            self._answered = True
        elif kind == HEADERS and flags & END_STREAM:
            if self._answered:
                self.answered(self._batch)
            else:  # an error has trailers and no message
                self.fail(f"the append was refused: {payload!r}")
        elif kind == SETTINGS and not flags & ACK:
            self.transport.write(http2_frame(SETTINGS, ACK, 0, b""))
            if not self.opened.done():
                self.opened.set_result(None)
        elif kind == PING and not flags & ACK:
            self.transport.write(http2_frame(PING, ACK, 0, payload))
        elif kind in (RST, GOAWAY):
            self.fail(f"the server ended the stream: {payload!r}")
