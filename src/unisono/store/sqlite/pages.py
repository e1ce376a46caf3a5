"""Pages of the embedded log: the events of some partitions, in the order of their ids."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any, Final, NoReturn, TypeVar

import apsw
import msgspec

from unisono.store.encoded_pages import EncodedPages
from unisono.store.merge_ids import IdMerge, IdMerges, key_of
from unisono.store.port import (
    NO_SNAPSHOT_STARTS,
    Page,
    Pruned,
    Record,
    StorageError,
    WirePage,
)
from unisono.store.sqlite.recent_partitions import RecentPartitions
from unisono.store.sqlite.wire_pages import (
    UNION_TERMS_MAX,
    JoinedPage,
    SomeIds,
    WirePages,
    ids_sql,
    joined_pages,
    wire_page,
)
from unisono.store.statements import load_queries

NUMBERS_MAX = 200_000
"""Partition numbers cached in memory, tens of megabytes at most; beyond it the cache is cleared."""

READ_ERRORS: Final = (apsw.Error, msgspec.MsgspecError, UnicodeDecodeError, TypeError)
"""What reading a damaged or unreachable log can raise; TypeError: a column that is never null is."""

_SQL = load_queries("sqlite")
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode

T = TypeVar("T")
P = TypeVar("P", Page, WirePage | None)


class SqlitePages(EncodedPages):
    """Pages, each read in one snapshot that ends before it returns.

    Invariant: `_numbers` holds only partitions that exist; a number never changes, so it needs no refreshing.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._wire = WirePages(connection)
        self._numbers: dict[str, int] = {}
        self._merges: IdMerges[int] = IdMerges()
        self._recent = RecentPartitions(connection, self._look_up)

    def page(
        self,
        partitions: Sequence[str],
        since: int,
        upto: int,
        *,
        limit: int,
        bytes_max: int,
        snapshot_starts: Mapping[str, int] = NO_SNAPSHOT_STARTS,
    ) -> Page:
        self._check()
        try:
            upto = self._recent.cover(upto)
            if since >= upto or limit < 1:
                return Page((), has_more=False)
            names = dict.fromkeys(partitions)
            if snapshot_starts or len(names) > UNION_TERMS_MAX:
                return self._merged(
                    tuple(names), snapshot_starts, since, upto, limit,
                    lambda ids: self._listed_page(ids, limit, bytes_max),
                )  # fmt: skip
            return self._union(
                names, since, lambda numbers: self._union_page(numbers, since, upto, limit, bytes_max)
            )
        except READ_ERRORS as error:
            self._fail("reading a page", error)

    def wire_page(
        self,
        partitions: Sequence[str],
        since: int,
        upto: int,
        *,
        limit: int,
        bytes_max: int,
        snapshot_starts: Mapping[str, int] = NO_SNAPSHOT_STARTS,
        authors: bool = False,
        whole_batches: bool = False,
    ) -> WirePage:
        """As `page`; SQLite itself writes the wire's form, from the stored text. Where its bytes end the page, the
        records are read and encoded one by one: they are few and large."""
        self._check()
        names = tuple(dict.fromkeys(partitions))
        nothing = WirePage(b"", 0, since, has_more=False)

        def of_partitions(numbers: Sequence[int]) -> WirePage | None:
            if not numbers:
                return nothing
            ids, seam = SomeIds.of_partitions(numbers), min(upto, self._recent.indexed_to)
            page: JoinedPage | None = JoinedPage(b"", 0, since, 0)
            if since < seam:
                page = self._wire.joined(ids, since, seam, limit, bytes_max, authors=authors)
            if page is None:
                return None
            recent = self._recent.ids(numbers, since, upto, limit - page.count + 1)
            if page.count == limit:
                return cut(ids, page, bool(recent) or self._wire.any_after(ids, page.last, seam))
            if not recent:
                return wire_page(page, has_more=False)
            left, more = limit - page.count, len(recent) > limit - page.count
            newer = self._wire.joined(
                SomeIds.listed(recent), since, upto, left, bytes_max - page.size, authors=authors
            )
            if whole_batches and more and page.count:
                indexed = self._wire.ids(ids, since, seam, page.count)
                return cut(SomeIds.listed([*indexed, *recent]), joined_pages(page, newer), more)
            return cut(SomeIds.listed(recent), joined_pages(page, newer), more)

        def of_ids(found: list[int]) -> WirePage | None:
            if not found:
                return nothing
            ids = SomeIds.listed(found)
            page = self._wire.joined(ids, since, upto, limit, bytes_max, authors=authors)
            if page is not None and page.count < min(limit, len(found)):
                raise Pruned(self._pruned_to())  # found for an earlier page, and pruned since
            return cut(ids, page, len(found) > limit)

        def cut(ids: SomeIds, page: JoinedPage | None, has_more: bool) -> WirePage | None:
            if page is not None and has_more and whole_batches:
                page = self._wire.before_open_batch(ids, since, page, authors=authors)
            return None if page is None else wire_page(page, has_more=has_more)

        try:
            upto = self._recent.cover(upto)
            if since >= upto or limit < 1:
                return nothing
            if snapshot_starts or len(names) > UNION_TERMS_MAX:
                found = self._merged(names, snapshot_starts, since, upto, limit, of_ids)
            else:
                found = self._union(names, since, of_partitions, snapshot=whole_batches)
        except READ_ERRORS as error:
            self._fail("reading a page", error)
        if found is not None:
            return found
        return super().wire_page(
            names, since, upto, limit=limit, bytes_max=bytes_max, snapshot_starts=snapshot_starts,
            authors=authors, whole_batches=whole_batches,
        )  # fmt: skip

    def newest_page(self, partition: str, upto: int, *, limit: int, bytes_max: int) -> Page:
        self._check()
        try:
            upto = self._recent.cover(upto)
            number = self._look_up([partition]).get(partition)
            if upto < 1 or limit < 1 or number is None:
                return Page((), has_more=False)
            with closing(self._newest_rows(number, upto, limit + 1)) as rows:
                page = _cut(rows, limit, bytes_max)
            # Read after the rows: what had left the log before them had left it by now.
            if page.has_more or not self._has_pruned(number):
                return page
            pruned_to = self._pruned_to()
        except READ_ERRORS as error:
            self._fail("reading a page", error)
        if not page.records:
            raise Pruned(pruned_to)
        return Page(page.records, has_more=True)

    def _newest_rows(self, number: int, upto: int, limit: int) -> Generator[tuple[Any, ...]]:
        """Events of a partition up to `upto`, descending, at least `limit` if there are as many."""
        yield from self._events(self._recent.newest_ids(number, upto, limit))
        seam = min(upto, self._recent.indexed_to)
        with closing(self._connection.execute(_SQL["newest_page"], (number, seam, limit))) as rows:
            yield from rows

    def _events(self, ids: Sequence[int]) -> Generator[tuple[Any, ...]]:
        """The events with these ids, in their order."""
        asked = msgspec.json.encode(ids).decode()
        with closing(self._connection.execute(_SQL["events_by_id"], (asked,))) as rows:
            yield from rows

    def _has_pruned(self, number: int) -> bool:
        """Whether events of a partition have left the log."""
        asked = msgspec.json.encode([number]).decode()
        return bool(self._connection.execute(_SQL["partitions_pruned_to"], (asked, 0)).fetchall())

    def _union(
        self, names: Iterable[str], since: int, read: Callable[[Sequence[int]], T], *, snapshot: bool = False
    ) -> T:
        """What `read` makes of the partitions' numbers; Pruned when some of it has left the log.

        The head was read before (`RecentPartitions.cover`), so every partition that has events up to it has a number.
        `snapshot`: the statements of `read` need the same one, because an erased event has another length.
        """
        numbers = list(self._look_up(names).values())
        if not snapshot:
            page = read(numbers)
        else:
            with self._connection:
                page = read(numbers)
        self._raise_if_pruned(since, dict.fromkeys(numbers, since))
        return page

    def _raise_if_pruned(self, since: int, numbers: Mapping[int, int] | None = None) -> None:
        """Raise Pruned when records after `since` were pruned: of any partition, or of one in `numbers`, which maps
        a partition to the id after which its records count.

        Called after the rows were read: `pruned_to` only grows, so what is present now was present then.
        """
        pruned_to = self._pruned_to()
        if since >= pruned_to:
            return
        if numbers is not None:
            asked = msgspec.json.encode(list(numbers)).decode()
            left = self._connection.execute(_SQL["partitions_pruned_to"], (asked, since))
            if not any(numbers[number] < upto for number, upto in left):
                return
        raise Pruned(pruned_to)

    def _pruned_to(self) -> int:
        return int(self._connection.execute(_SQL["pruned_to"]).get)

    def _union_page(self, numbers: Sequence[int], since: int, upto: int, limit: int, bytes_max: int) -> Page:
        if not numbers:
            return Page((), has_more=False)
        with closing(self._union_rows(numbers, since, upto, limit + 1)) as rows:
            return _cut(rows, limit, bytes_max)

    def _union_rows(
        self, numbers: Sequence[int], since: int, upto: int, limit: int
    ) -> Generator[tuple[Any, ...]]:
        """Events of the partitions, ascending, at least `limit` if there are as many."""
        asked = (since, min(upto, self._recent.indexed_to), limit, *numbers)
        with closing(self._connection.execute(_page_sql(len(numbers)), asked)) as rows:
            yield from rows
        yield from self._events(self._recent.ids(numbers, since, upto, limit))

    def _merged(
        self,
        names: tuple[str, ...],
        snapshot_starts: Mapping[str, int],
        since: int,
        upto: int,
        limit: int,
        read: Callable[[list[int]], P],
    ) -> P:
        """What `read` makes of the ids of the page, and of the one after it if there is one; None: it reads again."""
        kept = self._merges.take(key_of(names, snapshot_starts, since, upto))
        with self._connection:  # several statements, one snapshot: an erased event has another length
            merge = self._new_merge(names, snapshot_starts, since, upto) if kept is None else kept
            after = dict(merge.reached)
            ids, looked_at = merge.first(limit + 1, self._fetch)
            page = read(ids)
        self._raise_if_pruned(since, {number: after[number] for number in looked_at})
        if page is None or page.has_more:
            last = since
            if page is not None:
                last = page.records[-1].committed_id if isinstance(page, Page) else page.last
                merge.drop(last)
            self._merges.put(key_of(names, snapshot_starts, last, upto), merge)
        return page

    def _listed_page(self, ids: list[int], limit: int, bytes_max: int) -> Page:
        with closing(self._events(ids)) as rows:
            page = _cut(rows, limit, bytes_max)
        read = [record.committed_id for record in page.records]
        if read != ids[: len(read)] or (ids and not read):
            raise Pruned(self._pruned_to())  # found for an earlier page, and pruned since
        return page

    def _new_merge(
        self, names: Iterable[str], snapshot_starts: Mapping[str, int], since: int, upto: int
    ) -> IdMerge[int]:
        numbers = self._look_up(names)
        after = {number: max(since, snapshot_starts.get(name, 0)) for name, number in numbers.items()}
        return IdMerge(after, upto)

    def _fetch(self, asked: Sequence[tuple[int, int]], until: int, each: int) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        seam = min(until, self._recent.indexed_to)
        parameters = ((number, after, seam, each) for number, after in asked if after < seam)
        for number, committed_id in self._connection.executemany(_SQL["next_ids"], parameters):
            found.setdefault(number, []).append(committed_id)
        if seam < until:
            for number, after in asked:
                ids = found.get(number, [])
                if recent := self._recent.ids((number,), after, until, each - len(ids)):
                    found[number] = ids + recent
        return found

    def _look_up(self, names: Iterable[str]) -> dict[str, int]:
        """name → number for those that exist, from memory where possible."""
        found: dict[str, int] = {}
        missing: list[str] = []
        for name in dict.fromkeys(names):
            number = self._numbers.get(name)
            if number is None:
                missing.append(name)
            else:
                found[name] = number
        if missing:
            asked = msgspec.json.encode(missing).decode()
            self._remember(dict(self._connection.execute(_SQL["partition_numbers"], (asked,))), found)
        return found

    def _remember(self, fresh: dict[str, int], found: dict[str, int]) -> None:
        if len(self._numbers) + len(fresh) > NUMBERS_MAX:
            self._numbers.clear()
        self._numbers.update(fresh)
        found.update(fresh)

    def _check(self) -> None:
        """Overridden by the writer, which refuses to read after a failure."""

    def _fail(self, doing: str, error: Exception) -> NoReturn:
        raise StorageError(f"{doing} failed: {error}") from error


def record_of(row: tuple[Any, ...]) -> Record:
    committed_id, id, client_id, partitions, event, hash, status_updated_at, author = row
    return Record(
        committed_id, id, client_id, _decode_names(partitions), event, hash, status_updated_at, author
    )


def _cut(rows: Iterator[tuple[Any, ...]], limit: int, bytes_max: int) -> Page:
    """The page that `rows` begin with; at least one record, whatever its size."""
    records: list[Record] = []
    left = bytes_max
    for row in rows:
        left -= len(row[4])
        if records and (len(records) == limit or left < 0):
            return Page(records, has_more=True)
        records.append(record_of(row))
    return Page(records, has_more=False)


@lru_cache(maxsize=UNION_TERMS_MAX)
def _page_sql(terms: int) -> str:
    return _SQL["page"].replace("{ids}", ids_sql(terms))
