"""A WebSocket client that costs little: frames made beforehand, answers taken apart only as far as needed.

Frames are masked with a key of zeros, which leaves the bytes as they are. A server cannot tell, and unmasks all the
same; a browser must not do this, because proxies could be deceived.
"""

from __future__ import annotations

import asyncio
import struct

from benchmarks.generators.tally import LoopConnection, Tally

TEXT, BINARY = 1, 2
_ZERO_KEY = b"\0\0\0\0"


def upgrade(host: str, port: int, path: str) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def frame(payload: bytes, opcode: int = TEXT) -> bytes:
    """One whole message."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
    elif size < 65536:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
    return head + _ZERO_KEY + payload


class WebSocketConnection(LoopConnection):
    """Upgrades, then hands each message to `message`."""

    def __init__(self, tally: Tally, upgrade: bytes) -> None:
        super().__init__(tally)
        self._upgrade = upgrade
        self._upgraded = False
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 2
        """Bytes until something can be done: a header, or a whole frame."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(self._upgrade)

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._have += len(data)
        if self._have < self._need:
            return
        joined = b"".join(self._chunks) if len(self._chunks) > 1 else data
        if not self._upgraded:
            end = joined.find(b"\r\n\r\n")
            if end < 0:
                self._keep(joined, len(joined) + 1)
                return
            if not joined.startswith(b"HTTP/1.1 101"):
                self.fail(f"no upgrade but {joined[:80]!r}")
                return
            self._upgraded = True
            joined = joined[end + 4 :]
            self.upgraded()
        start, size = 0, len(joined)
        while size - start >= 2:
            length, body = joined[start + 1] & 127, start + 2
            if length >= 126:
                body += 2 if length == 126 else 8
                if size < body:
                    break
                length = int.from_bytes(joined[start + 2 : body], "big")
            end = body + length
            if size < end:
                self._keep(joined[start:], end - start)
                return
            opcode = joined[start] & 15
            if opcode <= BINARY:
                self.message(joined[body:end])
            elif opcode == 8:
                self.fail(f"closed by the server: {joined[body:end]!r}")
                return
            start = end
        self._keep(joined[start:], 2 if size - start < 2 else 10)

    def _keep(self, rest: bytes, need: int) -> None:
        self._chunks = [rest] if rest else []
        self._have, self._need = len(rest), need

    def upgraded(self) -> None:
        """The first message may be sent now."""

    def message(self, payload: bytes) -> None:
        raise NotImplementedError
