"""More partitions than one sync may name, or one connection subscribe to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.behaviour.server.harness import running
from tests.client.peers import Line, playing
from tests.client.running import WAIT_S, asynchronous, client, of, until
from tests.client.sync.driving import Drive, asked, event, one, reports
from unisono.client import NotCaughtUp
from unisono.client.sync.advance import Phase
from unisono.client.sync.inputs_effects import (
    Apply,
    Lost,
    PartitionAdded,
    PartitionRemoved,
    Received,
    SendSync,
)
from unisono.client.sync.state import TOO_MANY
from unisono.protocol.client_codec import Broadcast, Limits

NAMES = [f"p{n:03}" for n in range(70)]


def many(count: int) -> Drive:
    return Drive(cursors={f"p{n:04}": 0 for n in range(count)})


@pytest.mark.req("PART-01")
def test_as_many_partitions_as_the_server_says_are_named_and_subscribed_to() -> None:
    drive = many(1000)
    sync = one(SendSync, drive.connect(limits=Limits(max_subscriptions=1000)))
    assert len(sync.partitions) == 1000
    assert sync.subscription == sync.partitions
    drive.page(to=0)
    assert drive.phase() is Phase.LIVE
    assert not drive.state.left_out


@pytest.mark.req("PART-01")
def test_a_server_that_says_nothing_gets_64_and_the_rest_is_left_out() -> None:
    drive = Drive(cursors=dict.fromkeys(NAMES, 0))
    effects = drive.connect(limits=Limits())
    sync = one(SendSync, effects)
    assert list(sync.partitions) == NAMES[:64]
    assert sync.subscription == sync.partitions
    assert "too_many_partitions" in reports(effects)
    assert drive.state.left_out == dict.fromkeys(NAMES[64:], TOO_MANY)
    drive.page(to=0)
    assert drive.phase() is Phase.LIVE
    drive.feed(Lost())
    assert not drive.state.left_out, "another server may take more"


def test_those_that_were_added_first_are_followed() -> None:
    drive = Drive(cursors={"z": 0, "y": 0})
    drive.live(limits=Limits(max_subscriptions=2))
    drive.feed(PartitionAdded("a", 0))
    assert drive.state.left_out == {"a": TOO_MANY}
    assert drive.phase() is Phase.LIVE
    effects = drive.feed(PartitionRemoved("z"))
    assert one(SendSync, effects) == SendSync(("a",), 0, 1000, ("a", "y"))
    assert not drive.state.left_out


def test_a_refused_partition_makes_room_for_one_that_was_left_out() -> None:
    drive = Drive(cursors={"a": 0, "b": 0, "c": 0})
    drive.connect(limits=Limits(max_subscriptions=2))
    effects = drive.error("forbidden", {"partitions": ["a"]})
    assert one(SendSync, effects).subscription == ("b", "c")
    drive.page(to=0)
    assert drive.state.refused_partitions == {"a": "forbidden"}
    assert not drive.state.left_out


def test_a_partition_that_loses_its_room_is_not_live_any_more() -> None:
    """Its cursor must not move with broadcasts that come for the others only."""
    drive = Drive(cursors={"a": 0, "b": 0, "c": 0})
    drive.connect(limits=Limits(max_subscriptions=2))
    drive.error("forbidden", {"partitions": ["a"]})
    drive.page(to=3)
    assert drive.state.live == {"b", "c"}
    effects = drive.feed(PartitionAdded("a", 0))
    assert one(SendSync, effects).subscription == ("a", "b")
    assert drive.state.left_out == {"c": TOO_MANY}
    drive.page(to=3, partition="a")
    drive.feed(Received(Broadcast(event(4, "a"))))
    assert drive.state.cursors == {"a": 4, "b": 4, "c": 3}


def test_a_partition_that_loses_its_room_during_its_cycle_does_not_become_live() -> None:
    drive = Drive(cursors={"a": 0, "b": 0, "c": 0})
    drive.connect(limits=Limits(max_subscriptions=2))
    drive.error("forbidden", {"partitions": ["a"]})
    drive.feed(PartitionAdded("a", 0))
    drive.page(to=3)
    assert drive.state.live == {"b"}
    assert drive.state.left_out == {"c": TOO_MANY}


def test_names_that_no_message_to_the_server_holds_are_left_out() -> None:
    drive = Drive(cursors={f"{n:03}{'é' * 60}": 0 for n in range(100)})
    limits = Limits(max_subscriptions=1000, max_message_bytes=8192)
    sync = one(SendSync, drive.connect(limits=limits))
    size = sum(len(name.encode()) + 3 for name in sync.partitions)
    assert 2 * size < 8192 < 2 * size + 3 * 130
    assert len(drive.state.left_out) == 100 - len(sync.partitions)


def test_a_server_that_names_fewer_in_one_sync_gets_several_cycles() -> None:
    drive = many(150)
    drive.connect(limits=Limits(max_subscriptions=150))
    sizes = []
    effects = drive.error("validation_failed")
    while drive.state.pending_request == "sync":
        assert len(one(SendSync, effects).subscription or ()) == 150
        sizes.append(len(asked(effects)[0]))
        effects = drive.page(to=0)
    assert sizes == [64, 64, 22]
    assert drive.phase() is Phase.LIVE
    assert not drive.state.refused_partitions


@pytest.mark.req("CLIENT-14")
def test_of_broadcasts_that_come_together_the_last_one_moves_the_cursors() -> None:
    """With a thousand partitions each move is a thousand rows."""
    drive = many(1000)
    drive.live(limits=Limits(max_subscriptions=1000))
    for number in (1, 2):
        apply = one(Apply, drive.feed(Received(Broadcast(event(number, "p0001")), more=True)))
        assert apply.cursors == {}
    apply = one(Apply, drive.feed(Received(Broadcast(event(3, "p0001")))))
    assert set(apply.cursors.values()) == {3}
    assert len(apply.cursors) == 1000


@asynchronous
async def test_a_server_of_another_make_gets_no_more_than_64() -> None:
    def script(line: Line) -> None:
        line.welcome(limits={"max_batch_size": 10})
        told = line.expect("sync")
        assert told["partitions"] == told["subscription_partitions"] == NAMES[:64]
        line.page(to=0)
        line.hold()

    with playing(script) as peer:
        async with client(peer.url, "me", *NAMES) as one:
            with pytest.raises(
                NotCaughtUp, match=r"6 of the partitions .* 'p064', 'p065', 'p066' and 3 more"
            ):
                await one.caught_up(WAIT_S)
            assert list(one.status.set_aside) == NAMES[64:]


@asynchronous
async def test_more_partitions_than_a_server_lets_one_subscribe_to(tmp_path: Path, who: str) -> None:
    with running(tmp_path / "d", "--access-default", "allow", "--max-subscriptions", "5") as narrow:
        async with of(narrow, who, *(f"p{n}" for n in range(7))) as one:
            with pytest.raises(NotCaughtUp, match=r"2 of the partitions are more .* 'p5', 'p6'") as missing:
                await one.caught_up(WAIT_S)
            assert missing.value.partitions == one.status.set_aside
            assert one.status.set_aside == dict.fromkeys(["p5", "p6"], "too_many_partitions")
            draft = await one.set("a", 1, partition="p0")
            await draft.settled(WAIT_S)
            with narrow.client("writer") as writer:
                writer.commit(["p6"], {"type": "set", "payload": {"target": "late", "value": 1}})
            await one.remove_partition("p1")
            await one.remove_partition("p2")
            await one.caught_up(WAIT_S)
            assert one.view("p6") == {"late": 1}
            assert one.status.set_aside == {}


@pytest.mark.req("PART-01")
@asynchronous
async def test_a_hundred_and_fifty_partitions_where_the_server_lets_a_client_have_them(
    tmp_path: Path, who: str
) -> None:
    names = [f"p{n:03}" for n in range(150)]
    limit = ("--max-subscriptions", "150")
    with (
        running(tmp_path / "d", "--access-default", "allow", *limit) as wide,
        wide.client("writer") as writer,
    ):
        for name in names[::10]:
            writer.commit([name], {"type": "set", "payload": {"target": "past", "value": name}})
        async with of(wide, who, *names) as one:
            await one.caught_up(WAIT_S)
            assert [one.view(name) for name in names[::10]] == [{"past": name} for name in names[::10]]
            writer.commit(["p149"], {"type": "set", "payload": {"target": "live", "value": 1}})
            await until(lambda: one.view("p149") == {"live": 1})
            assert one.status.set_aside == {}
