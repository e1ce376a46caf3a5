"""Clients in JavaScript as members of a Python test: one Node process, told what to do line by line."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from random import Random
from typing import Any

from tests.behaviour.server.harness import Server
from tests.client.edits import edit
from tests.client.proxy import Proxy
from tests.js.node import CLIENTS, node

SCRIPT = CLIENTS / "packages/client/test/member.mjs"


class NodeProcess:
    """One process with any number of clients; after `kill`, `start` begins another."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._reading: asyncio.Task[None]
        self.kills = 0

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            node(), str(SCRIPT), stdin=pipe, stdout=pipe, limit=2**26
        )
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer = json.loads(line)
            future = self._answers.pop(answer["n"])
            if "error" in answer:
                future.set_exception(AssertionError(answer["error"]))
            else:
                future.set_result(answer["result"])
        gone, self._answers = self._answers, {}
        for future in gone.values():
            future.set_exception(ConnectionError("the process is gone"))

    async def call(self, member: str, call: str, **arguments: Any) -> Any:
        """ConnectionError when the process is killed meanwhile."""
        assert self._process.stdin is not None
        if self._reading.done():
            raise ConnectionError("the process is gone")
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        request = {"n": self._number, "member": member, "call": call, **arguments}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        return await answer

    async def kill(self) -> None:
        """-9, at whatever instant this is."""
        self._process.kill()
        await self._process.wait()
        await self._reading
        self.kills += 1

    async def end(self) -> None:
        if self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            await self._process.wait()
        await self._reading


class JsMember:
    """A client in JavaScript that edits and takes back, loses its line, is closed, and dies with its process."""

    def __init__(
        self,
        process: NodeProcess,
        server: Server,
        name: str,
        directory: Path,
        partitions: tuple[str, ...],
        seed: int,
    ) -> None:
        self.process = process
        self.name = name
        self.random = Random(seed)
        self.partitions = partitions
        self.path = directory / f"{name}.store"
        self.drafts: list[str] = []
        self.cuts = 0
        self._server = server
        self.proxy = Proxy(server.url, seed, server.recorder)

    async def call(self, call: str, **arguments: Any) -> Any:
        return await self.process.call(self.name, call, **arguments)

    async def open(self) -> None:
        token = self._server.token(self.name)
        await self.call(
            "open", url=self.proxy.url, token=token, path=str(self.path), partitions=list(self.partitions)
        )

    async def live(self, until_s: float) -> None:
        """Edit, with mishaps, until the time is over or the process is killed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + until_s
        with contextlib.suppress(ConnectionError):
            while loop.time() < end:
                for _ in range(self.random.randint(1, 6)):
                    await self._edit()
                await self._mishap()
                await asyncio.sleep(self.random.uniform(0, 0.06))

    async def _edit(self) -> None:
        if self.random.random() < 0.12:
            taken_back = await self.call("undo")
            self.drafts += taken_back if isinstance(taken_back, list) else []
            return
        views = {name: await self.call("view", partition=name) for name in self.partitions}
        event, names = edit(self.random, views.__getitem__, self.partitions)
        id = await self.call("submit", event=event, partitions=names)
        if id is not None:
            self.drafts.append(id)

    async def _mishap(self) -> None:
        chance = self.random.random()
        self.proxy.chop = self.random.random() < 0.3
        self.proxy.delay_s = self.random.choice([0, 0, 0.02])
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
            await self.call("close")
            await self.open()
        elif chance < 0.4:
            await self.call("pause")
            await asyncio.sleep(self.random.uniform(0, 0.1))
            await self.call("resume")

    def heal(self) -> None:
        self.proxy.chop = False
        self.proxy.delay_s = 0.0
        self.proxy.cut_down_after = None
        self.proxy.cut_after_next_up = False


def stored(path: Path) -> list[tuple[int, str]]:
    """The committed events in a closed file store, in order."""
    rows: dict[int, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        for write in json.loads(line[8:]):
            if write["table"] == "events":
                if "row" in write:
                    rows[write["row"]["committedId"]] = write["row"]["id"]
                elif "key" in write:
                    rows.pop(write["key"], None)
                else:
                    rows.clear()
    return sorted(rows.items())
