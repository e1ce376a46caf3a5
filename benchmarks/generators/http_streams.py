"""The wire of Durable Streams: HTTP appends to a stream of JSON messages, and reads of it."""

from __future__ import annotations

import asyncio

from benchmarks.generators.json_wires import body
from benchmarks.generators.order import EVENT_BYTES, Client, Order
from benchmarks.generators.tally import LoopConnection, Tally

_LAST_CHUNK = b"0\r\n\r\n"
_MARKER = b'"account":'


class StreamsConnection(LoopConnection):
    """Creates its stream, if it is not there."""

    def __init__(self, tally: Tally, order: Order, client: Client) -> None:
        super().__init__(tally)
        self._host = f"{order.host}:{order.port}"
        self._path = f"/v1/stream/{client.topics[0]}"
        self._waiting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(self.http("PUT", self._path))

    def http(self, method: str, path: str, content: bytes = b"") -> bytes:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        end = self._waiting.find(b"\r\n\r\n")
        if end < 0:
            return
        head, rest = self._waiting[:end].lower(), self._waiting[end + 4 :]
        if b"transfer-encoding: chunked" in head and not rest.endswith(_LAST_CHUNK):
            return
        self._waiting = b""
        status = head[9:12]
        if not self.opened.done() and status in (b"200", b"201"):
            self.opened.set_result(None)
        elif status in (b"200", b"204"):
            self.whole(rest)
        else:
            self.fail(repr(data[:300]))

    def whole(self, content: bytes) -> None:
        raise NotImplementedError


class StreamsWriter(StreamsConnection):
    def __init__(self, tally: Tally, order: Order, client: Client) -> None:
        super().__init__(tally, order, client)
        self._batch = order.batch
        items = ",".join(body(number, EVENT_BYTES) for number in range(order.batch))
        self._request = self.http("POST", self._path, f"[{items}]".encode())

    def request(self) -> bytes:
        return self._request

    def whole(self, content: bytes) -> None:  # noqa: ARG002
        self.answered(self._batch)


class StreamsReader(StreamsConnection):
    """A read has the whole stream in one answer."""

    def __init__(self, tally: Tally, order: Order, client: Client) -> None:
        super().__init__(tally, order, client)
        self._request = self.http("GET", f"{self._path}?offset=-1")
        self._tail = b""

    def request(self) -> bytes:
        return self._request

    def data_received(self, data: bytes) -> None:
        if not self.opened.done():
            super().data_received(data)
            return
        seen = self._tail + data
        items = seen.count(_MARKER)
        self._tail = seen[-len(_MARKER) + 1 :]
        if seen.endswith(_LAST_CHUNK):
            self.answered(items)
        else:  # one answer may take longer than the measurement
            self.tally.count(items)
