"""A node that is far behind the shared log catches up, and all its clients hear everything, in bounded parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pytest

from tests.authority.seat import Seat, candidate, check_order, put, seated_on
from tests.store.postgres.server import database, postgres
from tests.store.records import make_record
from unisono.authority.cluster_view import ClusterView
from unisono.authority.group_size import GROUP_BYTES_MAX
from unisono.ipc import channel as channels
from unisono.ipc.messages import EventCommitted, Message
from unisono.protocol.canonical import canonical
from unisono.store.cluster import News
from unisono.store.postgres.log import PostgresLog

__all__ = ["database", "postgres"]

EVENTS = 240
EVENT_BYTES = 100_000
"""Together 24 MB: more than is read in one go, and many times what a group has."""


class DeafLog(PostgresLog):
    """A node that hears nothing of the others until it is allowed to, as if it had stood still."""

    deaf = False

    def catch_up(self, *, fresh: bool = False) -> News:
        return News(self.head()) if self.deaf else super().catch_up(fresh=fresh)


@contextmanager
def fallen_behind(dsn: str) -> Iterator[Seat[DeafLog]]:
    """A node at work on a log that another one has gone on writing."""
    log = DeafLog.open(dsn, "behind")
    with seated_on(log, cluster=ClusterView(log)) as seat:
        seat.front.head()
        log.deaf = True
        with closing(PostgresLog.open(dsn, "other")) as other:
            text = canonical(put("x", "x" * EVENT_BYTES))
            while other.head() < EVENTS:
                first = other.begin([]).head + 1
                other.commit([make_record(first + n, event=text) for n in range(20)])
        yield seat


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of every frame that is sent from now on."""
    sent: list[int] = []
    frame = channels.frame

    def measured(messages: Sequence[Message]) -> bytes:
        whole = frame(messages)
        sent.append(len(whole))
        return whole

    monkeypatch.setattr(channels, "frame", measured)
    return sent


@pytest.mark.req("LIM-05", "ORD-02", "BCAST-03")
def test_what_a_node_missed_is_told_in_order_and_in_bounded_parts(database: str, sizes: list[int]) -> None:
    with fallen_behind(database) as seat:
        sizes.clear()
        seat.store.deaf = False
        seat.front.of(EventCommitted, lambda event: event.committed_id == EVENTS)
        assert check_order(seat.front.received) == EVENTS
        assert sum(sizes) > EVENTS * EVENT_BYTES
        assert max(sizes) < 2 * GROUP_BYTES_MAX


@pytest.mark.req("LIM-05", "ORD-02", "BCAST-06")
def test_a_group_of_a_node_far_behind_comes_after_all_that_it_missed(database: str, sizes: list[int]) -> None:
    with fallen_behind(database) as seat:
        caller = seat.front.connect()
        sizes.clear()
        result = caller.submit(candidate(["p"], put("x", 1)))
        assert result[0].committed_id == EVENTS + 1
        assert check_order(seat.front.received) == EVENTS + 1
        # What came between the last look and the lock is sent with the group: one look's worth more.
        assert max(sizes) < EVENTS * EVENT_BYTES * 3 // 4
