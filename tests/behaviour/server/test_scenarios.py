"""The situations a sync server must get right, end to end."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.behaviour.server.harness import (
    Closed,
    Peer,
    Server,
    item,
    running,
    running_by_window,
    set_event,
    tree_event,
)
from tests.waiting import PATIENCE_S, in_a_window, until
from unisono.front.auth.verify import sign_token
from unisono.store.sqlite.log import SqliteReader

WINDOWS_S = (0.7, 4.0, 20.0)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[float], Server]]:
    """A server whose timers can be waited for."""
    options = ("--heartbeat-timeout-s", "{}", "--handshake-timeout-s", "{}")
    place = tmp_path_factory.mktemp("impatient")
    with running_by_window(place, "--access-default", "allow", *options) as started:
        yield started


def head_of(peer: Peer) -> int:
    """The log's head, told by a sync from beyond it (SYNC-07)."""
    head: int = peer.sync(["nothing-here"], 2**53 - 1)["sync_to_committed_id"]
    return head


def until_closed(peer: Peer, code: int) -> Iterator[int]:
    """The committed_ids of the broadcasts that come before the close."""
    try:
        while True:
            yield peer.expect("event_broadcast")["committed_id"]
    except Closed as closed:
        if closed.code != code:
            raise


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


@pytest.mark.req("HB-01", "HB-02", "CONN-06", "CONN-07", "CONN-10")
def test_heartbeat_disconnect_and_timeout(impatient: Callable[[float], Server], part: str) -> None:
    def in_time(window_s: float) -> None:
        server = impatient(window_s)
        with server.peer() as silent, server.peer() as beating:
            beating.send("heartbeat", {})
            beating.expect("heartbeat_ack")
            silent.expect_close(4004)
            beating.expect_close(4004)  # a heartbeat is not a handshake

        with server.client(f"{part}-a") as leaving, server.client(f"{part}-b") as writer:
            leaving.subscribe(part)
            leaving.send("disconnect", {"reason": "enough"})
            writer.commit([part], set_event("a", 1))
            leaving.expect_close(1000)

        with server.client(f"{part}-a") as idle, server.client(f"{part}-b") as beating:
            started = time.monotonic()
            while time.monotonic() < started + 2 * window_s:
                beating.send("heartbeat", {})
                beating.expect("heartbeat_ack")
                if time.monotonic() < started + window_s / 2:
                    idle.sync([part])  # no heartbeat, and so it does not count
                time.sleep(window_s / 8)
            idle.expect_close(4004)
            beating.send("heartbeat", {})
            beating.expect("heartbeat_ack")

    in_a_window(in_time, *WINDOWS_S)


@pytest.mark.req("AUTH-01", "AUTH-03", "AUTH-05", "ENV-02", "ENV-04", "ENV-05", "CONN-02", "ERR-01")
def test_auth_failure_bad_request_bad_version(server: Server, who: str, part: str) -> None:
    forged = sign_token(b"another secret that is just as long as the real", who, ttl_s=60, now_s=time.time())
    expired = sign_token(
        server.secret_file.read_bytes(), who, ttl_s=60, now_s=time.time() - 120, partitions=[part]
    )
    for token in (forged, expired, server.token("somebody-else"), "no token at all"):
        with server.peer() as peer:
            peer.send("connect", {"token": token, "client_id": who})
            error = peer.expect_error("auth_failed")
            assert token not in error["message"]
            peer.expect_close(4001)

    with server.peer() as peer:
        for nonsense in ("not JSON", "[]", "{}", b"{}"):
            peer.raw(nonsense)
            peer.expect_error("bad_request")
        peer.send("sing", {})
        peer.expect_error("bad_request")
        peer.send("sync", {"partitions": [part], "since_committed_id": 0})
        peer.expect_error("bad_request")
        peer.connect(who, server.token(who), supported_profiles=["compatibility"])
        peer.send("submit_events", {"events": []})
        peer.expect_error("bad_request")
        peer.commit([part], set_event("a", 1))
        draft = item([part], set_event("a", 2), client_id="somebody-else")
        peer.send("submit_events", {"events": [item([part], set_event("a", 3)), draft]})
        peer.expect_error("auth_failed")
        peer.expect_close(4001)

    with server.peer() as peer:
        peer.send("connect", {"token": server.token(who), "client_id": who}, protocol_version="2.0")
        error = peer.expect_error("protocol_version_unsupported")
        assert error["supported_versions"] == error["details"]["supported_versions"] == ["1.0"]
        peer.expect_close(4002)

    with server.client(who) as peer:
        assert len(peer.sync([part])["events"]) == 1, "nothing of the message with a foreign item took effect"


@pytest.mark.req("AUTHZ-01", "AUTHZ-03", "AUTHZ-04", "AUTHZ-05")
def test_forbidden_sync_and_submit(server: Server, part: str) -> None:
    mine, theirs = f"{part}/mine", f"{part}/theirs"
    token = server.token(f"{part}-a", partitions=[mine], prefixes=[f"{mine}/"])
    with server.client(f"{part}-b") as other, server.peer() as peer:
        other.commit([theirs], tree_event("A"))
        peer.connect(f"{part}-a", token, supported_profiles=["compatibility"])
        peer.subscribe(mine)
        for request in (
            {"partitions": [theirs]},
            {"partitions": [mine, theirs]},
            {"partitions": [mine], "subscription_partitions": [mine, theirs]},
        ):
            peer.send("sync", {"since_committed_id": 0, **request})
            error = peer.expect_error("forbidden")
            assert error["details"]["partitions"] == [theirs]
        assert peer.sync([mine])["effective_subscriptions"] == [mine], "a refused sync changes nothing"

        results = peer.submit(
            item([f"{mine}/below"], tree_event("B")),
            item([mine, theirs], tree_event("C")),
            item([mine], tree_event("D")),
        )
        assert [result["status"] for result in results] == ["committed", "rejected", "committed"]
        assert results[1]["reason"] == "forbidden"
        assert theirs in results[1]["errors"][0]["message"]
        other.commit([theirs], tree_event("E"))
        peer.expect_quiet()
        assert len(other.sync([mine, theirs, f"{mine}/below"])["events"]) == 4


@pytest.mark.req("CONN-05", "CONN-08", "CONN-10")
def test_takeover(server: Server, who: str, part: str) -> None:
    with server.client(f"{who}-w") as writer, server.client(who) as first:
        first.subscribe(part)
        with server.client(who) as second:
            first.expect_close(4003)
            writer.commit([part], set_event("a", 1))
            second.expect_quiet()
            assert second.sync([part])["effective_subscriptions"] == [], "subscriptions went with the first"
            second.subscribe(part)
            writer.commit([part], set_event("a", 2), id=f"{part}-2")
            assert second.expect("event_broadcast")["id"] == f"{part}-2"
            second.commit([part], set_event("a", 3))


@pytest.mark.req("AUTH-04")
def test_token_expiry_on_an_idle_connection(server: Server, who: str, part: str) -> None:
    def idle(ttl_s: float) -> None:
        with server.peer() as peer, server.client(f"{who}-w") as writer:
            started = time.time()
            peer.connect(who, server.token(who, ttl_s=ttl_s), supported_profiles=["compatibility"])
            head = peer.subscribe(part)["sync_to_committed_id"]
            error = peer.expect_error("auth_failed")  # nothing was sent: a timer did it
            assert ttl_s - 0.1 < time.time() - started < 2 * ttl_s
            assert "expired" in error["message"]
            peer.expect_close(4001)
            writer.commit([part], set_event("a", 1))
            with server.client(who) as again:
                assert len(again.sync([part], head)["events"]) == 1

    in_a_window(idle, *WINDOWS_S)


@pytest.mark.req("BCAST-03", "BCAST-04", "LIM-05", "CONN-10")
def test_slow_consumer_closed_while_its_neighbours_are_unaffected(server: Server, part: str) -> None:
    address = urlsplit(server.url)
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    small.connect((address.hostname, address.port))
    closes = server.metric("unisono_closes_total", code="4005")
    text = "x" * 400_000
    with (
        server.client(f"{part}-w") as writer,
        server.client(f"{part}-n") as neighbour,
        server.peer(sock=small, max_queue=1) as slow,
    ):
        slow.connect(f"{part}-s", server.token(f"{part}-s"), supported_profiles=["compatibility"])
        slow.subscribe(part)
        neighbour.subscribe(part)
        committed: list[int] = []
        while server.metric("unisono_closes_total", code="4005") == closes:
            assert len(committed) < 60, "nothing stops the unread bytes from piling up"
            committed.append(writer.commit([part], set_event("text", text)))
            assert neighbour.expect("event_broadcast")["committed_id"] == committed[-1]

        committed.append(writer.commit([part], set_event("text", "after the close")))
        assert neighbour.expect("event_broadcast")["committed_id"] == committed[-1]

        heard = list(until_closed(slow, 4005))
        assert heard == committed[: len(heard)], "no gap up to the close"
        assert len(heard) < len(committed)
    with server.client(f"{part}-s") as again:
        caught_up = again.history([part], since=heard[-1] if heard else 0)
        assert heard + [event["committed_id"] for event in caught_up] == committed
