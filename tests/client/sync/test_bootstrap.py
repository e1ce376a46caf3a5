"""The sync state machine without a socket: partitions that start from the server's snapshots (CLIENT-15)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.sync.driving import Drive, asked, of, one, page, reports, stored
from unisono.client.sync.advance import Phase
from unisono.client.sync.inputs_effects import (
    Apply,
    DropConnection,
    Lost,
    Opened,
    PartitionAdded,
    PartitionRemoved,
    Received,
    SendConnect,
    SendSync,
    StartState,
)
from unisono.protocol.client_codec import Capabilities, Connected, VersionChanged


def snapshotting(**state: Any) -> Drive:
    """Connected to a server that gives snapshots."""
    drive = Drive(wants_snapshots=True, **state)
    drive.feed(Opened())
    capabilities = Capabilities("compatibility", ("set",), "strict", True, snapshots=True)
    drive.feed(Received(Connected("me", 9, capabilities=capabilities)))
    return drive


@pytest.mark.req("CLIENT-15")
def test_a_first_page_may_come_with_snapshots_and_no_other() -> None:
    drive = snapshotting(cursors={"p": 0, "q": 0})
    sync = one(SendSync, drive.effects)
    assert (sync.partitions, sync.since, sync.snapshots) == (("p", "q"), 0, True)
    base = StartState(6, b"{}")
    effects = drive.feed(Received(page(2, to=9, more=True, partition="q"), {"p": base}))
    taken = one(Apply, effects)
    assert taken.starts == {"p": base}
    assert taken.cursors == {"p": 6, "q": 2}, "up to the base nothing of p is missing"
    following = one(SendSync, effects)
    assert (following.since, following.snapshots) == (2, False)
    effects = drive.page(7, 8, to=9)
    assert one(Apply, effects).starts == {}
    assert drive.state.cursors == {"p": 9, "q": 9}
    assert drive.phase() is Phase.LIVE


@pytest.mark.req("CLIENT-15")
def test_after_a_break_each_goes_on_from_where_it_is() -> None:
    drive = snapshotting(cursors={"p": 0, "q": 0})
    drive.feed(Received(page(2, to=9, more=True, partition="q"), {"p": StartState(6, b"{}")}))
    drive.feed(Lost())
    effects = drive.connect()
    assert asked(effects) == (("p",), 6)
    assert asked(drive.page(7, to=9)) == (("q",), 2)


@pytest.mark.req("CLIENT-15")
def test_snapshots_that_cannot_be_used_are_asked_around() -> None:
    drive = snapshotting(cursors={"p": 0, "q": 0})
    effects = drive.feed(Received(page(7, to=9), {"q": StartState(6, b"{}")}, ("p",)))
    assert reports(effects) == ["bad_snapshot"]
    assert not of(Apply, effects), "what the page leaves out is not known: none of it is taken"
    sync = one(SendSync, effects)
    assert (sync.partitions, sync.since, sync.snapshots) == (("p",), 0, False)
    effects = drive.page(1, 7, to=9)
    assert one(Apply, effects).starts == {}
    sync = one(SendSync, effects)
    assert (sync.partitions, sync.since, sync.snapshots) == (("q",), 0, True)
    effects = drive.feed(Received(page(8, to=9, partition="q"), {"q": StartState(6, b"{}")}))
    assert one(Apply, effects).starts == {"q": StartState(6, b"{}")}
    assert drive.phase() is Phase.LIVE
    drive.feed(Received(VersionChanged(2, None)))
    assert drive.state.full_history_only == frozenset(), "another model, another try"


@pytest.mark.req("CLIENT-15", "CLIENT-06")
def test_live_partitions_lose_nothing_to_a_page_that_is_dropped() -> None:
    drive = snapshotting(cursors={"p": 5})
    drive.page(to=9)
    drive.feed(PartitionAdded("q", 0))
    drive.broadcast(10, "p")
    effects = drive.feed(Received(page(8, to=9, partition="q"), {}, ("q",)))
    assert stored(effects) == [10]
    assert drive.state.cursors == {"p": 10, "q": 0}
    assert asked(effects) == (("q",), 0)


@pytest.mark.req("CLIENT-15", "CLIENT-10")
def test_a_base_is_dropped_when_the_next_start_has_none() -> None:
    drive = snapshotting(cursors={"p": 0}, highest_cursors={"p": 8}, snapshot_based=frozenset({"p"}))
    effects = drive.page(1, 2, to=9)
    assert one(Apply, effects).starts == {"p": None}
    assert drive.state.snapshot_based == frozenset()


@pytest.mark.req("CLIENT-15")
def test_a_removed_partition_has_no_say() -> None:
    drive = snapshotting(cursors={"p": 0, "q": 0})
    drive.feed(PartitionRemoved("q"))
    effects = drive.feed(Received(page(7, to=9), {"p": StartState(6, b"{}")}, ("q",)))
    assert one(Apply, effects).starts == {"p": StartState(6, b"{}")}
    assert "bad_snapshot" not in reports(effects)


@pytest.mark.req("CLIENT-15")
def test_a_server_that_sends_what_was_declined_is_left() -> None:
    drive = snapshotting(cursors={"p": 0}, full_history_only=frozenset({"p"}))
    assert one(SendSync, drive.effects).snapshots is False
    effects = drive.feed(Received(page(7, to=9), {}, ("p",)))
    assert reports(effects) == ["protocol_violation"]
    assert of(DropConnection, effects)
    drive.feed(Lost())
    assert one(SendConnect, drive.feed(Opened())).snapshots is False
