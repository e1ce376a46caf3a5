"""The client against conforming servers that are not ours: what it says to them, and what it makes of theirs."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.client.peers import Line, event, playing
from tests.client.running import WAIT_S, Gate, asynchronous, client, until
from unisono.client import Committed, Options, Phase, Rejected
from unisono.protocol.extensions import EXTENSIONS


def kinds(log: list[dict[str, Any]]) -> list[str]:
    return [message["type"] for message in log if message["type"] != "heartbeat"]


def syncs(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message["payload"] for message in log if message["type"] == "sync"]


def view_of(*numbers: int) -> dict[str, int]:
    return {f"k{number}": number for number in numbers}


@asynchronous
async def test_what_the_client_says_is_in_the_words_of_the_protocol() -> None:
    def script(line: Line) -> None:
        told = line.welcome(limits={"max_batch_size": 2})
        assert told == {
            "token": "t",
            "client_id": "me",
            "last_committed_id": 0,
            "supported_profiles": ["compatibility"],
            "required_profile": "compatibility",
            "required_tree_policy": "strict",
            "snapshots": True,
            "extensions": list(EXTENSIONS),
        }
        asked = line.expect("sync")
        assert asked == {
            "partitions": ["p"], "since_committed_id": 0, "limit": 1000, "subscription_partitions": ["p"]
        }  # fmt: skip
        line.page(to=0)
        sizes: list[int] = []
        committed_id = 0
        while sum(sizes) < 3:
            batch = line.expect("submit_events")["events"]
            sizes.append(len(batch))
            results = []
            for item in batch:
                assert set(item) == {"id", "partitions", "event"}
                committed_id += 1
                results.append({
                    "id": item["id"], "status": "committed", "committed_id": committed_id, "status_updated_at": 1
                })  # fmt: skip
            line.say("submit_events_result", {"results": results})
        assert sizes == [2, 1]
        line.hold()

    with playing(script) as peer:
        gate = Gate()
        async with client(peer.url, "me", "p", token=gate) as one:
            for number in range(3):
                await one.set(f"k{number}", number)
            gate.open()
            await one.caught_up(WAIT_S)
            assert one.view() == view_of(0, 1, 2)
        await until(lambda: kinds(peer.log)[-1] == "disconnect")
        for message in peer.log:
            assert set(message) == {"type", "msg_id", "timestamp", "protocol_version", "payload"}
            assert message["protocol_version"] == "1.0"
        ids = [message["msg_id"] for message in peer.log]
        assert len(ids) == len(set(ids))
        assert one.status.phase is Phase.OFFLINE


@asynchronous
async def test_a_server_of_the_first_draft_that_tells_no_capabilities_and_no_limits() -> None:
    def script(line: Line) -> None:
        line.expect("connect")
        line.say(
            "connected", {"client_id": "me", "server_time": 1, "server_last_committed_id": 1, "extra": {}}
        )
        line.expect("sync")
        line.say("something_new", {"unknown": True})
        line.page(event(1) | {"unknown": [1]}, to=1)
        (item,) = line.expect("submit_events")["events"]
        line.say("event_committed", event(2) | item | {"committed_id": 2})
        line.say("submit_events_result", {
            "results": [{"id": item["id"], "status": "committed", "committed_id": 2, "status_updated_at": 1.0}]
        })  # fmt: skip
        line.hold()

    with playing(script) as peer:
        async with client(peer.url, "me", "p") as one:
            draft = await one.set("mine", 1)
            assert await draft.settled(WAIT_S) == Committed(draft.id, 2, 1)
            assert one.view() == view_of(1) | {"mine": 1}
            assert one.status.cursor == 1, "nothing was said of ordered delivery"


@pytest.mark.req("CLIENT-04")
@asynchronous
async def test_results_in_another_order_and_broadcasts_again_and_again() -> None:
    def script(line: Line) -> None:
        line.welcome()
        line.expect("sync")
        line.broadcast(3)
        line.page(event(1), event(2), to=2)
        items = line.expect("submit_events")["events"]
        numbers = {item["id"]: 4 + n for n, item in enumerate(items)}
        for item in reversed(items):
            line.broadcast(numbers[item["id"]], **item)
        line.broadcast(9)
        line.broadcast(3)
        line.say("submit_events_result", {
            "results": [
                {"id": id, "status": "committed", "committed_id": n, "status_updated_at": 1}
                for id, n in reversed(numbers.items())
            ]
        })  # fmt: skip
        for _ in range(3):
            line.broadcast(8)
        line.broadcast(1)
        line.hold()

    with playing(script) as peer:
        gate = Gate()
        async with client(peer.url, "me", "p", token=gate) as one:
            drafts = [await one.set("n", n) for n in range(4)]
            gate.open()
            outcomes = [await draft.settled(WAIT_S) for draft in drafts]
            assert [each.committed_id for each in outcomes if isinstance(each, Committed)] == [4, 5, 6, 7]
            await until(lambda: one.view() == view_of(1, 2, 3, 8, 9) | {"n": 3})
            assert one.status.cursor == 2


@pytest.mark.req("CLIENT-05", "CLIENT-06")
@asynchronous
async def test_a_connection_lost_in_a_cycle_goes_on_from_the_last_durable_page(tmp_path: Path) -> None:
    def first(line: Line) -> None:
        line.welcome(ordered=True)
        assert line.expect("sync")["since_committed_id"] == 0
        line.page(event(1), event(2), to=6, more=True)
        assert line.expect("sync") == {"partitions": ["p"], "since_committed_id": 2, "limit": 1000}
        line.broadcast(7)
        line.socket.close()

    def second(line: Line) -> None:
        line.welcome(ordered=True)
        assert line.expect("sync")["since_committed_id"] == 2
        line.page(event(3), event(6), to=7, more=True)
        line.expect("sync")
        line.broadcast(8)
        line.broadcast(5)
        line.page(event(7), to=7)
        line.hold()

    with playing(first, second) as peer:
        async with client(peer.url, "me", "p", store=tmp_path / "c.db") as one:
            await until(lambda: one.view() == view_of(1, 2, 3, 5, 6, 7, 8))
            assert one.status.cursor == 8
        assert [each["since_committed_id"] for each in syncs(peer.log)] == [0, 2, 2, 6]


@pytest.mark.req("CLIENT-07")
@asynchronous
async def test_a_slow_server_never_gets_a_second_sync_before_it_answered(tmp_path: Path) -> None:
    added = {name: threading.Event() for name in "qr"}

    def script(line: Line) -> None:
        line.welcome()
        for name in "qr":
            line.expect("sync")
            line.quiet_until(added[name])
            line.page(to=0)
        line.expect("sync")
        line.page(to=0)
        line.hold()

    with playing(script) as peer:
        async with client(peer.url, "me", "p") as one:
            await until(lambda: one.status.phase is Phase.SYNCING)
            await one.add_partition("q")
            await one.set("a", 1, partition="q")
            await asyncio.sleep(0.15)
            added["q"].set()
            await until(lambda: len(syncs(peer.log)) == 2)
            await one.add_partition("r")
            await asyncio.sleep(0.15)
            added["r"].set()
            await until(lambda: kinds(peer.log)[-1] == "submit_events")
        assert kinds(peer.log)[:5] == ["connect", "sync", "sync", "sync", "submit_events"]
        assert [each["partitions"] for each in syncs(peer.log)] == [["p"], ["q"], ["r"]]


@pytest.mark.req("CLIENT-08")
@asynchronous
async def test_on_a_new_connection_drafts_come_last_and_in_order() -> None:
    def script(line: Line) -> None:
        line.welcome()
        line.expect("sync")
        line.page(to=0)
        items = line.expect("submit_events")["events"]
        assert [item["event"]["payload"]["value"] for item in items] == list(range(10))
        line.say("submit_events_result", {
            "results": [
                {"id": item["id"], "status": "rejected", "reason": "validation_failed", "status_updated_at": 1}
                for item in items
            ]
        })  # fmt: skip
        line.hold()

    with playing(lambda line: line.socket.close(), script) as peer:
        async with client(peer.url, "me", "p") as one:
            drafts = [await one.set("n", n) for n in range(10)]
            outcomes = [await draft.settled(WAIT_S) for draft in drafts]
            assert all(isinstance(outcome, Rejected) for outcome in outcomes)
            assert one.view() == {}
            assert len(one.rejected()) == 10


@pytest.mark.req("CLIENT-12")
@asynchronous
async def test_a_committed_id_with_another_event_is_an_integrity_violation() -> None:
    def script(line: Line) -> None:
        line.welcome(ordered=True)
        line.expect("sync")
        line.page(event(1), event(2), to=2)
        line.broadcast(2, id="an-impostor")
        assert line.expect("sync")["since_committed_id"] == 0
        line.page(event(1), event(2, "an-impostor"), to=2)
        line.hold()

    with playing(script) as peer:
        async with client(peer.url, "me", "p") as one:
            await until(lambda: len(syncs(peer.log)) == 2)
            await one.caught_up(WAIT_S)
            assert one.view() == view_of(1, 2)
            assert one.status.last_error is not None
            assert one.status.last_error.code == "integrity_violation"
            assert "an-impostor" in one.status.last_error.message


@pytest.mark.req("CLIENT-14")
@asynchronous
async def test_a_result_never_moves_the_cursor_past_what_is_still_in_flight(tmp_path: Path) -> None:
    """The server commits ours as 5, and loses the line before it has told of 4."""

    seen = threading.Event()

    def first(line: Line) -> None:
        line.welcome()
        line.expect("sync")
        line.page(event(3), to=3)
        (item,) = line.expect("submit_events")["events"]
        line.say("submit_events_result", {
            "results": [{"id": item["id"], "status": "committed", "committed_id": 5, "status_updated_at": 1}]
        })  # fmt: skip
        line.broadcast(6)
        line.quiet_until(seen)
        line.socket.close()

    def second(line: Line) -> None:
        line.welcome()
        assert line.expect("sync")["since_committed_id"] == 3
        line.page(event(4), event(6), to=6)
        line.hold()

    path = tmp_path / "c.db"
    with playing(first, second) as peer:
        async with client(peer.url, "me", "p", store=path) as one:
            draft = await one.set("k4", "older")
            await draft.settled(WAIT_S)
            await until(lambda: one.view() == view_of(3, 6) | {"k4": "older"})
            assert one.status.cursor == 3
            seen.set()
            await until(lambda: one.status.cursor == 6)
            assert one.view() == view_of(3, 6) | {"k4": "older"}, (
                "5 comes after 4, whenever each was heard of"
            )


@pytest.mark.req("CLIENT-14")
@asynchronous
async def test_without_ordered_delivery_pages_move_the_cursor_now_and_then() -> None:
    def script(line: Line) -> None:
        line.welcome()
        line.expect("sync")
        line.page(to=0)
        for number in range(1, 11):
            line.broadcast(number)
        assert line.expect("sync")["since_committed_id"] == 0
        line.page(*(event(n) for n in range(1, 11)), to=10)
        line.hold()

    with playing(script) as peer:
        options = Options(tail_events_max=10)
        async with client(peer.url, "me", "p", options=options) as one:
            await until(lambda: one.status.cursor == 10)
            assert one.view() == view_of(*range(1, 11))


@asynchronous
async def test_errors_of_other_servers() -> None:
    """Without details: partitions one by one; a batch refused whole: drafts one by one."""

    def script(line: Line) -> None:
        line.welcome()
        line.expect("sync")
        line.say("error", {"code": "forbidden", "message": "no"})
        assert line.expect("sync")["partitions"] == ["p"]
        line.page(to=0)
        assert line.expect("sync")["partitions"] == ["q"]
        line.say("error", {"code": "forbidden", "message": "no"})
        assert len(line.expect("submit_events")["events"]) == 3
        line.say("error", {"code": "rate_limited", "message": "slow down", "retry_after_ms": 10})
        assert len(line.expect("submit_events")["events"]) == 1
        line.say("error", {"code": "bad_request", "message": "I do not like this one"})
        for number in (1, 2):
            (item,) = line.expect("submit_events")["events"]
            line.say("submit_events_result", {
                "results": [
                    {"id": item["id"], "status": "committed", "committed_id": number, "status_updated_at": 1}
                ]
            })  # fmt: skip
        line.hold()

    with playing(script) as peer:
        gate = Gate()
        async with client(peer.url, "me", "p", "q", token=gate) as one:
            for number in range(3):
                await one.set("n", number, partition="p")
            gate.open()
            await until(lambda: one.status.pending == 0)
            assert one.rejected()[0].reason == "bad_request"
            assert one.rejected()[0].errors[0].message == "I do not like this one"


@asynchronous
async def test_a_server_that_talks_nonsense_is_left_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "unisono.client")

    def nonsense(line: Line) -> None:
        line.welcome()
        line.socket.send("{not json")
        line.hold()

    def sense(line: Line) -> None:
        line.welcome()
        line.expect("sync")
        line.page(to=0)
        line.hold()

    with playing(nonsense, sense) as peer:
        async with client(peer.url, "me", "p") as one:
            await one.caught_up(WAIT_S)
            assert one.status.last_error is None, "it is over"
    assert "me: protocol_violation: " in caplog.text


@asynchronous
async def test_a_server_that_never_answers_is_left() -> None:
    def silent(line: Line) -> None:
        line.welcome()
        line.hold()

    with playing(silent) as peer:
        options = Options(
            backoff_base_s=0.01, heartbeat_interval_s=0.05, dead_after_s=WAIT_S, answer_timeout_s=0.2
        )
        async with client(peer.url, "me", "p", options=options) as one:
            await until(lambda: one.status.last_error is not None)
            assert one.status.last_error is not None
            assert one.status.last_error.code == "no_answer"
            await until(lambda: kinds(peer.log).count("connect") > 1)


@asynchronous
async def test_a_server_of_another_profile_is_not_tried_again() -> None:
    def other(line: Line) -> None:
        line.expect("connect")
        line.say("error", {"code": "profile_unsupported", "message": "canonical only"})
        line.socket.close(4002)

    with playing(other) as peer:
        async with client(peer.url, "me", "p") as one:
            await until(lambda: one.status.stopped is not None)
            await asyncio.sleep(0.1)
            assert kinds(peer.log) == ["connect"]
