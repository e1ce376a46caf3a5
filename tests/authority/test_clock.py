"""The time that events are given: it hardly ever goes back, and one wrong clock does not stop it for ever."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.authority.seat import Seat, candidate, put, seated_on
from tests.store.postgres.server import database, postgres
from unisono.authority.clock import NEVER_SET_MS, Clock
from unisono.authority.cluster_view import ClusterView
from unisono.store.port import CLOCK_SKEW_MAX_MS
from unisono.store.postgres.log import PostgresLog
from unisono.store.sqlite.log import SqliteLog

__all__ = ["database", "postgres"]

NOW = 1_790_000_000_000
AHEAD = NOW + 10 * 365 * 86_400_000
"""A clock that is ten years ahead."""


class Hands:
    """A clock that shows what it is set to."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def time_of_next(seat: Seat[Any]) -> int:
    (result,) = seat.front.connect().submit(candidate(["p"], put("x", 1)))
    assert result.status == "committed"
    return result.status_updated_at


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    return [text for text in texts if "clock" in text]


@pytest.mark.req("ENV-07")
def test_time_stands_still_for_a_small_difference_and_goes_back_for_a_large_one() -> None:
    hands = Hands()
    clock = Clock(hands, 0)
    assert clock() == NOW
    hands.now = NOW - CLOCK_SKEW_MAX_MS
    assert (clock(), clock.corrections) == (NOW, 0)
    hands.now -= 1
    assert (clock(), clock.corrections) == (NOW - CLOCK_SKEW_MAX_MS - 1, 1)
    clock.observe(NOW + 5)
    hands.now = NOW
    assert clock() == NOW + 5


@pytest.mark.req("ENV-07")
def test_a_clock_that_was_never_set_does_not_turn_time_back() -> None:
    hands = Hands(0)
    clock = Clock(hands, NOW)
    assert (clock(), clock.corrections) == (NOW, 0)
    hands.now = NEVER_SET_MS - 1
    assert clock() == NOW
    hands.now = NOW + 1
    assert clock() == NOW + 1


@pytest.mark.req("ENV-07")
def test_an_embedded_log_recovers_from_a_clock_that_was_ahead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hands = Hands(AHEAD)
    with seated_on(SqliteLog.open(tmp_path / "data"), now_ms=hands) as seat:
        assert time_of_next(seat) == AHEAD
        hands.now = NOW  # the clock is set while the server runs
        assert [time_of_next(seat), time_of_next(seat)] == [NOW, NOW]
        assert seat.stats().counters["clock_corrections"] == 1
        hands.now = AHEAD
        assert time_of_next(seat) == AHEAD
    hands.now = NOW + 1_000  # the clock is set while it does not run
    with seated_on(SqliteLog.open(tmp_path / "data"), now_ms=hands) as seat:
        assert time_of_next(seat) == NOW + 1_000
    assert len(warnings(caplog)) == 2
    assert all("2026-09-21" in text and "2036-09-18" in text for text in warnings(caplog))


@pytest.mark.req("ENV-07", "ORD-02")
def test_a_node_with_a_wrong_clock_does_not_decide_the_times_of_the_others(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    right, wrong = Hands(), Hands(AHEAD)
    with ExitStack() as stack:

        def node(name: str, hands: Hands) -> Seat[Any]:
            log = PostgresLog.open(database, name)
            seated: Seat[Any] = stack.enter_context(seated_on(log, now_ms=hands, cluster=ClusterView(log)))
            return seated

        a, b = node("a", right), node("b", wrong)
        times = [time_of_next(seat) for seat in (a, b, a, b, a)]
        assert times == [NOW, AHEAD, NOW, AHEAD, NOW]
        wrong.now = NOW + 30_000  # not quite right, but near enough
        assert [time_of_next(seat) for seat in (b, a)] == [NOW + 30_000] * 2
        assert a.front.head() == 7
    assert warnings(caplog)


@pytest.mark.req("ENV-07")
def test_a_node_that_starts_after_a_wrong_clock_uses_its_own(database: str) -> None:
    for name, now, expected in (("a", AHEAD, AHEAD), ("b", NOW, NOW), ("c", NOW - 1_000, NOW)):
        log = PostgresLog.open(database, name)
        with seated_on(log, now_ms=Hands(now), cluster=ClusterView(log)) as seat:
            assert time_of_next(seat) == expected
