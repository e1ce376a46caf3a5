"""The sync state machine without a socket: history, cycles, cursors."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from tests.client.sync.driving import Drive, asked, committed, event, of, one, page, reports, stored
from unisono.client.options import Options
from unisono.client.sync.advance import Phase, SyncState, advance
from unisono.client.sync.inputs_effects import (
    Apply,
    DraftsWaiting,
    DropConnection,
    Input,
    PartitionAdded,
    PartitionRemoved,
    Received,
    SendSync,
    SubmitNext,
    TimerFired,
)
from unisono.client.sync.state import SyncStateChanges
from unisono.protocol.client_codec import Limits, VersionChanged


@pytest.mark.req("CLIENT-08")
def test_connect_then_sync_then_live() -> None:
    drive = Drive(cursors={"p": 7})
    effects = drive.connect(head=9)
    sync = one(SendSync, effects)
    assert sync == SendSync(("p",), 7, 1000, ("p",))
    assert drive.phase() is Phase.SYNCING
    drive.page(8, 9, to=9)
    assert drive.phase() is Phase.LIVE
    assert drive.state.cursors == {"p": 9}


@pytest.mark.req("CLIENT-05")
def test_the_next_page_is_asked_for_only_when_the_last_is_stored() -> None:
    drive = Drive()
    drive.connect()
    state, effects = advance(drive.state, Received(page(1, 2, to=5, more=True)), 0.0)
    assert one(Apply, effects).cursors == {"p": 2}, "events and cursor go together"
    assert not of(SendSync, effects)
    drive.state = state
    effects = tuple(drive.feed(DraftsWaiting()))
    assert not effects, "nothing is asked while the store has not answered"


@pytest.mark.req("CLIENT-05", "CLIENT-07")
def test_pages_go_on_from_where_the_last_ended_and_keep_the_subscriptions() -> None:
    drive = Drive()
    drive.connect()
    effects = drive.page(1, 2, to=5, more=True)
    assert one(SendSync, effects) == SendSync(("p",), 2, 1000, None)
    effects = drive.page(3, 5, to=5)
    assert one(Apply, effects).cursors == {"p": 5}
    assert not of(SendSync, effects)


@pytest.mark.req("CLIENT-06")
def test_broadcasts_above_the_watermark_wait_and_are_flushed_in_order() -> None:
    drive = Drive()
    drive.connect()
    assert drive.broadcast(12) == [], "the watermark is not known yet"
    assert stored(drive.page(1, 2, to=10, more=True)) == [1, 2]
    assert drive.broadcast(11) == []
    assert stored(drive.broadcast(9)) == [9], "at or below the watermark: applied at once"
    assert stored(drive.page(3, 9, to=10)) == [3, 9, 11, 12]
    assert drive.state.cursors == {"p": 12}


@pytest.mark.req("CLIENT-06")
def test_a_broadcast_that_came_before_the_first_page_and_is_below_it_is_applied_with_it() -> None:
    drive = Drive()
    drive.connect()
    drive.broadcast(4)
    effects = drive.page(1, 2, to=10, more=True)
    assert stored(effects) == [1, 2, 4]
    assert one(Apply, effects).cursors == {"p": 2}, "what lies between is not here yet"


@pytest.mark.req("CLIENT-06")
def test_a_full_buffer_is_dropped_and_another_cycle_fetches_what_it_held() -> None:
    drive = Drive(options=Options(buffer_events_max=3))
    drive.connect()
    drive.page(1, to=10, more=True)
    for number in range(11, 16):
        drive.broadcast(number)
    assert not drive.state.buffer
    effects = drive.page(10, to=10)
    assert stored(effects) == [10]
    assert drive.phase() is Phase.SYNCING
    assert asked(effects) == (("p",), 10)
    assert stored(drive.page(11, 12, 13, 14, 15, to=15)) == [11, 12, 13, 14, 15]
    assert drive.phase() is Phase.LIVE


@pytest.mark.req("CLIENT-06")
def test_the_buffer_is_bounded_in_bytes_too() -> None:
    drive = Drive(options=Options(buffer_bytes_max=99))
    drive.connect()
    drive.broadcast(1)
    drive.broadcast(2)
    assert not drive.state.buffer
    assert drive.state.cycle is not None
    assert drive.state.cycle.overflow


@pytest.mark.req("CLIENT-07")
def test_never_two_syncs_at_once_whatever_comes() -> None:
    drive = Drive()
    drive.connect()
    assert not of(SendSync, drive.feed(PartitionAdded("q", 0)))
    assert not of(SendSync, drive.feed(PartitionAdded("r", 0)))
    assert not of(SendSync, drive.feed(Received(VersionChanged(2, 1))))
    assert not of(SendSync, drive.feed(PartitionRemoved("r")))
    assert len(of(SendSync, drive.page(1, to=5))) == 1


@pytest.mark.req("CLIENT-14")
def test_with_ordered_delivery_broadcasts_move_every_live_cursor() -> None:
    drive = Drive(cursors={"p": 0, "q": 0})
    drive.live(to=3)
    effects = drive.broadcast(5, "p")
    assert one(Apply, effects).cursors == {"p": 5, "q": 5}


@pytest.mark.req("CLIENT-14")
def test_without_ordered_delivery_only_pages_move_the_cursor() -> None:
    drive = Drive()
    drive.live(to=3, ordered=False)
    assert one(Apply, drive.broadcast(5)).cursors == {}
    drive.pending = ["d"]
    drive.feed(DraftsWaiting())
    assert one(Apply, drive.results(committed("d", 6))).cursors == {}
    assert drive.state.cursors == {"p": 3}


@pytest.mark.req("CLIENT-14")
def test_without_ordered_delivery_the_tail_is_fetched_now_and_then() -> None:
    drive = Drive(options=Options(tail_events_max=3))
    drive.live(to=3, ordered=False)
    assert not of(SendSync, drive.broadcast(5) + drive.broadcast(4))
    effects = drive.broadcast(6)
    assert asked(effects) == (("p",), 3)
    assert drive.phase() is Phase.LIVE, "the partition stays live meanwhile"
    drive.page(4, 5, 6, to=6)
    assert drive.state.cursors == {"p": 6}


@pytest.mark.req("CLIENT-14")
def test_while_a_submit_is_unanswered_no_broadcast_moves_the_cursor_past_it() -> None:
    drive = Drive()
    drive.live(to=3)
    drive.pending = ["d"]
    drive.feed(DraftsWaiting())
    assert one(Apply, drive.broadcast(5)).cursors == {}, "our own event may be committed as 4"
    assert one(Apply, drive.results(committed("d", 4))).cursors == {"p": 5}


@pytest.mark.req("CLIENT-14")
def test_a_result_does_not_move_a_cursor_that_is_still_behind() -> None:
    drive = Drive(cursors={"p": 0})
    drive.live(to=3)
    drive.feed(PartitionAdded("q", 0))
    assert drive.broadcast(9, "q") == []
    effects = drive.page(1, 2, to=8, more=True, partition="q")
    assert one(Apply, effects).cursors == {"q": 2}
    assert drive.state.cursors == {"p": 3, "q": 2}
    drive.page(8, to=8, partition="q")
    assert drive.state.cursors == {"p": 9, "q": 9}


@pytest.mark.req("CLIENT-08")
def test_equal_cursors_sync_together_and_the_highest_first() -> None:
    drive = Drive(cursors={"a": 5, "b": 5, "c": 2})
    effects = drive.connect(head=9)
    assert one(SendSync, effects) == SendSync(("a", "b"), 5, 1000, ("a", "b", "c"))
    effects = drive.page(to=9)
    assert one(SendSync, effects) == SendSync(("c",), 2, 1000, ("a", "b", "c"))
    drive.page(to=9)
    assert drive.phase() is Phase.LIVE


def test_a_partition_added_later_syncs_alone_from_0_and_the_others_stay_live() -> None:
    drive = Drive()
    drive.live(to=9)
    effects = drive.feed(PartitionAdded("q", 0))
    assert one(SendSync, effects) == SendSync(("q",), 0, 1000, ("p", "q"))
    assert drive.state.live == {"p"}
    drive.page(1, to=9, partition="q")
    assert drive.state.live == {"p", "q"}


def test_a_removed_partition_is_unsubscribed() -> None:
    drive = Drive(cursors={"p": 0, "q": 0})
    drive.live(to=9)
    effects = drive.feed(PartitionRemoved("q"))
    assert one(SendSync, effects) == SendSync(("p",), 9, 1000, ("p",))
    drive.page(to=9)
    assert drive.phase() is Phase.LIVE
    assert not drive.broadcast(10, "q")


def test_the_last_removed_partition_is_unsubscribed_too() -> None:
    drive = Drive()
    drive.live(to=9)
    sync = one(SendSync, drive.feed(PartitionRemoved("p")))
    assert sync.subscription == ()
    assert not drive.page(10, to=10)
    assert drive.state.subscribed == ()


def test_a_partition_removed_during_its_cycle_ends_it() -> None:
    drive = Drive(cursors={"p": 0, "q": 0})
    drive.connect()
    drive.feed(PartitionRemoved("q"))
    effects = drive.page(1, 2, to=9, more=True)
    assert one(Apply, effects).cursors == {"p": 2}
    assert one(SendSync, effects) == SendSync(("p",), 2, 1000, ("p",))


def test_a_partition_removed_and_added_again_is_not_credited_with_the_page_under_way() -> None:
    drive = Drive(cursors={"p": 0, "q": 0})
    drive.connect()
    drive.page(1, 2, to=9, more=True)
    drive.feed(PartitionRemoved("q"))
    drive.feed(PartitionAdded("q", 0))
    effects = drive.page(3, 9, to=9)
    assert one(Apply, effects).cursors == {"p": 9}
    assert asked(effects) == (("q",), 0)


@pytest.mark.parametrize("happened", [PartitionAdded("q", 0), Received(VersionChanged(2, 1))])
def test_a_client_with_something_to_fetch_is_not_live_while_it_waits_for_another_answer(
    happened: Input,
) -> None:
    drive = Drive(cursors={"p": 0, "q": 0})
    drive.live(to=9)
    drive.feed(PartitionRemoved("q"))
    assert drive.state.pending_request == "sync"
    drive.feed(happened)
    assert drive.phase() is Phase.SYNCING
    drive.page(to=9)
    assert drive.phase() is Phase.SYNCING
    drive.page(to=9)
    assert drive.phase() is Phase.LIVE


def test_what_waited_is_not_lost_when_a_cycle_ends_early() -> None:
    """Removing a partition while the cycle waits out a rate limit must not drop others' broadcasts."""
    drive = Drive(cursors={"p": 0})
    drive.live(to=3)
    drive.feed(PartitionAdded("q", 0))
    drive.error("rate_limited", retry_after_ms=500)
    drive.broadcast(5, "p")
    drive.feed(PartitionRemoved("q"))
    drive.broadcast(6, "p")
    drive.now += 1
    assert stored(drive.feed(TimerFired())) == [5, 6]


def test_pages_are_cut_to_the_servers_bounds() -> None:
    drive = Drive(options=Options(page_limit=1000))
    assert one(SendSync, drive.connect(limits=Limits(sync_limit_max=200))).limit == 200
    drive = Drive(options=Options(page_limit=10))
    assert one(SendSync, drive.connect()).limit == 50


def test_a_page_that_does_not_move_on_ends_the_connection() -> None:
    drive = Drive()
    drive.connect()
    effects = drive.page(to=9, more=True, next_since=0)
    assert reports(effects) == ["protocol_violation"]
    assert of(DropConnection, effects)


def test_answers_nobody_asked_for_are_reported_and_change_nothing() -> None:
    drive = Drive()
    drive.live(to=3)
    before = drive.state
    assert reports(drive.page(4, to=4)) == ["unexpected"]
    assert reports(drive.results(committed("x", 4))) == ["unexpected"]
    assert drive.state == before


def test_nothing_is_taken_before_connected() -> None:
    drive = Drive()
    assert reports(drive.broadcast(1)) == ["unexpected"]
    assert stored(drive.effects) == []


def test_without_partitions_a_client_is_live_at_once_and_submits() -> None:
    drive = Drive(cursors={}, drafts_waiting=True)
    drive.pending = ["d"]
    assert one(SubmitNext, drive.connect()).items_max == 100
    assert drive.phase() is Phase.LIVE


@pytest.mark.req("CLIENT-04")
def test_events_of_partitions_that_are_not_followed_are_let_pass() -> None:
    drive = Drive()
    drive.live(to=3)
    assert drive.broadcast(4, "elsewhere") == []
    assert one(Apply, drive.broadcast(5, "p", "elsewhere")).events == (event(5, "p", "elsewhere"),)


def test_a_state_is_never_changed_in_place() -> None:
    state = SyncState(profile="compatibility", cursors={"p": 0})
    copy = SyncState(profile="compatibility", cursors={"p": 0})
    drive = Drive()
    drive.state = state
    drive.live(to=3)
    drive.broadcast(4)
    assert state == copy


def test_the_changes_a_transition_may_make_have_the_types_of_the_state() -> None:
    fields = {name: kind for name, kind in get_type_hints(SyncState).items() if not name.startswith("_")}
    changes = get_type_hints(SyncStateChanges)
    assert changes.items() <= fields.items()
    assert fields.keys() - changes.keys() == {"profile", "options"}
