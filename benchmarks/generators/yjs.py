"""The wire of Hocuspocus: Yjs updates of a document, encoded by hand as far as appending text needs it."""

from __future__ import annotations

from benchmarks.generators.order import EVENT_BYTES, Client, Order
from benchmarks.generators.tally import Tally
from benchmarks.generators.websocket import BINARY, WebSocketConnection, frame, upgrade

SYNC, AUTH, SYNC_STATUS = 0, 2, 8
TOKEN, AUTHENTICATED = 0, 2
UPDATE = 2
MARKER = b"@event@"
"""Stands once in each update. The server may put several updates into one message."""

_STRING, _HAS_ORIGIN, _ROOT_NAMED = 4, 0x80, 1


def number(value: int) -> bytes:
    """A number as lib0 writes it: seven bits at a time, the lowest first."""
    out = bytearray()
    while value > 127:
        out.append(0x80 | value & 127)
        value >>= 7
    out.append(value)
    return bytes(out)


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def appended(client: int, clock: int, content: bytes) -> bytes:
    """The update with which a client puts text behind what it wrote before; `clock` letters by then."""
    if clock:
        place = bytes([_STRING | _HAS_ORIGIN]) + number(client) + number(clock - 1)
    else:
        place = bytes([_STRING]) + number(_ROOT_NAMED) + text(b"t")
    return number(1) + number(1) + number(client) + number(clock) + place + text(content) + number(0)


class YjsConnection(WebSocketConnection):
    """Authenticated for one document."""

    def __init__(self, tally: Tally, order: Order, client: Client) -> None:
        super().__init__(tally, upgrade(order.host, order.port, "/"))
        self.address = text(client.topics[0].encode())
        self.client = client

    def upgraded(self) -> None:
        auth = number(AUTH) + number(TOKEN) + text(b"token")
        self.transport.write(frame(self.address + auth, BINARY))

    def message(self, payload: bytes) -> None:
        rest = payload[len(self.address) :]
        if self.opened.done():
            self.answer(rest)
        elif rest[:2] == bytes([AUTH, AUTHENTICATED]):
            self.opened.set_result(None)

    def answer(self, rest: bytes) -> None:
        """Listeners read raw data and need none."""


class YjsWriter(YjsConnection):
    def __init__(self, tally: Tally, order: Order, client: Client) -> None:
        super().__init__(tally, order, client)
        self._client = int.from_bytes(f"{order.run}{client.name}".encode(), "big") % 2**31
        self._content = MARKER + b"x" * (EVENT_BYTES - len(MARKER))
        self._clock = 0

    def request(self) -> bytes:
        update = appended(self._client, self._clock, self._content)
        self._clock += len(self._content)
        return frame(self.address + number(SYNC) + number(UPDATE) + text(update), BINARY)

    def answer(self, rest: bytes) -> None:
        if rest[:1] == bytes([SYNC_STATUS]):
            if rest[1] != 1:
                self.fail("the update was refused")
                return
            self.answered(1)


class YjsListener(YjsConnection):
    def __init__(self, tally: Tally, order: Order, client: Client) -> None:
        super().__init__(tally, order, client)
        self._tail = b""

    def data_received(self, data: bytes) -> None:
        if not self.opened.done():
            super().data_received(data)
            return
        seen = self._tail + data
        self.tally.items += seen.count(MARKER)
        self._tail = seen[-len(MARKER) + 1 :]

    def begin(self) -> None:
        """The server sends."""
