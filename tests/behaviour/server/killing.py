"""kill -9 of a server under load: writers that go on once it is started again, and what they were told."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from websockets.exceptions import WebSocketException

from tests.behaviour.server.harness import Closed, Peer, Server, item, tree_event
from tests.waiting import PATIENCE_S, until

WRITERS = 8
BATCH_MAX = 8
PIPELINE_MAX = 3
"""Requests a writer sends before it reads their answers, so that a kill finds several in flight."""

TARGETS = ("group", "authority", "front", "node", "reader")
SERVE = ("--access-default", "allow", "--log-level", "warning")


class Gone(Exception):
    """The connection ended, with or without a word."""


@contextlib.contextmanager
def until_gone() -> Iterator[None]:
    """The end of a connection in any of its forms is `Gone`; anything else stays what it is."""
    try:
        yield
    except (Closed, WebSocketException, ConnectionError, EOFError) as error:
        raise Gone(str(error)) from error


def answer(peer: Peer, kind: str) -> dict[str, Any]:
    """The payload of the next message, which is of this kind unless the server is dying."""
    with until_gone():
        message = peer.receive()
    payload: dict[str, Any] = message["payload"]
    if message["type"] == "error" and payload["code"] == "server_error":
        raise Gone("server_error")
    assert message["type"] == kind, message
    return payload


@contextlib.contextmanager
def session(server: Server, client_id: str) -> Iterator[tuple[Peer, int]]:
    """A connected client, and the log's head at that moment."""
    with until_gone():
        peer = server.peer()
    with contextlib.closing(peer):
        with until_gone():
            peer.send_connect(client_id, server.token(client_id), supported_profiles=["compatibility"])
        yield peer, answer(peer, "connected")["server_last_committed_id"]


def group_members(group: int) -> list[int]:
    """The living processes of a process group; those that only wait to be reaped have ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, own_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(own_group) == group and state != "Z":
                found.append(int(stat.parent.name))
    return found


def expect_nothing_left(server: Server) -> None:
    """Every process of the server ends by itself."""
    until(
        lambda: not group_members(server.process.pid),
        lambda: f"processes {group_members(server.process.pid)} are left; log:\n{server.log.read_text()}",
    )


class Ledger:
    """What clients were told, by anybody and in any way; a contradiction is an error at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.by_committed_id: dict[int, str] = {}
        self.by_id: dict[str, int] = {}

    def told(self, id: str, committed_id: int) -> bool:
        """Take down that `id` has `committed_id`; False when it was known."""
        with self._lock:
            assert self.by_committed_id.setdefault(committed_id, id) == id, f"{committed_id} given twice"
            known = id in self.by_id
            assert self.by_id.setdefault(id, committed_id) == committed_id, f"{id} committed twice"
            return not known


class Writer:
    """Drafts and submits; keeps what was not answered and sends it again, with the same ids, next time."""

    def __init__(self, number: int, ledger: Ledger, seed: int) -> None:
        self._client_id = f"writer-{number}"
        self._partitions = [f"part-{number % 4}", f"own-{number}"]
        self._ledger = ledger
        self._random = random.Random(seed * 1000 + number)
        self._drafts: list[dict[str, Any]] = []
        self._pending: dict[str, dict[str, Any]] = {}
        self.recovered = 0
        """Drafts that were durable though their answer was lost."""

    @property
    def drafts(self) -> int:
        return len(self._drafts)

    def work(self, server: Server) -> None:
        """Until the server is gone."""
        with contextlib.suppress(Gone), session(server, self._client_id) as (peer, head):
            self._retry(peer, head)
            while True:
                self._submit(peer)

    def finish(self, server: Server) -> None:
        """The server stays: everything still unanswered is answered now."""
        with session(server, self._client_id) as (peer, head):
            self._retry(peer, head)
        assert not self._pending

    def _retry(self, peer: Peer, head: int) -> None:
        """Everything unanswered, and one draft answered long ago."""
        again = list(self._pending.values())
        answered = [draft for draft in self._drafts if draft["id"] not in self._pending]
        if answered:
            again.append(self._random.choice(answered))
        for start in range(0, len(again), 100):
            batch = again[start : start + 100]
            with until_gone():
                peer.send("submit_events", {"events": batch})
            for committed_id, id in self._answered(peer, batch, single=False):
                self.recovered += committed_id <= head and id in self._pending
                self._settle(id, committed_id)

    def _submit(self, peer: Peer) -> None:
        requests: list[tuple[list[dict[str, Any]], bool]] = []
        for _ in range(self._random.randint(1, PIPELINE_MAX)):
            single = self._random.random() < 0.5
            drafts = [self._draft() for _ in range(1 if single else self._random.randint(1, BATCH_MAX))]
            requests.append((drafts, single))
            with until_gone():
                if single:
                    peer.send("submit_event", drafts[0])
                else:
                    peer.send("submit_events", {"events": drafts})
        for drafts, single in requests:
            for committed_id, id in self._answered(peer, drafts, single=single):
                self._settle(id, committed_id)

    def _draft(self) -> dict[str, Any]:
        """A push: it can be committed once, so a retry that was not recognised would be rejected."""
        id = f"{self._client_id}-{len(self._drafts)}"
        partitions = self._random.choice([self._partitions[:1], self._partitions])
        draft = item(partitions, tree_event(id, text="x" * self._random.randint(0, 400)), id=id)
        self._drafts.append(draft)
        self._pending[id] = draft
        return draft

    def _answered(
        self, peer: Peer, drafts: Sequence[dict[str, Any]], *, single: bool
    ) -> Iterator[tuple[int, str]]:
        payload = answer(peer, "event_committed" if single else "submit_events_result")
        results = [payload] if single else payload["results"]
        assert [result["id"] for result in results] == [draft["id"] for draft in drafts]
        for result in results:
            assert single or result["status"] == "committed", result
            yield result["committed_id"], result["id"]

    def _settle(self, id: str, committed_id: int) -> None:
        self._ledger.told(id, committed_id)
        self._pending.pop(id, None)


def listen(server: Server, ledger: Ledger) -> None:
    """Subscribe to everything and take down what is broadcast: each event, in order (BCAST-03, BCAST-04)."""
    parts = [f"part-{n}" for n in range(4)] + [f"own-{n}" for n in range(WRITERS)]
    last: int | None = None
    with contextlib.suppress(Gone), until_gone(), session(server, "listener") as (peer, _):
        peer.send("sync", {"partitions": ["none"], "since_committed_id": 0, "subscription_partitions": parts})
        while True:
            message = peer.receive()
            if message["type"] == "event_broadcast":
                committed_id: int = message["payload"]["committed_id"]
                assert last is None or committed_id == last + 1, f"{last} and then {committed_id}: a gap"
                last = committed_id
                ledger.told(message["payload"]["id"], committed_id)
            elif message["type"] != "sync_response":
                return


def kill(server: Server, target: str) -> None:
    """kill -9 of one part; whatever is left must end by itself, and not as if nothing had happened."""
    authority, reader, *fronts = server.children()
    if target == "group":
        os.killpg(server.process.pid, signal.SIGKILL)
    else:
        pids = {"authority": authority, "reader": reader, "front": fronts[-1], "node": server.process.pid}
        os.kill(pids[target], signal.SIGKILL)
    code = server.process.wait(timeout=PATIENCE_S)
    assert code != 0, f"the {target} was killed and the server ended with 0"
    expect_nothing_left(server)
    server.kill()


class Lives:
    """One server after the other on one directory; the next one starts while the current one still runs."""

    def __init__(self, pool: ThreadPoolExecutor, data: Path) -> None:
        self._pool = pool
        self._data = data
        self._starting: Future[Server] | None = None
        self.prepare()
        self.current = self.next()

    def prepare(self) -> None:
        """Start the successor, which waits for the lock on the directory."""
        self._starting = self._pool.submit(Server(self._data, *SERVE).start)

    def next(self) -> Server:
        assert self._starting is not None
        starting, self._starting = self._starting, None
        try:
            self.current = starting.result(timeout=PATIENCE_S)
        except AssertionError:  # the machine stood still for longer than a server waits for the lock
            self.current = Server(self._data, *SERVE).start()
        return self.current

    def end(self) -> None:
        """Leave nothing behind, also when a round failed."""
        self.current.kill()
        if self._starting is not None:
            self.next().kill()
