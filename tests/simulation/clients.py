"""Clients of a simulation that speak the protocol by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

import orjson

from tests.simulation.network import Line
from unisono.history.records import (
    AccessScope,
    ConnectionClosed,
    ConnectionOpened,
    HistoryRecord,
)
from unisono.protocol.client_codec import MessageWriter, connect_payload
from unisono.protocol.extensions import ATOMIC

ITEMS_MAX = 4
FOREIGN = "q"
"""A partition that some tokens do not allow."""


class ClientWorld(Protocol):
    """What clients need of the world."""

    @property
    def now(self) -> float: ...

    @property
    def random(self) -> Random: ...

    def dial(self) -> Line | None:
        """A connection to the server; None while there is none."""
        ...

    def token(self, client_id: str, scope: AccessScope) -> tuple[str, float]:
        """A token and when it expires."""
        ...

    def record(self, record: HistoryRecord) -> None: ...

    def record_frame(self, connection: str, direction: str, data: bytes) -> None: ...


class SimulatedClient:
    """A client's end of a line, recorded."""

    def __init__(self, world: ClientWorld, client_id: str, scope: AccessScope) -> None:
        self.world = world
        self.client_id = client_id
        self.scope = scope
        self.line: Line | None = None
        self._writer = MessageWriter()

    def open_line(self) -> bool:
        line = self.world.dial()
        if line is None:
            return False
        self.line = line
        token, expires_at = self.world.token(self.client_id, self.scope)
        self.token = token
        self.world.record(
            ConnectionOpened(
                self.world.now, line.name, self.client_id, scope=self.scope, expires_at=expires_at
            )
        )
        return True

    def send(self, kind: str, payload: bytes) -> None:
        if self.line is not None:
            data = self._writer.encode(kind, payload, int(self.world.now * 1000))
            self.world.record_frame(self.line.name, "sent", data)
            if not self.line.cut:
                self.line.to_server.append(data)

    def deliver(self) -> None:
        """Take the next message off the line."""
        line = self.line
        assert line is not None
        message = line.to_client.popleft()
        if isinstance(message, int):
            self.lose(message)
            return
        self.world.record_frame(line.name, "received", message)
        self.received(message)

    def lose(self, code: int | None = None) -> None:
        """The connection is gone, as this side sees it."""
        line, self.line = self.line, None
        if line is not None:
            line.client_knows = line.cut = True
            line.to_client.clear()
            line.to_server.clear()
            self.world.record(ConnectionClosed(self.world.now, line.name, code))
        self.lost(code)

    def received(self, data: bytes) -> None:
        raise NotImplementedError

    def lost(self, code: int | None) -> None:
        raise NotImplementedError


def random_event(random: Random, number: int) -> dict[str, Any]:
    """A tree action; some are invalid in most states."""
    kind = random.random()
    if kind < 0.25:
        value = {"id": f"n{random.randrange(8)}", "at": number}
        return {"type": "treePush", "payload": {"target": "outline", "value": value}}
    if kind < 0.35:
        options = {"id": f"n{random.randrange(8)}"}
        return {"type": "treeDelete", "payload": {"target": "outline", "options": options}}
    target = random.choice(["a", "b", "a.c", f"k{number % 5}"])
    return {
        "type": "set",
        "payload": {"target": target, "value": {"n": number}, "options": {"replace": True}},
    }


class HandClient(SimulatedClient):
    """Submits, retries, contradicts itself, syncs and subscribes as it likes, one sync at a time."""

    def __init__(
        self, world: ClientWorld, client_id: str, scope: AccessScope, partitions: Sequence[str]
    ) -> None:
        super().__init__(world, client_id, scope)
        self.partitions = list(partitions)
        self.prefix = client_id
        self.connected = False
        self.syncing = False
        self.cursor = 0
        self.sent: dict[str, tuple[list[str], dict[str, Any]]] = {}
        self.unknown: set[str] = set()
        self._number = 0
        self._batches: list[list[dict[str, Any]]] = []
        self._cycle: tuple[list[str], int] | None = None

    def dial(self) -> None:
        if self.open_line():
            self.send(
                "connect",
                connect_payload(
                    token=self.token,
                    client_id=self.client_id,
                    profile="compatibility",
                    last_committed_id=0,
                    snapshots=False,
                    extensions=(ATOMIC,),
                ),
            )

    def submit_together(self) -> None:
        """An atomic batch, new or once more; its ids are sent in no other way."""
        random = self.world.random
        if self._batches and random.random() < 0.4:
            batch = random.choice(self._batches)
        else:
            batch = [self._new_item() for _ in range(random.randint(2, ITEMS_MAX))]
            self._batches.append(batch)
        self.send("submit_events", orjson.dumps({"events": batch, "atomic": True}))

    def _new_item(self) -> dict[str, Any]:
        random = self.world.random
        self._number += 1
        names = [*self.partitions, "elsewhere"] if random.random() < 0.05 else self.partitions
        partitions = sorted(random.sample(names, random.randint(1, min(2, len(names)))))
        event = random_event(random, self._number)
        return {"id": f"{self.prefix}-{self._number}", "partitions": partitions, "event": event}

    def submit(self) -> None:
        random = self.world.random
        if random.random() < 0.25:
            self.submit_together()
            return
        items: list[dict[str, Any]] = []
        for _ in range(random.randint(1, ITEMS_MAX)):
            again = sorted(self.unknown) if random.random() < 0.5 else sorted(self.sent)
            if again and random.random() < 0.3:
                id = random.choice(again)
                partitions, event = self.sent[id]
                if random.random() < 0.15:
                    event = random_event(random, 9999)
            else:
                new = self._new_item()
                id, partitions, event = new["id"], new["partitions"], new["event"]
                self.sent[id] = partitions, event
            if id not in [item["id"] for item in items]:
                items.append({"id": id, "partitions": partitions, "event": event})
                self.unknown.add(id)
        self.send("submit_events", orjson.dumps({"events": items}))

    def sync(self) -> None:
        random = self.world.random
        payload: dict[str, Any]
        if self._cycle is not None and random.random() < 0.9:
            partitions, since = self._cycle
            payload = {"partitions": partitions, "since_committed_id": since}
        else:
            partitions = random.sample(self.partitions, random.randint(1, len(self.partitions)))
            if random.random() < 0.2:
                partitions.append(FOREIGN)
            since = random.choice([0, self.cursor, max(0, self.cursor - random.randrange(5))])
            payload = {"partitions": partitions, "since_committed_id": since}
            if random.random() < 0.6:
                payload["subscription_partitions"] = random.sample(
                    self.partitions, random.randint(0, len(self.partitions))
                )
        payload["limit"] = random.randint(1, 4)
        self.syncing = True
        self.send("sync", orjson.dumps(payload))

    def received(self, data: bytes) -> None:
        message = orjson.loads(data)
        payload = message["payload"]
        match message["type"]:
            case "connected":
                self.connected = True
            case "sync_response":
                self.syncing = False
                self.cursor = max(self.cursor, payload["next_since_committed_id"])
                more = payload["has_more"]
                self._cycle = (payload["partitions"], payload["next_since_committed_id"]) if more else None
            case "submit_events_result":
                self.unknown.difference_update(item["id"] for item in payload["results"])
            case "error":
                self.syncing = False
                self._cycle = None

    def lost(self, code: int | None) -> None:
        self.connected = self.syncing = False
        self._cycle = None


class ScriptedClient(HandClient):
    """Subscribes to everything it may, then submits its events one by one, each until it is answered."""

    def __init__(
        self, world: ClientWorld, client_id: str, partitions: Sequence[str], events: Sequence[str]
    ) -> None:
        super().__init__(world, client_id, AccessScope(tuple(partitions)), partitions)
        self._todo = [(f"{client_id}-{number}", [name]) for number, name in enumerate(events)]
        self._subscribed = False

    def act(self) -> Callable[[], None] | None:
        """What it does next; None while it waits."""
        if not self.connected or self.syncing:
            return None
        if not self._subscribed:
            return self._subscribe
        return self._submit_next if self._todo and not self.unknown else None

    @property
    def done(self) -> bool:
        return not self._todo and not self.unknown

    def _subscribe(self) -> None:
        self.syncing = True
        payload = {"partitions": self.partitions, "since_committed_id": self.cursor}
        payload["subscription_partitions"] = self.partitions
        self.send("sync", orjson.dumps(payload))

    def _submit_next(self) -> None:
        id, partitions = self._todo[0]
        self.unknown.add(id)
        event = {"type": "set", "payload": {"target": "a", "value": {"n": id}, "options": {"replace": True}}}
        self.send(
            "submit_events", orjson.dumps({"events": [{"id": id, "partitions": partitions, "event": event}]})
        )

    def received(self, data: bytes) -> None:
        super().received(data)
        kind = orjson.loads(data)["type"]
        if kind == "sync_response":
            self._subscribed = True
        elif kind == "submit_events_result":
            self._todo.pop(0)

    def lost(self, code: int | None) -> None:
        super().lost(code)
        self._subscribed = False
        self.unknown.clear()
