"""Reading the embedded log: pages, scans and snapshots, over an own connection or the writer's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn, Self, TypeVar

import apsw
import msgspec

from unisono.store.cluster import ModelBundle
from unisono.store.encoded_pages import EncodedPages
from unisono.store.merge_ids import IdMerge, IdMerges, key_of
from unisono.store.port import (
    NO_SNAPSHOT_STARTS,
    LogExtent,
    Page,
    Pruned,
    Record,
    Snapshot,
    StorageError,
    StoreUnusable,
    WirePage,
)
from unisono.store.sqlite import files
from unisono.store.statements import load_queries
from unisono.vocabulary import LogIdentity

UNION_TERMS_MAX = 16
"""Partitions read by one statement. Every row passes through a UNION term per partition, so more are merged here."""

NUMBERS_MAX = 200_000
"""Partition numbers cached in memory, tens of megabytes at most; beyond it the cache is cleared."""

NAMES_READ_MAX: Final = 5_000
"""Names of partitions fetched at a time."""

WATERMARKS_READ_MAX: Final = 5_000
"""Watermarks read at once: about ten milliseconds."""

READ_ERRORS: Final = (apsw.Error, msgspec.MsgspecError, UnicodeDecodeError)
"""What reading a damaged or unreachable log can raise."""

_SQL = load_queries("sqlite")
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_files = msgspec.msgpack.Decoder(dict[str, bytes]).decode


T = TypeVar("T")


class SqliteReader(EncodedPages):
    """Pages, scans and snapshots of a log, each read in one snapshot that ends before it returns.

    Invariant: `_numbers` holds only partitions that exist; a number never changes, so it needs no refreshing.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._numbers: dict[str, int] = {}
        self._identity: LogIdentity | None = None
        self._merges: IdMerges[int] = IdMerges()
        self._head_seen = 0

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open the log in `directory` for reading; raises StoreUnusable."""
        try:
            connection = files.connect_reader(directory)
            try:
                files.refuse_other_versions(connection, directory)
                connection.pragma("mmap_size", files.READER_MMAP_BYTES)
            except BaseException:
                connection.close()
                raise
        except (apsw.Error, OSError) as error:
            raise unusable(directory, error) from error
        return cls(connection)

    def reopen(self) -> None:
        """An embedded log fails permanently; it is never just unavailable."""
        raise StorageError("an embedded log cannot be reopened after a failure: restart the server")

    def head(self) -> int:
        self._check()
        try:
            return int(self._connection.execute(_SQL["head"]).get)
        except READ_ERRORS as error:
            self._fail("reading the head", error)

    def identity(self) -> LogIdentity:
        """Read once: it changes only while nobody has the log open."""
        self._check()
        if self._identity is None:
            try:
                ((log_id, log_epoch),) = self._rows("identity")
            except (*READ_ERRORS, ValueError) as error:  # ValueError: the head row is missing
                self._fail("reading the log's identity", error)
            self._identity = LogIdentity(log_id, log_epoch)
        return self._identity

    def extent(self) -> LogExtent:
        self._check()
        try:
            ((pruned_to, head, archive),) = self._rows("extent")
        except (*READ_ERRORS, ValueError) as error:  # ValueError: the head row is missing
            self._fail("reading the extent", error)
        return LogExtent(pruned_to, head, archive)

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
    ) -> WirePage:
        """As `page`; SQLite itself writes the wire's form, from the stored text."""
        if snapshot_starts or len(partitions) > UNION_TERMS_MAX or since >= upto or limit < 1:
            return super().wire_page(
                partitions, since, upto, limit=limit, bytes_max=bytes_max, snapshot_starts=snapshot_starts
            )
        self._check()
        names = dict.fromkeys(partitions)
        try:
            return self._union(
                names, since, lambda numbers: self._union_wire_page(numbers, since, upto, limit, bytes_max)
            )
        except READ_ERRORS as error:
            self._fail("reading a page", error)

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

    def scan(self, since: int, upto: int, *, limit: int) -> Sequence[Record]:
        self._check()
        if since >= upto or limit < 1:
            return []
        try:
            records = [_record(row) for row in self._connection.execute(_SQL["scan"], (since, upto, limit))]
            self._raise_if_pruned(since)
        except READ_ERRORS as error:
            self._fail("scanning the log", error)
        return records

    def last_before(self, time_ms: int, now_ms: int, upto: int) -> int:
        self._check()
        try:
            return int(self._connection.execute(_SQL["last_before"], (time_ms, now_ms, upto)).get)
        except READ_ERRORS as error:
            self._fail("reading the times", error)

    def snapshot(self, partition: str, model_version: int, model_digest: str = "") -> Snapshot | None:
        self._check()
        try:
            row = self._connection.execute(
                _SQL["snapshot"], (partition, model_version, model_digest)
            ).fetchone()
        except READ_ERRORS as error:
            self._fail("reading a snapshot", error)
        if row is None:
            return None
        committed_id, state, created_at = row
        return Snapshot(partition, committed_id, model_version, state, created_at, model_digest)

    def snapshot_sizes(
        self, partitions: Sequence[str], model_version: int, model_digest: str = ""
    ) -> dict[str, tuple[int, int]]:
        self._check()
        asked = msgspec.json.encode(partitions).decode()
        try:
            rows = self._connection.execute(_SQL["snapshot_sizes"], (asked, model_version, model_digest))
            return {name: (committed_id, size) for name, committed_id, size in rows}
        except READ_ERRORS as error:
            self._fail("reading the snapshots", error)

    def snapshots_of(
        self, partitions: Sequence[str], model_version: int, model_digest: str = ""
    ) -> list[Snapshot]:
        self._check()
        asked = msgspec.json.encode(partitions).decode()
        try:
            rows = self._connection.execute(_SQL["snapshots_of"], (asked, model_version, model_digest))
            return [
                Snapshot(name, at, model_version, state, made, model_digest) for name, at, state, made in rows
            ]
        except READ_ERRORS as error:
            self._fail("reading the snapshots", error)

    def watermarks(self, model_version: int, model_digest: str = "") -> dict[str, int]:
        """partition → the committed_id of its snapshot of that model."""
        self._check()
        found: dict[str, int] = {}
        after = -(2**63)
        try:
            while rows := list(
                self._rows("watermarks", after, model_version, model_digest, WATERMARKS_READ_MAX)
            ):
                found.update((name, committed_id) for _, name, committed_id in rows)
                after = rows[-1][0]
        except READ_ERRORS as error:
            self._fail("reading the watermarks", error)
        return found

    def erasures(self) -> int:
        """How many times something was erased in this log."""
        self._check()
        try:
            return int(self._connection.execute(_SQL["erasures"]).get)
        except READ_ERRORS as error:
            self._fail("reading the erasures", error)

    def partition_names(self) -> Iterator[str]:
        """Every partition that has, or had, an event in this log, in short reads."""
        after = -(2**63)
        while True:
            self._check()
            try:
                rows = list(self._rows("partition_names", after, NAMES_READ_MAX))
            except READ_ERRORS as error:
                self._fail("reading the partitions", error)
            yield from (name for _, name in rows)
            if len(rows) < NAMES_READ_MAX:
                return
            after = rows[-1][0]

    def model_in_force(self) -> ModelBundle | None:
        """The recorded model that the server judges by; None when it has no version, or none was recorded yet."""
        self._check()
        try:
            for version, digest, packed in self._rows("model_in_force"):
                return ModelBundle(version, digest, _decode_files(packed))
        except READ_ERRORS as error:
            self._fail("reading the model in force", error)
        return None

    def close(self) -> None:
        self._connection.close()

    def _rows(self, query: str, *parameters: int | str) -> Iterator[tuple[Any, ...]]:
        return self._connection.execute(_SQL[query], parameters)

    def _raise_if_pruned(self, since: int, numbers: Mapping[int, int] | None = None) -> None:
        """Raise Pruned when records after `since` were pruned: of any partition, or of one in `numbers`, which maps
        a partition to the id after which its records count.

        Called after the rows were read: `pruned_to` only grows, so what is present now was present then.
        """
        pruned_to = int(self._connection.execute(_SQL["pruned_to"]).get)
        if since >= pruned_to:
            return
        if numbers is not None:
            asked = msgspec.json.encode(list(numbers)).decode()
            left = self._connection.execute(_SQL["partitions_pruned_to"], (asked, since))
            if not any(numbers[number] < upto for number, upto in left):
                return
        raise Pruned(pruned_to)

    def _union_page(self, numbers: Sequence[int], since: int, upto: int, limit: int, bytes_max: int) -> Page:
        if not numbers:
            return Page((), has_more=False)
        rows = self._connection.execute(_page_sql(len(numbers)), (since, upto, limit + 1, *numbers))
        try:
            return _cut(rows, limit, bytes_max)
        finally:
            rows.close()

    def _union_wire_page(
        self, numbers: Sequence[int], since: int, upto: int, limit: int, bytes_max: int
    ) -> WirePage:
        ids: list[int] = []
        events: list[bytes] = []
        if not numbers:
            return WirePage(ids, events, has_more=False)
        rows = self._connection.execute(_wire_page_sql(len(numbers)), (since, upto, limit + 1, *numbers))
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
            raise Pruned(self.extent().pruned_to)  # found for an earlier page, and pruned since
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


def _record(row: tuple[Any, ...]) -> Record:
    committed_id, id, client_id, partitions, event, hash, status_updated_at = row
    return Record(committed_id, id, client_id, _decode_names(partitions), event, hash, status_updated_at)


def _cut(rows: Iterator[tuple[Any, ...]], limit: int, bytes_max: int) -> Page:
    """The page that `rows` begin with; at least one record, whatever its size."""
    records: list[Record] = []
    left = bytes_max
    for row in rows:
        left -= len(row[4])
        if records and (len(records) == limit or left < 0):
            return Page(records, has_more=True)
        records.append(_record(row))
    return Page(records, has_more=False)


@lru_cache(maxsize=UNION_TERMS_MAX)
def _ids_sql(terms: int) -> str:
    ranges = [_SQL["page_range"].replace("{number}", f"?{4 + term}") for term in range(terms)]
    return _SQL["page_ids"].replace("{ranges}", " UNION ".join(ranges))


@lru_cache(maxsize=UNION_TERMS_MAX)
def _page_sql(terms: int) -> str:
    return _SQL["page"].replace("{ids}", _ids_sql(terms))


@lru_cache(maxsize=UNION_TERMS_MAX)
def _wire_page_sql(terms: int) -> str:
    return _SQL["wire_page"].replace("{ids}", _ids_sql(terms))


def unusable(directory: Path, error: Exception) -> StoreUnusable:
    if isinstance(error, apsw.NotADBError):
        return StoreUnusable(f"{directory / files.LOG_FILE} is not a SQLite database")
    if isinstance(error, apsw.CorruptError):
        return StoreUnusable(f"{directory / files.LOG_FILE} is damaged ({error}): `unisono check` says where")
    return StoreUnusable(f"the log in {directory} cannot be opened: {error}")
