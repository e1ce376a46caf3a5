"""The situations a sync server must get right, end to end."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import Closed, Peer, Server, item, running, set_event, tree_event
from tests.waiting import PATIENCE_S, until
from unisono.store.sqlite.log import SqliteReader


def head_of(peer: Peer) -> int:
    """The log's head, told by a sync from beyond it (SYNC-07)."""
    head: int = peer.sync(["nothing-here"], 2**53 - 1)["sync_to_committed_id"]
    return head


def ids(events: list[dict[str, Any]]) -> list[str]:
    return [event["id"] for event in events]


@pytest.mark.req("CONN-04", "CONN-09", "LIM-01")
def test_empty_handshake(server: Server, who: str) -> None:
    with server.peer() as peer:
        connected = peer.connect(who, server.token(who))
        assert connected["client_id"] == who
        assert abs(connected["server_time"] - time.time() * 1000) < 60_000
        assert connected["server_last_committed_id"] >= 0
        assert connected["capabilities"] == {
            "profile": "canonical",
            "accepted_event_types": ["event"],
            "ordered_delivery": True,
        }
        assert connected["limits"]["max_batch_size"] == 100
        page = peer.sync(["nothing-here"])
        assert page["events"] == []
        assert page["has_more"] is False
        assert page["next_since_committed_id"] == page["sync_to_committed_id"]
        assert page["effective_subscriptions"] == []


@pytest.mark.req("BCAST-01", "BCAST-02", "BCAST-05")
def test_commit_and_broadcast(server: Server, part: str) -> None:
    with server.client(f"{part}-a") as origin, server.client(f"{part}-b") as other:
        origin.subscribe(part)
        other.subscribe(part)
        committed_id = origin.commit([part], tree_event("A"), id=f"{part}-1")
        told = other.expect("event_broadcast")
        assert told["committed_id"] == committed_id
        assert told["client_id"] == f"{part}-a"
        assert told["event"] == tree_event("A")
        assert set(told) == {"id", "client_id", "partitions", "committed_id", "event", "status_updated_at"}
        assert other.sync([part])["events"] == [told]
        origin.expect_quiet()


@pytest.mark.req("SUBMIT-05", "SUBMIT-06", "SUBMIT-08")
def test_rejection(server: Server, part: str) -> None:
    unknown = {"type": "treeUpdate", "payload": {"target": "t", "value": {"a": 1}, "options": {"id": "A"}}}
    with server.client(f"{part}-a") as origin, server.client(f"{part}-b") as other:
        origin.commit([part], tree_event("Z", target="t"))
        other.subscribe(part)
        head = head_of(origin)
        (result,) = origin.submit(item([part], unknown, id=f"{part}-1"))
        assert result["status"] == "rejected"
        assert result["reason"] == "validation_failed"
        assert result["errors"][0]["field"] == "event.payload.options.id"
        assert "committed_id" not in result

        origin.send("submit_event", item([part], unknown, id=f"{part}-1"))
        rejected = origin.expect("event_rejected")
        assert rejected["id"] == f"{part}-1"
        assert rejected["reason"] == "validation_failed"
        assert rejected["errors"] == result["errors"]

        assert head_of(origin) == head
        assert len(origin.sync([part])["events"]) == 1
        other.expect_quiet()

        # Once what it needs is there, the same id commits.
        assert origin.commit([part], tree_event("A", target="t")) == head + 1
        assert origin.commit([part], unknown, id=f"{part}-1") == head + 2
        assert [other.expect("event_broadcast")["committed_id"] for _ in range(2)] == [head + 1, head + 2]


@pytest.mark.req("ORD-03", "ORD-05")
def test_retry(server: Server, part: str) -> None:
    first = item([part], {"type": "set", "payload": {"target": "a", "value": 1}}, id=f"{part}-1")
    same = item([part, part], {"payload": {"value": 1.0, "target": "a"}, "type": "set"}, id=f"{part}-1")
    with server.client(f"{part}-a") as origin, server.client(f"{part}-b") as other:
        other.subscribe(part)
        (result,) = origin.submit(first)
        other.expect("event_broadcast")
        head = head_of(origin)
        assert origin.submit(first) == [result]
        assert origin.submit(same) == [result]
        origin.send("submit_event", first)
        committed = origin.expect("event_committed")
        assert committed["committed_id"] == result["committed_id"]
        assert committed["status_updated_at"] == result["status_updated_at"]
        assert other.submit(first) == [result], "the id counts, not who sends it"
        other.expect_quiet()
        assert head_of(origin) == head
        assert ids(origin.sync([part])["events"]) == [f"{part}-1"]


@pytest.mark.req("BCAST-01", "AUTHZ-07", "SYNC-01", "PART-03")
def test_multi_partition_delivery(server: Server, part: str) -> None:
    a, b, c = f"{part}/a", f"{part}/b", f"{part}/c"
    with (
        server.client(f"{part}-w") as writer,
        server.client(f"{part}-1") as both,
        server.client(f"{part}-2") as one,
        server.client(f"{part}-3") as none,
    ):
        both.subscribe(a, b)
        one.subscribe(b)
        none.subscribe(c)
        committed_id = writer.commit([b, a, b], tree_event("A"))
        for peer in (both, one):
            told = peer.expect("event_broadcast")
            assert told["committed_id"] == committed_id
            assert told["partitions"] == [a, b], "whole, normalised"
        for peer in (both, one, none):
            peer.expect_quiet()
        for asked in ([a], [b], [a, b], [b, c]):
            assert [e["committed_id"] for e in none.sync(asked)["events"]] == [committed_id]
        assert none.sync([c])["events"] == []


@pytest.mark.req("SYNC-03", "SYNC-04", "SYNC-06")
def test_paged_catch_up_with_a_commit_in_the_middle(server: Server, part: str) -> None:
    with server.client(f"{part}-a") as writer, server.client(f"{part}-b") as reader:
        sent = [item([part], set_event("n", number)) for number in range(120)]
        for start in (0, 60):
            writer.submit(*sent[start : start + 60])
        first = reader.sync([part], limit=50, subscription_partitions=[part])
        assert len(first["events"]) == 50
        assert first["has_more"]
        assert first["next_since_committed_id"] == first["events"][-1]["committed_id"]
        sync_to = first["sync_to_committed_id"]

        late = writer.commit([part], set_event("n", "late"))
        assert late > sync_to
        assert reader.expect("event_broadcast")["committed_id"] == late

        second = reader.sync([part], first["next_since_committed_id"], limit=50)
        third = reader.sync([part], second["next_since_committed_id"], limit=50)
        assert (second["has_more"], third["has_more"]) == (True, False)
        assert second["sync_to_committed_id"] == third["sync_to_committed_id"] == sync_to
        assert third["next_since_committed_id"] == sync_to
        paged = first["events"] + second["events"] + third["events"]
        assert ids(paged) == ids(sent), "each once, in commit order, the late one not among them"
        reader.expect_quiet()
        after = reader.sync([part], sync_to)
        assert [e["committed_id"] for e in after["events"]] == [late]


@pytest.mark.req("ORD-04")
def test_duplicate_id_with_another_payload(server: Server, part: str) -> None:
    with server.client(f"{part}-a") as origin, server.client(f"{part}-b") as other:
        other.subscribe(part)
        origin.commit([part], set_event("a", 1), id=f"{part}-1")
        other.expect("event_broadcast")
        for partitions, event in (([part], set_event("a", 2)), ([part, f"{part}/2"], set_event("a", 1))):
            (result,) = other.submit(item(partitions, event, id=f"{part}-1"))
            assert result["status"] == "rejected"
            assert result["reason"] == "validation_failed"
            assert result["errors"][0]["field"] == "event"
            assert "different payload" in result["errors"][0]["message"]
        other.expect_quiet()
        assert [e["event"] for e in origin.sync([part])["events"]] == [set_event("a", 1)]


@pytest.mark.req("BCAST-02")
def test_no_echo_to_the_origin(server: Server, part: str) -> None:
    with server.client(f"{part}-a") as origin, server.client(f"{part}-b") as other:
        origin.subscribe(part)
        other.subscribe(part)
        origin.send("submit_event", item([part], set_event("a", 1), id=f"{part}-1"))
        origin.expect("event_committed")
        origin.submit(*(item([part], set_event("a", n), id=f"{part}-{n}") for n in (2, 3)))
        assert [other.expect("event_broadcast")["id"] for _ in range(3)] == [f"{part}-{n}" for n in (1, 2, 3)]
        other.commit([part], set_event("a", 4), id=f"{part}-4")
        assert origin.expect("event_broadcast")["id"] == f"{part}-4", "the others' events, and only those"
        origin.expect_quiet()
        assert ids(origin.sync([part])["events"]) == [f"{part}-{n}" for n in (1, 2, 3, 4)]


@pytest.mark.req("SYNC-05", "SYNC-09")
def test_adding_a_partition_mid_session(server: Server, part: str) -> None:
    old, new = f"{part}/old", f"{part}/new"
    with server.client(f"{part}-a") as writer, server.client(f"{part}-b") as reader:
        writer.commit([new], set_event("a", 1), id=f"{new}-1")
        writer.commit([old], set_event("a", 1), id=f"{old}-1")
        assert ids(reader.subscribe(old)["events"]) == [f"{old}-1"]
        writer.commit([new], set_event("a", 2), id=f"{new}-2")
        reader.expect_quiet()

        added = reader.sync([new], 0, subscription_partitions=[new, old])
        assert ids(added["events"]) == [f"{new}-1", f"{new}-2"], "from 0, and of the added one alone"
        assert added["effective_subscriptions"] == sorted([old, new])
        writer.commit([old], set_event("a", 2), id=f"{old}-2")
        writer.commit([new], set_event("a", 3), id=f"{new}-3")
        assert [reader.expect("event_broadcast")["id"] for _ in range(2)] == [f"{old}-2", f"{new}-3"]


@pytest.mark.req("ORD-03", "ORD-05", "CONN-08")
def test_retry_after_a_lost_reply(server: Server, part: str) -> None:
    draft = item([part], tree_event("A"))
    with server.client(f"{part}-b") as other:
        other.subscribe(part)
        lost = server.client(f"{part}-a")
        lost.send("submit_events", {"events": [draft]})
        committed = other.expect("event_broadcast")
        lost.socket.socket.close()  # the answer is on its way to nobody
        with server.client(f"{part}-a") as again:
            (result,) = again.submit(draft)
            assert result["status"] == "committed"
            assert result["committed_id"] == committed["committed_id"]
            assert result["status_updated_at"] == committed["status_updated_at"]
            assert ids(again.sync([part])["events"]) == [draft["id"]]
        other.expect_quiet()


@pytest.mark.req("SUBMIT-02", "ORD-02")
def test_concurrent_writers_to_one_item(server: Server, part: str) -> None:
    rounds, writers = 20, 2
    start = threading.Barrier(writers)

    def write(number: int) -> list[dict[str, Any]]:
        results = []
        with server.client(f"{part}-{number}") as peer:
            for turn in range(rounds):
                event = tree_event(f"node-{turn}", title=f"by {number}")
                start.wait(PATIENCE_S)
                results += peer.submit(item([part], event, id=f"{part}-{turn}-{number}"))
        return results

    with ThreadPoolExecutor(writers) as pool:
        outcomes = list(pool.map(write, range(writers)))
    for pair in zip(*outcomes, strict=True):
        committed, rejected = sorted(pair, key=lambda result: str(result["status"]))
        assert (committed["status"], rejected["status"]) == ("committed", "rejected")
        assert rejected["reason"] == "validation_failed"
        assert rejected["errors"][0]["field"] == "event.payload.value.id"
    with server.client(f"{part}-c") as peer:
        history = peer.history([part])
    assert len(history) == rounds
    assert {e["event"]["payload"]["value"]["id"] for e in history} == {f"node-{n}" for n in range(rounds)}


@pytest.mark.req("DUR-02", "DUR-03", "SUBMIT-07")
def test_crash_after_persist_before_reply(tmp_path: Path) -> None:
    data, draft = tmp_path / "data", item(["p"], tree_event("A"))
    with running(data, "--access-default", "allow") as server:
        authority, _, front = server.children()
        peer, other = server.client("a"), server.client("b")
        other.subscribe("p")
        os.kill(authority, signal.SIGSTOP)
        peer.send("submit_events", {"events": [draft]})
        for _ in range(2):  # the second one is answered after the front has handed the draft on
            peer.send("heartbeat", {})
            peer.expect("heartbeat_ack")
        os.kill(front, signal.SIGSTOP)  # from here on no reply and no broadcast can go out
        os.kill(authority, signal.SIGCONT)
        reader = SqliteReader.open(data)
        until(lambda: reader.head() == 1, "the draft is not persisted")
        records = reader.scan(0, 10, limit=10)
        reader.close()
        assert [record.id for record in records] == [draft["id"]]
        server.kill()
        for left in (peer, other):
            with pytest.raises(Closed):
                left.receive()
    with (
        running(data, "--access-default", "allow") as server,
        server.client("a") as peer,
        server.client("b") as other,
    ):
        assert ids(other.sync(["p"])["events"]) == [draft["id"]], "peers get it by sync"
        (result,) = peer.submit(draft)
        assert result["committed_id"] == records[0].committed_id == 1
        assert result["status_updated_at"] == records[0].status_updated_at
        assert peer.commit(["p"], tree_event("B")) == 2


@pytest.mark.req("SUBMIT-02", "SUBMIT-03", "SUBMIT-04")
def test_mixed_batch_of_three(server: Server, part: str) -> None:
    update = {"type": "treeUpdate", "payload": {"target": "t", "value": {"n": 2}, "options": {"id": "A"}}}
    batch = [
        item([part], tree_event("A", target="t")),
        item([part], tree_event("A", target="t", n=1)),
        item([part], update),
    ]
    with server.client(f"{part}-a") as origin, server.client(f"{part}-b") as other:
        other.subscribe(part)
        results = origin.submit(*batch)
        assert ids(results) == ids(batch)
        assert [result["status"] for result in results] == ["committed", "rejected", "committed"]
        assert results[1]["errors"][0]["field"] == "event.payload.value.id", "judged after the first"
        assert results[2]["committed_id"] == results[0]["committed_id"] + 1, "a rejection uses up no id"
        assert [other.expect("event_broadcast")["id"] for _ in range(2)] == [batch[0]["id"], batch[2]["id"]]
        other.expect_quiet()
        origin.expect_quiet()
