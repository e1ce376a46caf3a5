"""What clients have queued at the authority counts until it is taken, whatever becomes of their connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.behaviour.server.harness import Peer, Server, item, running, set_event
from tests.behaviour.server.pressure import authority_stopped, rate_limited, settled
from tests.waiting import until

LARGE = set_event("x", "y" * 600_000)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One large message and a bit more may wait for judgement."""
    data: Path = tmp_path_factory.mktemp("narrow") / "data"
    with running(data, "--access-default", "allow", "--max-queue-bytes", str(1024 * 1024)) as started:
        yield started


@pytest.mark.req("LIM-05")
def test_closing_a_connection_makes_no_room_in_the_queue(narrow: Server, who: str, part: str) -> None:
    with narrow.client(f"{who}-0") as first, narrow.client(f"{who}-1") as second:
        with authority_stopped(narrow):
            first.send("submit_event", item([part], LARGE))
            settled(first)
            first.close()
            for _ in range(3):
                second.send("submit_event", item([part], LARGE))
                rate_limited(second)
        second.send("submit_event", item([part], set_event("x", "small")))
        second.expect("event_committed")
        second.send("submit_event", item([part], LARGE))  # what was queued is done with
        second.expect("event_committed")
        assert len(second.history([part])) == 3
    until(lambda: narrow.metric("unisono_in_flight_bytes") == 0, "something still counts as queued")
    assert narrow.metric("unisono_in_flight_items") == 0


@pytest.mark.req("LIM-05", "CONN-05")
def test_what_a_replaced_connection_has_queued_counts_until_it_is_taken(
    narrow: Server, who: str, part: str
) -> None:
    with narrow.client(who) as older, narrow.client(f"{who}-b") as other:
        with authority_stopped(narrow):
            older.send("submit_event", item([part], LARGE))
            settled(older)
            with narrow.client(who) as newer:
                older.expect_close(4003)
                other.send("submit_event", item([part], LARGE))
                rate_limited(other)
                settled(newer)
        until(lambda: narrow.metric("unisono_in_flight_bytes") == 0, "something still counts as queued")
        other.commit([part], LARGE)
        assert [event["client_id"] for event in other.history([part])] == [who, f"{who}-b"]


@pytest.fixture(scope="module")
def narrow_two_fronts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same with fronts that ask the authority at each connect."""
    data: Path = tmp_path_factory.mktemp("narrow") / "data"
    options = ("--access-default", "allow", "--max-queue-bytes", str(1024 * 1024), "--fronts", "2")
    with running(data, *options) as started:
        yield started


def at_first_front(server: Server, connect: Callable[[], Peer]) -> Peer:
    """A connection of the first front: the system chooses the front, so some more may be opened."""

    def opened() -> float:
        return server.metric("unisono_connections_opened_total", process="front 0")

    for _ in range(100):
        before = opened()
        peer = connect()
        settled(peer)
        if opened() > before:
            return peer
        peer.close()
    raise AssertionError("all connections are with the other front")


@pytest.mark.req("LIM-05", "CONN-05")
def test_what_a_replaced_connection_has_queued_is_given_back(
    narrow_two_fronts: Server, who: str, part: str
) -> None:
    narrow = narrow_two_fronts
    with (
        at_first_front(narrow, lambda: narrow.client(who)) as older,
        at_first_front(narrow, lambda: narrow.client(f"{who}-b")) as other,
        at_first_front(narrow, narrow.peer) as newer,
    ):
        with authority_stopped(narrow):
            newer.send(
                "connect",
                {"token": narrow.token(who), "client_id": who, "supported_profiles": ["compatibility"]},
            )
            for _ in range(3):  # by then the front has read the connect and verified its token
                settled(other)
            older.send("submit_event", item([part], LARGE))
            settled(older)
            other.send("submit_event", item([part], LARGE))
            rate_limited(other)
        older.expect_close(4003)
        newer.expect("connected")
        other.send("submit_event", item([part], LARGE))
        other.expect("event_committed")
        assert [event["client_id"] for event in other.history([part])] == [f"{who}-b"]
    until(lambda: narrow.metric("unisono_in_flight_bytes") == 0, "something still counts as queued")
