"""Live delivery: to whom, once, in order, and what becomes of those who cannot keep up."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.behaviour.server.harness import Closed, Peer, Server, item, new_id, running, set_event, tree_event
from tests.behaviour.server.pressure import passed_on, stopped
from tests.waiting import PATIENCE_S

EVENT = set_event("title", "Hello")
SHAPE = {"id", "client_id", "partitions", "committed_id", "event", "status_updated_at"}
_names = count(1)


def named_ids(message: dict[str, Any]) -> list[int]:
    """The committed_ids a message names, in its order."""
    payload = message["payload"]
    match message["type"]:
        case "event_broadcast" | "event_committed":
            return [payload["committed_id"]]
        case "submit_events_result":
            return [result["committed_id"] for result in payload["results"] if "committed_id" in result]
        case _:
            return []


def until_answered(peer: Peer, requests: int) -> list[dict[str, Any]]:
    """Everything up to the answer to so many requests, and what a sync brings out that came after it."""
    messages = []
    while requests:
        messages.append(peer.receive())
        requests -= messages[-1]["type"] in ("submit_events_result", "event_committed")
    peer.send("sync", {"partitions": ["nothing"], "since_committed_id": 0})
    while (message := peer.receive())["type"] != "sync_response":
        messages.append(message)
    return messages


def on_each_front(server: Server, close: contextlib.ExitStack) -> tuple[Peer, Peer]:
    """Two connections, the first on front 0 and the second on front 1; the kernel chooses, so try."""
    found: dict[str, Peer] = {}
    fronts = ("front 0", "front 1")
    for _ in range(64):
        before = {front: server.metric("unisono_connections", process=front) for front in fronts}
        peer = close.enter_context(server.client(f"placed-{next(_names)}"))
        for front in fronts:
            if server.metric("unisono_connections", process=front) > before[front]:
                found.setdefault(front, peer)
        if len(found) == 2:
            return found["front 0"], found["front 1"]
    raise AssertionError("64 connections and all on one front")


# -- to whom -------------------------------------------------------------------------------------------------


@pytest.mark.req("BCAST-01", "AUTHZ-07")
def test_once_to_everybody_whose_subscription_intersects(either: Server, part: str) -> None:
    parts = [f"{part}-{n}" for n in range(4)]
    subscriptions = {
        "all": parts,
        "two of three": parts[1:3],
        "one": parts[2:3],
        "one and others": [parts[0], parts[3], f"{part}-other"],
        "another": [f"{part}-other"],
        "none": [],
    }
    with contextlib.ExitStack() as stack:
        peers = {}
        for name, subscribed in subscriptions.items():
            peers[name] = stack.enter_context(either.client(f"{part}-{name}"))
            peers[name].sync([part], subscription_partitions=subscribed)
        origin = stack.enter_context(either.client(f"{part}-origin"))
        stranger = stack.enter_context(either.peer())  # a socket that has not connected
        committed_id = origin.commit(parts[:3], EVENT)
        marker = origin.commit([*parts, f"{part}-other"], EVENT)
        for name, peer in peers.items():
            due = bool({*subscriptions[name]} & {*parts[:3]})
            expected = [committed_id, marker] if due else [marker]
            if name == "none":
                expected = []
            heard = [peer.expect("event_broadcast")["committed_id"] for _ in expected]
            assert heard == expected, name
        for peer in (*peers.values(), origin, stranger):
            peer.expect_quiet(0.02)


@pytest.mark.req("BCAST-01", "SYNC-05")
def test_a_replaced_subscription_counts_from_its_answer_on(either: Server, part: str) -> None:
    with either.client(f"{part}-a") as origin, either.client(f"{part}-b") as listener:
        listener.subscribe(f"{part}-1", f"{part}-2")
        first = origin.commit([f"{part}-1"], EVENT)
        assert listener.expect("event_broadcast")["committed_id"] == first
        listener.sync([f"{part}-2"], first, subscription_partitions=[f"{part}-2", f"{part}-3"])
        origin.commit([f"{part}-1"], EVENT)
        third = origin.commit([f"{part}-3"], EVENT)
        assert listener.expect("event_broadcast")["committed_id"] == third
        listener.sync([f"{part}-2"], third, subscription_partitions=[])
        origin.commit([f"{part}-2"], EVENT)
        listener.expect_quiet()


@pytest.mark.req("BCAST-01", "SUBMIT-08")
def test_rejected_items_are_not_broadcast(either: Server, part: str) -> None:
    with either.client(f"{part}-a") as origin, either.client(f"{part}-b") as listener:
        listener.subscribe(part)
        origin.submit(item([part], tree_event("")), item([""], EVENT), item([part], {"type": "event"}))
        origin.send("submit_event", item([part], tree_event("")))
        origin.expect("event_rejected")
        committed_id = origin.commit([part], EVENT)
        assert listener.expect("event_broadcast")["committed_id"] == committed_id
        listener.expect_quiet()


@pytest.mark.req("BCAST-02")
def test_never_to_the_connection_that_submitted_it(either: Server, part: str) -> None:
    with either.client(f"{part}-a") as first, either.client(f"{part}-b") as second:
        first.subscribe(part, f"{part}-2")
        second.subscribe(part, f"{part}-2")
        mine = first.commit([part, f"{part}-2"], EVENT)
        assert second.expect("event_broadcast")["committed_id"] == mine
        second.send("submit_event", item([part], EVENT))
        theirs = second.expect("event_committed")["committed_id"]
        assert first.expect("event_broadcast")["committed_id"] == theirs
        for peer in (first, second):
            peer.expect_quiet()


@pytest.mark.req("BCAST-02")
def test_a_successor_with_the_same_client_id_is_another_connection(either: Server, part: str) -> None:
    """Not to the connection that submitted; who connects later under that client_id is due its own events."""
    with either.client(f"{part}-a") as first:
        mine = first.commit([part], EVENT)
    with either.client(f"{part}-a") as second, either.client(f"{part}-b") as other:
        (event,) = second.subscribe(part)["events"]
        assert event["committed_id"] == mine
        theirs = other.commit([part], EVENT)
        assert second.expect("event_broadcast")["committed_id"] == theirs


# -- in which form -------------------------------------------------------------------------------------------


@pytest.mark.req("BCAST-05", "AUTH-06")
def test_one_shape_everywhere(either: Server, part: str) -> None:
    events: list[dict[str, Any]] = [
        tree_event("A", title="\u00dcberschrift \U0001f600", n=1.5, nothing=None),
        set_event("deep.er", {"a": [1, {"b": [[]]}], "": {}}),
        {"type": "set", "payload": {"target": "x", "value": 1}, "extra": {"kept": ["whole", 1e300]}},
    ]
    with either.client(f"{part}-a") as origin, either.client(f"{part}-b") as listener:
        listener.subscribe(part)
        for event in events:
            sent = item([f"{part}-2", part], event, client_id=f"{part}-a")
            origin.send("submit_event", sent)
            committed = origin.expect("event_committed")
            broadcast = listener.expect("event_broadcast")
            (synced,) = listener.sync([part], committed["committed_id"] - 1)["events"]
            assert committed == broadcast == synced
            assert set(committed) == SHAPE
            assert committed["event"] == event
            assert committed["id"] == sent["id"]
            assert committed["client_id"] == f"{part}-a"
            assert committed["partitions"] == [part, f"{part}-2"]
            assert type(committed["committed_id"]) is type(committed["status_updated_at"]) is int


@pytest.mark.req("BCAST-05", "BCAST-01")
def test_a_canonical_event_has_that_shape_too_for_either_profile(either: Server, part: str) -> None:
    event = {"type": "event", "payload": {"schema": "any", "data": [1, None], "meta": {"m": 1}}}
    with (
        either.client(f"{part}-a", "canonical") as origin,
        either.client(f"{part}-b", "canonical") as listener,
        either.client(f"{part}-c", "compatibility") as tree_listener,
    ):
        listener.subscribe(part)
        tree_listener.subscribe(part)
        origin.send("submit_event", item([part], event))
        committed = origin.expect("event_committed")
        assert set(committed) == SHAPE
        assert committed["event"] == event
        assert listener.expect("event_broadcast") == committed
        assert tree_listener.expect("event_broadcast") == committed


# -- in which order ------------------------------------------------------------------------------------------


@pytest.mark.req("BCAST-06", "CONN-04")
@pytest.mark.parametrize("profile", ["canonical", "compatibility"])
def test_ordered_delivery_is_declared(either: Server, who: str, profile: str) -> None:
    with either.peer() as peer:
        connected = peer.connect(who, either.token(who), supported_profiles=[profile])
        assert connected["capabilities"]["ordered_delivery"] is True


@pytest.mark.req("BCAST-03")
def test_a_batch_is_broadcast_in_its_order(either: Server, part: str) -> None:
    with either.client(f"{part}-a") as origin, either.client(f"{part}-b") as listener:
        listener.subscribe(part)
        items = [item([part], tree_event(f"n{n}")) for n in range(100)]
        ids = [result["committed_id"] for result in origin.submit(*items)]
        heard = [listener.expect("event_broadcast") for _ in items]
        assert [event["committed_id"] for event in heard] == ids == sorted(ids)
        assert [event["id"] for event in heard] == [one["id"] for one in items]


@pytest.mark.req("BCAST-03", "BCAST-06", "BCAST-02")
def test_everything_that_names_an_id_comes_in_commit_order(either: Server, part: str) -> None:
    """Writers that also listen: every connection's stream of results and broadcasts is the log, in order."""
    writers, requests = 5, 40
    line = threading.Barrier(writers)

    def take_part(number: int) -> list[int]:
        stream: list[int] = []
        with either.client(f"{part}-{number}") as peer:
            peer.subscribe(part)
            line.wait(PATIENCE_S)
            for turn in range(requests):
                size = (turn + number) % 4
                if size == 0:
                    peer.send("submit_event", item([part], EVENT))
                else:
                    batch = [item([part], EVENT) for _ in range(size)]
                    batch.insert(turn % (size + 1), item([part], tree_event("")))  # one is rejected
                    peer.send("submit_events", {"events": batch})
                answered = False
                while not answered:
                    message = peer.receive()
                    stream += named_ids(message)
                    answered = message["type"] != "event_broadcast"
            expected = sum(max((t + n) % 4, 1) for t in range(requests) for n in range(writers))
            while len(stream) < expected:
                message = peer.receive()
                assert message["type"] == "event_broadcast"
                stream += named_ids(message)
            line.wait(PATIENCE_S)
            peer.expect_quiet(0.05)
        return stream

    with ThreadPoolExecutor(writers) as pool:
        streams = [future.result() for future in [pool.submit(take_part, n) for n in range(writers)]]
    for stream in streams:
        assert all(earlier < later for earlier, later in pairwise(stream))
    with either.client(f"{part}-reader") as reader:
        log = [event["committed_id"] for event in reader.history([part])]
    assert streams == [log] * writers


@pytest.mark.req("BCAST-06", "ORD-05")
def test_inside_one_group_results_stand_among_broadcasts_in_their_place(
    two_fronts: Server, part: str
) -> None:
    """The authority stands still while both submit, so both requests are in one group; also across fronts."""
    with contextlib.ExitStack() as stack:
        first, second = on_each_front(two_fronts, stack)
        for peer in (first, second):
            peer.subscribe(part)
        shared = new_id()
        with stopped(next(iter(two_fronts.children()))):
            first.send("submit_events", {"events": [item([part], EVENT), item([part], EVENT, shared)]})
            passed_on(first)
            second.send("submit_events", {"events": [item([part], EVENT), item([part], EVENT, shared)]})
            passed_on(second)
            first.send("submit_event", item([part], EVENT))
            passed_on(first)
        streams = [until_answered(first, 2), until_answered(second, 1)]
    # The two channels are read in either order; whoever came second met the shared id as a duplicate.
    log = sorted({id for messages in streams for message in messages for id in named_ids(message)})
    assert len(log) == 4
    for messages in streams:
        seen: set[int] = set()
        for message in messages:
            ids = named_ids(message)
            if message["type"] == "event_broadcast":
                assert ids[0] > max(seen, default=0)
            for id in ids:  # everything below it has been told
                assert seen | {*ids} >= {other for other in log if other < id}
            seen |= {*ids}
        assert seen == {*log}


@pytest.mark.req("BCAST-01", "BCAST-02", "BCAST-03", "BCAST-05")
def test_origin_and_listener_on_different_fronts(two_fronts: Server, part: str) -> None:
    with contextlib.ExitStack() as stack:
        first, second = on_each_front(two_fronts, stack)
        first.subscribe(part, f"{part}-2")
        second.subscribe(part, f"{part}-2")
        for origin, listener in ((first, second), (second, first)):
            origin.send("submit_event", item([part, f"{part}-2"], EVENT))
            committed = origin.expect("event_committed")
            assert listener.expect("event_broadcast") == committed
            results = origin.submit(*(item([part], EVENT) for _ in range(20)))
            ids = [result["committed_id"] for result in results]
            assert [listener.expect("event_broadcast")["committed_id"] for _ in ids] == ids
            for peer in (origin, listener):
                peer.expect_quiet(0.05)


def hear(peer: Peer, heard: list[int]) -> None:
    """Broadcasts until the connection ends."""
    while True:
        heard.append(peer.expect("event_broadcast")["committed_id"])


# -- too slow ------------------------------------------------------------------------------------------------


@pytest.mark.req("BCAST-04", "CONN-10", "LIM-05")
def test_a_slow_consumer_is_closed_and_catches_up_by_sync(tmp_path: Path, part: str) -> None:
    """What it got before the close is a prefix without a gap; the others notice nothing."""
    options = (
        "--access-default", "allow", "--max-send-buffer-bytes", "350000", "--close-grace-s", "30",
        "--max-message-bytes", "60000", "--max-subscriptions", "64",
    )  # fmt: skip
    with running(tmp_path / "data", *options) as server, contextlib.ExitStack() as stack:
        address = urlsplit(server.url)
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.connect((address.hostname, address.port))
        slow = stack.enter_context(server.peer(sock=narrow, max_queue=1))
        slow.connect(f"{part}-slow", server.token(f"{part}-slow"), supported_profiles=["compatibility"])
        slow.subscribe(part)
        writer = stack.enter_context(server.client(f"{part}-w"))
        steady = stack.enter_context(server.client(f"{part}-s"))
        steady.subscribe(part)
        written = 0

        def write(events: int) -> None:
            for number in range(written, written + events):
                committed_id = writer.commit([part], set_event("text", f"{number:06d}" + "x" * 50_000))
                assert steady.expect("event_broadcast")["committed_id"] == committed_id

        while server.metric("unisono_closes_total", code="4005") == 0:
            assert written < 600, "30 MB and still not too slow"
            write(20)
            written += 20
        write(5)
        written += 5
        heard: list[int] = []
        with pytest.raises(Closed) as closed:
            hear(slow, heard)
        assert closed.value.code == 4005
        assert heard == list(range(1, len(heard) + 1))
        assert len(heard) < written
        with server.client(f"{part}-slow") as again:
            rest = [event["committed_id"] for event in again.history([part], len(heard))]
        assert rest == list(range(len(heard) + 1, written + 1))
