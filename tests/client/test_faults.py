"""Drafts that make a server fail: found, set aside, tried again, while the others go on; outages are none of that."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.client.peers import Line, playing
from tests.client.running import QUICK, WAIT_S, Gate, asynchronous, client, until
from tests.client.sync.driving import Drive, committed, of, page, rejected, reports
from unisono.client import Committed, NotCaughtUp, Options, Phase
from unisono.client.sync.failing_drafts import FAILURES_MAX
from unisono.client.sync.inputs_effects import (
    DraftRetried,
    DraftsWaiting,
    DropConnection,
    Lost,
    Received,
    SubmitNext,
    TimerFired,
)
from unisono.protocol.client_codec import SubmitResultItem


class Poisoned(Drive):
    """A server that fails on some drafts, or on all, and answers for the others."""

    def __init__(self, *pending: str, poison: Sequence[str] = (), **state: Any) -> None:
        super().__init__(**state)
        self.pending = list(pending)
        self.poison = set(poison)
        self.down = False
        self.sent: list[tuple[str, ...]] = []
        self.head = 0
        self.feed(DraftsWaiting())

    def reconnect(self, *, to: int | None = None) -> None:
        self.live(to=self.head if to is None else to)

    def answer(self) -> None:
        """Answer the submit that is under way."""
        ids = self.submitted()
        self.sent.append(ids)
        if self.down or self.poison & set(ids):
            assert of(DropConnection, self.error("server_error"))
            self.feed(Lost(1011))
            return
        told: list[SubmitResultItem] = []
        for id in ids:
            self.head += 1
            told.append(committed(id, self.head))
        self.results(*told)

    def run(self, rounds: int = 60) -> None:
        """Until nothing is submitted any more."""
        for _ in range(rounds):
            if self.phase() is Phase.OFFLINE:
                self.reconnect()
            if not self.submitted():
                return
            self.answer()
        raise AssertionError("never at rest")


@pytest.mark.req("CLIENT-08")
@pytest.mark.parametrize("poison", ["a", "c", "e", "bd", "abc", "ace"])
def test_drafts_a_server_fails_on_are_set_aside_and_the_others_go_on(poison: str) -> None:
    drive = Poisoned(*"abcde", poison=poison)
    drive.run()
    assert drive.pending == list(poison)
    assert list(drive.state.set_aside_drafts) == list(poison)
    assert drive.phase() is Phase.LIVE
    assert reports(drive.effects).count("draft_set_aside") == len(poison)
    drive.pending += ["f"]
    drive.feed(DraftsWaiting())
    drive.run()
    assert drive.pending == list(poison), "a later draft is not held up"


@pytest.mark.req("CLIENT-08")
def test_a_draft_is_isolated_after_three_failures_of_its_batch_and_three_of_its_own() -> None:
    drive = Poisoned(*"abc", poison="b")
    drive.run()
    batch, alone = ("a", "b", "c"), ("b",)
    assert drive.sent == [batch] * FAILURES_MAX + [("a",)] + [alone] * FAILURES_MAX + [("c",), alone]


def test_a_closure_with_1011_counts_as_the_answer_does() -> None:
    drive = Poisoned("a")
    for _ in range(FAILURES_MAX):
        drive.reconnect()
        assert drive.submitted() == ("a",)
        drive.feed(Lost(1011))
    drive.reconnect()
    assert list(drive.state.set_aside_drafts) == ["a"]
    assert not drive.submitted()


@pytest.mark.parametrize("code", [None, 1000, 1001, 1006, 4004, 4005, 4006])
def test_an_ordinary_outage_sets_nothing_aside(code: int | None) -> None:
    drive = Poisoned("a", "b")
    for _ in range(10 * FAILURES_MAX):
        drive.reconnect()
        assert drive.submitted() == ("a", "b")
        drive.feed(Lost(code))
        for _ in range(5):
            drive.feed(Lost())
    assert not drive.state.set_aside_drafts
    assert not drive.state.single_submits


def test_a_server_error_about_something_else_is_no_fault_of_a_draft() -> None:
    drive = Poisoned("a")
    for _ in range(10 * FAILURES_MAX):
        drive.connect()
        assert drive.state.pending_request == "sync"
        drive.error("server_error")
        drive.feed(Lost(1011))
    assert not drive.state.set_aside_drafts


def test_a_server_that_fails_on_everything_gets_the_drafts_in_their_order_once_it_works() -> None:
    drive = Poisoned(*"abc")
    drive.down = True
    for _ in range(2 * FAILURES_MAX + 1):
        drive.reconnect()
        drive.answer()
    assert list(drive.state.set_aside_drafts) == ["a"]
    drive.down = False
    drive.sent.clear()
    drive.run()
    assert drive.sent[:3] == [("b",), ("a",), ("c",)], "one draft goes ahead to find out, and no more"
    assert not drive.pending
    assert not drive.state.set_aside_drafts


def test_what_is_set_aside_is_tried_again_ever_more_rarely() -> None:
    options = Options(draft_retry_base_s=60.0, draft_retry_cap_s=200.0)
    drive = Poisoned("a", poison="a", options=options)
    drive.run()
    waits = []
    for _ in range(4):
        waits.append(drive.state.set_aside_drafts["a"].retry_at - drive.now)
        drive.now += waits[-1] - 1
        drive.feed(TimerFired())
        assert not drive.submitted()
        drive.now += 1
        drive.feed(TimerFired())
        assert drive.submitted() == ("a",)
        drive.run()
    assert waits == [60, 120, 200, 200]
    drive.poison = set()
    drive.now += 200
    drive.feed(TimerFired())
    drive.run()
    assert not drive.pending
    assert not drive.state.set_aside_drafts


def test_what_is_set_aside_is_tried_again_when_the_program_says_so() -> None:
    drive = Poisoned("a", poison="a")
    drive.run()
    drive.poison = set()
    drive.feed(DraftRetried("a"))
    drive.run()
    assert not drive.pending
    drive.feed(DraftRetried("nobody"))
    assert not drive.submitted()


def test_what_is_set_aside_and_turns_out_to_be_committed_is_settled() -> None:
    drive = Poisoned("e7", poison=["e7"])
    drive.run()
    assert list(drive.state.set_aside_drafts) == ["e7"]
    drive.feed(Lost())
    drive.connect()
    drive.feed(Received(page(7, to=7)))
    assert not drive.state.set_aside_drafts
    assert not drive.pending


def test_what_is_set_aside_and_then_refused_is_rejected_as_usual() -> None:
    drive = Poisoned("a", poison="a")
    drive.run()
    drive.feed(DraftRetried("a"))
    drive.results(rejected("a"))
    assert not drive.state.set_aside_drafts
    assert not drive.pending


def test_a_tick_while_offline_asks_for_no_further_tick_at_once() -> None:
    drive = Poisoned("a", poison="a")
    drive.run()
    drive.feed(Lost())
    drive.now += 1000
    drive.feed(TimerFired())
    assert not of(SubmitNext, drive.effects[-1:])
    drive.reconnect()
    assert drive.submitted() == ("a",)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_fails_and_whenever_each_good_draft_gets_through_once(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"d{n}" for n in range(chance.randrange(1, 30))]
    drive = Poisoned(*names, batch_max=chance.choice([1, 3, 100]))
    drive.poison = {name for name in names if chance.random() < 0.2}
    for _ in range(2000):
        if drive.phase() is Phase.OFFLINE:
            drive.reconnect()
        if not drive.submitted():
            break
        if chance.random() < 0.3:
            drive.feed(Lost(chance.choice([None, 1001, 1006])))
        else:
            drive.answer()
    assert set(drive.pending) == drive.poison == set(drive.state.set_aside_drafts)
    assert drive.head == len(names) - len(drive.poison)


@pytest.mark.req("CLIENT-08")
@asynchronous
async def test_over_a_real_socket_one_poisonous_draft_holds_up_nothing() -> None:
    """The server fails on `bad`; in the end it works, and the program has it tried again."""
    healed = False
    log: list[list[int]] = []
    events: list[dict[str, Any]] = []

    def script(line: Line) -> None:
        line.welcome(ordered=True, head=len(events))
        since = line.expect("sync")["since_committed_id"]
        line.page(*events[since:], to=len(events))
        while (message := line.receive())["type"] != "disconnect":
            if message["type"] == "heartbeat":
                line.say("heartbeat_ack", {})
                continue
            items = message["payload"]["events"]
            values = [item["event"]["payload"]["value"] for item in items]
            log.append(values)
            if 2 in values and not healed:
                line.say("error", {"code": "server_error", "message": "something went wrong"})
                line.socket.close(1011)
                return
            results = []
            for item in items:
                committed = item | {
                    "committed_id": len(events) + 1, "client_id": "me", "status_updated_at": 5
                }  # fmt: skip
                events.append(committed)
                results.append({
                    "id": item["id"], "status": "committed", "committed_id": len(events), "status_updated_at": 5
                })  # fmt: skip
            line.say("submit_events_result", {"results": results})

    with playing(script) as peer:
        gate = Gate()
        async with client(peer.url, "me", "p", token=gate, options=QUICK) as one:
            drafts = [await one.set(f"k{number}", number) for number in range(5)]
            bad = drafts[2]
            gate.open()
            with pytest.raises(NotCaughtUp, match=r"1 draft is set aside: .*server_error") as missing:
                await one.caught_up(WAIT_S)
            assert list(missing.value.drafts) == [bad.id]
            assert list(one.status.drafts_set_aside) == [bad.id]
            (pending,) = await one.pending()
            assert pending.id == bad.id
            assert pending.set_aside == one.status.drafts_set_aside[bad.id]
            for draft in drafts:
                if draft is not bad:
                    assert isinstance(await draft.settled(WAIT_S), Committed)
            assert one.rejected() == ()
            assert one.view() == {f"k{number}": number for number in range(5)}, "still shown"
            assert isinstance(await (await one.set("later", 9)).settled(WAIT_S), Committed)
            healed = True
            await until(lambda: one.status.phase is Phase.LIVE)
            await one.retry(bad.id)
            assert isinstance(await bad.settled(WAIT_S), Committed)
            await one.caught_up(WAIT_S)
            assert one.status.drafts_set_aside == {}
            assert one.status.last_error is None
        assert (
            log[: 2 * FAILURES_MAX + 2]
            == [[0, 1, 2, 3, 4]] * FAILURES_MAX + [[0], [1]] + [[2]] * FAILURES_MAX
        )
