"""The reader: pages in the words of the wire, and no page that ends too early."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.authority.logs import grow
from unisono.authority.channel import AskPage, Channel, Drain, PageFailed, PageOf, Ready, socket_pair
from unisono.authority.reader import Reader
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


def _next(channel: Channel) -> object:
    while True:
        messages = channel.receive()
        if messages:
            (message,) = messages
            return message
