"""The sync state machine without a socket: the drafts of a transaction have one outcome."""

from __future__ import annotations

import pytest

from tests.client.sync.driving import Drive, committed, of, one, rejected, reports
from unisono.client.sync.drafts import UNFIT
from unisono.client.sync.failing_drafts import FAILURES_MAX
from unisono.client.sync.inputs_effects import (
    Apply,
    DraftRetried,
    DraftsWaiting,
    Effect,
    Lost,
    Opened,
    Received,
    SubmitNext,
    Submitted,
    TimerFired,
)
from unisono.protocol.client_codec import Capabilities, Connected, Limits

SERVER_ERROR = 1011


class Transacting(Drive):
    """Every pending draft belongs to one transaction."""

    def _submitted(self, effect: SubmitNext) -> Submitted:
        wanted = [id for id in self.pending if id not in effect.without or effect.only is not None]
        if effect.only is not None and effect.only not in self.pending:
            return Submitted(gone=effect.only)
        return Submitted(tuple(wanted), atomic=bool(wanted))

    def connect(self, *, ordered: bool = True, head: int = 0, **told: object) -> list[Effect]:
        limits = told.pop("limits", None) or Limits(max_message_bytes=1 << 20)
        assert isinstance(limits, Limits)
        capabilities = Capabilities("compatibility", ("set",), "strict", ordered, extensions=("atomic",))
        self.feed(Opened())
        return self.feed(Received(Connected("me", head, capabilities=capabilities, limits=limits)))


def transacting(*ids: str) -> Transacting:
    """Live, with this transaction just submitted."""
    drive = Transacting()
    drive.live(to=3)
    drive.pending = list(ids)
    drive.feed(DraftsWaiting())
    assert (drive.submitted(), drive.state.submitted_batch) == (ids, True)
    return drive


@pytest.mark.req("CLIENT-17")
def test_the_server_says_how_large_a_batch_may_be() -> None:
    for limits, most in (
        (Limits(max_batch_size=7), 7),
        (Limits(max_batch_size=7, max_in_flight_drafts=5), 5),
        (Limits(max_batch_size=7, max_in_flight_drafts=9), 7),
    ):
        drive = Transacting()
        drive.live(limits=limits)
        drive.pending = ["a"]
        assert one(SubmitNext, drive.feed(DraftsWaiting())).atomic_max == most
    old = Drive()
    granted = [old.state.atomic_granted]
    old.live()
    assert [*granted, old.state.atomic_granted, old.state.atomic_max] == [None, False, 0]


@pytest.mark.req("CLIENT-17")
def test_one_result_settles_all() -> None:
    drive = transacting("a", "b")
    apply = one(Apply, drive.results(rejected("a", "not_processed"), rejected("b")))
    assert [(each.id, each.reason) for each in apply.refused] == [
        ("a", "not_processed"), ("b", "validation_failed"),
    ]  # fmt: skip
    drive = transacting("a", "b")
    assert len(one(Apply, drive.results(committed("a", 4), committed("b", 5))).accepted) == 2


@pytest.mark.req("CLIENT-17")
def test_a_batch_refused_whole_is_rejected_whole_and_never_divided() -> None:
    drive = transacting("a", "b", "c")
    effects = drive.error("bad_request")
    assert [each.id for each in one(Apply, effects).refused] == ["a", "b", "c"]
    assert drive.state.single_submits == 0
    drive = transacting("a", "b")
    apply = one(Apply, drive.feed(Lost(1009)))
    assert [each.id for each in apply.refused] == ["a", "b"]


@pytest.mark.req("CLIENT-17", "LIM-03")
def test_a_limited_rate_delays_the_whole() -> None:
    drive = transacting("a", "b", "c")
    before = drive.state.batch_max
    drive.error("rate_limited", {"retry_after_ms": 5000})
    assert drive.state.batch_max == before
    drive.now += 5
    drive.feed(TimerFired())
    assert drive.submitted() == ("a", "b", "c")


@pytest.mark.req("CLIENT-17")
@pytest.mark.parametrize("reason", UNFIT)
def test_what_the_server_cannot_take_is_rejected_here(reason: str) -> None:
    drive = transacting("a", "b")
    drive.results(committed("a", 4), committed("b", 5))
    drive.feed(DraftsWaiting())
    effects = drive.feed(Submitted(unfit=("c", "d"), reason=reason))
    refused = one(Apply, effects).refused
    assert [(each.id, each.reason) for each in refused] == [("c", reason), ("d", reason)]
    assert refused[0].errors[0].message == UNFIT[reason]


@pytest.mark.req("CLIENT-17", "CLIENT-08")
def test_a_transaction_the_server_fails_on_is_set_aside_whole_and_tried_again_whole() -> None:
    drive = transacting("a", "b")
    for attempt in range(FAILURES_MAX):
        effects = drive.feed(Lost(SERVER_ERROR))
        assert ("draft_set_aside" in reports(effects)) == (attempt == FAILURES_MAX - 1)
        drive.live(to=3)
    assert set(drive.state.set_aside_drafts) == {"a", "b"}
    assert drive.submitted() == ()
    first = drive.state.set_aside_drafts["a"]
    drive.now = first.retry_at
    submit = one(SubmitNext, drive.feed(TimerFired()))
    assert (submit.only, drive.submitted()) == ("a", ("a", "b"))
    drive.feed(Lost(SERVER_ERROR))
    assert drive.state.set_aside_drafts["b"].wait_s == 2 * first.wait_s
    drive.live(to=3)
    assert not of(SubmitNext, drive.feed(TimerFired()))
    drive.feed(DraftRetried("b"))
    assert drive.submitted() == ("a", "b")
    drive.results(committed("a", 4), committed("b", 5))
    assert (drive.state.set_aside_drafts, drive.state.draft_failures) == ({}, {})
