"""WebSocket frames made by hand, byte for byte as a test wants them, and what a server said to them."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from typing import Final
from urllib.parse import urlsplit

from tests.waiting import PATIENCE_S

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
FIN: Final = 0x80

UPGRADE_LINES: Final = (
    b"GET /sync HTTP/1.1", b"Host: x", b"Upgrade: websocket", b"Connection: Upgrade",
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", b"Sec-WebSocket-Version: 13",
)  # fmt: skip


def request(*lines: bytes) -> bytes:
    """An HTTP request with these lines."""
    return b"\r\n".join(lines) + b"\r\n\r\n"


UPGRADE: Final = request(*UPGRADE_LINES)


def answer_to(url: str, sent: bytes) -> tuple[int, bytes]:
    """Status and whole answer of an HTTP request; 0 where the socket is closed without one."""
    address = urlsplit(url)
    answer = b""
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as sock:
        with contextlib.suppress(ConnectionError):  # it may be refused before it is read
            sock.sendall(sent)
            while b"\r\n\r\n" not in answer and (more := sock.recv(65536)):
                answer += more
        status = int(answer.split()[1]) if answer else 0
        with contextlib.suppress(ConnectionError):
            while status not in (0, 101) and (more := sock.recv(65536)):
                answer += more
    return status, answer


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    bits: int = 0,
    mask: bytes | None = b"\x37\xfa\x21\x3d",
    form: int | None = None,
    announced: int | None = None,
) -> bytes:
    """One frame. `form`: 7, 16 or 64 bits for the length, whatever it is; `announced`: another length than it has."""
    size = len(payload) if announced is None else announced
    form = form or (7 if size < 126 else 16 if size < 65536 else 64)
    flag = {7: size, 16: 126, 64: 127}[form]
    length = {7: b"", 16: struct.pack("!H", size & 0xFFFF), 64: struct.pack("!Q", size)}[form]
    head = bytes([(FIN if fin else 0) | bits | opcode, flag | (0x80 if mask else 0)]) + length
    if mask is None:
        return head + payload
    repeated = int.from_bytes((mask * (len(payload) // 4 + 1))[: len(payload)], "big")
    masked = (int.from_bytes(payload, "big") ^ repeated).to_bytes(len(payload), "big")
    return head + mask + masked


def close(code: int | None = None, reason: bytes = b"") -> bytes:
    return frame(CLOSE, b"" if code is None else struct.pack("!H", code) + reason)


def heartbeat(size: int = 0, pad: str = "x") -> bytes:
    """A message that is answered before `connected`, of at least so many bytes."""
    message = {"type": "heartbeat", "msg_id": "m", "timestamp": 1, "protocol_version": "1.0"}
    bare = len(json.dumps(message | {"payload": {"pad": ""}}))
    padding = pad * (max(0, size - bare) // len(pad.encode()))
    return json.dumps(message | {"payload": {"pad": padding}}, ensure_ascii=False).encode()


class FrameSocket:
    """A socket after its upgrade. What comes must be frames of a server: whole, unmasked, without reserved bits."""

    def __init__(self, url: str, *, timeout_s: float = PATIENCE_S) -> None:
        address = urlsplit(url)
        self.socket = socket.create_connection((address.hostname, address.port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(UPGRADE)
        self._buffer = b""
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += self._read()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        assert b" 101 " in head.partition(b"\r\n")[0], head

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame; EOFError where the server has closed the socket."""
        first, second = self._take(2)
        assert first & 0xF0 == FIN, f"a frame of a server begins with {first:#x}"
        assert second < 0x80, "a frame of a server is masked"
        size = second
        if size == 126:
            (size,) = struct.unpack("!H", self._take(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self._take(8))
        return first & 0x0F, self._take(size)

    def until_closed(self) -> list[tuple[int, bytes]]:
        """Every frame up to the end of the socket; a close is answered, as the server waits for that."""
        frames = []
        try:
            while True:
                frames.append(self.receive())
                if frames[-1][0] == CLOSE:
                    self.send(frame(CLOSE, frames[-1][1]))
                    self.socket.shutdown(
                        socket.SHUT_WR
                    )  # the server may take the close for the rest of a frame
        except (EOFError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            assert not self._buffer, f"half a frame at the end: {self._buffer[:50]!r}"
            return frames

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._buffer += self._read()
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _read(self) -> bytes:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError("the server closed the socket")
        return data

    def __enter__(self) -> FrameSocket:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()
