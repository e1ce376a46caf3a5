"""Recorded load that outlives servers: writers, followers and browsers that come back whenever theirs is gone.

What must hold at the end: the history of all of them breaks no promise (`unisono.history`); every draft is in the
log exactly once; ids have no gap; every follower has heard the whole log, in order, each event once; every server
tells the same history.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec

from tests.behaviour.nodes.cluster import query
from tests.behaviour.server.harness import Peer, Server
from tests.behaviour.server.killing import Gone, Ledger, Writer, session, until_gone
from tests.history.recorder import Recorder
from tests.waiting import PATIENCE_S, until
from unisono.history.findings import Verdict
from unisono.pipeline.open_log import open_reader
from unisono.store.check import check_database, check_directory

PARTS = 4
BACK_S = 0.05
"""Before a client that found nobody tries again."""

PACE_S = 0.01
"""Between two submissions of a writer: nodes that start need their share of a small machine."""

STAY_MAX = 60
"""Submissions of a writer before it connects anew by itself."""

RECORDED_BYTES_MAX = 2 << 30
QUIET_S = 0.05

CLAIMS = """
SELECT presence.*, nodes.name FROM unisono.presence LEFT JOIN unisono.nodes USING (node_id)
WHERE NOT EXISTS (
    SELECT FROM unisono.nodes AS later WHERE later.name = nodes.name AND later.node_id > nodes.node_id
)
"""
"""Of runs that were not killed: those of a killed one stay for a while, for clients that have not come back."""


class Places:
    """The servers that clients may try."""

    def __init__(self, nodes: Sequence[Server]) -> None:
        self._lock = threading.Lock()
        self._open = list(nodes)

    def __len__(self) -> int:
        return len(self._open)

    def pick(self, dice: random.Random, stop: threading.Event) -> Server:
        """One of those that are open, as soon as there is one; Gone when it is time to stop."""
        while True:
            with self._lock:
                if self._open:
                    return dice.choice(self._open)
            if stop.wait(BACK_S):
                raise Gone("stopped")

    def close(self, server: Server) -> None:
        with self._lock:
            self._open.remove(server)

    def open(self, server: Server) -> None:
        with self._lock:
            self._open.append(server)


def partitions_of(writers: int) -> list[str]:
    """Everything that so many writers write to."""
    return [f"part-{n}" for n in range(PARTS)] + [f"own-{n}" for n in range(writers)]


class Roamer(Writer):
    """A writer that reconnects elsewhere, now and then and when it has to, and sends again what was not answered."""

    def __init__(self, number: int, ledger: Ledger, seed: int, pace_s: float) -> None:
        super().__init__(number, ledger, seed)
        self._pace_s = pace_s
        self.ends: Counter[str] = Counter()
        """How its connections ended."""
        self.at: Server | None = None

    def roam(self, places: Places, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._visit(places.pick(self._random, stop), stop)
            except Gone as gone:
                self.ends[str(gone)] += 1
                time.sleep(BACK_S)
            finally:
                self.at = None

    def _visit(self, server: Server, stop: threading.Event) -> None:
        with session(server, self._client_id) as (peer, head):
            self._retry(peer, head)
            self.at = server
            for _ in range(self._random.randint(1, STAY_MAX)):
                if stop.wait(self._pace_s):
                    return
                self._submit(peer)


class Follower:
    """Subscribes to everything and keeps what it hears; comes back with its cursor.

    Invariant: `events` is the log from its beginning, without a gap (SYNC-06, BCAST-03).
    """

    def __init__(self, number: int, writers: int, ledger: Ledger) -> None:
        self._name = f"follower-{number}"
        self.partitions = partitions_of(writers)
        self._ledger = ledger
        self._dice = random.Random(number)
        self.events: list[str] = []

    def follow(self, places: Places, stop: threading.Event) -> None:
        while not stop.is_set():
            with suppress(Gone), session(places.pick(self._dice, stop), self._name) as (peer, _):
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
        request = {"partitions": self.partitions, "since_committed_id": len(self.events)}
        with until_gone():
            peer.send("sync", request | {"subscription_partitions": self.partitions})

    def _heard(self, committed_id: int, id: str) -> None:
        assert committed_id == len(self.events) + 1, f"{committed_id} after {len(self.events)}"
        self._ledger.told(id, committed_id)
        self.events.append(id)


class Browser:
    """Looks around: pages from anywhere, subscriptions that change, connections that end for no reason.

    What it gets is judged by the history alone.
    """

    def __init__(self, number: int, writers: int, seed: int) -> None:
        self._name = f"browser-{number}"
        self._partitions = partitions_of(writers)
        self._dice = random.Random(seed * 1000 + number)
        self._head = 0
        self.pages = self.broadcasts = 0

    def browse(self, places: Places, stop: threading.Event) -> None:
        while not stop.is_set():
            with suppress(Gone), session(places.pick(self._dice, stop), self._name) as (peer, head):
                self._head = head
                for _ in range(self._dice.randint(2, 8)):
                    if stop.is_set():
                        return
                    self._look(peer)
                if self._dice.random() < 0.5:
                    with until_gone():
                        peer.send("disconnect", {})
            time.sleep(BACK_S)

    def _look(self, peer: Peer) -> None:
        some = self._dice.sample(self._partitions, self._dice.randint(1, len(self._partitions)))
        request = {"partitions": some, "since_committed_id": self._since(), "limit": 50}
        if self._dice.random() < 0.7:
            wanted = self._dice.sample(self._partitions, self._dice.randint(0, len(self._partitions)))
            request["subscription_partitions"] = wanted
        with until_gone():
            peer.send("sync", request)
        while True:
            with until_gone():
                message = peer.receive()
            if message["type"] == "sync_response":
                break
            self._take(message["type"], message["payload"])
        self.pages += 1
        self._head = max(self._head, message["payload"]["sync_to_committed_id"])
        with suppress(TimeoutError), until_gone():
            while True:
                message = peer.receive(self._dice.uniform(0, QUIET_S))
                self._take(message["type"], message["payload"])

    def _take(self, kind: str, payload: dict[str, object]) -> None:
        if kind == "error":
            assert payload["code"] == "server_error", payload
            raise Gone("server_error")
        assert kind == "event_broadcast", kind
        self.broadcasts += 1

    def _since(self) -> int:
        """Mostly near the end, so that histories that grow do not take ever longer to look at."""
        return max(0, self._head - self._dice.choice([0, 5, 40, 200]))


class Tally(msgspec.Struct, frozen=True):
    """What a load went through."""

    drafts: int
    recovered: int
    ends: Counter[str]
    faults: Counter[str]
    checked: dict[str, int]
    """How often each invariant of histories was applied."""


class Load:
    """Writers, followers and browsers at work; all that they send and receive is recorded."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        servers: Sequence[Server],
        *,
        writers: int,
        followers: int,
        browsers: int,
        seed: int,
        pace_s: float,
    ) -> None:
        self.recorder = Recorder(complete=True, bytes_max=RECORDED_BYTES_MAX)
        for server in servers:
            server.recorder = self.recorder
        self.ledger = Ledger()
        self.places = Places(servers)
        self.writers = [Roamer(number, self.ledger, seed, pace_s) for number in range(writers)]
        self.followers = [Follower(number, writers, self.ledger) for number in range(followers)]
        self.browsers = [Browser(number, writers, seed) for number in range(browsers)]
        self._writing, self._following = threading.Event(), threading.Event()
        self._work: list[Future[None]] = [
            *(pool.submit(writer.roam, self.places, self._writing) for writer in self.writers),
            *(pool.submit(follower.follow, self.places, self._following) for follower in self.followers),
            *(pool.submit(browser.browse, self.places, self._writing) for browser in self.browsers),
        ]

    def fault(self, what: str) -> None:
        self.recorder.fault(what)

    def expect_progress(self) -> None:
        """Something more is acknowledged, and nobody has failed."""
        before = len(self.ledger.by_id)

        def progress() -> bool:
            self._expect_no_failure()
            return len(self.ledger.by_id) > before

        until(progress, "nothing is acknowledged any more")

    def stop(self) -> None:
        self._writing.set()
        self._following.set()

    def settle(self, store: Path | str, servers: Sequence[Server], *, same_past: bool = False) -> Tally:
        """Let everything come to rest, and check all of it."""
        self._writing.set()
        for future in [*self._work[: len(self.writers)], *self._work[-len(self.browsers) :]]:
            future.result(timeout=PATIENCE_S)
        for number, writer in enumerate(self.writers):
            writer.finish(servers[number % len(servers)])
        log = ids_of(store)

        def heard() -> bool:
            self._expect_no_failure()
            return all(len(follower.events) >= len(log) for follower in self.followers)

        until(heard, "a follower does not hear the rest")
        self._following.set()
        for future in self._work:
            future.result(timeout=PATIENCE_S)
        assert all(follower.events == log for follower in self.followers)
        told = self.ledger.by_committed_id
        assert {number: log[number - 1] for number in told} == told, "told and not in the log"
        drafts = sum(writer.drafts for writer in self.writers)
        assert len(self.ledger.by_id) == len(log) == drafts, "a draft is missing, or nobody wrote it"
        expect_one_history(servers, self.followers[0], log)
        if isinstance(store, str):
            until(
                lambda: query(store, CLAIMS) == [],
                lambda: f"held to be connected, and are not: {query(store, CLAIMS)}",
            )
        return self._tally(drafts, self._judge(store, same_past))

    def _judge(self, store: Path | str, same_past: bool) -> Verdict:
        with closing(open_reader(str(store))) as reader:
            verdict = self.recorder.judge(reader, same_past=same_past)
        checked = {check.invariant: check.checked for check in verdict.checks}
        for invariant in ("H1", "H2", "H3", "H4", "H5", "H6", "H7", "H9"):
            assert checked[invariant], f"the history says nothing of {invariant}"
        return verdict

    def _tally(self, drafts: int, verdict: Verdict) -> Tally:
        return Tally(
            drafts,
            sum(writer.recovered for writer in self.writers),
            sum((writer.ends for writer in self.writers), Counter[str]()),
            Counter(self.recorder.faults()),
            {check.invariant: check.checked for check in verdict.checks},
        )

    def _expect_no_failure(self) -> None:
        for future in self._work:
            if future.done():
                future.result()


def ids_of(store: Path | str) -> list[str]:
    """The ids of the whole log, in order; the log is sound and has no gap."""
    report = check_database(store) if isinstance(store, str) else check_directory(store)
    assert report.ok, report.text()
    with closing(open_reader(str(store))) as reader:
        records = reader.scan(0, report.head, limit=report.events)
    assert [record.committed_id for record in records] == list(range(1, report.head + 1)), "a gap in the log"
    return [record.id for record in records]


def expect_one_history(nodes: Sequence[Server], follower: Follower, log: Sequence[str]) -> None:
    for server in nodes:
        with server.client("historian") as peer:
            assert [event["id"] for event in peer.history(follower.partitions)] == log


@contextmanager
def load(
    servers: Sequence[Server],
    *,
    writers: int = 6,
    followers: int = 3,
    browsers: int = 1,
    seed: int = 1,
    pace_s: float = PACE_S,
) -> Iterator[Load]:
    """Work on `servers`, whose log is empty, from the first line to `settle`."""
    with ThreadPoolExecutor(writers + followers + browsers) as pool:
        work = Load(
            pool,
            servers,
            writers=writers,
            followers=followers,
            browsers=browsers,
            seed=seed,
            pace_s=pace_s,
        )
        try:
            yield work
        finally:
            work.stop()
