"""Five clients edit the same partitions over bad lines, some are killed; in the end all see the same.

Three live in this process, each behind a proxy of its own that delays, splits, trickles, goes deaf and cuts; two are
processes that are killed with -9 and started again. One seed decides who edits what and which mishap comes next; the
interleaving is the machine's. What all of them say, hear and have stored in the end goes into the server's history.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import apsw
import msgspec

from tests.behaviour.server.harness import Server
from tests.client.edits import edit
from tests.client.proxy import Proxy
from tests.client.running import WAIT_S, of, until
from tests.client.workers import Ending, Worker, job
from unisono.client import InvalidEvent, SyncClient
from unisono.history.records import ClientStore
from unisono.model.model import open_model
from unisono.model.partition import PartitionState


class Outcome(msgspec.Struct, frozen=True):
    """What a run came to, for the record."""

    seed: int
    events: int
    drafts: int
    rejected: int
    cuts: int
    kills: int


class Member:
    """A client in this process: it edits, loses its line, and is closed and opened again."""

    def __init__(
        self, server: Server, name: str, directory: Path, partitions: tuple[str, ...], seed: int
    ) -> None:
        self.name = name
        self.random = Random(seed)
        self.partitions = partitions
        self.path = directory / f"{name}.db"
        self.drafts: list[str] = []
        self.cuts = 0
        self._server = server
        self.proxy = Proxy(server.url, seed, server.recorder)
        self.client: SyncClient

    async def open(self) -> None:
        self.client = of(self._server, self.name, *self.partitions, url=self.proxy.url, store=self.path)
        await self.client.__aenter__()

    async def live(self, until_s: float) -> None:
        """Edit, with mishaps, until the time is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + until_s
        while loop.time() < end:
            for _ in range(self.random.randint(1, 6)):
                event, names = edit(self.random, self.client.view, self.partitions)
                with contextlib.suppress(InvalidEvent):
                    self.drafts.append((await self.client.submit(names, event)).id)
            await self._mishap()
            await asyncio.sleep(self.random.uniform(0, 0.06))

    async def _mishap(self) -> None:
        chance = self.random.random()
        self.proxy.chop = self.random.random() < 0.3
        self.proxy.delay_s = self.random.choice([0, 0, 0.02])
        self.proxy.trickle_s = self.random.choice([0, 0, 0, 0.0005])
        if chance < 0.12:
            self.proxy.cut()
            self.cuts += 1
        elif chance < 0.2:
            self.proxy.cut_after_next_up = True
            self.cuts += 1
        elif chance < 0.26:
            self.proxy.cut_down_after = self.random.randint(0, 3000)
            self.cuts += 1
        elif chance < 0.3:
            self.proxy.cut_down_after = None
        elif chance < 0.35:
            await self.client.close()
            await self.open()
        elif chance < 0.4:
            await self.client.pause()
            await asyncio.sleep(self.random.uniform(0, 0.1))
            await self.client.resume()
        elif chance < 0.45:
            self.proxy.deaf = True
            await asyncio.sleep(self.random.uniform(0, 0.1))
            if self.random.random() < 0.5:
                self.proxy.cut()
                self.cuts += 1
            self.proxy.deaf = False

    def heal(self) -> None:
        self.proxy.chop = False
        self.proxy.delay_s = self.proxy.trickle_s = 0.0
        self.proxy.cut_down_after = None
        self.proxy.cut_after_next_up = False
        self.proxy.refusing = False


async def run(seed: int, server: Server, directory: Path, *, seconds: float = 0.7) -> Outcome:
    """One run; AssertionError when anything is not as it must be."""
    random = Random(seed)
    partitions = (f"conv-{seed}-a", f"conv-{seed}-b")
    members = [
        Member(server, f"conv-{seed}-m{n}", directory, partitions, random.randrange(2**32)) for n in range(3)
    ]
    workers = []
    with contextlib.ExitStack() as stack:
        line = stack.enter_context(Proxy(server.url, recorder=server.recorder))
        for n in range(2):
            name = f"conv-{seed}-w{n}"
            path = directory / f"{name}.db"
            task = job(
                line.url,
                server.token(name),
                name,
                path,
                *partitions,
                seed=random.randrange(2**32),
                pause_s=0.05,
            )
            workers.append(Worker(task))
        for worker in workers:
            stack.callback(worker.dismiss)
            worker.start()
        for member in members:
            stack.enter_context(member.proxy)
            await member.open()
        try:
            await asyncio.gather(
                *(member.live(seconds) for member in members),
                *(_kill_now_and_then(worker, Random(random.randrange(2**32)), seconds) for worker in workers),
            )
            return await _settle(seed, server, partitions, members, workers)
        finally:
            for member in members:
                await member.client.close()


async def _kill_now_and_then(worker: Worker, random: Random, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        await asyncio.sleep(random.uniform(0.15, 0.6))
        if loop.time() > end:
            return
        await asyncio.to_thread(worker.kill)
        await asyncio.to_thread(worker.start)


async def _settle(
    seed: int, server: Server, partitions: tuple[str, ...], members: list[Member], workers: list[Worker]
) -> Outcome:
    """No more mishaps: everyone catches up, then all are compared."""
    for member in members:
        member.heal()
    await asyncio.gather(
        *(member.client.caught_up(WAIT_S) for member in members),
        *(asyncio.to_thread(worker.finish, "finish") for worker in workers),
    )
    history = await asyncio.to_thread(_history, server, seed, partitions)
    head = history[-1]["committed_id"] if history else 0
    for member in members:
        await until(lambda member=member: member.client.status.cursor >= head)  # type: ignore[misc]
    endings: list[Ending] = await asyncio.gather(*(asyncio.to_thread(w.finish, head) for w in workers))
    expected = {name: _fold(history, name) for name in partitions}
    for member in members:
        shown = {name: member.client.view(name) for name in partitions}
        assert shown == expected, f"seed {seed}: {member.name} sees something else"
    for ending in endings:
        assert ending.views == expected, f"seed {seed}: a worker sees something else: {ending.errors}"
    rejected = {each.id for member in members for each in member.client.rejected()}
    rejected |= {id for ending in endings for id in ending.rejected}
    drafts = [id for member in members for id in member.drafts] + [
        id for w in workers for id in w.acknowledged
    ]
    committed = Counter(event["id"] for event in history)
    assert max(committed.values(), default=1) == 1, f"seed {seed}: an event was committed twice"
    lost = set(drafts) - set(committed) - rejected
    assert not lost, f"seed {seed}: drafts were lost: {lost}"
    assert not rejected & set(committed), f"seed {seed}: rejected and committed"
    for path in [member.path for member in members] + [Path(worker.job.store) for worker in workers]:
        stored = _stored(path)
        assert [number for number, _ in stored] == [event["committed_id"] for event in history], (
            f"seed {seed}: {path.name}"
        )
        server.recorder.add(ClientStore(path.stem, partitions, head, tuple(stored)))
    return Outcome(
        seed,
        len(history),
        len(drafts),
        len(rejected),
        sum(m.cuts for m in members),
        sum(w.kills for w in workers),
    )


def _history(server: Server, seed: int, partitions: tuple[str, ...]) -> list[dict[str, Any]]:
    with server.client(f"conv-{seed}-reader") as reader:
        return reader.history(partitions)


def _fold(history: list[dict[str, Any]], partition: str) -> Any:
    model, state = open_model(), PartitionState()
    for event in history:
        if partition in event["partitions"]:
            assert model.apply_committed(state, event["event"]), "the server committed what does not fit"
    return state.tree.dump()


def _stored(path: Path) -> list[tuple[int, str]]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        rows = connection.execute("SELECT committed_id, id FROM events ORDER BY 1")
        return [(int(number), str(id)) for number, id in rows]
    finally:
        connection.close()
