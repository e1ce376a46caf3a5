"""Clients of a simulation: one that speaks the protocol by hand, and the real client's core."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Protocol

import orjson

from tests.simulation.disk import SimulatedDisk
from tests.simulation.network import Line
from unisono.client.config import configure
from unisono.client.core import Core
from unisono.client.options import Options
from unisono.client.submit import SubmitRequest, Ticket
from unisono.client.sync.inputs_effects import Dialing, Lost, Opened, Received, TimerFired
from unisono.client.sync.state import Phase
from unisono.history.records import (
    AccessScope,
    ClientCursor,
    ClientStore,
    ConnectionClosed,
    ConnectionOpened,
    HistoryRecord,
    Operation,
)
from unisono.protocol.client_codec import MessageWriter, connect_payload, decode

ITEMS_MAX = 4
STORE_FILE = "client.db"
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
                ),
            )

    def submit(self) -> None:
        random = self.world.random
        items: list[dict[str, Any]] = []
        for _ in range(random.randint(1, ITEMS_MAX)):
            again = sorted(self.unknown) if random.random() < 0.5 else sorted(self.sent)
            if again and random.random() < 0.3:
                id = random.choice(again)
                partitions, event = self.sent[id]
                if random.random() < 0.15:
                    event = random_event(random, 9999)
            else:
                self._number += 1
                id = f"{self.prefix}-{self._number}"
                names = [*self.partitions, "elsewhere"] if random.random() < 0.05 else self.partitions
                partitions = sorted(random.sample(names, random.randint(1, min(2, len(names)))))
                event = random_event(random, self._number)
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
            if random.random() < 0.05:
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


class CoreClient(SimulatedClient):
    """The real client but for its thread and socket, on a disk of its own; also its core's connection."""

    def __init__(
        self,
        world: ClientWorld,
        client_id: str,
        scope: AccessScope,
        partitions: Sequence[str],
        disk: SimulatedDisk,
    ) -> None:
        super().__init__(world, client_id, scope)
        self.partitions = tuple(partitions)
        self.disk = disk
        self.wake: float | None = None
        self.eager = 1.0
        """How likely it dials."""
        self._number = 0
        self._cursor = -1
        self.core = self._start()

    def _start(self) -> Core:
        config = configure(
            "ws://nowhere",
            token="t",
            client_id=self.client_id,
            store=str(self.disk.directory / STORE_FILE),
            partitions=self.partitions,
            model=None,
            profile="compatibility",
            options=Options(buffer_events_max=8, snapshot_every=5, page_limit=3, snapshots=True),
        )
        return Core(config, self, lambda: self.world.now, lambda: int(self.world.now * 1000))

    # -- its core's connection -------------------------------------------------------------------------------

    def connect(self, last_committed_id: int, *, snapshots: bool) -> None:
        payload = connect_payload(
            token=self.token,
            client_id=self.client_id,
            profile="compatibility",
            last_committed_id=last_committed_id,
            snapshots=snapshots,
        )
        self.send("connect", payload)

    def drop_connection(self) -> None:
        if self.line is not None:
            self.line.break_off()

    def retry(self, new_token: bool) -> None:
        pass

    def stop(self, reason: str) -> None:
        raise AssertionError(f"{self.client_id} stops: {reason}")

    def wake_at(self, at: float) -> None:
        if self.wake is None or at < self.wake:
            self.wake = at

    # -- what may happen -------------------------------------------------------------------------------------

    def dial(self) -> None:
        if self.open_line():
            self.core.feed(Dialing())
            self.core.feed(Opened())
            self._note_cursor()

    def fire(self) -> None:
        self.wake = None
        self.core.feed(TimerFired())

    def draft(self) -> None:
        random = self.world.random
        self._number += 1
        partitions = tuple(sorted(random.sample(self.partitions, random.randint(1, len(self.partitions)))))
        id = f"{self.client_id}-{self._number}"
        (answer,) = self.core.submit([SubmitRequest(id, partitions, random_event(random, self._number))])
        if isinstance(answer, Ticket):
            self.world.record(Operation(self.world.now, self.client_id, id, "invoked"))

    def received(self, data: bytes) -> None:
        message = decode(data)
        if message is not None:
            self.core.feed(Received(message))
            self._note_cursor()

    def lost(self, code: int | None) -> None:
        self.core.feed(Lost(code))

    def _note_cursor(self) -> None:
        """The cursor of the partition that is furthest behind."""
        cursor = min(self.core.state.cursors.values(), default=0)
        if cursor > self._cursor:
            self._cursor = cursor
            self.world.record(ClientCursor(self.world.now, self.client_id, cursor))

    def crash(self, random: Random | None) -> None:
        """The program dies, or its machine loses power; it starts again from its store."""
        if self.line is not None:
            self.line.break_off()
            self.line.client_knows = True
            self.world.record(ConnectionClosed(self.world.now, self.line.name))
            self.line = None
        self.wake = None
        core = self.core

        def close() -> None:
            with suppress(Exception):
                core.store.close(failed=True)

        self.disk.crash(close, random)
        self.core = self._start()

    @property
    def settled(self) -> bool:
        return self.core.state.phase is Phase.LIVE and not self.core.pending()

    def final_stores(self) -> Iterator[ClientStore]:
        """What its store has in the end, partition by partition."""
        core = self.core
        ids = dict(core.store._connection.execute("SELECT committed_id, id FROM events"))
        for name in self.partitions:
            row = core.store.followed[name]
            view = orjson.dumps(core.views.dump(name, "compatibility"), option=orjson.OPT_SORT_KEYS)
            yield ClientStore(
                f"{self.client_id}/{name}",
                (name,),
                core.state.cursors[name],
                committed=tuple(
                    (event.committed_id, ids[event.committed_id]) for event in core.store.events(name, 0)
                ),
                drafts=tuple(ticket.draft.id for ticket in core.pending()),
                snapshot_starts={name: row.floor},
                state=hashlib.sha256(view).hexdigest(),
            )
