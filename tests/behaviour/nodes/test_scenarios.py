"""What a single server must get right, with its clients spread over several nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.behaviour.nodes.cluster import head_of, ids
from tests.behaviour.server.harness import Server, item, set_event, tree_event
from tests.waiting import PATIENCE_S

Nodes = list[Server]


def at_once(nodes: Nodes, part: str, rounds: int, draft: Callable[[int, int], dict[str, Any]]) -> list[Any]:
    """A client on each node submits `draft(round, node)`, all at the same moment; results round by round."""
    start = threading.Barrier(len(nodes))

    def write(number: int) -> list[dict[str, Any]]:
        results = []
        with nodes[number].client(f"{part}-at-once-{number}") as peer:
            for turn in range(rounds):
                start.wait(PATIENCE_S)
                results += peer.submit(draft(turn, number))
        return results

    with ThreadPoolExecutor(len(nodes)) as pool:
        outcomes = list(pool.map(write, range(len(nodes))))
    return list(zip(*outcomes, strict=True))


def committed_first(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(results, key=lambda result: str(result["status"]))


@pytest.mark.req("BCAST-01", "BCAST-02", "BCAST-05")
def test_a_commit_is_broadcast_on_every_node(nodes: Nodes, part: str) -> None:
    a, b, c = nodes
    with a.client(f"{part}-a") as origin, b.client(f"{part}-b") as near, c.client(f"{part}-c") as far:
        for peer in (origin, near, far):
            peer.subscribe(part)
        committed_id = origin.commit([part], tree_event("A"), id=f"{part}-1")
        told = near.expect("event_broadcast")
        assert told["committed_id"] == committed_id
        assert told["client_id"] == f"{part}-a"
        assert told["event"] == tree_event("A")
        assert set(told) == {"id", "client_id", "partitions", "committed_id", "event", "status_updated_at"}
        assert far.expect("event_broadcast") == told
        for peer in (origin, near, far):
            assert peer.sync([part])["events"] == [told]
            peer.expect_quiet(0.05)
        assert far.commit([part], tree_event("B")) > committed_id
        assert origin.expect("event_broadcast") == near.expect("event_broadcast")


@pytest.mark.req("ORD-03", "ORD-05", "DUR-03")
def test_a_retry_on_another_node_finds_the_first_result(nodes: Nodes, part: str) -> None:
    a, b, c = nodes
    draft = item([part], tree_event("A"))
    with c.client(f"{part}-c") as other:
        other.subscribe(part)
        lost = a.client(f"{part}-a")
        lost.send("submit_events", {"events": [draft]})
        committed = other.expect("event_broadcast")
        lost.socket.socket.close()  # the answer is on its way to nobody
        for server in (b, c, a):
            with server.client(f"{part}-a") as again:
                (result,) = again.submit(draft)
                assert result["status"] == "committed"
                assert result["committed_id"] == committed["committed_id"]
                assert result["status_updated_at"] == committed["status_updated_at"]
                assert ids(again.sync([part])["events"]) == [draft["id"]]
        other.expect_quiet()


@pytest.mark.req("ORD-04", "ORD-05")
def test_an_id_with_another_payload_is_refused_on_every_node(nodes: Nodes, part: str) -> None:
    a, b, c = nodes
    with (
        a.client(f"{part}-a") as origin,
        b.client(f"{part}-b") as near,
        c.client(f"{part}-c") as other,
    ):
        other.subscribe(part)
        origin.commit([part], set_event("a", 1), id=f"{part}-1")
        other.expect("event_broadcast")
        for peer in (near, other):
            (result,) = peer.submit(item([part], set_event("a", 2), id=f"{part}-1"))
            assert (result["status"], result["reason"]) == ("rejected", "validation_failed")
            assert result["errors"][0]["field"] == "event"
            assert "different payload" in result["errors"][0]["message"]
        other.expect_quiet(0.05)
        for peer in (origin, near, other):
            assert [event["event"] for event in peer.sync([part])["events"]] == [set_event("a", 1)]


@pytest.mark.req("ORD-03", "ORD-05", "ORD-01")
def test_one_id_submitted_everywhere_at_once_is_committed_once(nodes: Nodes, part: str) -> None:
    rounds = at_once(nodes, part, 15, lambda turn, _: item([part], tree_event(f"n{turn}"), f"{part}-{turn}"))
    for results in rounds:
        assert {result["status"] for result in results} == {"committed"}
        assert len({result["committed_id"] for result in results}) == 1
        assert len({result["status_updated_at"] for result in results}) == 1
    with nodes[2].client(f"{part}-c") as peer:
        assert ids(peer.history([part])) == [f"{part}-{turn}" for turn in range(15)]


@pytest.mark.req("ORD-04", "ORD-05")
def test_one_id_with_different_payloads_at_once_is_committed_once(nodes: Nodes, part: str) -> None:
    def draft(turn: int, number: int) -> dict[str, Any]:
        return item([part], set_event("by", number), f"{part}-{turn}")

    for results in at_once(nodes, part, 15, draft):
        first, *rest = committed_first(results)
        assert first["status"] == "committed"
        assert [(r["status"], r["errors"][0]["field"]) for r in rest] == [("rejected", "event")] * len(rest)


@pytest.mark.req("SUBMIT-02", "ORD-02", "VAL-04")
def test_of_writers_to_one_item_on_different_nodes_one_commits(nodes: Nodes, part: str) -> None:
    def draft(turn: int, number: int) -> dict[str, Any]:
        return item([part], tree_event(f"node-{turn}", title=f"by {number}"))

    for results in at_once(nodes, part, 20, draft):
        first, *rest = committed_first(results)
        assert first["status"] == "committed"
        for rejected in rest:
            assert rejected["status"] == "rejected"
            assert rejected["reason"] == "validation_failed"
            assert rejected["errors"][0]["field"] == "event.payload.value.id"
    histories = []
    for server in nodes:
        with server.client(f"{part}-reader") as peer:
            histories.append(peer.history([part]))
    assert histories[0] == histories[1] == histories[2]
    pushed = [event["event"]["payload"]["value"]["id"] for event in histories[0]]
    assert sorted(pushed) == sorted(f"node-{turn}" for turn in range(20))


@pytest.mark.req("SUBMIT-08")
def test_a_rejection_on_one_node_keeps_nothing_from_another(nodes: Nodes, part: str) -> None:
    a, b, _ = nodes
    update = {"type": "treeUpdate", "payload": {"target": "t", "value": {"n": 1}, "options": {"id": "A"}}}
    draft = item([part], update)
    with a.client(f"{part}-a") as first, b.client(f"{part}-b") as second:
        second.commit([part], tree_event("Z", target="t"))
        head = head_of(first)
        assert first.submit(draft)[0]["status"] == "rejected"
        assert head_of(second) == head, "a rejection uses up no id"
        second.commit([part], tree_event("A", target="t"))
        (again,) = first.submit(draft)
        assert (again["status"], again["committed_id"]) == ("committed", head + 2)


@pytest.mark.req("BCAST-01")
def test_an_event_of_several_partitions_comes_once(nodes: Nodes, part: str) -> None:
    a, b, c = nodes
    p, q, r = (f"{part}/{name}" for name in "pqr")
    with (
        a.client(f"{part}-a") as origin,
        b.client(f"{part}-b") as everything,
        b.client(f"{part}-b2") as nothing,
        c.client(f"{part}-c") as one,
    ):
        everything.subscribe(p, q, r)
        nothing.subscribe(f"{part}/other")
        one.subscribe(q)
        both = origin.commit([r, q, p, q], set_event("a", 1))
        last = origin.commit([q], set_event("a", 2))
        for peer in (everything, one):
            told = [peer.expect("event_broadcast") for _ in range(2)]
            assert [event["committed_id"] for event in told] == [both, last]
            assert told[0]["partitions"] == [p, q, r]
            peer.expect_quiet(0.05)
        nothing.expect_quiet(0.02)
        assert [event["committed_id"] for event in everything.sync([p, q, r])["events"]] == [both, last]


@pytest.mark.req("SUBMIT-02", "SUBMIT-03", "SUBMIT-04", "ORD-02")
def test_a_mixed_batch_is_judged_on_what_other_nodes_committed(nodes: Nodes, part: str) -> None:
    """Again and again, the other way round each time: the state is never one commit behind."""
    with nodes[0].client(f"{part}-a") as first, nodes[1].client(f"{part}-b") as second:
        for turn in range(25):
            writer, judged = (first, second) if turn % 2 else (second, first)
            name = f"n{turn}"
            update = {
                "type": "treeUpdate",
                "payload": {"target": "t", "value": {"n": turn}, "options": {"id": name}},
            }
            writer.commit([part], tree_event(name, target="t"))
            results = judged.submit(
                item([part], tree_event(name, target="t", by="other")),
                item([part], update),
                item([part], tree_event(f"{name}-child", target="t")),
            )
            assert [result["status"] for result in results] == ["rejected", "committed", "committed"]
            assert results[0]["errors"][0]["field"] == "event.payload.value.id"
            assert results[2]["committed_id"] == results[1]["committed_id"] + 1


@pytest.mark.req("SYNC-05", "SYNC-09")
def test_a_partition_is_added_mid_session(nodes: Nodes, part: str) -> None:
    a, b, c = nodes
    old, new = f"{part}/old", f"{part}/new"
    with a.client(f"{part}-a") as writer, c.client(f"{part}-c") as second, b.client(f"{part}-b") as reader:
        writer.commit([new], set_event("a", 1), id=f"{new}-1")
        second.commit([old], set_event("a", 1), id=f"{old}-1")
        assert ids(reader.subscribe(old)["events"]) == [f"{old}-1"]
        writer.commit([new], set_event("a", 2), id=f"{new}-2")
        reader.expect_quiet(0.05)
        added = reader.sync([new], 0, subscription_partitions=[new, old])
        assert ids(added["events"]) == [f"{new}-1", f"{new}-2"], "from 0, and of the added one alone"
        assert added["effective_subscriptions"] == sorted([old, new])
        writer.commit([old], set_event("a", 2), id=f"{old}-2")
        second.commit([new], set_event("a", 3), id=f"{new}-3")
        assert [reader.expect("event_broadcast")["id"] for _ in range(2)] == [f"{old}-2", f"{new}-3"]


@pytest.mark.req("CONN-08", "BCAST-02")
def test_a_client_that_moves_to_another_node_catches_up_there(nodes: Nodes, part: str) -> None:
    a, b, c = nodes
    with c.client(f"{part}-w") as writer:
        with a.client(f"{part}-x") as here:
            here.subscribe(part)
            mine = here.commit([part], tree_event("mine"))
            cursor = writer.commit([part], tree_event("n1"))
            assert here.expect("event_broadcast")["committed_id"] == cursor > mine
        missed = [writer.commit([part], tree_event(f"n{n}")) for n in (2, 3)]
        with b.client(f"{part}-x") as there:
            page = there.sync([part], cursor, subscription_partitions=[part])
            assert [event["committed_id"] for event in page["events"]] == missed
            later = writer.commit([part], tree_event("n4"))
            assert there.expect("event_broadcast")["committed_id"] == later
