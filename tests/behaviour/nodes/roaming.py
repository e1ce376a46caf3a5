"""Load that outlives nodes: writers and followers that go to another node whenever theirs is gone.

What must hold at the end: whatever a client was ever told of is in the log under that committed_id and that id;
every draft is there exactly once; ids have no gap; every follower has heard the whole log, in order, each event
once; every node tells the same history.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import msgspec

from tests.behaviour.nodes.cluster import query, records_of
from tests.behaviour.server.harness import Peer, Server
from tests.behaviour.server.killing import Gone, Ledger, Writer, session, until_gone
from tests.waiting import PATIENCE_S, until

PARTS = 4
BACK_S = 0.05
"""Before a client that found nobody tries again."""

PACE_S = 0.01
"""Between two submissions of a writer: nodes that start need their share of a small machine."""


class Places:
    """The nodes that clients may try."""

    def __init__(self, nodes: Sequence[Server]) -> None:
        self._lock = threading.Lock()
        self._open = list(nodes)

    def __len__(self) -> int:
        return len(self._open)

    def pick(self, dice: random.Random) -> Server:
        while True:
            with self._lock:
                if self._open:
                    return dice.choice(self._open)
            time.sleep(BACK_S)

    def close(self, server: Server) -> None:
        with self._lock:
            self._open.remove(server)

    def open(self, server: Server) -> None:
        with self._lock:
            self._open.append(server)


class Roamer(Writer):
    """A writer that reconnects elsewhere and sends again what was not answered."""

    def __init__(self, number: int, ledger: Ledger, seed: int) -> None:
        super().__init__(number, ledger, seed)
        self.ends: Counter[str] = Counter()
        """How its connections ended."""

    def roam(self, places: Places, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with session(places.pick(self._random), self._client_id) as (peer, head):
                    self._retry(peer, head)
                    while not stop.wait(PACE_S):
                        self._submit(peer)
            except Gone as gone:
                self.ends[str(gone)] += 1
                time.sleep(BACK_S)


class Follower:
    """Subscribes to everything and keeps what it hears; comes back with its cursor.

    Invariant: `events` is the log from its beginning, without a gap (SYNC-06, BCAST-03).
    """

    def __init__(self, number: int, writers: int, ledger: Ledger) -> None:
        self._name = f"follower-{number}"
        self._parts = [f"part-{n}" for n in range(PARTS)] + [f"own-{n}" for n in range(writers)]
        self._ledger = ledger
        self._dice = random.Random(number)
        self.events: list[str] = []

    def follow(self, places: Places, stop: threading.Event) -> None:
        while not stop.is_set():
            with suppress(Gone), session(places.pick(self._dice), self._name) as (peer, _):
                self._listen(peer, stop)
            time.sleep(BACK_S)

    def _listen(self, peer: Peer, stop: threading.Event) -> None:
        live = False
        early: list[tuple[int, str]] = []
        self._ask(peer)
        while not stop.is_set():
            try:
                with until_gone():
                    message = peer.receive(0.1)
            except TimeoutError:
                continue
            payload = message["payload"]
            match message["type"]:
                case "sync_response":
                    for event in payload["events"]:
                        self._heard(event["committed_id"], event["id"])
                    if payload["has_more"]:
                        self._ask(peer)
                        continue
                    live = True
                    for committed_id, id in early:
                        self._heard(committed_id, id)
                case "event_broadcast" if live:
                    self._heard(payload["committed_id"], payload["id"])
                case "event_broadcast":
                    early.append((payload["committed_id"], payload["id"]))
                case "error":
                    assert payload["code"] == "server_error", payload
                    raise Gone("server_error")
                case other:
                    raise AssertionError(other)

    def _ask(self, peer: Peer) -> None:
        request = {"partitions": self._parts, "since_committed_id": len(self.events)}
        with until_gone():
            peer.send("sync", request | {"subscription_partitions": self._parts})

    def _heard(self, committed_id: int, id: str) -> None:
        assert committed_id == len(self.events) + 1, f"{committed_id} after {len(self.events)}"
        self._ledger.told(id, committed_id)
        self.events.append(id)


class Tally(msgspec.Struct, frozen=True):
    """What a load went through."""

    drafts: int
    recovered: int
    ends: Counter[str]


class Load:
    """Writers and followers at work."""

    def __init__(
        self, pool: ThreadPoolExecutor, places: Places, writers: int, followers: int, seed: int
    ) -> None:
        self.ledger = Ledger()
        self.places = places
        self.writers = [Roamer(number, self.ledger, seed) for number in range(writers)]
        self.followers = [Follower(number, writers, self.ledger) for number in range(followers)]
        self._writing, self._following = threading.Event(), threading.Event()
        self._work: list[Future[None]] = [
            *(pool.submit(writer.roam, places, self._writing) for writer in self.writers),
            *(pool.submit(follower.follow, places, self._following) for follower in self.followers),
        ]

    def expect_progress(self) -> None:
        """Something more is acknowledged, and nobody has failed."""
        before = len(self.ledger.by_id)

        def progress() -> bool:
            for future in self._work:
                if future.done():
                    future.result()
            return len(self.ledger.by_id) > before

        until(progress, "nothing is acknowledged any more")

    def stop(self) -> None:
        self._writing.set()
        self._following.set()

    def settle(self, dsn: str, nodes: Sequence[Server]) -> Tally:
        """Let everything come to rest, and check all of it."""
        self._writing.set()
        for future in self._work[: len(self.writers)]:
            future.result(timeout=PATIENCE_S)
        for number, writer in enumerate(self.writers):
            writer.finish(nodes[number % len(nodes)])
        records = records_of(dsn)
        log = [record.id for record in records]
        until(
            lambda: all(len(follower.events) >= len(log) for follower in self.followers),
            "a follower does not hear the rest",
        )
        self._following.set()
        for future in self._work:
            future.result(timeout=PATIENCE_S)
        assert all(follower.events == log for follower in self.followers)
        told = self.ledger.by_committed_id
        assert {number: log[number - 1] for number in told} == told, "told and not in the log"
        drafts = sum(writer.drafts for writer in self.writers)
        assert len(self.ledger.by_id) == len(log) == drafts, "a draft is missing, or nobody wrote it"
        expect_one_history(nodes, self.followers[0], log)
        until(
            lambda: query(dsn, "SELECT count(*) FROM unisono.presence") == [(0,)],
            "somebody is held to be connected who is not",
        )
        ends = sum((writer.ends for writer in self.writers), Counter[str]())
        return Tally(drafts, sum(writer.recovered for writer in self.writers), ends)


def expect_one_history(nodes: Sequence[Server], follower: Follower, log: Sequence[str]) -> None:
    for server in nodes:
        with server.client("historian") as peer:
            assert [event["id"] for event in peer.history(follower._parts)] == log


@contextmanager
def load(nodes: Sequence[Server], *, writers: int = 6, followers: int = 3, seed: int = 1) -> Iterator[Load]:
    """Work on `nodes` from the first line to `settle`."""
    with ThreadPoolExecutor(writers + followers) as pool:
        work = Load(pool, Places(nodes), writers, followers, seed)
        try:
            yield work
        finally:
            work.stop()
