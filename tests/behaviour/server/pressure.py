"""Sockets that read nothing, frames made by hand and an authority that stands still: a server under pressure."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.behaviour.server.harness import Peer, Server, item, set_event
from tests.waiting import PATIENCE_S

MESSAGE_BYTES_MAX = 4096

UPGRADE = (
    b"GET /sync HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)

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
def stopped(pid: int) -> Iterator[None]:
    """The process stands still; what is sent to it meanwhile waits."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # killed meanwhile
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def authority_stopped(server: Server) -> Iterator[None]:
    """Nothing is judged and no head is announced until the block ends; the fronts go on."""
    with stopped(next(iter(server.children()))):
        yield


def settled(peer: Peer) -> None:
    """Everything sent before this has been read by the front."""
    peer.send("heartbeat", {})
    peer.expect("heartbeat_ack")


def passed_on(*peers: Peer) -> None:
    """What these peers sent has left the front: two answers of its own came after it."""
    for peer in peers * 2:
        settled(peer)


def still_active(peer: Peer) -> None:
    """It answers what only a connected client may ask."""
    assert peer.sync(["nothing"])["events"] == []


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


def sized(size: int) -> bytes:
    """A heartbeat of exactly so many bytes."""
    message = {"type": "heartbeat", "msg_id": "m", "timestamp": 1, "protocol_version": "1.0", "payload": {}}
    room = size - len(json.dumps(message | {"padding": ""}).encode())
    whole = json.dumps(message | {"padding": "x" * room}).encode()
    assert len(whole) == size
    return whole


def private_kib(pid: int) -> int:
    """Memory that only this process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def padded(peer: Peer, size: int) -> str:
    """A heartbeat of exactly so many bytes."""
    bare = len(json.dumps(peer.envelope("heartbeat", {"pad": ""}, msg_id="m")))
    return json.dumps(peer.envelope("heartbeat", {"pad": "x" * (size - bare)}, msg_id="m"))
