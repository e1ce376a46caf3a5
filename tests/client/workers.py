"""Clients that are processes of their own, to be killed with -9 while they write.

A fork server that has the library loaded makes them cheap: a new one is at work within some hundredths of a second.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec

from tests.client.edits import edit
from tests.client.running import QUICK, WAIT_S
from unisono.client import BlockingClient, InvalidEvent
from unisono.client.ids import new_id

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.client.workers"])


class Job(msgspec.Struct, frozen=True):
    """What a worker is to do: edit these partitions until told to finish.

    `together`: make transactions of so many values instead.
    """

    url: str
    token: str
    client_id: str
    store: str
    partitions: tuple[str, ...]
    seed: int
    pause_s: float = 0.0
    together: int = 0


class Ending(msgspec.Struct, frozen=True):
    """What a worker says at the end."""

    views: dict[str, Any]
    rejected: tuple[str, ...]
    errors: tuple[str, ...]


def work(job: Job, pipe: Connection) -> None:
    """Edit and tell of every draft once it is safe; on `finish` catch up, on a number wait for that event."""
    random = Random(job.seed)
    with BlockingClient(
        job.url,
        token=job.token,
        client_id=job.client_id,
        store=job.store,
        partitions=job.partitions,
        profile="compatibility",
        options=QUICK,
    ) as client:
        pipe.send("open")
        while job.together and not pipe.poll():
            name = new_id()
            with client.transaction():
                for number in range(job.together):
                    client.set("value", [name, number], replace=True)
            pipe.send(name)
        while not pipe.poll():
            event, names = edit(random, client.view, job.partitions)
            with contextlib.suppress(InvalidEvent):
                pipe.send(client.submit(names, event).id)
            if job.pause_s:
                time.sleep(random.uniform(0, job.pause_s))
        assert pipe.recv() == "finish"
        client.caught_up(WAIT_S)
        pipe.send("finished")
        head: int = pipe.recv()
        end = time.monotonic() + WAIT_S
        while client.status.cursor < head and time.monotonic() < end:
            time.sleep(0.005)
        error = client.status.last_error
        pipe.send(
            Ending(
                {name: client.view(name) for name in job.partitions},
                tuple(each.id for each in client.rejected()),
                () if error is None else (f"{error.code}: {error.message}",),
            )
        )
        pipe.recv()


class Worker:
    """One such process, its successors, and every draft any of them acknowledged."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.acknowledged: list[str] = []
        self.kills = 0
        self._pipe: Connection
        self._process: Any = None

    def start(self) -> None:
        here, there = _context.Pipe()
        job = msgspec.structs.replace(self.job, seed=self.job.seed + 1000 * self.kills)
        self._process = _context.Process(target=work, args=(job, there), daemon=True)
        self._process.start()
        there.close()
        self._pipe = here

    def kill(self) -> None:
        """-9, at whatever instant this is."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()
        self.kills += 1
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                self._take(self._pipe.recv())
        self._pipe.close()

    def wait_for_drafts(self, more: int) -> None:
        """Until it has acknowledged so many more."""
        wanted = len(self.acknowledged) + more
        while len(self.acknowledged) < wanted:
            self._take(self._pipe.recv())

    def _take(self, said: Any) -> None:
        if said not in ("open", "finished"):
            self.acknowledged.append(said)

    def finish(self, what: Literal["finish"] | int) -> Any:
        """Tell it to finish, or to wait for an event; gives what it then says."""
        self._pipe.send(what)
        while True:
            said = self._pipe.recv()
            if isinstance(said, Ending) or said == "finished":
                return said
            self._take(said)

    def dismiss(self) -> None:
        if self._process is not None and self._process.is_alive():
            with contextlib.suppress(ConnectionError):
                self._pipe.send("bye")
            self._process.join(10)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._pipe.close()


def job(url: str, token: str, client_id: str, store: Path, *partitions: str, **more: Any) -> Job:
    return Job(url, token, client_id, str(store), partitions, **more)
