"""The messages of Unisono, and of the JavaScript reference (a newer wire in camel case, projects over partitions)."""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import Final

from benchmarks.generators.order import EVENT_BYTES, PAGE_EVENTS, Client, Order
from benchmarks.generators.tally import Tally
from benchmarks.generators.websocket import WebSocketConnection, frame, upgrade

ACCOUNTS: Final = 20


def body(number: int, size: int) -> str:
    """What an event is about, in all of the systems: a JSON object of so many bytes."""
    text = f'{{"account":"a{number % ACCOUNTS}","amount":1,"memo":""}}'
    return text[:-2] + "x" * max(0, size - len(text)) + text[-2:]


SCATTER: Final = 0x9E3779B97F4A7C15F39CC0605CEDC835
"""Odd: multiples of it modulo 2**128 all differ, and look as random as the ids that clients make."""


class Dialect:
    """Messages of one protocol. `committed`, `broadcast`: what stands in an answer once for each event."""

    path: str
    committed: bytes
    connected: bytes
    listed: bytes
    broadcast: bytes
    more: re.Pattern[bytes]
    cursor: re.Pattern[bytes]

    def connect(self, client: Client) -> str:
        raise NotImplementedError

    def item(self, client: Client, number: int) -> tuple[str, str]:
        """An item before and after its id."""
        raise NotImplementedError

    def submit(self, items: str) -> str:
        raise NotImplementedError

    def sync(self, client: Client, since: int, *, subscribe: bool = False) -> str:
        raise NotImplementedError


class UnisonoDialect(Dialect):
    path = "/sync"
    connected = b'"type":"connected"'
    committed = b'"status":"committed"'
    listed = b'"committed_id":'
    broadcast = b'"type":"event_broadcast"'
    more = re.compile(rb'"has_more":\s?true')
    cursor = re.compile(rb'"next_since_committed_id":\s?(\d+)')

    def connect(self, client: Client) -> str:
        asked = {"token": client.token, "client_id": client.name, "supported_profiles": ["canonical"]}
        return self._envelope("connect", json.dumps(asked))

    def item(self, client: Client, number: int) -> tuple[str, str]:
        topic = client.topics[number % len(client.topics)]
        start = (
            f'","partitions":["{topic}"],"event":{{"type":"event","payload":{{"schema":"entry.posted","data":'
        )
        data = body(number, EVENT_BYTES - len(start) - 40)
        return '{"id":"', f"{start}{data}}}}}}}"

    def submit(self, items: str) -> str:
        return self._envelope("submit_events", f'{{"events":[{items}]}}')

    def sync(self, client: Client, since: int, *, subscribe: bool = False) -> str:
        asked = {"partitions": client.topics, "since_committed_id": since, "limit": PAGE_EVENTS}
        if subscribe:
            asked["subscription_partitions"] = client.topics
        return self._envelope("sync", json.dumps(asked))

    def _envelope(self, kind: str, payload: str) -> str:
        return f'{{"type":"{kind}","msg_id":"m","timestamp":1,"protocol_version":"1.0","payload":{payload}}}'


class InsiemeDialect(Dialect):
    path = "/"
    connected = b'"type":"connected"'
    committed = b'"status":"committed"'
    listed = b'"committedId":'
    broadcast = b'"type":"event_broadcast"'
    more = re.compile(rb'"hasMore":true')
    cursor = re.compile(rb'"nextSinceCommittedId":(\d+)')

    def connect(self, client: Client) -> str:
        asked = {"token": client.token, "clientId": client.name, "projectId": client.topics[0]}
        return self._envelope("connect", json.dumps(asked))

    def item(self, client: Client, number: int) -> tuple[str, str]:
        start = f'","partition":"p","projectId":"{client.topics[0]}","type":"entry.posted"'
        start += ',"schemaVersion":1,"payload":'
        end = f',"meta":{{"clientId":"{client.name}","clientTs":1}}}}'
        return '{"id":"', f"{start}{body(number, EVENT_BYTES - len(start) - len(end) - 40)}{end}"

    def submit(self, items: str) -> str:
        return self._envelope("submit_events", f'{{"events":[{items}]}}')

    def sync(self, client: Client, since: int, *, subscribe: bool = False) -> str:  # noqa: ARG002 - it always does
        asked = {"projectId": client.topics[0], "sinceCommittedId": since, "limit": PAGE_EVENTS}
        return self._envelope("sync", json.dumps(asked))

    def _envelope(self, kind: str, payload: str) -> str:
        return f'{{"type":"{kind}","msgId":"m","protocolVersion":"1.0","payload":{payload}}}'


class JsonConnection(WebSocketConnection):
    """A session of either dialect: connected, and ready for `begin`."""

    def __init__(self, tally: Tally, order: Order, client: Client, dialect: Dialect) -> None:
        super().__init__(tally, upgrade(order.host, order.port, dialect.path))
        self.client = client
        self.dialect = dialect

    def upgraded(self) -> None:
        self.transport.write(frame(self.dialect.connect(self.client).encode()))

    def message(self, payload: bytes) -> None:
        if self.opened.done():
            self.answer(payload)
        elif self.dialect.connected in payload[:200]:
            self.connected()
        else:
            self.fail(f"not connected: {payload[:300]!r}")

    def connected(self) -> None:
        self.opened.set_result(None)

    def answer(self, payload: bytes) -> None:
        raise NotImplementedError


class JsonWriter(JsonConnection):
    """Submits a batch, waits for its results."""

    def __init__(self, tally: Tally, order: Order, client: Client, dialect: Dialect) -> None:
        super().__init__(tally, order, client, dialect)
        self._batch = order.batch
        self._next = int.from_bytes(blake2b(f"{order.run}-{client.name}".encode(), digest_size=16).digest())
        around = [dialect.item(client, number) for number in range(order.batch)]
        items = ",".join(f"{before}%032x{after}" for before, after in around)
        self._template = dialect.submit(items).encode()

    def request(self) -> bytes:
        start = self._next
        self._next = start + self._batch
        return frame(self._template % tuple([n * SCATTER % 2**128 for n in range(start, self._next)]))

    def answer(self, payload: bytes) -> None:
        if self.dialect.broadcast in payload[:100]:  # of another writer: the reference subscribes by itself
            return
        if payload.count(self.dialect.committed) != self._batch:
            self.fail(f"not committed: {payload[:400]!r}")
            return
        self.answered(self._batch)


class JsonReader(JsonConnection):
    """Reads its partitions page by page, and begins again at the end."""

    def __init__(self, tally: Tally, order: Order, client: Client, dialect: Dialect) -> None:
        super().__init__(tally, order, client, dialect)
        self._since = 0

    def request(self) -> bytes:
        return frame(self.dialect.sync(self.client, self._since).encode())

    def answer(self, payload: bytes) -> None:
        ends = payload[:600] + payload[-600:]
        found = self.dialect.cursor.search(ends)
        if found is None:
            self.fail(f"not a page: {payload[:300]!r}")
            return
        self._since = int(found[1]) if self.dialect.more.search(ends) else 0
        self.answered(payload.count(self.dialect.listed))


class JsonListener(JsonConnection):
    """Subscribes, then counts broadcasts in what arrives without taking it apart."""

    def __init__(self, tally: Tally, order: Order, client: Client, dialect: Dialect) -> None:
        super().__init__(tally, order, client, dialect)
        self._marker = dialect.broadcast
        self._tail = b""
        self._listening = False

    def connected(self) -> None:
        self.transport.write(frame(self.dialect.sync(self.client, 0, subscribe=True).encode()))

    def message(self, payload: bytes) -> None:
        if self.dialect.connected in payload[:200]:
            self.connected()
        elif self.dialect.cursor.search(payload):
            self._listening = True
            self.opened.set_result(None)
        else:
            self.fail(f"not subscribed: {payload[:300]!r}")

    def data_received(self, data: bytes) -> None:
        if not self._listening:
            super().data_received(data)
            return
        text = self._tail + data
        self.tally.items += text.count(self._marker)
        self._tail = text[-len(self._marker) + 1 :]

    def begin(self) -> None:
        """The server sends."""


DIALECTS: Final[dict[str, Dialect]] = {"unisono": UnisonoDialect(), "insieme": InsiemeDialect()}
