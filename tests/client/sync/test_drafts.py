"""The sync state machine without a socket: drafts, errors, and losing the connection."""

from __future__ import annotations

import pytest

from tests.client.sync.driving import Drive, asked, committed, of, one, rejected, reports
from unisono.client.options import Options
from unisono.client.sync.advance import LATE_CONNECT_S, Phase
from unisono.client.sync.inputs_effects import (
    Accepted,
    Apply,
    Dialing,
    DraftRejected,
    DraftsWaiting,
    DropConnection,
    Lost,
    Opened,
    PartitionAdded,
    Retry,
    SendConnect,
    SendSync,
    Stop,
    SubmitNext,
    Submitted,
    TimerFired,
)
from unisono.protocol.client_codec import Limits
from unisono.vocabulary import FieldError


def drafting(*ids: str, **state: object) -> Drive:
    """Live, with these drafts just submitted."""
    drive = Drive(**state)
    drive.live(to=3)
    drive.pending = list(ids)
    drive.feed(DraftsWaiting())
    return drive


@pytest.mark.req("CLIENT-08")
def test_drafts_wait_until_everything_is_live() -> None:
    drive = Drive(drafts_waiting=True)
    drive.pending = ["a", "b"]
    assert not of(SubmitNext, drive.connect(head=9))
    assert not of(SubmitNext, drive.page(1, to=9, more=True))
    effects = drive.page(9, to=9)
    assert one(SubmitNext, effects) == SubmitNext(100, 1 << 20)
    assert drive.submitted() == ("a", "b")


@pytest.mark.req("CLIENT-04")
def test_results_are_matched_by_id_in_any_order() -> None:
    drive = drafting("a", "b", "c")
    error = FieldError("event.type", "no")
    apply = one(Apply, drive.results(committed("c", 6), rejected("b", errors=[error]), committed("a", 4)))
    assert apply.accepted == (Accepted("c", 6, 1000), Accepted("a", 4, 1000))
    assert apply.refused == (DraftRejected("b", "validation_failed", (error,)),)
    assert apply.cursors == {"p": 6}
    assert not drive.pending


def test_batches_follow_one_another_and_end() -> None:
    drive = Drive()
    drive.live(to=0, limits=Limits(max_batch_size=2))
    drive.pending = ["a", "b", "c"]
    drive.feed(DraftsWaiting())
    assert drive.submitted() == ("a", "b")
    drive.results(committed("a", 1), committed("b", 2))
    assert drive.submitted() == ("c",)
    drive.results(committed("c", 3))
    assert drive.state.pending_request is None
    assert not drive.state.drafts_waiting


def test_a_rejected_draft_does_not_hold_up_the_next() -> None:
    drive = Drive()
    drive.live(to=0, limits=Limits(max_batch_size=1))
    drive.pending = ["a", "b"]
    drive.feed(DraftsWaiting())
    drive.results(rejected("a", "forbidden"))
    assert drive.submitted() == ("b",)


def test_a_result_that_leaves_out_a_draft_ends_the_connection_and_keeps_it() -> None:
    drive = drafting("a", "b")
    effects = drive.results(committed("a", 4))
    assert reports(effects) == ["protocol_violation"]
    assert of(DropConnection, effects)
    assert drive.pending == ["b"]


def test_rate_limited_submits_again_after_the_wait_with_fewer_drafts() -> None:
    drive = drafting("a", "b", "c", "d")
    drive.error("rate_limited", retry_after_ms=500)
    drive.now += 0.4
    assert not of(SubmitNext, drive.feed(TimerFired()))
    assert not of(SubmitNext, drive.feed(DraftsWaiting()))
    drive.now += 0.2
    assert one(SubmitNext, drive.feed(TimerFired())).items_max == 2
    assert drive.submitted() == ("a", "b")
    drive.results(committed("a", 4), committed("b", 5))
    assert drive.submitted() == ("c", "d")


def test_rate_limited_syncs_the_same_again_after_the_wait() -> None:
    drive = Drive(options=Options(retry_after_s=2.0))
    first = one(SendSync, drive.connect())
    drive.error("rate_limited", {"retry_after_ms": 100})
    drive.now += 0.2
    assert one(SendSync, drive.feed(TimerFired())) == first
    drive.error("rate_limited")
    drive.now += 1.9
    assert not drive.feed(TimerFired())
    drive.now += 0.2
    assert one(SendSync, drive.feed(TimerFired())) == first


def test_a_batch_refused_whole_is_sent_one_by_one_and_the_culprit_rejected() -> None:
    drive = drafting("a", "b", "c", "d")
    effects = drive.error("bad_request")
    assert one(SubmitNext, effects).items_max == 1
    drive.results(committed("a", 4))
    assert drive.submitted() == ("b",)
    apply = one(Apply, drive.error("bad_request"))
    assert apply.refused == (DraftRejected("b", "bad_request", (FieldError("", "says bad_request"),)),)
    drive.results(committed("c", 5))
    assert drive.submitted() == ("d",)
    drive.pending += ["e", "f"]
    effects = drive.results(committed("d", 6))
    assert one(SubmitNext, effects).items_max == 100, "back to batches"


def test_a_message_too_big_for_the_server_does_not_come_again() -> None:
    drive = drafting("a", "b")
    drive.feed(Lost(1009))
    drive.live(to=3)
    assert drive.submitted() == ("a",)
    apply = one(Apply, drive.feed(Lost(1009)))
    assert [each.id for each in apply.refused] == ["a"]
    drive.live(to=3)
    assert drive.submitted() == ("b",)


def test_a_draft_too_large_for_any_message_is_rejected() -> None:
    drive = drafting("a")
    drive.results(committed("a", 4))
    drive.pending = []
    drive.feed(DraftsWaiting())
    apply = one(Apply, drive.feed(Submitted(too_large="b")))
    assert [(each.id, each.reason) for each in apply.refused] == [("b", "too_big")]


def test_forbidden_partitions_are_set_aside_and_the_rest_goes_on() -> None:
    drive = Drive(cursors={"p": 5, "q": 5, "r": 5})
    drive.connect(head=9)
    effects = drive.error("forbidden", {"partitions": ["q"]})
    assert reports(effects) == ["forbidden"]
    assert one(SendSync, effects) == SendSync(("p", "r"), 5, 1000, ("p", "r"))
    drive.page(to=9)
    assert drive.phase() is Phase.LIVE
    assert drive.state.refused_partitions == {"q": "forbidden"}


def test_a_server_that_does_not_say_which_partition_is_forbidden_is_asked_one_by_one() -> None:
    drive = Drive(cursors={"p": 5, "q": 5, "r": 5})
    drive.connect(head=9)
    assert one(SendSync, drive.error("forbidden")) == SendSync(("p",), 5, 1000, ("p",))
    assert one(SendSync, drive.page(to=9)) == SendSync(("q",), 5, 1000, ("p", "q"))
    assert one(SendSync, drive.error("forbidden")) == SendSync(("r",), 5, 1000, ("p", "r"))
    drive.page(to=9)
    assert drive.state.refused_partitions == {"q": "forbidden"}
    assert drive.phase() is Phase.LIVE


def test_more_partitions_than_the_server_lets_subscribe() -> None:
    drive = Drive(cursors={"p": 0, "q": 0})
    drive.connect()
    drive.error(
        "validation_failed", {"errors": [{"field": "subscription_partitions", "message": "1 at most"}]}
    )
    drive.page(to=0)
    drive.error("validation_failed")
    assert drive.state.refused_partitions == {"q": "validation_failed"}
    assert drive.phase() is Phase.LIVE


def test_what_was_set_aside_is_tried_again_when_added_again_and_on_the_next_connection() -> None:
    drive = Drive(cursors={"p": 0})
    drive.connect()
    drive.error("forbidden", {"partitions": ["p"]})
    assert drive.phase() is Phase.LIVE
    assert asked(drive.feed(PartitionAdded("p", 0))) == (("p",), 0)
    drive.error("forbidden", {"partitions": ["p"]})
    drive.feed(Lost())
    assert asked(drive.connect()) == (("p",), 0)


@pytest.mark.req("CLIENT-08")
@pytest.mark.parametrize("code", [None, 1000, 1001, 1006, 1011, 4004, 4005, 4006])
def test_a_lost_connection_is_tried_again(code: int | None) -> None:
    drive = drafting("a")
    assert one(Retry, drive.feed(Lost(code))) == Retry(new_token=False)
    assert drive.phase() is Phase.OFFLINE
    assert drive.state.cursors == {"p": 3}
    assert drive.pending == ["a"]


@pytest.mark.req("CLIENT-08")
def test_after_a_loss_everything_is_done_again_from_the_durable_cursor() -> None:
    drive = Drive(cursors={"p": 0})
    drive.connect()
    drive.page(1, 2, to=9, more=True)
    drive.broadcast(10)
    drive.feed(Lost())
    drive.feed(Dialing())
    assert drive.phase() is Phase.CONNECTING
    assert not drive.state.buffer
    assert asked(drive.connect()) == (("p",), 2)


@pytest.mark.req("CLIENT-08")
@pytest.mark.parametrize("code", [4001, 1000, None])
def test_a_refused_token_asks_for_a_new_one(code: int | None) -> None:
    drive = Drive()
    drive.connect()
    drive.error("auth_failed")
    assert one(Retry, drive.feed(Lost(code))).new_token is True


def test_close_4001_alone_asks_for_a_new_token_too() -> None:
    drive = Drive()
    drive.live()
    assert one(Retry, drive.feed(Lost(4001))).new_token is True


def test_a_client_that_was_replaced_does_not_fight() -> None:
    drive = Drive()
    drive.live()
    assert "took over" in one(Stop, drive.feed(Lost(4003))).reason


@pytest.mark.req("CLIENT-08", "CONN-05")
def test_a_connect_of_its_own_that_arrives_late_stops_no_client() -> None:
    drive = Drive()
    drive.feed(Dialing())
    drive.feed(Opened())
    drive.feed(Lost(None))  # given up; the server takes this connect after the next one
    drive.live()
    one(Retry, drive.feed(Lost(4003)))
    drive.live()
    assert "took over" in one(Stop, drive.feed(Lost(4003))).reason, "one late connect explains one end"


@pytest.mark.req("CLIENT-08", "CONN-05")
def test_a_connect_that_was_lost_long_ago_explains_nothing() -> None:
    drive = Drive()
    drive.feed(Dialing())
    drive.feed(Opened())
    drive.feed(Lost(None))
    drive.live()
    drive.now += LATE_CONNECT_S + 1
    assert "took over" in one(Stop, drive.feed(Lost(4003))).reason


@pytest.mark.parametrize("code", ["profile_unsupported", "protocol_version_unsupported"])
def test_a_server_that_does_not_speak_our_language_is_not_asked_again(code: str) -> None:
    drive = Drive()
    drive.connect()
    assert of(DropConnection, drive.error(code))
    assert of(Stop, drive.feed(Lost(4002)))


def test_another_profile_or_policy_than_asked_for_is_not_accepted() -> None:
    drive = Drive(profile="canonical")
    effects = drive.connect()
    assert reports(effects) == ["profile_unsupported"]
    assert of(Stop, drive.feed(Lost(1000)))


@pytest.mark.req("CLIENT-09")
def test_an_unanswered_request_ends_the_connection() -> None:
    drive = Drive(options=Options(answer_timeout_s=60))
    drive.connect()
    drive.now += 59
    assert not drive.feed(TimerFired())
    drive.now += 2
    effects = drive.feed(TimerFired())
    assert reports(effects) == ["no_answer"]
    assert of(DropConnection, effects)


def test_an_error_nobody_asked_for_is_only_reported() -> None:
    drive = Drive()
    drive.live()
    before = drive.state
    assert reports(drive.error("bad_request")) == ["bad_request"]
    assert drive.state == before


def test_connect_tells_how_far_the_client_has_got() -> None:
    drive = Drive(cursors={"p": 7, "q": 4})
    drive.connect()
    assert one(SendConnect, drive.effects).last_committed_id == 4
