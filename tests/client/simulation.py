"""A whole client but for its thread and socket, against a server played by a few lines of Python.

Every choice is made by one random source: who acts next, what is delivered when and how often, when the line
breaks, when the client dies. What must hold is checked after every step, and that all come together at the end.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from unisono.client.config import configure
from unisono.client.core import Core
from unisono.client.options import Options
from unisono.client.submit import SubmitRequest, Ticket
from unisono.client.sync.inputs_effects import Dialing, Lost, Opened, Received, TimerFired
from unisono.model.model import open_model
from unisono.model.partition import PartitionState
from unisono.protocol.client_codec import CommittedEvent, decode
from unisono.protocol.codec import encode
from unisono.vocabulary import Json

PARTITIONS = ("p", "q", "r")


class Entry(msgspec.Struct, frozen=True):
    """One line of the server's log."""

    committed_id: int
    id: str
    partitions: tuple[str, ...]
    event: dict[str, Any]

    def told(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "client_id": "somebody",
            "partitions": list(self.partitions),
            "committed_id": self.committed_id,
            "event": self.event,
            "status_updated_at": 5,
        }


class Server:
    """A log, at most one connection, and the protocol as the seeds have it.

    Without `ordered` it delivers broadcasts in any order and results whenever it likes, as a conforming server
    may, and never says `ordered_delivery`.
    """

    def __init__(self, random: Random, *, ordered: bool, page: int) -> None:
        self.random = random
        self.ordered = ordered
        self.page = page
        self.log: list[Entry] = []
        self.model_version = 1
        self.subscriptions: set[str] = set()
        self.cycle: tuple[tuple[str, ...], int, int, dict[str, int]] | None = None
        self.snapshots: dict[str, dict[str, Any]] = {}
        self.wants_snapshots = False
        self.incoming: deque[dict[str, Any]] = deque()
        self.outgoing: deque[tuple[str, dict[str, Any]]] = deque()
        self.open = False

    @property
    def head(self) -> int:
        return self.log[-1].committed_id if self.log else 0

    def connect(self) -> None:
        self.open = True
        self.hang_up_state()

    def hang_up_state(self) -> None:
        self.subscriptions = set()
        self.cycle = None
        self.incoming.clear()
        self.outgoing.clear()

    def commit(self, id: str, partitions: tuple[str, ...], event: dict[str, Any], *, origin: bool) -> Entry:
        gap = 1 if self.random.random() < 0.8 else self.random.randint(2, 5)
        entry = Entry(self.head + gap, id, partitions, event)
        self.log.append(entry)
        if self.open and not origin and self.subscriptions & set(partitions):
            self.outgoing.append(("event_broadcast", entry.told()))
        return entry

    def answer(self) -> None:
        """Process the client's next message."""
        message = self.incoming.popleft()
        payload = message["payload"]
        match message["type"]:
            case "connect":
                capabilities: dict[str, Any] = {
                    "profile": "compatibility", "accepted_event_types": [], "tree_policy": "strict"
                }  # fmt: skip
                if self.ordered:
                    capabilities["ordered_delivery"] = True
                self.wants_snapshots = payload["snapshots"]
                if self.wants_snapshots:
                    capabilities["snapshots"] = True
                self._say("connected", {
                    "client_id": "me", "server_time": 1, "server_last_committed_id": self.head,
                    "capabilities": capabilities, "model_version": self.model_version,
                    "limits": {"max_batch_size": 4, "sync_limit_min": 1, "sync_limit_max": self.page},
                })  # fmt: skip
            case "sync":
                self._sync(payload)
            case "submit_events":
                results = [self._judge(item) for item in payload["events"]]
                if not self.ordered:
                    self.random.shuffle(results)
                self._say("submit_events_result", {"results": results})

    def _sync(self, asked: dict[str, Any]) -> None:
        partitions, since = tuple(asked["partitions"]), asked["since_committed_id"]
        upto = self.head
        floors: dict[str, int] = {}
        started: list[dict[str, Any]] | None = None
        if (
            self.cycle is not None
            and self.cycle[:2] == (partitions, since)
            and "subscription_partitions" not in asked
        ):
            upto, floors = self.cycle[2:]
        elif not since and self.wants_snapshots and asked.get("snapshots") is not False:
            started = [
                snapshot for name in partitions
                if (snapshot := self.snapshots.get(name)) is not None
                and snapshot["model_version"] == self.model_version and self.random.random() < 0.8
            ]  # fmt: skip
            floors = {snapshot["partition"]: snapshot["committed_id"] for snapshot in started}
        if "subscription_partitions" in asked:
            self.subscriptions = set(asked["subscription_partitions"])
        found = [
            e
            for e in self.log
            if since < e.committed_id <= upto
            and any(name in partitions and e.committed_id > floors.get(name, 0) for name in e.partitions)
        ]
        events, more = found[: self.page], len(found) > self.page
        reached = events[-1].committed_id if more else upto
        self.cycle = (partitions, reached, upto, floors) if more else None
        told = {
            "partitions": list(partitions), "effective_subscriptions": sorted(self.subscriptions),
            "events": [e.told() for e in events], "next_since_committed_id": reached,
            "sync_to_committed_id": upto, "has_more": more, "model_version": self.model_version,
        }  # fmt: skip
        self._say("sync_response", told if started is None else told | {"snapshots": started})

    def snapshot(self, partition: str, upto: int, *, damaged: bool) -> None:
        """Keep the state of a partition as it was at one of its ids, or something that is none."""
        events = [e.event for e in self.log if partition in e.partitions and e.committed_id <= upto]
        self.snapshots[partition] = {
            "partition": partition, "committed_id": upto, "model_version": self.model_version,
            "state": {"tree": [damaged]} if damaged else {"tree": fold(events), "data": {"of": "no matter"}},
        }  # fmt: skip

    def _judge(self, item: dict[str, Any]) -> dict[str, Any]:
        known = next((e for e in self.log if e.id == item["id"]), None)
        if known is None and item["event"]["payload"].get("target") == "forbidden":
            return {"id": item["id"], "status": "rejected", "reason": "forbidden", "status_updated_at": 5}
        entry = known or self.commit(item["id"], tuple(item["partitions"]), item["event"], origin=True)
        return {
            "id": item["id"], "status": "committed", "committed_id": entry.committed_id, "status_updated_at": 5
        }  # fmt: skip

    def _say(self, kind: str, payload: dict[str, Any]) -> None:
        self.outgoing.append((kind, payload))

    def deliver(self) -> bytes:
        """The next message on its way to the client: the oldest, or any broadcast where order is not promised."""
        chosen = 0
        if not self.ordered:
            loose = [n for n, (kind, _) in enumerate(self.outgoing) if kind == "event_broadcast"]
            first_other = next(
                (n for n, (kind, _) in enumerate(self.outgoing) if kind != "event_broadcast"), None
            )
            chosen = self.random.choice(loose + ([] if first_other is None else [first_other]))
        kind, payload = self.outgoing[chosen]
        again = kind == "event_broadcast" and not self.ordered and self.random.random() < 0.2
        if not again:
            del self.outgoing[chosen]
        return encode(kind, "s", 1, msgspec.json.encode(payload))


class Simulation:
    """The client, its server, and the line between them; also the core's connection."""

    def __init__(self, random: Random, directory: Path, *, ordered: bool, snapshots: bool) -> None:
        self.random = random
        self.snapshots = snapshots
        self.server = Server(random, ordered=ordered, page=random.randint(1, 5))
        self.path = str(directory / "client.db")
        self.now = 0.0
        self.connected = False
        self.hung_up = False
        self.numbers = 0
        self.ids = count()
        self.drafts: set[str] = set()
        self.rejected: set[str] = set()
        self.problems: list[str] = []
        self.core = self._start()

    def _start(self) -> Core:
        config = configure(
            "ws://nowhere", token="t", client_id="me", store=self.path, partitions=PARTITIONS[:2], model=None,
            profile="compatibility",
            options=Options(
                buffer_events_max=4, tail_events_max=3, snapshot_every=5, page_limit=5, snapshots=self.snapshots
            ),
        )  # fmt: skip
        return Core(config, self, lambda: self.now, lambda: 1)

    # -- the core's Line -------------------------------------------------------------------------------------

    def connect(self, last_committed_id: int, *, snapshots: bool) -> None:
        told = {"last_committed_id": last_committed_id, "snapshots": snapshots}
        self.send("connect", msgspec.json.encode(told))

    def send(self, kind: str, payload: bytes) -> None:
        if self.connected:
            self.server.incoming.append({"type": kind, "payload": msgspec.json.decode(payload)})

    def drop_connection(self) -> None:
        self.hung_up = True

    def retry(self, new_token: bool) -> None:
        pass

    def stop(self, reason: str) -> None:
        raise AssertionError(reason)

    def wake_at(self, at: float) -> None:
        pass

    # -- what may happen -------------------------------------------------------------------------------------

    def step(self) -> None:
        actions = [self.somebody_commits, self.draft, self.serve, self.receive]
        weights = [3, 2, 6, 6]
        rare = [self.drop, self.die, self.add, self.remove, self.change_model, self.wipe, self.snapshot]
        chosen = self.random.choices([*actions, *rare], [*weights, 0.6, 0.3, 0.3, 0.3, 0.1, 0.05, 1.5])[0]
        chosen()
        if self.hung_up:
            self.drop()
        self.check()

    def _event(self) -> dict[str, Any]:
        self.numbers += 1
        if self.random.random() < 0.1:
            return {"type": "set", "payload": {"target": "forbidden", "value": 1}}
        target = self.random.choice(["a", "b", "a.c", f"k{self.numbers}"])
        if self.random.random() < 0.2:
            return {"type": "unset", "payload": {"target": target}}
        return {"type": "set", "payload": {"target": target, "value": {"n": self.numbers}}}

    def _some(self) -> tuple[str, ...]:
        return tuple(sorted(self.random.sample(PARTITIONS, self.random.randint(1, 2))))

    def somebody_commits(self) -> None:
        self.server.commit(
            f"other-{self.numbers}-{self.server.head}", self._some(), self._event(), origin=False
        )

    def draft(self) -> None:
        id = f"draft-{next(self.ids)}"
        (answer,) = self.core.submit([SubmitRequest(id, self._some(), self._event())])
        if isinstance(answer, Ticket):
            self.drafts.add(id)

    def serve(self) -> None:
        if self.connected and self.server.incoming:
            self.server.answer()

    def receive(self) -> None:
        if not self.connected:
            self.dial()
        elif self.server.outgoing:
            together: list[Received] = []
            while self.server.outgoing and len(together) < self.random.choice([1, 1, 3]):
                message = decode(self.server.deliver())
                assert message is not None
                together.append(Received(message))
            self.core.feed(*together)

    def dial(self) -> None:
        self.connected, self.hung_up = True, False
        self.server.connect()
        self.core.feed(Dialing())
        self.core.feed(Opened())

    def drop(self) -> None:
        if self.connected:
            self.connected = self.server.open = False
            self.server.hang_up_state()
            self.core.feed(Lost())
        self.hung_up = False

    def die(self) -> None:
        """The process is gone between two steps; what it wrote is there, and nothing else."""
        followed = list(self.core.store.followed)
        if self.random.random() < 0.3:
            self.core.close()
        else:
            self.core.store.close()
        self.connected = self.server.open = False
        self.server.hang_up_state()
        self.core = self._start()
        for name in followed:
            self.core.add_partition(name)

    def add(self) -> None:
        self.core.add_partition(self.random.choice(PARTITIONS))

    def remove(self) -> None:
        self.core.remove_partition(self.random.choice(PARTITIONS))

    def change_model(self) -> None:
        self.server.model_version += 1
        if self.connected and self.core.state.phase in ("syncing", "live"):
            told = {
                "old_model_version": self.server.model_version - 1, "new_model_version": self.server.model_version
            }  # fmt: skip
            self.server.outgoing.append(("version_changed", told))

    def snapshot(self) -> None:
        if self.server.head:
            partition, upto = self.random.choice(PARTITIONS), self.random.choice(self.server.log).committed_id
            self.server.snapshot(partition, upto, damaged=self.random.random() < 0.1)

    def wipe(self) -> None:
        """Another server, with an empty past, answers from now on; the client's cursors tell it (CLIENT-11)."""
        store = self.core.store
        cursor = min((place.cursor for place in store.followed.values()), default=0)
        if cursor == 0 or any(True for name in store.followed for _ in store.events(name, cursor)):
            return  # from 0, and with events it was told of and no page confirmed, nothing would
        self.drop()
        self.drafts -= {entry.id for entry in self.server.log}
        self.server.log = []
        self.server.snapshots = {}
        while self.core.state.cursors and max(self.core.state.cursors.values()):
            self.receive()
            self.serve()

    # -- what must hold --------------------------------------------------------------------------------------

    def check(self) -> None:
        """From its floor to what it knows a partition is complete, unless the server has since become another."""
        store = self.core.store
        for name, place in store.followed.items():
            assert self.core.state.cursors[name] == place.cursor
            held = {event.committed_id for event in store.events(name, 0)}
            assert all(n > place.floor for n in held), f"{name} keeps what its base stands for"
            assert place.cursor <= place.known
            if place.known <= self.server.head and not self._foreign(name):
                due = {e.committed_id for e in self.server.log if name in e.partitions}
                missing = {n for n in due if place.floor < n <= place.known} - held
                assert not missing, f"{name} has lost {missing} of what it knows up to {place.known}"

    def _foreign(self, name: str) -> bool:
        """Whether something stored is not in the server's log: a past that the client has yet to find out about."""
        log = {(e.committed_id, e.id) for e in self.server.log}
        held = self.core.store._connection.execute("SELECT committed_id, id FROM events").fetchall()
        return any(tuple(row) not in log for row in held)

    def settle(self) -> None:
        """No more mishaps: let everything that is under way arrive."""
        for _ in range(10_000):
            self.now += 1
            if not self.connected or self.hung_up:
                self.drop()
                self.dial()
            elif self.server.incoming:
                self.server.answer()
            elif self.server.outgoing:
                self.receive()
            elif self.core.state.phase == "live" and not self.core.store.outbox.pending:
                return
            else:
                self.core.feed(TimerFired())
        raise AssertionError(f"does not come to rest: {self.core.state}")

    def check_end(self) -> None:
        """The store is the log above the floors, each view a fold, and every draft an event once, or rejected."""
        store, log = self.core.store, self.server.log
        for name in store.followed:
            due = [(e.committed_id, e.event) for e in log if name in e.partitions]
            held = [(e.committed_id, msgspec.json.decode(e.event)) for e in store.events(name, 0)]
            assert held == [each for each in due if each[0] > store.followed[name].floor]
            assert self.core.views.dump(name, "compatibility") == fold([event for _, event in due])
        ids = [entry.id for entry in log]
        assert len(ids) == len(set(ids)), "an event was committed twice"
        lost = self.drafts - set(ids) - set(store.outbox.rejected)
        assert not lost, f"drafts were lost: {lost}"


def fold(events: list[dict[str, Any]]) -> Json:
    """The plainest way from a history to its state."""
    model, state = open_model(), PartitionState()
    for event in events:
        model.apply_committed(state, event)
    return state.tree.dump()


__all__ = ["CommittedEvent", "Simulation", "fold"]
