"""One order for everybody: watermarks, pages and broadcasts across nodes that all commit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from tests.behaviour.nodes.cluster import head_of, ids
from tests.behaviour.server.harness import Peer, Server, item, set_event, tree_event
from tests.waiting import PATIENCE_S

Nodes = list[Server]

REQUESTS = 40
DEPTH = 4
"""Requests a writer has in flight, so that groups of all nodes follow closely on each other."""


def named(message: dict[str, Any]) -> list[tuple[int, str]]:
    """The (committed_id, id) pairs a message names, in its order."""
    payload = message["payload"]
    if message["type"] == "event_broadcast":
        return [(payload["committed_id"], payload["id"])]
    assert message["type"] == "submit_events_result", message
    assert all(result["status"] == "committed" for result in payload["results"]), payload
    return [(result["committed_id"], result["id"]) for result in payload["results"]]


def write_and_listen(peer: Peer, part: str, name: str, total: int) -> list[tuple[int, str]]:
    """Submit REQUESTS events, DEPTH at a time, and take down everything until `total` events were named."""
    heard: list[tuple[int, str]] = []
    own = iter(range(REQUESTS))

    def submit() -> None:
        if (number := next(own, None)) is not None:
            peer.send(
                "submit_events", {"events": [item([part], set_event(name, number), f"{name}-{number}")]}
            )

    for _ in range(DEPTH):
        submit()
    while len(heard) < total:
        message = peer.receive()
        heard += named(message)
        if message["type"] == "submit_events_result":
            submit()
    return heard


@pytest.mark.req("BCAST-01", "BCAST-02", "BCAST-03", "BCAST-06", "ORD-01", "ORD-02")
def test_every_connection_hears_one_order_while_all_nodes_write(nodes: Nodes, part: str) -> None:
    """Two writers on each node hear all others: everything is named once, in commit order, without a gap."""
    names = [f"{part}-{server.data.name}-{n}" for server in nodes for n in range(2)]
    peers = [nodes[number // 2].client(name) for number, name in enumerate(names)]
    for peer in peers:
        peer.subscribe(part)
    base = head_of(peers[0])
    total = REQUESTS * len(names)
    with ThreadPoolExecutor(len(names)) as pool:
        working = [
            pool.submit(write_and_listen, peer, part, name, total)
            for peer, name in zip(peers, names, strict=True)
        ]
        heard = [future.result(timeout=PATIENCE_S) for future in working]
    for peer in peers:
        peer.expect_quiet(0.02)
        peer.close()
    assert [committed_id for committed_id, _ in heard[0]] == list(range(base + 1, base + total + 1))
    assert all(one == heard[0] for one in heard)
    ran = "".join(id.removeprefix(f"{part}-")[0] for _, id in heard[0])
    assert sum(x != y for x, y in pairwise(ran)) > 10, f"the nodes did not really take turns: {ran}"


@pytest.mark.req("SYNC-06", "ORD-02", "SYNC-04")
def test_a_watermark_covers_what_any_node_acknowledged_before(nodes: Nodes, part: str) -> None:
    with nodes[0].client(f"{part}-a") as first, nodes[1].client(f"{part}-b") as second:
        since = head_of(first)
        for turn in range(60):
            writer, reader = (first, second) if turn % 2 else (second, first)
            committed_id = writer.commit([part], tree_event(f"n{turn}"))
            page = reader.sync([part], since)
            assert page["sync_to_committed_id"] >= committed_id
            assert [event["committed_id"] for event in page["events"]] == [committed_id]
            since = page["next_since_committed_id"]


@pytest.mark.req("CONN-04", "ORD-02")
def test_a_new_connection_is_told_a_head_that_covers_what_any_node_acknowledged(
    nodes: Nodes, part: str
) -> None:
    with nodes[0].client(f"{part}-w") as writer:
        for turn in range(40):
            server = nodes[1 + turn % 2]
            with server.peer() as peer:
                committed_id = writer.commit([part], tree_event(f"n{turn}"))
                connected = peer.connect(
                    f"{part}-x", server.token(f"{part}-x"), supported_profiles=["compatibility"]
                )
                assert connected["server_last_committed_id"] >= committed_id


@pytest.mark.req("SYNC-01", "SYNC-03", "SYNC-04", "SYNC-06")
def test_pages_on_one_node_while_another_commits(nodes: Nodes, part: str) -> None:
    """Everything up to the watermark by pages, everything after it by broadcast, nothing twice."""
    a, b, c = nodes
    with (
        a.client(f"{part}-a") as writer,
        c.client(f"{part}-c") as second,
        b.client(f"{part}-b") as reader,
    ):
        before: list[int] = []
        for start in range(0, 230, 23):
            batch = [item([part], set_event("n", n)) for n in range(start, start + 23)]
            before += [result["committed_id"] for result in writer.submit(*batch)]
        since, paged, watermarks = 0, [], set()
        live: list[int] = []
        after: list[int] = []
        while True:
            reader.send(
                "sync",
                {
                    "partitions": [part],
                    "since_committed_id": since,
                    "limit": 50,
                    "subscription_partitions": [part],
                },
            )
            while (message := reader.receive())["type"] == "event_broadcast":
                live.append(message["payload"]["committed_id"])
            page = message["payload"]
            paged += [event["committed_id"] for event in page["events"]]
            watermarks.add(page["sync_to_committed_id"])
            if not page["has_more"]:
                break
            since = page["next_since_committed_id"]
            after += [writer.commit([part], set_event("n", -1)), second.commit([part], set_event("n", -2))]
        after += [second.commit([part], set_event("n", -3)), writer.commit([part], set_event("n", -4))]
        while len(live) < len(after):
            live.append(reader.expect("event_broadcast")["committed_id"])
        reader.expect_quiet(0.05)
        assert len(watermarks) == 1
        assert paged == before
        assert live == after
        assert page["next_since_committed_id"] == watermarks.pop()


@pytest.mark.req("SYNC-06")
def test_no_gap_and_nothing_twice_at_the_seam_while_other_nodes_commit(nodes: Nodes, part: str) -> None:
    """Many short subscriptions, each in the middle of a stream of commits from two other nodes."""
    stop = threading.Event()

    def write(server: Server) -> list[int]:
        committed: list[int] = []
        with server.client(f"{part}-{server.data.name}") as peer:
            while not stop.is_set():
                committed.append(peer.commit([part], set_event("n", len(committed))))
        return committed

    def subscribe_and_listen(number: int) -> list[int]:
        with nodes[2].client(f"{part}-listener-{number}") as peer:
            request: dict[str, Any] = {"partitions": [part], "since_committed_id": 0, "limit": 1000}
            peer.send("sync", request | {"subscription_partitions": [part]})
            paged: list[int] = []
            live: list[int] = []
            while True:
                while (message := peer.receive())["type"] == "event_broadcast":
                    live.append(message["payload"]["committed_id"])
                page = message["payload"]
                paged += [event["committed_id"] for event in page["events"]]
                if not page["has_more"]:
                    break
                peer.send("sync", request | {"since_committed_id": page["next_since_committed_id"]})
            while len(live) < 10:
                live.append(peer.expect("event_broadcast")["committed_id"])
            return paged + live

    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(write, server) for server in nodes[:2]]
        try:
            heard = [subscribe_and_listen(number) for number in range(12)]
        finally:
            stop.set()
        committed = sorted(id for future in writing for id in future.result(timeout=PATIENCE_S))
    for one in heard:
        assert one == committed[: len(one)]


@pytest.mark.req("ORD-01", "SYNC-01")
def test_all_nodes_tell_one_history(nodes: Nodes, part: str) -> None:
    def write(number: int) -> Sequence[str]:
        drafts = [item([part], tree_event(f"{number}-{n}")) for n in range(30)]
        with nodes[number].client(f"{part}-{number}") as peer:
            for start in range(0, 30, 5):
                peer.submit(*drafts[start : start + 5])
        return ids(drafts)

    with ThreadPoolExecutor(3) as pool:
        written = [id for drafts in pool.map(write, range(3)) for id in drafts]
    histories = []
    for server in nodes:
        with server.client(f"{part}-reader") as peer:
            histories.append(peer.history([part], limit=50))
    assert histories[0] == histories[1] == histories[2]
    assert sorted(ids(histories[0])) == sorted(written)
    assert all(x["committed_id"] < y["committed_id"] for x, y in pairwise(histories[0]))
    assert all(x["status_updated_at"] <= y["status_updated_at"] for x, y in pairwise(histories[0]))
