"""One connection per client in the whole cluster, whichever nodes it comes to."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from tests.behaviour.nodes.cluster import cluster, head_of, query
from tests.behaviour.server.harness import Closed, Peer, Server, item, set_event, tree_event
from tests.waiting import PATIENCE_S, until
from unisono.protocol.errors import CloseCode
from unisono.store.postgres.log import PostgresLog

Nodes = list[Server]

REPLACED = CloseCode.REPLACED


@pytest.mark.req("CONN-05", "CONN-08", "CONN-10")
def test_a_newer_connection_elsewhere_closes_the_older_one(nodes: Nodes, who: str, part: str) -> None:
    a, b, c = nodes
    with c.client(f"{who}-w") as writer, a.client(who) as first:
        first.subscribe(part)
        with b.client(who) as second:
            first.expect_close(REPLACED)
            writer.commit([part], set_event("a", 1))
            second.expect_quiet()
            assert second.sync([part])["effective_subscriptions"] == [], "subscriptions went with the first"
            second.subscribe(part)
            writer.commit([part], set_event("a", 2), id=f"{part}-2")
            assert second.expect("event_broadcast")["id"] == f"{part}-2"
            second.commit([part], set_event("a", 3))
            with a.client(who) as third:
                second.expect_close(REPLACED)
                third.commit([part], set_event("a", 4))
                third.expect_quiet(0.3)  # longer than a node waits before it looks for news by itself


@pytest.mark.req("CONN-05")
def test_the_older_one_is_closed_within_a_second(nodes: Nodes, who: str) -> None:
    waits = []
    with ExitStack() as stack:
        older = stack.enter_context(nodes[0].client(who))
        for turn in range(1, 16):
            newer = stack.enter_context(nodes[turn % 3].client(who))
            connected_at = time.monotonic()
            older.expect_close(REPLACED)
            waits.append(time.monotonic() - connected_at)
            older = newer
        older.expect_quiet(0.02)
    assert statistics.median(waits) < 1.0, waits


class Restless:
    """Keeps requests in flight until it is closed, and knows what it sent and what it was told."""

    def __init__(self, peer: Peer, part: str, name: str) -> None:
        self._peer = peer
        self._part = part
        self._name = name
        self.sent: list[str] = []
        self.told: dict[str, int] = {}
        self.code: int | None = None

    def run(self) -> None:
        try:
            for _ in range(10):
                self._submit()
            while True:
                for result in self._peer.expect("submit_events_result")["results"]:
                    assert result["status"] == "committed", result
                    self.told[result["id"]] = result["committed_id"]
                self._submit()
        except Closed as closed:
            self.code = closed.code
        except ConnectionClosed as closed:
            self.code = closed.rcvd.code if closed.rcvd else None

    def _submit(self) -> None:
        id = f"{self._name}-{len(self.sent)}"
        self.sent.append(id)
        self._peer.send("submit_events", {"events": [item([self._part], tree_event(id), id=id)]})


@pytest.mark.req("CONN-05", "ORD-02")
def test_a_replaced_connection_commits_nothing_after_its_successor_is_connected(
    nodes: Nodes, who: str, part: str
) -> None:
    """It goes on submitting as fast as it can; the successor's first look at the log bounds what it got in."""
    bounds: list[tuple[Restless, int]] = []
    with nodes[2].client(f"{who}-w") as watcher, ThreadPoolExecutor(1) as pool:
        for turn in range(20):
            old = Restless(nodes[turn % 2].client(who), part, f"{part}-{turn}")
            running = pool.submit(old.run)
            time.sleep(0.002 * (turn % 8))
            with nodes[(turn + 1) % 2].client(who) as successor:
                bounds.append((old, head_of(successor)))
                running.result(timeout=PATIENCE_S)
                assert old.code == REPLACED
        log = {event["id"]: event["committed_id"] for event in watcher.history([part])}
    assert any(old.told for old, _ in bounds)
    for old, bound in bounds:
        committed = {id: log[id] for id in old.sent if id in log}
        assert committed.items() >= old.told.items(), "acknowledged and not in the log"
        assert max(committed.values(), default=0) <= bound, "committed after its successor was connected"


@pytest.mark.req("CONN-05")
def test_of_many_that_come_at_once_one_is_left(nodes: Nodes, who: str) -> None:
    everybody = 12
    start = threading.Barrier(everybody)

    def come(number: int) -> Peer:
        server = nodes[number % 3]
        peer = server.peer()
        peer.send(
            "connect",
            {"client_id": who, "token": server.token(who), "supported_profiles": ["compatibility"]},
        )
        start.wait(PATIENCE_S)
        return peer

    codes: list[int | None] = []

    def wait_for_the_end(peer: Peer) -> None:
        """Most are closed, before or after they were connected."""
        while True:
            try:
                peer.receive()
            except Closed as closed:
                codes.append(closed.code)
                return

    with ThreadPoolExecutor(everybody) as pool:
        peers = list(pool.map(come, range(everybody)))
        waiting = [pool.submit(wait_for_the_end, peer) for peer in peers]
        until(lambda: len(codes) == everybody - 1, "more than one is left")
        time.sleep(0.5)
        assert codes == [REPLACED] * (everybody - 1)
        with nodes[0].client(who):
            for future in waiting:
                future.result(timeout=PATIENCE_S)
    assert codes == [REPLACED] * everybody
    for peer in peers:
        peer.close()


@pytest.mark.req("CONN-05", "CONN-06")
def test_nobody_is_remembered_who_is_gone(database: str, tmp_path: Path) -> None:
    """Claims end with their connections, and with their node."""

    def held() -> int:
        return int(query(database, "SELECT count(*) FROM unisono.presence")[0][0])

    with cluster(tmp_path, database, "ab") as (a, b):
        peers = [server.client(f"x{n}") for n, server in enumerate([a, b] * 4)]
        assert held() == 8
        for peer in peers[:4]:
            peer.close()
        until(lambda: held() == 4, "claims of closed connections are still held")
        assert a.stop() == 0
        assert held() == 2
        with b.client("x4") as again:  # a client of the node that has gone
            again.sync(["p"])
        for peer in peers[4:]:
            peer.close()
        until(lambda: held() == 0, "claims of closed connections are still held")
        assert b.stop() == 0


@pytest.mark.req("CONN-05")
@pytest.mark.parametrize("leaving", ["one by one", "with their node"])
def test_a_crowd_that_moves_to_another_node_stops_nobody(database: str, leaving: str) -> None:
    """Claims there and releases here meet on the same rows, in any order, and never wait in circles."""
    crowd = [f"x{n:03}" for n in range(300)]
    with closing(PostgresLog.open(database, "there")) as there:
        for turn in range(6):
            with closing(PostgresLog.open(database, "here")) as here, ThreadPoolExecutor(2) as pool:
                for start in range(0, 300, 50):  # not in the order of their names
                    conns = range(250 - start, 300 - start)
                    here.claim_many([(crowd[conn], conn + 1) for conn in conns])
                leave: Callable[[], object] = here.close
                if leaving == "one by one":
                    for conn in reversed(range(300)):
                        here.release(crowd[conn], conn + 1)
                    leave = partial(here.catch_up, fresh=True)
                gone = pool.submit(leave)
                arrived = pool.submit(there.claim_many, [(name, turn + 1) for name in crowd])
                gone.result(timeout=PATIENCE_S)
                assert len(arrived.result(timeout=PATIENCE_S)) == 300
