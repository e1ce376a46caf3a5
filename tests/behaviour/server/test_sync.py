"""Catch-up: what a page holds, how a cycle runs, and the seam between history and live events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.behaviour.server.harness import Peer, Server, running, set_event
from tests.behaviour.server.syncing import EVENT, fill, ids_of

LONG = 1100
"""Events of the partition for limits: more than the largest page."""


@pytest.fixture(scope="module")
def long_part(server: Server) -> str:
    """A partition with LONG events."""
    with server.client("filler-of-long") as peer:
        fill(peer, ["long-partition"], LONG)
    return "long-partition"


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
