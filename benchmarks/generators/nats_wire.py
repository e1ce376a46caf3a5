"""The wire of NATS JetStream: publishing with acknowledgement, and a consumer that reads a stream back."""

from __future__ import annotations

import json
import re
from typing import Final

from benchmarks.generators.json_wires import body
from benchmarks.generators.order import EVENT_BYTES, Client, Order
from benchmarks.generators.tally import LoopConnection, Tally

STREAM: Final = "BENCH"
"""Has all subjects that begin with `bench.`."""
PULL_EVENTS: Final = 1000

_CONNECT = json.dumps({"verbose": False, "pedantic": False, "headers": True, "no_responders": True})


class NatsConnection(LoopConnection):
    """Says CONNECT and subscribes to an inbox of its own."""

    def __init__(self, tally: Tally, order: Order, client: Client) -> None:
        super().__init__(tally)
        self.subject = f"bench.{client.topics[0]}"
        self.inbox = f"_INBOX.{order.run}-{client.name}"

    def data_received(self, data: bytes) -> None:
        if b"PING\r\n" in data:
            self.transport.write(b"PONG\r\n")
        if b"-ERR" in data:
            self.fail(repr(data[:200]))
        elif self.opened.done():
            self.received(data)
        elif data.startswith(b"INFO"):
            self.transport.write(f"CONNECT {_CONNECT}\r\nSUB {self.inbox} 1\r\nPING\r\n".encode())
        elif b"PONG" in data:
            self.connected()

    def connected(self) -> None:
        self.opened.set_result(None)

    def received(self, data: bytes) -> None:
        raise NotImplementedError

    def publish(self, subject: str, payload: bytes, headers: bytes = b"") -> bytes:
        if headers:
            sizes = f"{len(headers)} {len(headers) + len(payload)}"
            return f"HPUB {subject} {self.inbox} {sizes}\r\n".encode() + headers + payload + b"\r\n"
        return f"PUB {subject} {self.inbox} {len(payload)}\r\n".encode() + payload + b"\r\n"


class NatsWriter(NatsConnection):
    """One message at a time, or an atomic batch: its last message commits it, and has the one acknowledgement."""

    def __init__(self, tally: Tally, order: Order, client: Client) -> None:
        super().__init__(tally, order, client)
        self._batch = order.batch
        self._next = 0
        self._prefix = f"{order.run}-{client.name}"
        self._payload = body(0, EVENT_BYTES).encode()
        self._single = self.publish(self.subject, self._payload)
        self._waiting = b""

    def request(self) -> bytes:
        if self._batch == 1:
            return self._single
        self._next += 1
        parts = []
        for number in range(1, self._batch + 1):
            commit = "Nats-Batch-Commit: 1\r\n" if number == self._batch else ""
            headers = (
                f"NATS/1.0\r\nNats-Batch-Id: {self._prefix}-{self._next}\r\n"
                f"Nats-Batch-Sequence: {number}\r\n{commit}\r\n"
            )
            whole = self.publish(self.subject, self._payload, headers.encode())
            # Only the first and the last are answered: the first when it is refused.
            parts.append(
                whole if number in (1, self._batch) else whole.replace(f" {self.inbox}".encode(), b"", 1)
            )
        return b"".join(parts)

    def received(self, data: bytes) -> None:
        self._waiting += data
        if b'"error"' in self._waiting:
            self.fail(repr(self._waiting[:300]))
        elif b'"seq":' in self._waiting and self._waiting.endswith(b"}\r\n"):
            self._waiting = b""
            self.answered(self._batch)


class NatsReader(NatsConnection):
    """A consumer without acknowledgements, asked for some messages at a time; at the end a new one begins again."""

    def __init__(self, tally: Tally, order: Order, client: Client) -> None:
        super().__init__(tally, order, client)
        self._marker = f"MSG {self.subject} ".encode()
        self._tail = b""
        self._got = 0
        self._consumer = ""
        self._asked = False
        self._reply = b""
        self._made = re.compile(rb"MSG " + re.escape(self.inbox.encode()) + rb" 1 (\d+)\r\n")

    def connected(self) -> None:
        self._make()

    def _make(self) -> None:
        config = {
            "deliver_policy": "all", "ack_policy": "none", "filter_subject": self.subject,
            "inactive_threshold": 60_000_000_000, "mem_storage": True, "num_replicas": 1,
        }  # fmt: skip
        asked = json.dumps({"stream_name": STREAM, "config": config}).encode()
        self._consumer, self._asked = "", True
        self.transport.write(self.publish(f"$JS.API.CONSUMER.CREATE.{STREAM}", asked))

    def request(self) -> bytes:
        self._got = 0
        asked = json.dumps({"batch": PULL_EVENTS, "no_wait": True}).encode()
        return self.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{self._consumer}", asked)

    def data_received(self, data: bytes) -> None:
        if self._consumer or not self._asked:
            super().data_received(data)
            return
        self._reply += data
        found = self._made.search(self._reply)
        if found is None or len(self._reply) < found.end() + int(found[1]):
            return
        reply = json.loads(self._reply[found.end() : found.end() + int(found[1])])
        self._reply, self._asked = b"", False
        if "name" not in reply:
            self.fail(f"no consumer: {reply}")
            return
        self._consumer = reply["name"]
        if self.opened.done():
            self.begin()
        else:
            self.opened.set_result(None)

    def received(self, data: bytes) -> None:
        seen = self._tail + data
        self._got += seen.count(self._marker)
        ended = b"NATS/1.0 40" in seen
        self._tail = seen[-len(self._marker) + 1 :]
        if self._got >= PULL_EVENTS:
            self._tail = b""
            self.answered(self._got)
        elif ended:
            self._tail = b""
            self.tally.items += self._got
            if self.tally.running:
                self._make()
