"""The whole product in two minutes: a server, people who edit and go offline, the Spark pipeline, pages to look at.

`make demo` runs it in a new directory, prints what happens, and leaves the server running until Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unisono.client import Committed, InvalidEvent, SyncClient
from unisono.console.links import console_link
from unisono.front.auth.keys import read_secret
from unisono.front.auth.verify import sign_token
from unisono.samples import sample_model

UNISONO = (sys.executable, "-m", "unisono")
PARTITIONS = ("outline/kitchen", "outline/garden", "outline/travel")
WORDS = ["milk", "bread", "tea", "seeds", "rope", "tent", "map", "soap", "salt", "rice", "lamp", "paint"]
PAUSE_S = (0.02, 0.4)
SETTLED_S = 60.0
PIPELINE_S = 600.0


def say(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def server(data: Path, ports: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """A development server; the addresses of its two ports."""
    command = [*UNISONO, "serve", "--dev", "--data", str(data), "--port", ports[0], "--admin-port", ports[1]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = re.match(r"unisono ready (\S+) admin (\S+)", process.stdout.readline())
        if ready is None:
            raise SystemExit("the server did not start; its message is above")
        yield ready[1], ready[2]
    finally:
        process.terminate()
        process.communicate(timeout=60)


class Person:
    """Somebody who edits one outline of notes, and is offline now and then."""

    def __init__(self, number: int, client: SyncClient, partition: str) -> None:
        self.name = f"person-{number:02}"
        self.client = client
        self.partition = partition
        self.outcomes: Counter[str] = Counter()
        self.offline = 0
        self._dice = random.Random(number)
        self._numbers = itertools.count()

    async def work(self, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(self._dice.uniform(*PAUSE_S))
            if self._dice.random() < 0.03:
                await self._be_offline()
            else:
                await self._edit()

    async def _be_offline(self) -> None:
        """Edits meanwhile are drafts, judged when it is back."""
        self.offline += 1
        await self.client.pause()
        for _ in range(self._dice.randint(1, 4)):
            await self._edit()
        await asyncio.sleep(self._dice.uniform(0.3, 1.5))
        await self.client.resume()

    async def _edit(self) -> None:
        state: Any = self.client.view(self.partition)
        notes = sorted(state.get("notes", {})) if isinstance(state, dict) else []
        chance = self._dice.random()
        if not notes or chance < 0.4:
            # Two people may choose the same id: the second one is refused.
            id = f"{self._dice.choice(WORDS)}-{self._dice.randint(1, 40)}"
            await self._submit(
                "note.added", {"id": id, "text": f"{self._dice.choice(WORDS)}, by {self.name}"}
            )
        elif chance < 0.85:
            text = f"{self._dice.choice(WORDS)} {next(self._numbers)}"
            await self._submit("note.edited", {"id": self._dice.choice(notes), "text": text})
        else:
            await self._submit("note.removed", {"id": self._dice.choice(notes)})

    async def _submit(self, schema: str, data: dict[str, Any]) -> None:
        try:
            draft = await self.client.event(schema, data, partition=self.partition)
        except InvalidEvent:
            self.outcomes["refused at once"] += 1  # by the model, in the client, before anything was sent
            return
        task = asyncio.create_task(draft.settled())
        task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.outcomes["committed" if isinstance(task.result(), Committed) else "rejected"] += 1


async def collaborate(url: str, secret: bytes, stores: Path, people: int, seconds: float) -> None:
    async with contextlib.AsyncExitStack() as stack:
        crowd = []
        for number in range(people):
            partition = PARTITIONS[number % len(PARTITIONS)]
            client = SyncClient(
                url,
                token=sign_token(secret, f"person-{number:02}", ttl_s=3600, now_s=time.time()),
                client_id=f"person-{number:02}",
                store=stores / f"person-{number:02}.db",
                partitions=[partition],
                model=sample_model(),
            )
            crowd.append(Person(number, await stack.enter_async_context(client), partition))
        until = time.monotonic() + seconds
        await asyncio.gather(*(person.work(until) for person in crowd))
        for person in crowd:
            await person.client.caught_up(SETTLED_S)
        total = sum((person.outcomes for person in crowd), Counter[str]())
        say(f"  {', '.join(f'{count} {what}' for what, count in sorted(total.items()))}")
        say(f"  {sum(person.offline for person in crowd)} times somebody was offline and came back")
        until = time.monotonic() + SETTLED_S
        while differing := [partition for partition in PARTITIONS if len(views_of(crowd, partition)) > 1]:
            if time.monotonic() > until:
                raise SystemExit(f"the views of {differing[0]} differ: please report it")
            await asyncio.sleep(0.1)  # the last broadcasts are on their way
        say("  everybody sees the same")


def views_of(crowd: list[Person], partition: str) -> set[str]:
    """What those who edit a partition see."""
    members = [person for person in crowd if person.partition == partition]
    return {json.dumps(person.client.view(partition), sort_keys=True) for person in members}


def pipeline(where: Path) -> None:
    command = [*UNISONO, "lake", "run", "--data", str(where / "data"), "--lake", str(where / "lake")]
    done = subprocess.run(
        [*command, "--out", str(where / "pages"), "--cycles", "1", "--quiet"], timeout=PIPELINE_S, check=False
    )
    if done.returncode:
        raise SystemExit("the pipeline failed; its message is above")
    subprocess.run([*UNISONO, "lake", "info", "--lake", str(where / "lake")], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long they edit")
    parser.add_argument("--ports", nargs=2, default=("8040", "8041"), metavar=("PORT", "ADMIN_PORT"))
    parser.add_argument(
        "--end", action="store_true", help="end instead of waiting for Ctrl-C, and open nothing"
    )
    given = parser.parse_args()
    where = Path(tempfile.mkdtemp(prefix="unisono-demo-"))
    (where / "clients").mkdir()
    with server(where / "data", tuple(given.ports)) as (url, admin):
        say(f"1. A server on {url}, its files in {where}")
        say(f"2. {given.people} people edit three outlines for {given.seconds:g} s")
        secret = read_secret(str(where / "data" / "dev-secret"))
        asyncio.run(collaborate(url, secret, where / "clients", given.people, given.seconds))
        say("3. The Spark pipeline: export, snapshots, audit, report")
        pipeline(where)
        report = sorted((where / "pages").rglob("index.html"))
        say("4. Look at")
        console = console_link(where / "data")
        say(
            f"   {console}   (the console, already logged in: the log, the past, the pipeline, SQL over the lake)"
        )
        say(f"   {admin}/demo/   (edit in two windows)")
        for page in report:
            say(f"   {page.as_uri()}")
        if given.end:
            return
        if os.environ.get("DISPLAY") or sys.platform == "darwin":
            for page in (console, *(page.as_uri() for page in report)):
                webbrowser.open(page)
        say("Ctrl-C ends the server.")
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


if __name__ == "__main__":
    main()
