"""Pages of the embedded log in wire form: SQLite writes a whole page, from the stored text, as one value."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import apsw
import msgspec

from unisono.store.batch_ends import least_of
from unisono.store.port import WirePage
from unisono.store.statements import load_queries

UNION_TERMS_MAX: Final = 16
"""Partitions read by one statement. Every row passes through a UNION term per partition, so more are merged."""

JOINED_BYTES_MIN: Final = 64 * 1024
JOINED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bounds of a page as one value, whatever the bytes of its events may be."""

_SQL = load_queries("sqlite")


class SomeIds(msgspec.Struct, frozen=True):
    """The ids that pages are made of: those of partitions, by their numbers, or some that were found before.

    `parameters` follow the three of every statement: after which id, up to which, how many.
    """

    terms: int
    parameters: tuple[Any, ...]

    @classmethod
    def of_partitions(cls, numbers: Sequence[int]) -> SomeIds:
        return cls(len(numbers), tuple(numbers))

    @classmethod
    def listed(cls, ids: Sequence[int]) -> SomeIds:
        """Ascending, and at least one."""
        return cls(0, (apsw.carray(array("q", ids)),))


class JoinedPage(msgspec.Struct, frozen=True):
    """The events of a page as they are sent; at least the first `count` ids of those asked for."""

    events: bytes
    count: int
    last: int
    size: int
    """Bytes of the events themselves."""


class WirePages:
    """Reads pages over a connection; for several statements of one page the caller holds a snapshot."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def joined(
        self, ids: SomeIds, since: int, upto: int, limit: int, bytes_max: int, *, authors: bool
    ) -> JoinedPage | None:
        """The first `limit` events; None when they have more than `bytes_max` bytes.

        SQLite stops a value that grows beyond its limit, so that no more than about a page is read for nothing.
        """
        connection, sql = self._connection, _wire_page_sql(ids.terms, authors)
        room = min(JOINED_BYTES_MAX, max(JOINED_BYTES_MIN, 2 * bytes_max))
        before = connection.limit(apsw.SQLITE_LIMIT_LENGTH, room)
        try:
            row = connection.execute(sql, (since, upto, limit, *ids.parameters)).fetchone()
        except apsw.TooBigError:
            return None
        finally:
            connection.limit(apsw.SQLITE_LIMIT_LENGTH, before)
        assert row is not None, "an aggregate has one row"
        count, last, size, events = row
        if not count:
            return JoinedPage(b"", 0, since, 0)
        return JoinedPage(events, count, last, size) if size <= bytes_max else None

    def any_after(self, ids: SomeIds, since: int, upto: int) -> bool:
        sql = _any_id_sql(ids.terms)
        return self._connection.execute(sql, (since, upto, 1, *ids.parameters)).fetchone() is not None

    def ids(self, ids: SomeIds, since: int, upto: int, limit: int) -> list[int]:
        """The first `limit` of these ids."""
        rows = self._connection.execute(ids_sql(ids.terms), (since, upto, limit, *ids.parameters))
        return [committed_id for (committed_id,) in rows]

    def before_open_batch(self, ids: SomeIds, since: int, page: JoinedPage, *, authors: bool) -> JoinedPage:
        """The page without events that may be part of a batch which continues after it (EXT-13)."""
        asked = (since, page.last, page.count, *ids.parameters)
        row = self._connection.execute(_batch_start_sql(ids.terms), asked).fetchone()
        if row is None:
            return page
        end: int = row[0]
        # The same text as in the page, so it has the same length.
        batch = self.joined(ids, end, page.last, page.count, JOINED_BYTES_MAX, authors=authors)
        if batch is None or page.count - batch.count < least_of(page.count):
            return page
        events = page.events[: -len(batch.events) - 1]
        return JoinedPage(events, page.count - batch.count, end, page.size - batch.size)


def joined_pages(page: JoinedPage, newer: JoinedPage | None) -> JoinedPage | None:
    """A page and the one after it as one; None when the second has too many bytes."""
    if newer is None or not page.count:
        return newer
    if not newer.count:
        return page
    events = b"%b,%b" % (page.events, newer.events)
    return JoinedPage(events, page.count + newer.count, newer.last, page.size + newer.size)


def wire_page(page: JoinedPage, *, has_more: bool) -> WirePage:
    return WirePage(page.events, page.count, page.last, has_more)


@lru_cache(maxsize=2 * UNION_TERMS_MAX + 2)
def ids_sql(terms: int, *, descending: bool = False) -> str:
    """The ids of so many partitions; 0: of a list."""
    suffix = "_descending" if descending else ""
    if not terms:
        return _SQL[f"listed_ids{suffix}"]
    ranges = [_SQL["page_range"].replace("{number}", f"?{4 + term}") for term in range(terms)]
    return _SQL[f"page_ids{suffix}"].replace("{ranges}", " UNION ".join(ranges))


@lru_cache(maxsize=2 * UNION_TERMS_MAX + 2)
def _wire_page_sql(terms: int, authors: bool = False) -> str:
    return _SQL["wire_page_authors" if authors else "wire_page"].replace("{ids}", ids_sql(terms))


@lru_cache(maxsize=UNION_TERMS_MAX + 1)
def _any_id_sql(terms: int) -> str:
    return _SQL["any_id"].replace("{ids}", ids_sql(terms))


@lru_cache(maxsize=UNION_TERMS_MAX + 1)
def _batch_start_sql(terms: int) -> str:
    return _SQL["batch_start"].replace("{ids}", ids_sql(terms, descending=True))
