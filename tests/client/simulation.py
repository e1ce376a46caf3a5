"""A whole client but for its thread and socket, against a server played by a few lines of Python.

Every choice is made by one random source: who acts next, what is delivered when and how often, when the line
breaks, when the client dies. What must hold is checked after every step, and that all come together at the end.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.client.simulated_server import PARTITIONS, Server, fold
from unisono.client.config import configure
from unisono.client.core import Core
from unisono.client.options import Options
from unisono.client.submit import SubmitRequest, Ticket
from unisono.client.sync.inputs_effects import Dialing, Lost, Opened, Received, TimerFired
from unisono.protocol.client_codec import decode


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
        if self.core.state.model_version != self.server.model_version:
            return  # a client that learns of another model goes back to 0 by itself (CLIENT-10); nothing would then
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
