"""Pages of the embedded log: the events of some partitions, in the order of their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from unisono.store.statements import load_queries

UNION_TERMS_MAX = 16
"""Partitions read by one statement. Every row passes through a UNION term per partition, so more are merged here."""

NUMBERS_MAX = 200_000
"""Partition numbers cached in memory, tens of megabytes at most; beyond it the cache is cleared."""

READ_ERRORS: Final = (apsw.Error, msgspec.MsgspecError, UnicodeDecodeError, TypeError)
"""What reading a damaged or unreachable log can raise; TypeError: a column that is never null is."""

_SQL = load_queries("sqlite")
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode

T = TypeVar("T")


class SqlitePages(EncodedPages):
    """Pages, each read in one snapshot that ends before it returns.

    Invariant: `_numbers` holds only partitions that exist; a number never changes, so it needs no refreshing.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._numbers: dict[str, int] = {}
        self._merges: IdMerges[int] = IdMerges()
        self._head_seen = 0

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
        if since >= upto or limit < 1:
            return Page((), has_more=False)
        try:
            names = dict.fromkeys(partitions)
            if snapshot_starts or len(names) > UNION_TERMS_MAX:
                return self._merged_page(tuple(names), snapshot_starts, since, upto, limit, bytes_max)
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
    ) -> WirePage:
        """As `page`; SQLite itself writes the wire's form, from the stored text."""
        if snapshot_starts or len(partitions) > UNION_TERMS_MAX or since >= upto or limit < 1:
            return super().wire_page(
                partitions,
                since,
                upto,
                limit=limit,
                bytes_max=bytes_max,
                snapshot_starts=snapshot_starts,
                authors=authors,
            )
        self._check()
        names = dict.fromkeys(partitions)
        try:
            return self._union(
                names,
                since,
                lambda numbers: self._union_wire_page(
                    numbers, since, upto, limit, bytes_max, authors=authors
                ),
            )
        except READ_ERRORS as error:
            self._fail("reading a page", error)

    def newest_page(self, partition: str, upto: int, *, limit: int, bytes_max: int) -> Page:
        self._check()
        if upto < 1 or limit < 1:
            return Page((), has_more=False)
        try:
            number = self._look_up([partition]).get(partition)
            if number is None:
                return Page((), has_more=False)
            rows = self._connection.execute(_SQL["newest_page"], (number, upto, limit + 1))
            try:
                page = _cut(rows, limit, bytes_max)
            finally:
                rows.close()
            # Read after the rows: what had left the log before them had left it by now.
            if page.has_more or not self._has_pruned(number):
                return page
            pruned_to = self._pruned_to()
        except READ_ERRORS as error:
            self._fail("reading a page", error)
        if not page.records:
            raise Pruned(pruned_to)
        return Page(page.records, has_more=True)

    def _has_pruned(self, number: int) -> bool:
        """Whether events of a partition have left the log."""
        asked = msgspec.json.encode([number]).decode()
        return bool(self._connection.execute(_SQL["partitions_pruned_to"], (asked, 0)).fetchall())

    def _union(self, names: Mapping[str, None], since: int, read: Callable[[Sequence[int]], T]) -> T:
        """What `read` makes of the partitions' numbers; Pruned when some of it has left the log."""
        numbers = [number for name in names if (number := self._numbers.get(name)) is not None]
        if len(numbers) == len(names):
            page = read(numbers)
        else:
            with self._connection:  # several statements, one snapshot: no id may appear between (ORD-02)
                numbers = list(self._look_up(names).values())
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
        rows = self._connection.execute(_page_sql(len(numbers)), (since, upto, limit + 1, *numbers))
        try:
            return _cut(rows, limit, bytes_max)
        finally:
            rows.close()

    def _union_wire_page(
        self, numbers: Sequence[int], since: int, upto: int, limit: int, bytes_max: int, *, authors: bool
    ) -> WirePage:
        ids: list[int] = []
        events: list[bytes] = []
        if not numbers:
            return WirePage(ids, events, has_more=False)
        rows = self._connection.execute(
            _wire_page_sql(len(numbers), authors), (since, upto, limit + 1, *numbers)
        )
        try:
            for committed_id, size, event in rows:
                bytes_max -= size
                if ids and (len(ids) == limit or bytes_max < 0):
                    return WirePage(ids, events, has_more=True)
                ids.append(committed_id)
                events.append(event)
        finally:
            rows.close()
        return WirePage(ids, events, has_more=False)

    def _merged_page(
        self,
        names: tuple[str, ...],
        snapshot_starts: Mapping[str, int],
        since: int,
        upto: int,
        limit: int,
        bytes_max: int,
    ) -> Page:
        kept = self._merges.take(key_of(names, snapshot_starts, since, upto))
        with self._connection:  # several statements, one snapshot: no id may appear between (ORD-02)
            if upto > self._head_seen:
                self._head_seen = int(self._connection.execute(_SQL["head"]).get)
            merge = self._new_merge(names, snapshot_starts, since, upto) if kept is None else kept
            after = dict(merge.reached)
            ids, looked_at = merge.first(limit + 1, self._fetch)
            rows = self._connection.execute(_SQL["events_by_id"], (msgspec.json.encode(ids).decode(),))
            try:
                page = _cut(rows, limit, bytes_max)
            finally:
                rows.close()
        self._raise_if_pruned(since, {number: after[number] for number in looked_at})
        read = [record.committed_id for record in page.records]
        if read != ids[: len(read)] or (ids and not read):
            raise Pruned(self._pruned_to())  # found for an earlier page, and pruned since
        if len(page.records) < len(ids) and upto <= self._head_seen:
            last = page.records[-1].committed_id
            merge.drop(last)
            self._merges.put(key_of(names, snapshot_starts, last, upto), merge)
        return page

    def _new_merge(
        self, names: Iterable[str], snapshot_starts: Mapping[str, int], since: int, upto: int
    ) -> IdMerge[int]:
        numbers = self._look_up(names)
        after = {number: max(since, snapshot_starts.get(name, 0)) for name, number in numbers.items()}
        return IdMerge(after, min(upto, self._head_seen))

    def _fetch(self, asked: Sequence[tuple[int, int]], until: int, each: int) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        parameters = ((number, after, until, each) for number, after in asked)
        for number, committed_id in self._connection.executemany(_SQL["next_ids"], parameters):
            found.setdefault(number, []).append(committed_id)
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
def _ids_sql(terms: int) -> str:
    ranges = [_SQL["page_range"].replace("{number}", f"?{4 + term}") for term in range(terms)]
    return _SQL["page_ids"].replace("{ranges}", " UNION ".join(ranges))


@lru_cache(maxsize=UNION_TERMS_MAX)
def _page_sql(terms: int) -> str:
    return _SQL["page"].replace("{ids}", _ids_sql(terms))


@lru_cache(maxsize=2 * UNION_TERMS_MAX)
def _wire_page_sql(terms: int, authors: bool = False) -> str:
    return _SQL["wire_page_authors" if authors else "wire_page"].replace("{ids}", _ids_sql(terms))
