"""Python and JavaScript clients edit the same partitions over bad lines; in the end all see the same.

Two clients are in this process, two in a Node process that is killed with -9 and started again; in some runs the
server is killed as well. What all of them say, hear and have stored in the end goes into the server's history.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.client.convergence import Member
from tests.client.running import WAIT_S, until
from tests.js.members import JsMember, NodeProcess, stored
from tests.js.server_control import ControlledServer
from tests.waiting import PATIENCE_S
from unisono.history.records import ClientStore
from unisono.model.model import open_model
from unisono.model.partition import PartitionState


class MixedOutcome(msgspec.Struct, frozen=True):
    """What a run came to, for the record."""

    seed: int
    events: int
    drafts: int
    rejected: int
    cuts: int
    kills: int


async def run(
    seed: int, owner: ControlledServer, directory: Path, *, seconds: float = 0.7, kill_server: bool = False
) -> MixedOutcome:
    """One run; AssertionError when anything is not as it must be."""
    random, server = Random(seed), owner.server
    partitions = (f"mixed-{seed}-a", f"mixed-{seed}-b")
    process = NodeProcess()
    await process.start()
    members: list[Member | JsMember] = []
    pythons = [
        Member(server, f"mixed-{seed}-p{n}", directory, partitions, random.randrange(2**32)) for n in range(2)
    ]
    scripts = [
        JsMember(process, server, f"mixed-{seed}-j{n}", directory, partitions, random.randrange(2**32))
        for n in range(2)
    ]
    members += [*pythons, *scripts]
    with contextlib.ExitStack() as stack:
        for member in members:
            stack.enter_context(member.proxy)
            await member.open()
        try:
            for part in range(2):
                await asyncio.gather(
                    *(member.live(seconds / 2) for member in members),
                    _kill(process, random.uniform(0, seconds / 2)) if part == 0 else asyncio.sleep(0),
                    asyncio.to_thread(_kill_server, owner) if kill_server and part == 1 else asyncio.sleep(0),
                )
                if part == 0:
                    await process.start()
                    for script in scripts:
                        await script.open()
            return await _settle(seed, owner, partitions, pythons, scripts)
        finally:
            for python in pythons:
                await python.client.close()
            await process.end()


async def _kill(process: NodeProcess, after_s: float) -> None:
    await asyncio.sleep(after_s)
    await process.kill()


def _kill_server(owner: ControlledServer) -> None:
    owner.perform("kill")
    owner.perform("start")


async def _settle(
    seed: int,
    owner: ControlledServer,
    partitions: tuple[str, ...],
    pythons: list[Member],
    scripts: list[JsMember],
) -> MixedOutcome:
    """No more mishaps: everyone catches up, then all are compared."""
    members: list[Member | JsMember] = [*pythons, *scripts]
    for each in members:
        each.heal()
    await asyncio.gather(
        *(member.client.caught_up(WAIT_S) for member in pythons),
        *(member.call("caughtUp") for member in scripts),
    )
    history = await asyncio.to_thread(_history, owner, seed, partitions)
    head = history[-1]["committed_id"] if history else 0
    for member in pythons:
        await until(lambda member=member: member.client.status.cursor >= head)  # type: ignore[misc]
    for script in scripts:
        await _reaches(script, head)
    expected = {name: _fold(history, name) for name in partitions}
    for member in pythons:
        shown = {name: member.client.view(name) for name in partitions}
        assert shown == expected, f"seed {seed}: {member.name} sees something else"
    rejected = {each.id for member in pythons for each in member.client.rejected()}
    for script in scripts:
        shown = {name: await script.call("view", partition=name) for name in partitions}
        assert shown == expected, f"seed {seed}: {script.name} sees something else"
        rejected |= set(await script.call("rejected"))
        await script.call("close")
        events = stored(script.path)
        assert [number for number, _ in events] == [event["committed_id"] for event in history], (
            f"seed {seed}: {script.name} has stored something else"
        )
        owner.server.recorder.add(ClientStore(script.name, partitions, head, tuple(events)))
    drafts = [id for each in members for id in each.drafts]
    committed = Counter(event["id"] for event in history)
    assert max(committed.values(), default=1) == 1, f"seed {seed}: an event was committed twice"
    lost = set(drafts) - set(committed) - rejected
    assert not lost, f"seed {seed}: drafts were lost: {lost}"
    assert not rejected & set(committed), f"seed {seed}: rejected and committed"
    cuts = sum(each.cuts for each in members)
    return MixedOutcome(seed, len(history), len(drafts), len(rejected), cuts, scripts[0].process.kills)


async def _reaches(script: JsMember, head: int) -> None:
    end = asyncio.get_running_loop().time() + PATIENCE_S
    while (await script.call("status"))["cursor"] < head:
        assert asyncio.get_running_loop().time() < end, f"{script.name} does not reach {head}"
        await asyncio.sleep(0.01)


def _history(owner: ControlledServer, seed: int, partitions: tuple[str, ...]) -> list[dict[str, Any]]:
    with owner.server.client(f"mixed-{seed}-reader") as reader:
        return reader.history(partitions)


def _fold(history: list[dict[str, Any]], partition: str) -> Any:
    model, state = open_model(), PartitionState()
    for event in history:
        if partition in event["partitions"]:
            assert model.apply_committed(state, event["event"]), "the server committed what does not fit"
    return state.tree.dump()
