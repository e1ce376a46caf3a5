"""The reader: pages in the words of the wire, and no page that ends too early."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.authority.logs import grow
from tests.lake.lakes import export_to
from tests.waiting import PATIENCE_S, until
from unisono.ipc.channel import Channel, socket_pair
from unisono.ipc.messages import AskStats, Drain, Ready, Stats
from unisono.ipc.page_messages import AskPage, CancelPage, PageFailed, PageResult
from unisono.ipc.stats import CounterValues as Figures
from unisono.ipc.stats import parse
from unisono.lake.cold.archive import Archive, ArchivedReader
from unisono.lake.lake import Lake
from unisono.reader.process import Reader
from unisono.store.port import NO_SNAPSHOT_STARTS, LogExtent, Page
from unisono.store.sqlite.log import SqliteLog, SqliteReader


@pytest.mark.req("SYNC-01", "SYNC-03")
def test_a_log_that_ends_before_the_watermark_gives_no_last_page(tmp_path: Path) -> None:
    written = SqliteLog.open(tmp_path)
    grow(written, "p", 30)
    written.close()
    node, node_end = (Channel(end) for end in socket_pair())
    front, front_end = (Channel(end) for end in socket_pair())
    log = SqliteReader.open(tmp_path)
    reader = threading.Thread(target=Reader(log, node_end, [front_end]).run)
    reader.start()
    assert _next(node) == Ready()

    def ask(ticket: int, upto: int, limit: int) -> object:
        front.send([AskPage(ticket, ("p",), 0, upto, limit, 1_000_000)])
        return _next(front)

    whole = ask(1, 30, 50)
    assert isinstance(whole, PageResult)
    assert (whole.count, whole.last, whole.has_more) == (30, 30, False)
    part = ask(2, 40, 10)
    assert isinstance(part, PageResult)
    assert part.has_more
    assert ask(3, 40, 50) == PageFailed(3)
    node.send([Drain()])
    reader.join()
    log.close()
    for channel in (node, node_end, front, front_end):
        channel.close()


class SlowArchive(Archive):
    """An archive far away: every page of it takes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.let_go = threading.Event(), threading.Event()

    def page(
        self,
        extent: LogExtent,
        partitions: Sequence[str] | None,
        since: int,
        upto: int,
        *,
        limit: int,
        bytes_max: int,
        snapshot_starts: Mapping[str, int] = NO_SNAPSHOT_STARTS,
    ) -> Page:
        self.asked.set()
        assert self.let_go.wait(PATIENCE_S)
        return super().page(
            extent, partitions, since, upto, limit=limit, bytes_max=bytes_max, snapshot_starts=snapshot_starts
        )


class Served:
    """A reader at work on a log of which the first 30 events are in an archive far away; two fronts ask it."""

    def __init__(self, place: Path) -> None:
        written = SqliteLog.open(place / "data")
        grow(written, "cold", 30)
        grow(written, "hot", 30)
        export_to(Lake.at(str(place / "lake")), place / "data")
        written.set_archive(str(place / "lake"))
        while written.prune_batch(30):
            pass
        written.close()
        self.archive = SlowArchive()
        self.node, node_end = (Channel(end) for end in socket_pair())
        self.front, front_end, self.other, other_end = (
            Channel(end) for _ in range(2) for end in socket_pair()
        )
        self._log = SqliteReader.open(place / "data")
        self._ends = (node_end, front_end, other_end)
        serving = Reader(
            self._log,
            node_end,
            [front_end, other_end],
            lambda cold_watermarks: ArchivedReader(
                SqliteReader.open(place / "data"), self.archive, cold_watermarks
            ),
        )
        self._thread = threading.Thread(target=serving.run)
        self._thread.start()
        assert _next(self.node) == Ready()

    def stats(self) -> Figures:
        self.node.send([AskStats(1)])
        stats = _next(self.node)
        assert isinstance(stats, Stats)
        return parse(stats.body)

    def close(self) -> None:
        self.archive.let_go.set()
        self.node.send([Drain()])
        self._thread.join()
        self._log.close()
        for channel in (self.node, self.front, self.other, *self._ends):
            channel.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.close()


def cold_page(ticket: int, since: int = 0) -> AskPage:
    return AskPage(ticket, ("cold",), since, 60, 20, 1_000_000)


@pytest.mark.req("DUR-06", "SYNC-01")
def test_pages_from_the_log_do_not_wait_for_pages_from_the_archive(served: Served) -> None:
    front, other = served.front, served.other
    front.send([cold_page(1), AskPage(2, ("cold", "hot"), 0, 60, 50, 1_000_000)])
    other.send([cold_page(3)])
    assert served.archive.asked.wait(PATIENCE_S)
    front.send([AskPage(4, ("hot",), 0, 60, 50, 1_000_000)])
    hot = _next(front)
    assert isinstance(hot, PageResult)
    assert (hot.ticket, hot.count, hot.has_more) == (4, 30, False)
    other.close()  # its page finds nobody
    served.archive.let_go.set()
    first, second = _heard(front, 2)
    assert isinstance(first, PageResult)
    assert isinstance(second, PageResult)
    assert (first.ticket, first.count, first.last, first.has_more) == (1, 20, 20, True)
    assert (second.ticket, second.count, second.has_more) == (2, 50, True)
    front.send([cold_page(5, since=20)])
    last = _next(front)
    assert isinstance(last, PageResult)
    assert (last.count, last.last, last.has_more) == (10, 30, False)


@pytest.mark.req("LIM-05")
def test_pages_nobody_waits_for_are_not_read_and_every_question_is_answered_once(served: Served) -> None:
    front = served.front
    front.send([cold_page(1)])
    assert served.archive.asked.wait(PATIENCE_S)
    front.send([cold_page(ticket) for ticket in range(2, 100)])
    until(lambda: served.stats().gauges["archive_pages_waiting"] == 98, "they do not wait")
    front.send([CancelPage(ticket) for ticket in range(1, 99)])
    assert _heard(front, 97) == [PageFailed(ticket) for ticket in range(2, 99)]
    assert served.stats().gauges["archive_pages_waiting"] == 1
    front.send(
        [cold_page(100), CancelPage(100), AskPage(101, ("hot",), 0, 60, 50, 1_000_000), CancelPage(101)]
    )
    assert _heard(front, 2) == [PageFailed(100), PageFailed(101)]
    served.archive.let_go.set()
    pages = _heard(front, 2)
    assert [page.ticket for page in pages if isinstance(page, PageResult)] == [1, 99], (
        "the one that was being read, too"
    )
    assert served.stats().counters["sync_pages_cancelled"] == 99


@pytest.mark.req("LIM-05")
def test_pages_of_a_front_that_is_gone_do_not_wait(served: Served) -> None:
    served.front.send([cold_page(1)])
    assert served.archive.asked.wait(PATIENCE_S)
    served.other.send([cold_page(ticket) for ticket in range(2, 50)])
    until(lambda: served.stats().gauges["archive_pages_waiting"] == 48, "they do not wait")
    served.other.close()
    until(lambda: served.stats().gauges["archive_pages_waiting"] == 0, "they wait for ever")


def _next(channel: Channel) -> object:
    (message,) = _heard(channel, 1)
    return message


def _heard(channel: Channel, count: int) -> list[object]:
    """So many messages; two that were sent one after the other may well arrive as one."""
    messages: list[object] = []
    while len(messages) < count:
        messages += channel.receive()
    assert len(messages) == count
    return messages
