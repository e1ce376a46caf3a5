"""Servers that send snapshots as they should not, and clients that do not ask for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.client.peers import Line, event, playing
from tests.client.running import QUICK, WAIT_S, WHOLE, asynchronous, client
from tests.client.test_models import write
from unisono.client import SyncClient, open_model

GOOD = {"tree": {"k1": 1, "k2": 2}, "data": {}}


def started(partition: str = "p", at: int = 2, state: Any = None, version: Any = None) -> dict[str, Any]:
    return {"partition": partition, "committed_id": at, "model_version": version, "state": state or GOOD}


def page(line: Line, *ids: int, snapshots: Any = None) -> None:
    told: dict[str, Any] = {
        "partitions": ["p"], "effective_subscriptions": ["p"], "events": [event(id) for id in ids],
        "next_since_committed_id": 4, "sync_to_committed_id": 4, "has_more": False,
    }  # fmt: skip
    if snapshots is not None:
        told["snapshots"] = snapshots
    line.say("sync_response", told)


def welcome(line: Line, *, confirmed: Any = True) -> None:
    line.expect("connect")
    capabilities = {
        "profile": "compatibility", "accepted_event_types": ["set"], "tree_policy": "strict",
        "ordered_delivery": True, "snapshots": confirmed,
    }  # fmt: skip
    line.say(
        "connected",
        {"client_id": "me", "server_time": 1, "server_last_committed_id": 4, "capabilities": capabilities},
    )


ALL = {"k1": 1, "k2": 2, "k3": 3, "k4": 4}

BAD: dict[str, Any] = {
    "no list": {"p": 2},
    "an entry that is none": [7],
    "no state": [{"partition": "p", "committed_id": 2}],
    "a state that is no object": [started(state="text")],
    "a half is missing": [started(state={"tree": {}})],
    "a half too many": [started(state={"tree": {}, "data": {}, "more": {}})],
    "a tree that is none": [started(state={"tree": {"t": {"items": 1, "tree": [{"id": 1}]}}, "data": []})],
    "taken apart and cut": [started(state=["tree", [1, 4]])],
    "taken apart with keys that are none": [started(state=[7, {}, [1, 1]])],
    "above the watermark": [started(at=5)],
    "at nothing": [started(at=0)],
    "of another model": [started(version=3)],
}


@pytest.mark.req("CLIENT-15")
@pytest.mark.parametrize("snapshots", BAD.values(), ids=BAD.keys())
@asynchronous
async def test_a_snapshot_that_cannot_be_used_costs_the_whole_history(snapshots: Any) -> None:
    def script(line: Line) -> None:
        welcome(line)
        assert "snapshots" not in line.expect("sync")
        page(line, 3, 4, snapshots=snapshots)
        again = line.expect("sync")
        assert (again["since_committed_id"], again["snapshots"]) == (0, False)
        page(line, 1, 2, 3, 4)
        line.hold()

    with playing(script) as peer:
        async with client(peer.url, "me", "p") as one:
            await one.caught_up(WAIT_S)
            assert one.view() == ALL
            assert one.status.last_error is not None
            assert one.status.last_error.code == "bad_snapshot"


@pytest.mark.req("CLIENT-15")
@asynchronous
async def test_a_good_one_is_used() -> None:
    def script(line: Line) -> None:
        welcome(line)
        line.expect("sync")
        page(line, 3, 4, snapshots=[started(), started("another")])
        line.hold()

    with playing(script) as peer:
        async with client(peer.url, "me", "p") as one:
            await one.caught_up(WAIT_S)
            assert one.view() == ALL
            assert one.status.cursors == {"p": 4}
            assert one.status.last_error is None


@pytest.mark.req("CLIENT-15", "ENV-03")
@pytest.mark.parametrize("confirmed", [None, False, "weekly"])
@asynchronous
async def test_a_server_that_means_something_else_by_the_word(confirmed: Any) -> None:
    def script(line: Line) -> None:
        welcome(line, confirmed=confirmed)
        assert "snapshots" not in line.expect("sync")
        page(line, 1, 2, 3, 4, snapshots="none of yours")
        line.hold()

    with playing(script) as peer:
        async with client(peer.url, "me", "p") as one:
            await one.caught_up(WAIT_S)
            assert one.view() == ALL
            assert one.status.last_error is None


@pytest.mark.req("CLIENT-15")
@asynchronous
async def test_a_server_that_sends_them_although_they_were_declined_is_not_asked_again() -> None:
    def stubborn(line: Line) -> None:
        welcome(line)
        line.expect("sync")
        page(line, 3, 4, snapshots=[started(state="text")])
        line.expect("sync")
        page(line, 3, 4, snapshots=[started()])
        line.hold()

    def plain(line: Line) -> None:
        told = line.welcome(head=4)
        assert "snapshots" not in told
        line.expect("sync")
        page(line, 1, 2, 3, 4)
        line.hold()

    with playing(stubborn, plain) as peer:
        async with client(peer.url, "me", "p") as one:
            await one.caught_up(WAIT_S)
            assert one.view() == ALL


@pytest.mark.req("CLIENT-15")
@asynchronous
async def test_whoever_does_not_want_them_does_not_ask() -> None:
    def script(line: Line) -> None:
        told = line.welcome()
        assert "snapshots" not in told
        assert "snapshots" not in line.expect("sync")
        line.page(to=0)
        line.hold()

    with playing(script) as peer:
        async with client(peer.url, "me", "p", options=WHOLE) as one:
            await one.caught_up(WAIT_S)


def _told_by_canonical(log: list[dict[str, Any]]) -> Callable[[Line], None]:
    def script(line: Line) -> None:
        told = line.expect("connect")
        log.append(told)
        line.say("connected", {"client_id": "me", "capabilities": {"profile": "canonical"}})
        line.expect("sync")
        line.page(to=0)
        line.hold()

    return script


@pytest.mark.req("CLIENT-15")
@asynchronous
async def test_without_a_model_a_canonical_client_does_not_ask(tmp_path: Path) -> None:
    model = write(tmp_path / "model", 1, "event.data")
    for given, asks in ((open_model(), False), (model, True)):
        log: list[dict[str, Any]] = []
        with playing(_told_by_canonical(log)) as peer:
            async with SyncClient(
                peer.url, token="t", client_id="me", partitions=["p"], model=given, options=QUICK
            ) as one:
                await one.caught_up(WAIT_S)
        assert (log[0].get("snapshots") is True) is asks, json.dumps(log[0])
