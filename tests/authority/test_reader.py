"""The reader: pages in the words of the wire, and no page that ends too early."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.authority.logs import grow
from tests.store.lakes import export_to
from tests.waiting import PATIENCE_S
from unisono.authority.channel import AskPage, Channel, Drain, PageFailed, PageOf, Ready, socket_pair
from unisono.authority.reader import Reader
from unisono.store.archive import Archive, ArchivedReader
from unisono.store.delta.lake import Lake
from unisono.store.port import Extent, Page
from unisono.store.sqlite import SqliteLog, SqliteReader


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
    assert isinstance(whole, PageOf)
    assert (len(whole.events), whole.last, whole.has_more) == (30, 30, False)
    part = ask(2, 40, 10)
    assert isinstance(part, PageOf)
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
        self, held: Extent, partitions: Sequence[str], since: int, upto: int, *, limit: int, bytes_max: int
    ) -> Page:
        self.asked.set()
        assert self.let_go.wait(PATIENCE_S)
        return super().page(held, partitions, since, upto, limit=limit, bytes_max=bytes_max)


@pytest.mark.req("DUR-06", "SYNC-01")
def test_pages_from_the_log_do_not_wait_for_pages_from_the_archive(tmp_path: Path) -> None:
    written = SqliteLog.open(tmp_path / "data")
    grow(written, "cold", 30)
    grow(written, "hot", 30)
    export_to(Lake.at(str(tmp_path / "lake")), tmp_path / "data")
    written.set_archive(str(tmp_path / "lake"))
    while written.prune(30):
        pass
    written.close()
    archive = SlowArchive()
    node, node_end = (Channel(end) for end in socket_pair())
    front, front_end, other, other_end = (Channel(end) for _ in range(2) for end in socket_pair())
    log = SqliteReader.open(tmp_path / "data")
    serving = Reader(
        log,
        node_end,
        [front_end, other_end],
        lambda: ArchivedReader(SqliteReader.open(tmp_path / "data"), archive),
    )
    reader = threading.Thread(target=serving.run)
    reader.start()
    assert _next(node) == Ready()
    front.send(
        [AskPage(1, ("cold",), 0, 60, 20, 1_000_000), AskPage(2, ("cold", "hot"), 0, 60, 50, 1_000_000)]
    )
    other.send([AskPage(3, ("cold",), 0, 60, 20, 1_000_000)])
    assert archive.asked.wait(PATIENCE_S)
    front.send([AskPage(4, ("hot",), 0, 60, 50, 1_000_000)])
    hot = _next(front)
    assert isinstance(hot, PageOf)
    assert (hot.ticket, len(hot.events), hot.has_more) == (4, 30, False)
    other.close()  # its page finds nobody
    archive.let_go.set()
    first, second = _heard(front, 2)
    assert isinstance(first, PageOf)
    assert isinstance(second, PageOf)
    assert (first.ticket, len(first.events), first.last, first.has_more) == (1, 20, 20, True)
    assert (second.ticket, len(second.events), second.has_more) == (2, 50, True)
    front.send([AskPage(5, ("cold",), 20, 60, 20, 1_000_000)])
    last = _next(front)
    assert isinstance(last, PageOf)
    assert (len(last.events), last.last, last.has_more) == (10, 30, False)
    node.send([Drain()])
    reader.join()
    log.close()
    for channel in (node, node_end, front, front_end, other_end):
        channel.close()


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
