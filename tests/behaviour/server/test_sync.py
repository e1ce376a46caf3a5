"""Catch-up: what a page holds, how a cycle runs, and the seam between history and live events."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from tests.behaviour.server.harness import Peer, Server, item, running, set_event

EVENT = set_event("title", "Hello")
LONG = 1100
"""Events of the partition for limits: more than the largest page."""


@pytest.fixture(scope="module")
def small_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Bounds of its own, sync subscribes, a versioned model, and pages of few bytes."""
    directory = tmp_path_factory.mktemp("small")
    model = directory / "model"
    (model / "schemas").mkdir(parents=True)
    (model / "model.toml").write_text('name = "notes"\nmodel_version = 12\n')
    (model / "schemas" / "note.json").write_text(json.dumps({"type": "string"}))
    options = [
        "--access-default", "allow", "--model", str(model), "--sync-subscribes",
        "--sync-limit-min", "2", "--sync-limit-max", "6", "--max-sync-page-bytes", "65536",
    ]  # fmt: skip
    with running(directory / "data", *options) as started:
        yield started


@pytest.fixture(scope="module")
def two_fronts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("fronts") / "data"
    with running(data, "--access-default", "allow", "--fronts", "2") as started:
        yield started


@pytest.fixture(params=["one front", "two fronts"])
def either(request: pytest.FixtureRequest, server: Server, two_fronts: Server) -> Server:
    return server if request.param == "one front" else two_fronts


@pytest.fixture
def peer(server: Server, who: str) -> Iterator[Peer]:
    with server.client(who) as connected:
        yield connected


@pytest.fixture(scope="module")
def long_part(server: Server) -> str:
    """A partition with LONG events."""
    with server.client("filler-of-long") as peer:
        fill(peer, ["long-partition"], LONG)
    return "long-partition"


def fill(peer: Peer, partitions: Sequence[str], events: int) -> list[int]:
    """Commit so many events; their committed_ids."""
    ids: list[int] = []
    while len(ids) < events:
        size = min(100, events - len(ids))
        results = peer.submit(*(item(partitions, set_event("n", len(ids) + n)) for n in range(size)))
        ids += [result["committed_id"] for result in results]
    return ids


def ids_of(page: dict[str, Any]) -> list[int]:
    return [event["committed_id"] for event in page["events"]]


# -- pages ---------------------------------------------------------------------------------------------------


@pytest.mark.req("SYNC-01")
def test_what_intersects_after_the_cursor_ascending_and_each_once(peer: Peer, part: str) -> None:
    a, b, c = (f"{part}-{name}" for name in "abc")
    wanted = [[a], [c], [a, b], [b, c], [c], [a, b, c], [b]]
    ids = [peer.commit(partitions, set_event("n", n)) for n, partitions in enumerate(wanted)]
    for asked in ([a], [b], [a, b], [b, a, b], [a, b, c], [f"{part}-nothing", a]):
        expected = [id for id, partitions in zip(ids, wanted, strict=True) if {*partitions} & {*asked}]
        page = peer.sync(asked)
        assert ids_of(page) == expected
        assert page["has_more"] is False
        for since in (ids[0] - 1, ids[0], ids[2], ids[-1]):
            assert ids_of(peer.sync(asked, since)) == [id for id in expected if id > since]
    page = peer.sync([b])
    assert [event["event"]["payload"]["value"] for event in page["events"]] == [2, 3, 5, 6]
    assert page["partitions"] == [b]


@pytest.mark.req("SYNC-01")
def test_many_partitions_at_once(peer: Peer, part: str) -> None:
    parts = [f"{part}-{n:02d}" for n in range(64)]
    everywhere = peer.commit(parts, EVENT)
    ids = [peer.commit([name], EVENT) for name in parts[::7]]
    assert ids_of(peer.sync(parts)) == [everywhere, *ids]
    assert ids_of(peer.sync(parts[1:2])) == [everywhere]


@pytest.mark.req("SYNC-02")
@pytest.mark.parametrize(
    ("limit", "size"),
    [(-5, 50), (0, 50), (1, 50), (49, 50), (50, 50), (51, 51), (999, 999), (1000, 1000), (1001, 1000),
     (10**9, 1000), (2**64, 1000), (-(2**70), 50)],
)  # fmt: skip
def test_the_limit_is_clamped(peer: Peer, long_part: str, limit: int, size: int) -> None:
    page = peer.sync([long_part], limit=limit)
    assert len(page["events"]) == size
    assert page["has_more"] is True


@pytest.mark.req("SYNC-02")
def test_without_a_limit_a_page_has_500(peer: Peer, long_part: str) -> None:
    assert len(peer.sync([long_part])["events"]) == 500


@pytest.mark.req("SYNC-02", "LIM-01")
def test_the_bounds_are_the_advertised_ones(small_pages: Server, who: str, part: str) -> None:
    with small_pages.peer() as peer:
        limits = peer.connect(who, small_pages.token(who), supported_profiles=["compatibility"])["limits"]
        assert (limits["sync_limit_min"], limits["sync_limit_max"]) == (2, 6)
        fill(peer, [part], 8)
        for limit, size in ((1, 2), (2, 2), (5, 5), (6, 6), (7, 6)):
            assert len(peer.sync([part], limit=limit)["events"]) == size
        assert len(peer.sync([part])["events"]) == 6  # 500, clamped


@pytest.mark.req("SYNC-03")
@pytest.mark.parametrize(
    ("events", "sizes"), [(0, [0]), (49, [49]), (50, [50]), (51, [50, 1]), (100, [50, 50])]
)
def test_has_more_is_true_exactly_when_there_is_more(
    peer: Peer, part: str, events: int, sizes: list[int]
) -> None:
    ids = fill(peer, [part], events)
    after = peer.commit([f"{part}-other"], EVENT)  # the watermark is beyond the last event of the partition
    since, seen = 0, []
    for number, size in enumerate(sizes, 1):
        page = peer.sync([part], since, limit=50)
        seen += ids_of(page)
        assert len(page["events"]) == size
        assert page["has_more"] is (number < len(sizes))
        assert page["sync_to_committed_id"] == after
        since = page["next_since_committed_id"]
        assert since == (seen[-1] if page["has_more"] else after)
    assert seen == ids


@pytest.mark.req("SYNC-01", "SYNC-03", "LIM-05")
def test_a_page_cut_by_its_bytes_is_still_complete(small_pages: Server, who: str, part: str) -> None:
    """Cut short with has_more; an event larger than a page comes alone."""
    with small_pages.client(who) as peer:
        sizes = [20_000, 20_000, 20_000, 20_000, 100_000, 10, 10, 200_000, 30_000, 30_000, 10, 10, 10, 10]
        ids = [peer.commit([part], set_event("text", "x" * size)) for size in sizes]
        since, seen = 0, []
        pages: list[dict[str, Any]] = []
        while not pages or pages[-1]["has_more"]:
            pages.append(peer.sync([part], since, limit=6))
            seen += pages[-1]["events"]
            since = pages[-1]["next_since_committed_id"]
        assert [event["committed_id"] for event in seen] == ids
        assert [len(event["event"]["payload"]["value"]) for event in seen] == sizes
        assert [len(page["events"]) for page in pages] == [3, 1, 1, 2, 1, 6]
        assert len({page["sync_to_committed_id"] for page in pages}) == 1


# -- cycles --------------------------------------------------------------------------------------------------


@pytest.mark.req("SYNC-04", "SYNC-01")
def test_the_watermark_stands_still_while_commits_go_on(server: Server, part: str) -> None:
    with server.client(f"{part}-a") as peer, server.client(f"{part}-b") as writer:
        ids = fill(writer, [part], 170)
        since, seen, watermarks = 0, [], set()
        for _ in range(3):
            page = peer.sync([part], since, limit=50)
            assert page["has_more"]
            seen += ids_of(page)
            watermarks.add(page["sync_to_committed_id"])
            since = page["next_since_committed_id"]
            late = writer.commit([part], EVENT)
        page = peer.sync([part], since, limit=50)
        assert not page["has_more"]
        watermarks.add(page["sync_to_committed_id"])
        assert seen + ids_of(page) == ids
        assert watermarks == {ids[-1]}
        assert page["next_since_committed_id"] == ids[-1]
        # The cycle is over: from its end on, a new one brings the rest.
        page = peer.sync([part], ids[-1], limit=50)
        assert len(page["events"]) == 3
        assert page["sync_to_committed_id"] == late


@pytest.mark.req("SYNC-04")
def test_another_spelling_or_limit_continues_the_cycle(server: Server, part: str) -> None:
    a, b = f"{part}-\u00e9", f"{part}-b"
    with server.client(f"{part}-a") as peer, server.client(f"{part}-b") as writer:
        ids = fill(writer, [a, b], 210)
        first = peer.sync([a, b], limit=50)
        writer.commit([a], EVENT)
        second = peer.sync([b, a, b], first["next_since_committed_id"], limit=60)
        third = peer.sync([f"{part}-e\u0301", b], second["next_since_committed_id"], limit=70)
        pages = [first, second, third]
        assert [len(page["events"]) for page in pages] == [50, 60, 70]
        assert {page["sync_to_committed_id"] for page in pages} == {ids[-1]}


Asked = Callable[[list[str], int], tuple[list[str], int]]
NEW_CYCLES: dict[str, Asked] = {
    "fewer partitions": lambda parts, since: (parts[:1], since),
    "more partitions": lambda parts, since: ([*parts, f"{parts[0]}-more"], since),
    "other partitions": lambda parts, since: ([parts[1], f"{parts[0]}-more"], since),
    "from the start": lambda parts, _: (parts, 0),
    "from a little before": lambda parts, since: (parts, since - 1),
    "from a little after": lambda parts, since: (parts, since + 1),
}


@pytest.mark.req("SYNC-04")
@pytest.mark.parametrize("other", NEW_CYCLES.values(), ids=NEW_CYCLES)
def test_anything_else_starts_a_new_cycle(server: Server, part: str, other: Asked) -> None:
    parts = [f"{part}-1", f"{part}-2"]
    with server.client(f"{part}-a") as peer, server.client(f"{part}-b") as writer:
        ids = fill(writer, parts, 120)
        page = peer.sync(parts, limit=50)
        assert page["sync_to_committed_id"] == ids[-1]
        late = writer.commit(parts, EVENT)
        asked, since = other(parts, page["next_since_committed_id"])
        page = peer.sync(asked, since, limit=50)
        assert page["sync_to_committed_id"] == late


@pytest.mark.req("SYNC-04")
def test_another_sync_in_between_ends_the_cycle(server: Server, part: str) -> None:
    with server.client(f"{part}-a") as peer, server.client(f"{part}-b") as writer:
        ids = fill(writer, [part], 60)
        assert peer.sync([part], limit=50)["has_more"]
        late = writer.commit([part], EVENT)
        assert not peer.sync([f"{part}-other"], limit=50)["has_more"]
        page = peer.sync([part], ids[49], limit=50)
        assert page["sync_to_committed_id"] == late
        assert ids_of(page) == [*ids[50:], late]


@pytest.mark.req("SYNC-04", "CONN-08")
def test_a_cycle_ends_with_its_connection(server: Server, part: str) -> None:
    with server.client(f"{part}-b") as writer:
        ids = fill(writer, [part], 60)
        with server.client(f"{part}-a") as peer:
            page = peer.sync([part], limit=50)
            assert page["has_more"]
        late = writer.commit([part], EVENT)
        with server.client(f"{part}-a") as peer:
            page = peer.sync([part], page["next_since_committed_id"], limit=50)
            assert page["sync_to_committed_id"] == late
            assert ids_of(page) == [*ids[50:], late]


# -- cursors -------------------------------------------------------------------------------------------------


@pytest.mark.req("SYNC-07")
@pytest.mark.parametrize("ahead", [1, 1000, 2**53, 2**63, 2**64, 10**30])
def test_a_cursor_from_the_future(server: Server, part: str, ahead: int) -> None:
    with server.client(f"{part}-a") as peer, server.client(f"{part}-b") as writer:
        head = writer.commit([part], EVENT)
        page = peer.sync([part], head + ahead, subscription_partitions=[part])
        assert page["events"] == []
        assert page["has_more"] is False
        assert page["sync_to_committed_id"] == page["next_since_committed_id"] == head
        assert page["effective_subscriptions"] == [part]
        committed_id = writer.commit([part], EVENT)  # the subscription works from there on
        assert peer.expect("event_broadcast")["committed_id"] == committed_id


@pytest.mark.req("SYNC-03", "SYNC-07")
def test_a_cursor_at_the_head(peer: Peer, part: str) -> None:
    head = peer.commit([part], EVENT)
    page = peer.sync([part], head)
    assert page["events"] == []
    assert page["has_more"] is False
    assert page["sync_to_committed_id"] == page["next_since_committed_id"] == head


@pytest.mark.req("SYNC-07")
def test_an_empty_log(tmp_path_factory: pytest.TempPathFactory, who: str) -> None:
    data = tmp_path_factory.mktemp("empty") / "data"
    with running(data, "--access-default", "allow") as server, server.client(who) as peer:
        for since in (0, 1, 500):
            page = peer.sync(["p"], since)
            assert (len(page.pop("log_id")), page.pop("log_epoch")) == (32, 1)
            assert page == {
                "partitions": ["p"],
                "effective_subscriptions": [],
                "events": [],
                "next_since_committed_id": 0,
                "sync_to_committed_id": 0,
                "has_more": False,
            }


@pytest.mark.req("SYNC-01", "SYNC-02")
def test_a_cursor_and_a_limit_may_be_written_as_floats(peer: Peer, part: str) -> None:
    for number in range(3):
        peer.commit([part], set_event("x", number))
    first, *rest = peer.history([part])
    page = peer.sync([part], float(first["committed_id"]), limit=50.0)  # type: ignore[arg-type]
    assert page["events"] == rest


@pytest.mark.req("SYNC-01", "ENV-02")
@pytest.mark.parametrize(
    "wrong",
    [
        {"since_committed_id": None}, {"since_committed_id": "0"}, {"since_committed_id": -1},
        {"since_committed_id": 1.5}, {"since_committed_id": [0]}, {"limit": "50"}, {"limit": []},
    ],
)  # fmt: skip
def test_a_wrong_cursor_or_limit_is_bad_request(peer: Peer, part: str, wrong: dict[str, Any]) -> None:
    request: dict[str, Any] = {
        "partitions": [part],
        "since_committed_id": 0,
        "subscription_partitions": [part],
    }
    peer.send("sync", request | wrong)
    peer.expect_error("bad_request")
    del request["since_committed_id"]
    peer.send("sync", request)
    peer.expect_error("bad_request")
    assert peer.sync([part])["effective_subscriptions"] == []


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
