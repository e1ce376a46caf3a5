"""One connection a client: the newest wins, whatever the older one had in flight."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.server.harness import Closed, Peer, Server, item, set_event, tree_event
from tests.behaviour.server.pressure import still_active
from tests.waiting import until


@pytest.mark.req("CONN-05", "CONN-08", "CONN-10")
def test_a_newer_connection_closes_the_older_and_inherits_nothing(
    either: Server, who: str, part: str
) -> None:
    with either.client(who) as older, either.client(f"{who}-b") as other:
        older.subscribe(part)
        with either.client(who) as newer:
            assert "newer" in older.expect_close(4003)
            other.commit([part], tree_event("A"))
            newer.expect_quiet()
            assert newer.sync([part])["effective_subscriptions"] == []
            newer.subscribe(part)
            committed_id = other.commit([part], tree_event("B"))
            assert newer.expect("event_broadcast")["committed_id"] == committed_id
            newer.commit([part], tree_event("C"))


@pytest.mark.req("CONN-05")
def test_fifty_quick_takeovers_always_leave_the_newest(either: Server, who: str, part: str) -> None:
    peers = [either.peer() for _ in range(50)]
    token = either.token(who)
    for number, peer in enumerate(peers):
        peer.connect(who, token, supported_profiles=["compatibility"])
        peer.send("submit_event", item([part], set_event("n", number)))
    for peer in peers[:-1]:
        answered = [message["type"] for message in until_closed(peer, 4003)]
        assert answered in ([], ["event_committed"])  # dropped whole when it was replaced first
    peers[-1].expect("event_committed")
    still_active(peers[-1])
    for peer in peers:
        peer.close()
    if either.arguments[-2:] == ("--fronts", "2"):
        for process in ("front 0", "front 1"):
            assert either.metric("unisono_connections_opened_total", process=process) > 0


def until_closed(peer: Peer, code: int) -> list[dict[str, Any]]:
    """Everything that comes before the close, which must have this code."""
    messages: list[dict[str, Any]] = []
    with pytest.raises(Closed) as closed:
        messages.extend(iter(peer.receive, None))
    assert closed.value.code == code, (closed.value, messages)
    return messages


@pytest.mark.req("CONN-05")
def test_takeovers_that_race_leave_exactly_one(either: Server, who: str) -> None:
    peers = [either.peer() for _ in range(20)]
    token = either.token(who)
    for peer in peers:
        peer.send("connect", {"token": token, "client_id": who})
    for peer in peers:
        peer.expect("connected")

    def alive() -> list[Peer]:
        return [peer for peer in peers if peer.socket.protocol.close_code is None]

    until(lambda: len(alive()) <= 1, "more than one is left")
    (left,) = alive()
    still_active(left)
    for peer in peers:
        if peer is not left:
            peer.expect_close(4003)
        peer.close()


@pytest.mark.req("CONN-05")
def test_what_an_older_connection_had_in_flight_is_answered_or_dropped_whole(
    either: Server, who: str, part: str
) -> None:
    """Its successor retries, and the log then holds each draft once."""
    drafts = [item([part], tree_event(f"n{n}"), f"{part}-{n}") for n in range(50)]
    with either.client(who) as older, either.peer() as newer:
        older.send("submit_events", {"events": drafts})
        newer.connect(who, either.token(who), supported_profiles=["compatibility"])
        until_closed(older, 4003)
        results = newer.submit(*drafts)
        assert {result["status"] for result in results} == {"committed"}
        assert [event["id"] for event in newer.history([part])] == [draft["id"] for draft in drafts]
