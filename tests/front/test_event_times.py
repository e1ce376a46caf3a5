"""Times of events at one front, while somebody looks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from unisono.front.event_times import RANGES_KEPT, RANGES_TOLD, EventWatch
from unisono.ipc.messages import EventCommitted


def clock() -> Callable[[], float]:
    seconds = count(1)
    return lambda: float(next(seconds))


def single(id: int, conn: int) -> EventCommitted:
    return EventCommitted(id, conn, ("p",), b"{}", answers=True)


def batched(id: int, conn: int) -> EventCommitted:
    return EventCommitted(id, conn, ("p",), b"{}")


def rows(watch: EventWatch, after: int = 0) -> list[tuple[int, int, float | None, float, int]]:
    return [(e.first, e.last, e.submitted_s, e.delivered_s, e.receivers) for e in watch.since(after)]


def test_a_single_event_is_answered_before_it_is_published() -> None:
    watch = EventWatch(clock(), {})
    watch.begin(7)
    watch.begin(7)
    for id in (1, 2):
        watch.answered(7)
        watch.published(single(id, 7), 3)
    assert rows(watch) == [(1, 1, 1.0, 3.0, 3), (2, 2, 2.0, 4.0, 3)]


def test_the_events_of_a_batch_are_one_range() -> None:
    watch = EventWatch(clock(), {})
    watch.begin(7)
    watch.begin(8)
    for id in (1, 2, 3):
        watch.published(batched(id, 7), 1)
    watch.answered(7)
    watch.published(batched(4, 8), 1)
    watch.answered(8)
    assert rows(watch) == [(1, 3, 1.0, 5.0, 3), (4, 4, 2.0, 6.0, 1)]
    assert rows(watch, after=3) == [(4, 4, 2.0, 6.0, 1)]


def test_requests_from_before_are_answered_first() -> None:
    watch = EventWatch(clock(), {7: 1})
    watch.begin(7)
    watch.answered(7)
    watch.published(single(1, 7), 1)
    watch.answered(7)
    watch.published(single(2, 7), 1)
    assert rows(watch) == [(1, 1, None, 2.0, 1), (2, 2, 1.0, 3.0, 1)]


def test_events_of_other_fronts_are_noted_when_somebody_here_gets_them() -> None:
    watch = EventWatch(clock(), {})
    watch.begin(7)
    watch.answered(99)
    watch.published(single(1, 99), 2)
    watch.published(batched(2, 98), 0)
    assert rows(watch) == [(1, 1, None, 2.0, 2)]


def test_requests_that_are_not_answered_any_more_are_forgotten() -> None:
    watch = EventWatch(clock(), {})
    watch.begin(7)
    watch.forget_all()
    watch.answered(7)
    watch.published(single(1, 7), 1)
    assert rows(watch) == [(1, 1, None, 2.0, 1)]


def test_what_is_kept_and_told_is_bounded() -> None:
    watch = EventWatch(clock(), {})
    for id in range(1, RANGES_KEPT + 11):
        watch.begin(id)
        watch.answered(id)
        watch.published(single(id, id), 1)
    told = rows(watch)
    assert len(told) == RANGES_TOLD
    assert told[-1][0] == RANGES_KEPT + 10
    assert len(watch._ranges) == RANGES_KEPT
    assert not watch._requests
