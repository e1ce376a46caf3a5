"""Pages that are read before they are asked for: the same pages, no erased text, no more than fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.store.records import LAKE, append_many
from unisono.ipc.page_messages import AskPage, PageResult
from unisono.protocol.tombstones import tombstone
from unisono.reader import read_ahead
from unisono.reader.read_ahead import ReadAhead
from unisono.reader.read_page import answer_page
from unisono.store.maintenance import Tombstone
from unisono.store.sqlite.log import SqliteLog, SqliteReader

STONE = tombstone(1_700_000_000_000)


class Beside:
    """A log of 300 events, and what is read ahead of it."""

    def __init__(self, folder: Path) -> None:
        self.log = SqliteLog.open(folder)
        append_many(self.log, 300, ("p",))
        self.reader = SqliteReader.open(folder)
        self.ahead = ReadAhead(self.reader)

    def ask(self, since: int, ticket: int = 1) -> AskPage:
        return AskPage(ticket, ("p",), since, 300, 50, 1_000_000)

    def page(self, ask: AskPage) -> PageResult:
        page = answer_page(self.reader, ask)
        assert isinstance(page, PageResult)
        return page

    def go_on(self, since: int) -> None:
        """A page was asked for and answered, and there is nothing else to do."""
        self.ahead.answered(self.ask(since), self.page(self.ask(since)))
        self.ahead.read()

    def close(self) -> None:
        self.reader.close()
        self.log.close()


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    with closing(Beside(tmp_path)) as opened:
        yield opened


@pytest.mark.req("SYNC-01", "SYNC-03")
def test_it_is_the_page_that_would_be_read_and_given_out_once(beside: Beside) -> None:
    beside.go_on(50)
    assert beside.ahead.idle
    asked = beside.ask(100, ticket=7)
    assert beside.ahead.take(asked) == beside.page(asked)
    assert beside.ahead.take(asked) is None


@pytest.mark.req("SYNC-01", "EXT-03", "EXT-13")
def test_another_question_gets_no_such_page(beside: Beside) -> None:
    beside.go_on(50)
    for change in (
        {"since": 101}, {"upto": 299}, {"limit": 51}, {"bytes_max": 9}, {"partitions": ("p", "q")},
        {"authors": True}, {"whole_batches": True}, {"snapshot_starts": {"p": 120}},
    ):  # fmt: skip
        assert beside.ahead.take(msgspec.structs.replace(beside.ask(100), **change)) is None, change
    assert beside.ahead.take(beside.ask(100)) is not None


def test_first_pages_and_last_pages_are_not_followed(beside: Beside) -> None:
    for since in (0, 250):
        beside.ahead.answered(beside.ask(since), beside.page(beside.ask(since)))
        assert beside.ahead.idle


def test_erased_text_is_not_given_out(beside: Beside) -> None:
    beside.go_on(50)
    beside.log.erase([Tombstone(120, STONE)], [])
    assert beside.ahead.take(beside.ask(100)) is None
    beside.go_on(50)
    again = beside.ahead.take(beside.ask(100))
    assert again is not None
    assert STONE in again.events


@pytest.mark.req("DUR-06")
def test_what_was_pruned_is_left_to_the_archive(beside: Beside) -> None:
    asked = beside.ask(50)
    page = beside.page(asked)
    beside.log.set_archive(LAKE)
    while beside.log.extent().pruned_to < 200:
        beside.log.prune_batch(200)
    beside.ahead.answered(asked, page)
    beside.ahead.read()
    assert beside.ahead.idle
    assert beside.ahead.take(beside.ask(100)) is None


@pytest.mark.req("LIM-05")
def test_pages_that_nobody_asks_for_are_forgotten(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "HISTORIES_MAX", 2)
    for since in (10, 20, 30):
        beside.ahead.answered(beside.ask(since), beside.page(beside.ask(since)))
    for _ in range(3):
        beside.ahead.read()
    assert [beside.ahead.take(beside.ask(since)) is not None for since in (60, 70, 80)] == [False, True, True]
    monkeypatch.setattr(read_ahead, "PAGES_BYTES_MAX", 1)
    beside.go_on(50)
    assert beside.ahead.take(beside.ask(100)) is None


@pytest.mark.req("LIM-05")
def test_clients_at_the_same_place_share_what_was_read(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "PAGES_BYTES_MAX", 3 * len(beside.page(beside.ask(100)).events))
    for _ in range(20):  # each asked for the page before, and none for the next one yet
        beside.go_on(50)
    asked = beside.ask(100)
    assert beside.ahead.take(asked) == beside.page(asked)
    beside.go_on(100)
    assert beside.ahead.take(beside.ask(150)) is not None, "the bytes of pages that are gone are counted"
