"""The authority's clock, and how it ends: by order, with its node, and not with a front."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.authority.logs import GatedLog
from tests.authority.seat import candidate, check_order, push, put, seated, seated_on
from unisono.authority.group_size import GROUP_EVENTS_MAX
from unisono.ipc import channel as channels
from unisono.ipc.messages import AdminCommand, AskHead, AskStats, Drain, EventCommitted, HeadAnswer, Ready


@pytest.mark.req("ENV-07")
def test_time_never_runs_backwards_not_even_across_a_restart(tmp_path: Path) -> None:
    now = [0]
    for times, expected in (([5_000, 3_000, 7_000], [5_000, 5_000, 7_000]), ([1, 9_000], [7_000, 9_000])):
        with seated(tmp_path / "data", now_ms=lambda: now[0]) as seat:
            caller = seat.front.connect()
            for now[0], wanted in zip(times, expected, strict=True):
                assert caller.submit(candidate(["p"], put("x", 1)))[0].status_updated_at == wanted


@pytest.mark.req("ERR-03")
def test_a_front_that_goes_away_does_not_stop_the_others(tmp_path: Path) -> None:
    with seated(tmp_path / "data", fronts=3) as seat:
        stays, goes, half = seat.fronts
        caller, gone = stays.connect(), goes.connect()
        gone.send(candidate(["p"], push("a")))
        goes.close()
        half.channel._sock.sendall(b"\xff\xff\xff\xff not a frame")
        for id in "bc":
            assert caller.submit(candidate(["p"], push(id)))[0].status == "committed"
        assert check_order(stays.received) == stays.head()
        assert seat.stats().counters["commits"] == stays.head()


def test_a_front_that_sends_no_messages_counts_as_gone(tmp_path: Path) -> None:
    with seated(tmp_path / "data", fronts=2) as seat:
        seat.fronts[1].channel._sock.sendall(b"\x00\x00\x00\x03abc")
        assert seat.front.connect().submit(candidate(["p"], push("a")))[0].status == "committed"
        seat.fronts[1].rest()


@pytest.mark.req("LIM-05")
def test_a_front_that_takes_nothing_is_given_up_and_learns_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "STALLED_S", 0.2)
    with seated(tmp_path / "data", fronts=2) as seat:
        caller, stalled = seat.front.connect(), seat.fronts[1]
        sent = 0
        while len(seat.authority.fronts) == 2:
            caller.submit(candidate(["p"], put("x", "x" * 100_000)))
            sent += 1
            assert sent < 200, "what one front does not take is kept without bound"
        assert caller.submit(candidate(["p"], push("a")))[0].committed_id == sent + 1
        heard = [message for message in stalled.rest() if isinstance(message, EventCommitted)]
        assert 0 < len(heard) < sent, "it gets what was on its way, and then the end"


def test_what_an_authority_is_not_told_is_passed_over(tmp_path: Path) -> None:
    with seated(tmp_path / "data") as seat:
        seat.front.send(Ready(), HeadAnswer(1, 1), AdminCommand(1, "dance", ""))
        assert seat.front.connect().submit(candidate(["p"], push("a")))[0].status == "committed"


def test_with_the_node_gone_it_ends_by_itself_whatever_is_still_asked(tmp_path: Path) -> None:
    gated = GatedLog.open(tmp_path / "data")
    with seated_on(gated) as seat:
        caller = seat.front.connect()
        gated.gate.shut()
        caller.send(candidate(["p"], push("a")))
        gated.gate.wait_reached()
        seat.node.send(AskStats(1), AskStats(2), AdminCommand(3, "dance", ""), AskStats(4))
        seat.node.close()
        gated.gate.open()
        assert caller.results()[0].committed_id == 1, "what was begun is finished"
        seat.join()
        assert seat.failure is None


def test_drained_it_finishes_what_is_queued(tmp_path: Path) -> None:
    gated = GatedLog.open(tmp_path / "data")
    with seated_on(gated) as seat:
        caller = seat.front.connect()
        gated.gate.shut()
        half = GROUP_EVENTS_MAX // 2
        requests = [caller.request(*(candidate(["p"], put("x", n)) for n in range(half))) for _ in range(5)]
        seat.front.send(*requests, AskHead(1))
        gated.gate.wait_reached()  # with the first two; three more are queued
        seat.node.send(Drain())
        gated.gate.open()
        seat.join()
        assert seat.failure is None
        assert check_order(seat.front.rest()) == 5 * half
        assert [len(caller.results()) for _ in requests] == [half] * 5
        assert seat.front.of(HeadAnswer).committed_id == 5 * half
