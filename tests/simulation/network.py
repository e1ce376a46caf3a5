"""Connections between clients and a front: messages in order, cuts that each side notices in its own time."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from unisono.front.connection import ClientConnection

TEXT, CLOSE = 0x1, 0x8


class ServerSocket:
    """What a connection of the front uses of its socket; what it writes goes onto the line."""

    unsent_bytes = 0

    def __init__(self, line: Line) -> None:
        self._line = line
        self.closed = False

    def write(self, data: bytes) -> None:
        for opcode, payload in _frames(data):
            if self._line.cut or self.closed:
                return
            if opcode == TEXT:
                self._line.to_client.append(payload)
            elif opcode == CLOSE:
                self._line.to_client.append(int.from_bytes(payload[:2], "big"))

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            self._line.server_ended()

    close = abort


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The frames of a server: never masked, never in fragments."""
    place = 0
    while place < len(data):
        opcode, size = data[place] & 0x0F, data[place + 1] & 0x7F
        place += 2
        if size == 126:
            (size,) = struct.unpack_from("!H", data, place)
            place += 2
        elif size == 127:
            (size,) = struct.unpack_from("!Q", data, place)
            place += 8
        yield opcode, data[place : place + size]
        place += size


class Line:
    """One connection: two queues, and who still believes in it.

    `to_client` has messages and, as a number, a close code. A line that is `cut` loses what is under way; each side
    learns of it when the scheduler says so. One that is `half_open` swallows what the client sends.
    """

    def __init__(self, name: str, unsent_max: int, run: Callable[[Callable[[], Any]], Any]) -> None:
        self.name = name
        self.to_client: deque[bytes | int] = deque()
        self.to_server: deque[bytes] = deque()
        self.cut = False
        self.half_open = False
        self.server_knows = False
        self.client_knows = False
        self._unsent_max = unsent_max
        self._run = run
        self.connection: ClientConnection | None = None
        self.socket = ServerSocket(self)

    def open(self, connection: ClientConnection) -> None:
        self.connection = connection
        connection._socket = self.socket  # type: ignore[assignment]
        self._run(connection.on_open)

    @property
    def unsent_bytes(self) -> int:
        return sum(len(each) for each in self.to_client if isinstance(each, bytes))

    def deliver_to_server(self) -> None:
        data = self.to_server.popleft()
        connection = self.connection
        if connection is None or self.server_knows or self.half_open:
            return
        if connection._leaving or connection._ignores_messages:
            return
        self._run(lambda: connection._message(data, True))

    def check_backpressure(self) -> None:
        """A client that does not read fills the server's buffer."""
        connection = self.connection
        if connection is not None and not self.server_knows and self.unsent_bytes > self._unsent_max:
            self._run(connection.pause_writing)

    def server_ended(self) -> None:
        """The front ended the socket: its own side is told at once, by its event loop."""
        connection = self.connection
        if connection is not None:
            connection.services.loop.call_soon(self.tell_server)

    def tell_server(self) -> None:
        """The front learns that the socket is gone."""
        connection, self.connection = self.connection, None
        if connection is not None and not self.server_knows:
            self.server_knows = self.cut = True
            self.socket.closed = True
            self._run(connection.on_lost)

    def break_off(self) -> None:
        """Cut in the middle: what is under way is lost."""
        self.cut = True
        self.to_client.clear()
        self.to_server.clear()
