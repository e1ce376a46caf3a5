"""Tenants on one server, each with a canary in all it writes: no connection may ever see the canary of another."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from tests.behaviour.server.crowds import Client
from tests.behaviour.server.frames import TEXT
from tests.behaviour.server.harness import Server, item, set_event
from tests.client.running import until as until_then

CANARY: Final = re.compile(rb"canary-(\d+)-")
PARTS: Final = 3


class Tenant:
    """One tenant: a connection that works, and tries what it may not, and one that listens to all of its own."""

    def __init__(self, number: int, tenants: int, server: Server, batch: int, seed: int) -> None:
        self.number = number
        self.mine = [f"t{number}/{part}" for part in range(PARTS)]
        self.others = [
            f"t{other}/{part}" for other in range(tenants) if other != number for part in range(PARTS)
        ]
        self.committed = 0
        self.heard = 0
        self.refusals = 0
        self.frames = 0
        self._server = server
        self._batch = batch
        self._chance = random.Random(f"{seed} {number}")
        self._numbers = count(1)
        self._worker: Client
        self._listener: Client
        self._listening: asyncio.Task[None]

    async def open(self) -> None:
        self._worker = await self._connected("worker")
        self._listener = await self._connected("listener")
        wanted = {"partitions": self.mine, "since_committed_id": 0, "subscription_partitions": self.mine}
        await self._listener.say("sync", wanted)
        assert (await self._next(self._listener))["type"] == "sync_response"
        self._listening = asyncio.create_task(self._listen())

    async def _connected(self, role: str) -> Client:
        who = f"{role}-{self.number}"
        scope: dict[str, Any] = (
            {"partitions": self.mine} if self.number % 2 else {"prefixes": [f"t{self.number}/"]}
        )
        client = await Client.open(self._server.url)
        await client.connect(who, self._server.token(who, **scope))
        return client

    async def _next(self, client: Client) -> dict[str, Any]:
        """The next message, whose bytes hold no canary but this tenant's."""
        opcode, payload = await client.hear()
        assert opcode == TEXT, (opcode, payload)
        self.frames += 1
        seen = {int(found) for found in CANARY.findall(payload)}
        assert seen <= {self.number}, f"tenant {self.number} was sent canaries of {seen}: {payload[:500]!r}"
        message: dict[str, Any] = json.loads(payload)
        return message

    async def _listen(self) -> None:
        while True:
            message = await self._next(self._listener)
            assert message["type"] in ("event_broadcast", "heartbeat_ack"), message
            self.heard += message["type"] == "event_broadcast"

    async def _ask(self, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        await self._worker.say(kind, payload)
        return await self._next(self._worker)

    def _event(self) -> dict[str, Any]:
        return set_event("x", f"canary-{self.number}-{next(self._numbers)}")

    async def work(self, operations: int) -> None:
        """So many operations; a batch is as many as it has events."""
        done = 0
        ways: list[tuple[int, Callable[[], Any]]] = [
            (70, self._write), (8, self._read), (6, self._read_foreign), (4, self._subscribe_foreign),
            (6, self._write_foreign), (3, self._write_across), (3, self._reuse_id),
        ]  # fmt: skip
        weights, calls = zip(*ways, strict=True)
        while done < operations:
            (call,) = self._chance.choices(calls, weights)
            done += await call()

    async def _write(self) -> int:
        events = [item([self._chance.choice(self.mine)], self._event()) for _ in range(self._batch)]
        answer = await self._ask("submit_events", {"events": events})
        assert {result["status"] for result in answer["payload"]["results"]} == {"committed"}, answer
        self.committed += self._batch
        return self._batch

    async def _read(self) -> int:
        since = max(0, self._chance.randrange(-50, 2000))
        answer = await self._ask("sync", {"partitions": self.mine, "since_committed_id": since, "limit": 50})
        assert answer["type"] == "sync_response", answer
        return 1

    async def _refused(self, kind: str, payload: dict[str, Any]) -> int:
        answer = await self._ask(kind, payload)
        assert "forbidden" in json.dumps(answer), answer
        self.refusals += 1
        return 1

    async def _read_foreign(self) -> int:
        names = [*self._chance.sample(self.mine, 1), self._chance.choice(self.others)]
        return await self._refused("sync", {"partitions": names, "since_committed_id": 0})

    async def _subscribe_foreign(self) -> int:
        foreign = self._chance.sample(self.others, 2)
        wanted = {"partitions": self.mine, "since_committed_id": 0, "subscription_partitions": foreign}
        return await self._refused("sync", wanted)

    async def _write_foreign(self) -> int:
        return await self._refused("submit_event", item([self._chance.choice(self.others)], self._event()))

    async def _write_across(self) -> int:
        names = [self.mine[0], self._chance.choice(self.others)]
        return await self._refused("submit_event", item(names, self._event()))

    async def _reuse_id(self) -> int:
        """An id that every tenant uses: whoever was first has it, and the others learn nothing of what it holds."""
        answer = await self._ask("submit_event", item([self.mine[0]], self._event(), "an id of all tenants"))
        self.committed += answer["type"] == "event_committed"
        return 1

    async def close(self) -> None:
        """Once everything that was committed has been heard."""
        await until_then(lambda: self.heard >= self.committed or self._listening.done())
        if self._listening.done():
            self._listening.result()
        self._listening.cancel()
        assert self.heard == self.committed
        await self._worker.leave()
        await self._listener.vanish()


def play(server: Server, *, tenants: int, operations: int, batch: int, seed: int) -> list[Tenant]:
    """All tenants at once, until each has done its share of the operations."""

    async def scenario() -> list[Tenant]:
        all_tenants = [Tenant(number, tenants, server, batch, seed) for number in range(tenants)]
        for tenant in all_tenants:
            await tenant.open()
        await asyncio.gather(*(tenant.work(operations // tenants) for tenant in all_tenants))
        await asyncio.gather(*(tenant.close() for tenant in all_tenants))
        return all_tenants

    played = asyncio.run(scenario())
    assert not CANARY.search(server.log.read_bytes()), "a canary is in the log file"
    return played
