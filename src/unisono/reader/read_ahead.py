"""The next pages of histories that are being read, while there is nothing else to do.

A client takes time for each page, and cannot ask for the page after it: it does not know where that one starts.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from unisono.ipc.page_messages import AskPage, PageFailed, PageResult
from unisono.reader.read_page import answer_page
from unisono.store.port import Pruned
from unisono.store.sqlite.reader import SqliteReader
from unisono.vocabulary import LogIdentity

HISTORIES_MAX: Final = 8
"""Histories whose next page is read, or is to be read."""

PAGES_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of pages that were read and not asked for yet; the oldest go first."""


Key = tuple[tuple[str, ...], int, int, int, int, LogIdentity | None, bool, bool]


class ReadAhead:
    """Pages of an embedded log that may be asked for next.

    Invariant: each page is with the number of erasures in the log before it was read: one whose text may have been
    erased since is not given out. What is pruned meanwhile has the same text in the archive.
    """

    def __init__(self, log: SqliteReader) -> None:
        self._log = log
        self._wanted: OrderedDict[Key, AskPage] = OrderedDict()
        self._pages: OrderedDict[Key, tuple[PageResult, int]] = OrderedDict()
        self._bytes = 0

    @property
    def idle(self) -> bool:
        return not self._wanted

    def answered(self, ask: AskPage, page: PageResult) -> None:
        """This page is on its way. A history of which only the first page is read is not read ahead."""
        if page.has_more and ask.since > 0 and not ask.snapshot_starts and ask.start is None:
            following = msgspec.structs.replace(ask, since=page.last)
            self._wanted[_key(following)] = following
            while len(self._wanted) > HISTORIES_MAX:
                self._wanted.popitem(last=False)

    def take(self, ask: AskPage) -> PageResult | None:
        """The page, if it was read and is still right."""
        if ask.snapshot_starts or ask.start is not None:
            return None
        key = _key(ask)
        self._wanted.pop(key, None)
        if (found := self._pages.pop(key, None)) is None:
            return None
        page, erasures = found
        self._bytes -= len(page.events)
        return msgspec.structs.replace(page, ticket=ask.ticket) if self._log.erasures() == erasures else None

    def read(self) -> None:
        """Read one of the pages that are wanted."""
        if not self._wanted:
            return
        key, ask = self._wanted.popitem(last=False)
        erasures = self._log.erasures()
        if (known := self._pages.pop(key, None)) is not None:  # another client is at the same place
            self._bytes -= len(known[0].events)
            if known[1] == erasures:
                self._keep(key, *known)
                return
        try:
            page = answer_page(self._log, ask)
        except Pruned:
            return  # whoever asks for it gets it from the archive
        if isinstance(page, PageFailed):
            return
        self._keep(key, page, erasures)

    def _keep(self, key: Key, page: PageResult, erasures: int) -> None:
        self._pages[key] = page, erasures
        self._bytes += len(page.events)
        while len(self._pages) > HISTORIES_MAX or self._bytes > PAGES_BYTES_MAX:
            _, (oldest, _) = self._pages.popitem(last=False)
            self._bytes -= len(oldest.events)


def _key(ask: AskPage) -> Key:
    """What asks for the same page have in common."""
    return (
        ask.partitions,
        ask.since,
        ask.upto,
        ask.limit,
        ask.bytes_max,
        ask.log,
        ask.authors,
        ask.whole_batches,
    )
