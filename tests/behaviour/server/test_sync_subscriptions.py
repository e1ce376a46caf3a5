"""Subscriptions set by a sync, the model's version on a page, and the seam between pages and broadcasts."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from tests.behaviour.server.harness import Peer, Server, item
from tests.behaviour.server.syncing import EVENT, fill, ids_of

# -- subscriptions -------------------------------------------------------------------------------------------


@pytest.mark.req("SYNC-05", "CONN-09")
def test_replaced_cleared_or_left_alone(peer: Peer, part: str) -> None:
    a, b, c = (f"{part}-{name}" for name in ("\U0001f600", "\uff5e", "a"))
    assert peer.sync([a])["effective_subscriptions"] == []
    assert peer.sync([a], subscription_partitions=[a, c, b, a])["effective_subscriptions"] == [c, b, a]
    assert peer.sync([part])["effective_subscriptions"] == [c, b, a]
    assert peer.sync([part], 10**9)["effective_subscriptions"] == [c, b, a]
    assert peer.sync([part], subscription_partitions=[b])["effective_subscriptions"] == [b]
    assert peer.sync([a, b, c], subscription_partitions=[])["effective_subscriptions"] == []
    assert peer.sync([a, b, c])["effective_subscriptions"] == []


@pytest.mark.req("SYNC-05", "SYNC-04")
def test_every_page_tells_the_subscriptions_in_force(server: Server, part: str) -> None:
    """Dropping some in mid-cycle takes effect and leaves the cycle running."""
    other = f"{part}-other"
    with server.client(f"{part}-a") as peer, server.client(f"{part}-b") as writer:
        ids = fill(writer, [part], 160)
        page = peer.sync([part], limit=50, subscription_partitions=[part, other])
        assert page["effective_subscriptions"] == [part, other]
        page = peer.sync([part], ids[49], limit=50)
        assert page["effective_subscriptions"] == [part, other]
        writer.commit([other], EVENT)
        peer.expect("event_broadcast")
        page = peer.sync([part], ids[99], limit=50, subscription_partitions=[part])
        assert page["effective_subscriptions"] == [part]
        assert page["sync_to_committed_id"] == ids[-1]
        writer.commit([other], EVENT)
        late = writer.commit([part], EVENT)
        assert peer.expect("event_broadcast")["committed_id"] == late
        page = peer.sync([part], ids[149], limit=50)
        assert (ids_of(page), page["has_more"]) == (ids[150:], False)


@pytest.mark.req("SYNC-04", "SYNC-06")
def test_adding_a_subscription_in_mid_cycle_starts_a_new_cycle(server: Server, part: str) -> None:
    """What was committed there since the old watermark went unheard, so only a newer one covers it."""
    added = f"{part}-added"
    with server.client(f"{part}-a") as peer, server.client(f"{part}-b") as writer:
        ids = fill(writer, [part], 120)
        page = peer.sync([part], limit=50, subscription_partitions=[part])
        unheard = writer.commit([added], EVENT)
        page = peer.sync([part], ids[49], limit=50, subscription_partitions=[part, added])
        assert page["sync_to_committed_id"] == unheard
        assert ids_of(page) == ids[50:100]
        heard = writer.commit([added], EVENT)
        assert peer.expect("event_broadcast")["committed_id"] == heard
        page = peer.sync([part], ids[99], limit=50)
        assert page["sync_to_committed_id"] == unheard
        assert ids_of(page) == ids[100:]


@pytest.mark.req("SYNC-09")
def test_a_partition_added_later_is_synced_on_its_own(server: Server, part: str) -> None:
    first, second = f"{part}-1", f"{part}-2"
    with server.client(f"{part}-a") as peer, server.client(f"{part}-b") as writer:
        fill(writer, [first], 3)
        history = fill(writer, [second], 120)
        cursor = peer.subscribe(first)["next_since_committed_id"]
        page = peer.sync([second], 0, limit=50, subscription_partitions=[first, second])
        seen = ids_of(page)
        live = [writer.commit([first], EVENT), writer.commit([second], EVENT)]
        assert [peer.expect("event_broadcast")["committed_id"] for _ in live] == live
        while page["has_more"]:
            page = peer.sync([second], page["next_since_committed_id"], limit=50)
            seen += ids_of(page)
            assert page["effective_subscriptions"] == [first, second]
        assert seen == history
        assert ids_of(peer.sync([first], cursor)) == live[:1]


@pytest.mark.req("SYNC-11")
def test_a_sync_does_not_subscribe_by_default(server: Server, part: str) -> None:
    with server.client(f"{part}-a") as peer, server.client(f"{part}-b") as writer:
        assert peer.sync([part])["effective_subscriptions"] == []
        writer.commit([part], EVENT)
        peer.expect_quiet()


@pytest.mark.req("SYNC-11", "SYNC-05")
def test_a_sync_subscribes_where_the_operator_says_so(small_pages: Server, part: str) -> None:
    a, b, c = (f"{part}-{name}" for name in "abc")
    with small_pages.client(f"{part}-a") as peer, small_pages.client(f"{part}-b") as writer:
        assert peer.sync([b])["effective_subscriptions"] == [b]
        committed_id = writer.commit([b], EVENT)
        assert peer.expect("event_broadcast")["committed_id"] == committed_id
        assert peer.sync([a])["effective_subscriptions"] == [a, b]  # added, the others undisturbed
        # With the field, the field rules.
        assert peer.sync([a, b], subscription_partitions=[c])["effective_subscriptions"] == [c]
        assert peer.sync([a], subscription_partitions=[])["effective_subscriptions"] == []
        writer.commit([a, b, c], EVENT)
        peer.expect_quiet()


@pytest.mark.req("SYNC-11", "LIM-05")
def test_subscriptions_by_sync_are_bounded_too(small_pages: Server, who: str, part: str) -> None:
    names = [f"{part}-{n:04d}" for n in range(1001)]
    with small_pages.client(who) as peer:
        peer.sync(names[:600])
        assert peer.sync(names[300:1000])["effective_subscriptions"] == names[:1000]
        peer.send("sync", {"partitions": names[999:], "since_committed_id": 0})
        peer.expect_error("validation_failed")
        assert peer.sync(names[:1])["effective_subscriptions"] == names[:1000]
        assert peer.sync(names[1000:], subscription_partitions=[])["effective_subscriptions"] == []
        assert peer.sync(names[1000:])["effective_subscriptions"] == names[1000:]


@pytest.mark.req("SYNC-06", "SYNC-11")
def test_subscribing_again_by_a_sync_leaves_no_gap(small_pages: Server, part: str) -> None:
    """Cleared in mid-cycle and set again by the next page: what was missed in between is in the pages."""
    with small_pages.client(f"{part}-a") as peer, small_pages.client(f"{part}-b") as writer:
        ids = fill(writer, [part], 8)
        page = peer.sync([part], limit=2)
        assert page["effective_subscriptions"] == [part]
        page = peer.sync([part], ids[1], limit=2, subscription_partitions=[])
        missed = writer.commit([part], EVENT)
        peer.expect_quiet(0.05)
        page = peer.sync([part], ids[3], limit=2)
        assert page["effective_subscriptions"] == [part]
        assert page["sync_to_committed_id"] == missed
        heard = writer.commit([part], EVENT)
        assert peer.expect("event_broadcast")["committed_id"] == heard
        assert ids_of(peer.sync([part], ids[5], limit=6)) == [*ids[6:], missed]


# -- the model's version -------------------------------------------------------------------------------------


@pytest.mark.req("SYNC-08", "CONN-04")
@pytest.mark.parametrize("profile", ["canonical", "compatibility"])
def test_model_version_is_told_where_there_is_one(
    small_pages: Server, server: Server, who: str, part: str, profile: str
) -> None:
    event = {"type": "event", "payload": {"schema": "note", "data": "x"}} if profile == "canonical" else EVENT
    with small_pages.peer() as peer:
        connected = peer.connect(who, small_pages.token(who), supported_profiles=[profile])
        assert connected["model_version"] == 12
        for _ in range(3):
            peer.commit([part], event)
        first = peer.sync([part], limit=2)
        last = peer.sync([part], first["next_since_committed_id"], limit=2)
        assert (first["has_more"], last["has_more"]) == (True, False)
        assert first["model_version"] == last["model_version"] == 12
    with server.peer() as peer:  # the open model has none
        assert "model_version" not in peer.connect(who, server.token(who), supported_profiles=[profile])
        assert "model_version" not in peer.sync([part])


# -- the seam ------------------------------------------------------------------------------------------------


class Caught(msgspec.Struct):
    """What one cycle with a subscription brought: pages up to `sync_to`, broadcasts up to `fence`."""

    since: int
    sync_to: int
    pages: list[int]
    broadcasts: list[int]
    fence: int = 0


def catch_up(peer: Peer, parts: Sequence[str], since: int, limit: int) -> Caught:
    """A whole cycle that sets the subscription with its first page; broadcasts may come at any time."""
    request: dict[str, Any] = {"partitions": parts, "since_committed_id": since, "limit": limit}
    peer.send("sync", request | {"subscription_partitions": parts})
    caught = Caught(since, -1, [], [])
    while True:
        message = peer.receive()
        payload = message["payload"]
        if message["type"] == "event_broadcast":
            caught.broadcasts.append(payload["committed_id"])
            continue
        assert message["type"] == "sync_response", message
        assert caught.sync_to in (-1, payload["sync_to_committed_id"])
        caught.sync_to = payload["sync_to_committed_id"]
        caught.pages += ids_of(payload)
        if not payload["has_more"]:
            return caught
        peer.send("sync", request | {"since_committed_id": payload["next_since_committed_id"]})


def listen_then_leave(peer: Peer, parts: Sequence[str], caught: Caught, events: int) -> None:
    """So many more broadcasts, then unsubscribe: what comes before the answer is all there was up to it."""
    for _ in range(events):
        caught.broadcasts.append(peer.expect("event_broadcast")["committed_id"])
    peer.send("sync", {"partitions": parts, "since_committed_id": 2**53, "subscription_partitions": []})
    while (message := peer.receive())["type"] == "event_broadcast":
        caught.broadcasts.append(message["payload"]["committed_id"])
    caught.fence = message["payload"]["sync_to_committed_id"]


@pytest.mark.req("SYNC-06", "SYNC-01", "SYNC-04", "BCAST-04", "ORD-02")
def test_no_gap_and_nothing_twice_at_the_seam(either: Server, part: str) -> None:
    """Writers commit all the time; pages and broadcasts together are exactly the log, each event once."""
    a, b, c = parts = [f"{part}-{name}" for name in "abc"]
    stop = threading.Event()
    with either.client(f"{part}-first") as first:
        start: int = first.sync([part], 2**53)["sync_to_committed_id"]

    def write(number: int) -> dict[int, list[str]]:
        committed: dict[int, list[str]] = {}
        turns = [[a], [b], [c], [a, b], [b, c]]
        with either.client(f"{part}-writer-{number}") as peer:
            while not stop.is_set():
                turn = [turns[(len(committed) + n) % 5] for n in range(1 + len(committed) % 3)]
                results = peer.submit(*(item(partitions, EVENT) for partitions in turn))
                for result, partitions in zip(results, turn, strict=True):
                    committed[result["committed_id"]] = partitions
                time.sleep(0.002)
        return committed

    def newcomers() -> list[Caught]:
        """A new connection each time, from the start of this test."""
        rounds = []
        for number in range(20):
            with either.client(f"{part}-new-{number}") as peer:
                rounds.append(catch_up(peer, [a, b], start, 50 if number % 2 else 1000))
                listen_then_leave(peer, [a, b], rounds[-1], 8)
        return rounds

    def regular() -> list[Caught]:
        """One connection that leaves and comes back to where it left."""
        rounds = []
        cursor = start
        with either.client(f"{part}-regular") as peer:
            for number in range(60):
                rounds.append(catch_up(peer, [a, b], cursor, 50))
                listen_then_leave(peer, [a, b], rounds[-1], number % 8)
                cursor = rounds[-1].fence
        return rounds

    def restless() -> list[Caught]:
        """One connection that syncs again from its cursor while it is subscribed."""
        rounds = []
        cursor = start
        with either.client(f"{part}-restless") as peer:
            for _ in range(60):
                rounds.append(catch_up(peer, [a, b], cursor, 50))
                cursor = max([rounds[-1].sync_to, *rounds[-1].broadcasts])
            listen_then_leave(peer, [a, b], rounds[-1], 3)
        return rounds

    with ThreadPoolExecutor(5) as pool:
        writing = [pool.submit(write, number) for number in range(2)]
        try:
            reading = [pool.submit(read) for read in (newcomers, regular, restless)]
            new, back, again = (future.result() for future in reading)
        finally:
            stop.set()
        log: dict[int, list[str]] = {}
        for future in writing:
            log |= future.result()

    due = sorted(id for id, partitions in log.items() if {a, b} & {*partitions})

    def between(since: int, upto: int) -> list[int]:
        return [id for id in due if since < id <= upto]

    for caught in new + back:
        assert caught.pages == between(caught.since, caught.sync_to)
        assert caught.broadcasts == between(caught.sync_to, caught.fence)
    whole = [id for caught in back for id in caught.pages + caught.broadcasts]
    assert whole == between(start, back[-1].fence)
    # While subscribed, broadcasts up to the new watermark may repeat in the pages, and nothing else.
    live: list[int] = []
    for caught in again:
        assert caught.pages == between(caught.since, caught.sync_to)
        live += caught.broadcasts
    assert live == between(again[0].sync_to, again[-1].fence)
    with either.client(f"{part}-reader") as peer:
        assert [event["committed_id"] for event in peer.history(parts, start)] == sorted(log)


# -- many partitions -----------------------------------------------------------------------------------------


@pytest.mark.req("PART-01", "SYNC-01", "SYNC-04", "SYNC-05", "SYNC-06", "LIM-01")
def test_a_thousand_partitions_are_synced_and_heard(server: Server, part: str) -> None:
    names = sorted(f"{part}-{number:03}-{'x' * 100}" for number in range(1000))
    with server.client(f"{part}-a") as peer, server.client(f"{part}-b") as writer:
        ids = [
            result["committed_id"]
            for start in range(0, 300, 50)
            for result in writer.submit(
                *(item([names[number * 3 % 1000]], EVENT) for number in range(start, start + 50))
            )
        ]
        page = peer.sync(names, limit=100, subscription_partitions=names)
        got = ids_of(page)
        assert page["partitions"] == page["effective_subscriptions"] == names
        live = writer.commit([names[999]], EVENT)
        assert peer.expect("event_broadcast")["committed_id"] == live
        while page["has_more"]:
            page = peer.sync(names, got[-1], limit=100)
            got += ids_of(page)
            assert page["sync_to_committed_id"] < live, "the watermark holds still"
        assert got == ids
        peer.sync([part], subscription_partitions=[])
        writer.commit([names[0]], EVENT)
        peer.expect_quiet(0.05)
