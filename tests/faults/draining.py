"""Many subscribers in one process that read everything at once and note when each broadcast came.

    python -m tests.faults.draining URL PARTITION BROADCASTS TOKEN…

Writes `ready` when all are subscribed, and after so many broadcasts for each of them, as doubles, the monotonic
time of every arrival, subscriber by subscriber.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import socket
import struct
import sys
import time
from array import array
from urllib.parse import urlsplit

RECEIVE_BYTES = 1 << 20
ANSWERS = 2
"""Messages before the first broadcast: `connected` and `sync_response`."""


class Subscriber:
    """A WebSocket of which only the lengths of frames are looked at."""

    def __init__(self, url: str, partition: str, token: str, client_id: str) -> None:
        place = urlsplit(url)
        self.socket = socket.create_connection((place.hostname, place.port))
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET {place.path or '/'} HTTP/1.1\r\nHost: {place.netloc}\r\n"
            f"Upgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self.arrivals = array("d")
        self.answers = 0
        self._head = b""
        self._left = 0
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.socket.recv(1)
        assert b" 101 " in answer, answer
        self._send(
            "connect", {"token": token, "client_id": client_id, "supported_profiles": ["compatibility"]}
        )
        names = [partition]
        self._send("sync", {"partitions": names, "since_committed_id": 0, "subscription_partitions": names})

    def _send(self, kind: str, payload: dict[str, object]) -> None:
        message = {
            "type": kind,
            "msg_id": kind,
            "timestamp": 0,
            "protocol_version": "1.0",
            "payload": payload,
        }
        data = json.dumps(message).encode()
        self.socket.sendall(b"\x81\xfe" + struct.pack("!H", len(data)) + bytes(4) + data)

    def receive(self, buffer: memoryview) -> None:
        """Take what is there, and note the frames that it completes."""
        size = self.socket.recv_into(buffer)
        if not size:
            raise ConnectionError("a subscriber that reads was closed")
        now = time.monotonic()
        place = 0
        while place < size:
            if self._left:
                step = min(self._left, size - place)
                self._left -= step
                place += step
                if not self._left:
                    self._whole_frame(now)
                continue
            self._head += bytes(buffer[place : place + 1])
            place += 1
            self._left = self._length()

    def _length(self) -> int:
        """Of the payload of a frame whose head is complete; 0 before."""
        head = self._head
        if len(head) < 2:
            return 0
        wanted = {126: 4, 127: 10}.get(head[1], 2)
        if len(head) < wanted:
            return 0
        length = head[1] if wanted == 2 else int.from_bytes(head[2:], "big")
        if length == 0:  # a ping
            self._head = b""
        return length

    def _whole_frame(self, now: float) -> None:
        text = self._head[0] == 0x81
        assert self._head[0] != 0x88, "a subscriber that reads was closed"
        self._head = b""
        if not text:
            return
        if self.answers < ANSWERS:
            self.answers += 1
        else:
            self.arrivals.append(now)


def main() -> None:
    url, partition, count, *tokens = sys.argv[1:]
    broadcasts = int(count)
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    selector = selectors.DefaultSelector()
    subscribers = [
        Subscriber(url, partition, token, f"healthy-{number}") for number, token in enumerate(tokens)
    ]
    for each in subscribers:
        selector.register(each.socket, selectors.EVENT_READ, each)

    def receive() -> None:
        for key, _ in selector.select():
            key.data.receive(buffer)

    while any(each.answers < ANSWERS for each in subscribers):
        receive()
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    while any(len(each.arrivals) < broadcasts for each in subscribers):
        receive()
    for each in subscribers:
        sys.stdout.buffer.write(each.arrivals[:broadcasts].tobytes())
        each.socket.close()


if __name__ == "__main__":
    main()
