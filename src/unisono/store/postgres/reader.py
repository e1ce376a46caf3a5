"""Reading the shared log: pages, scans and snapshots, over an own connection or the writer's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NoReturn, Self

import msgspec
import psycopg

from unisono.store.browse import NodeSeen, PartitionSize
from unisono.store.cluster import ModelBundle
from unisono.store.encoded_pages import EncodedPages
from unisono.store.merge_ids import IdMerge, IdMerges, key_of
from unisono.store.port import (
    NO_SNAPSHOT_STARTS,
    SCAN_BYTES_MAX,
    LogExtent,
    Page,
    Pruned,
    Record,
    Snapshot,
    StorageError,
)
from unisono.store.postgres import identity as identities
from unisono.store.postgres import models
from unisono.store.postgres.connect import storage_error
from unisono.store.postgres.open_pipeline import open_pipeline, reopen_pipeline
from unisono.store.postgres.pipeline_connection import Parameters, PipelineConnection
from unisono.store.postgres.rows import Integers, Row, Texts, escape, record, unescape
from unisono.store.postgres.timeouts import Timeouts
from unisono.vocabulary import LogIdentity

READ_ERRORS: Final = (psycopg.Error, msgspec.MsgspecError)
"""What reading a damaged or unreachable log can raise."""

NAMES_READ_MAX: Final = 5_000
"""Names of partitions fetched at a time."""

PLAIN_IDS_MAX: Final = 4_000
"""Index rows that the single statement of a page may read; a page of many partitions beyond this merges ids."""

WATERMARKS_READ_MAX: Final = 5_000
"""Watermarks fetched at a time."""

SNAPSHOTS_READ_MAX: Final = 64
"""Snapshots fetched at a time when all of them are read."""


class PostgresReader(EncodedPages):
    """Pages, scans and snapshots of a log, each read by one statement and so consistent.

    `pruned_to` is read by the next statement of the same round trip: it only grows, so records that are present then
    were present before. After an error every call raises it again, until `reopen`.
    """

    def __init__(self, dsn: str, timeouts: Timeouts, pipeline: PipelineConnection) -> None:
        self._dsn = dsn
        self._timeouts = timeouts
        self._pipeline = pipeline
        self._failure: StorageError | None = None
        self._closed = False
        self._identity: LogIdentity | None = None
        self._merges: IdMerges[str] = IdMerges()
        self._head_seen = 0

    @classmethod
    def open(cls, dsn: str, *, timeouts: Timeouts | None = None) -> Self:
        """Open the log of `dsn` for reading; raises StoreUnusable."""
        timeouts = timeouts or Timeouts()
        return cls(dsn, timeouts, open_pipeline(dsn, timeouts, record_location=True))

    def reopen(self) -> None:
        """After StoreLost: connect again. Raises StoreLost while the database is unavailable."""
        if self._closed:
            raise StorageError("the log is closed")
        self._pipeline.close()
        self._pipeline = reopen_pipeline(self._dsn, self._timeouts)
        self._failure = None
        self._identity = None
        self._merges.clear()  # a failover may have brought another history
        self._head_seen = 0

    def head(self) -> int:
        return int(self.ask("head")[0])

    def identity(self) -> LogIdentity:
        self._check()
        if self._identity is None:
            try:
                self._identity = identities.read(self._pipeline)
            except (*READ_ERRORS, StorageError) as error:
                self._fail("reading the log's identity", error)
        return self._identity

    def extent(self) -> LogExtent:
        return LogExtent(*self.ask("extent"))

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
        names = tuple(dict.fromkeys(partitions))
        if snapshot_starts or (len(names) > 1 and len(names) * limit > PLAIN_IDS_MAX):
            try:
                return self._merged_page(names, snapshot_starts, since, upto, limit, bytes_max)
            except READ_ERRORS as error:
                self._fail("reading a page", error)
        asked = Texts(map(escape, names))
        parameters = {
            "partitions": asked,
            "since": since,
            "upto": upto,
            "limit": limit,
            "bytes_max": bytes_max,
        }
        try:
            found = self._pipeline.send("page", parameters)
            pruned = self._pipeline.send("page_pruned_to", {"partitions": asked, "since": since})
            self._pipeline.sync()
            rows = found.fetchall()
            records = [record(row) for row in rows]
            _raise_if_pruned(since, pruned.fetchone())
        except READ_ERRORS as error:
            self._fail("reading a page", error)
        if not rows:
            return Page((), has_more=False)
        return Page(records, has_more=len(rows) < rows[0][8])

    def newest_page(self, partition: str, upto: int, *, limit: int, bytes_max: int) -> Page:
        self._check()
        if upto < 1 or limit < 1:
            return Page((), has_more=False)
        name = escape(partition)
        parameters = {"partition": name, "upto": upto, "limit": limit, "bytes_max": bytes_max}
        try:
            found = self._pipeline.send("newest_page", parameters)
            pruned = self._pipeline.send("page_pruned_to", {"partitions": Texts([name]), "since": 0})
            self._pipeline.sync()
            rows = found.fetchall()
            records = [record(row) for row in rows]
            left = pruned.fetchone()
        except READ_ERRORS as error:
            self._fail("reading a page", error)
        pruned_to, own = (0, 0) if left is None else (left[0], left[1] or 0)
        if not rows and own:
            raise Pruned(pruned_to)
        return Page(records, has_more=bool(rows) and (len(rows) < rows[0][8] or own > 0))

    def _merged_page(
        self,
        names: tuple[str, ...],
        snapshot_starts: Mapping[str, int],
        since: int,
        upto: int,
        limit: int,
        bytes_max: int,
    ) -> Page:
        """By several statements. An id committed between them is above the head read before (ORD-02)."""
        if upto > self._head_seen:
            self._head_seen = int(self._pipeline.ask("head")[0][0])
        merge = self._merges.take(key_of(names, snapshot_starts, since, upto))
        if merge is None:
            after = {name: max(since, snapshot_starts.get(name, 0)) for name in names}
            merge = IdMerge(after, min(upto, self._head_seen))
        after = dict(merge.reached)
        ids, looked_at = merge.first(limit + 1, self._fetch)
        found = (
            self._pipeline.send("events_by_id", {"ids": Integers(ids[:limit]), "bytes_max": bytes_max})
            if ids
            else ()
        )
        pruned = self._pipeline.send("pruned_to")
        self._pipeline.sync()
        records = [record(row) for row in found]
        pruned_to = int(pruned.fetchall()[0][0])
        missing = [each.committed_id for each in records] != ids[: len(records)] or (ids and not records)
        # Ids found for an earlier page may have been pruned since.
        if missing or (
            since < pruned_to and self._any_pruned_after({name: after[name] for name in looked_at})
        ):
            raise Pruned(pruned_to)
        if not records:
            return Page((), has_more=False)
        has_more = len(records) < len(ids)
        if has_more and upto <= self._head_seen:
            last = records[-1].committed_id
            merge.drop(last)
            self._merges.put(key_of(names, snapshot_starts, last, upto), merge)
        return Page(records, has_more)

    def _any_pruned_after(self, after: Mapping[str, int]) -> bool:
        """Whether any of these partitions has pruned records after its id."""
        asked = {"partitions": Texts(map(escape, after)), "after": Integers(list(after.values()))}
        return bool(self._pipeline.ask("any_pruned_after", asked))

    def _fetch(self, asked: Sequence[tuple[str, int]], until: int, each: int) -> dict[str, list[int]]:
        parameters = {
            "partitions": Texts(escape(name) for name, _ in asked),
            "after": Integers([after for _, after in asked]),
            "until": until,
            "each": each,
        }
        found: dict[str, list[int]] = {}
        for place, committed_id in self._pipeline.ask("next_ids", parameters):
            found.setdefault(asked[place - 1][0], []).append(committed_id)
        return found

    def scan(self, since: int, upto: int, *, limit: int, bytes_max: int = SCAN_BYTES_MAX) -> Sequence[Record]:
        self._check()
        if since >= upto or limit < 1:
            return []
        parameters = {"since": since, "upto": upto, "limit": limit, "bytes_max": bytes_max}
        try:
            found = self._pipeline.send("scan", parameters)
            pruned = self._pipeline.send("pruned_to")
            self._pipeline.sync()
            records = [record(row) for row in found]
            _raise_if_pruned(since, pruned.fetchone())
        except READ_ERRORS as error:
            self._fail("scanning the log", error)
        return records

    def last_status_updated_at(self) -> int:
        return int(self.ask("last_status_updated_at")[0])

    def last_before(self, time_ms: int, now_ms: int, upto: int) -> int:
        return int(self.ask("last_before", {"time": time_ms, "now": now_ms, "upto": upto})[0])

    def snapshot(self, partition: str, model_version: int, model_digest: str = "") -> Snapshot | None:
        self._check()
        parameters = {"partition": escape(partition), "version": model_version, "digest": model_digest}
        try:
            rows = self._pipeline.ask("snapshot", parameters)
        except READ_ERRORS as error:
            self._fail("reading a snapshot", error)
        if not rows:
            return None
        committed_id, state, created_at = rows[0]
        return Snapshot(partition, committed_id, model_version, state, created_at, model_digest)

    def snapshot_sizes(
        self, partitions: Sequence[str], model_version: int, model_digest: str = ""
    ) -> dict[str, tuple[int, int]]:
        rows = self.list("snapshot_sizes", _asked_snapshots(partitions, model_version, model_digest))
        return {unescape(partition): (committed_id, size) for partition, committed_id, size in rows}

    def snapshots_of(
        self, partitions: Sequence[str], model_version: int, model_digest: str = ""
    ) -> Sequence[Snapshot]:
        rows = self.list("snapshots_of", _asked_snapshots(partitions, model_version, model_digest))
        return [
            Snapshot(unescape(name), at, model_version, state, made, model_digest)
            for name, at, state, made in rows
        ]

    def watermarks(self, model_version: int, model_digest: str = "") -> Iterator[tuple[str, int]]:
        """Every partition with a snapshot of that model, and its committed_id, in short reads."""
        after = ""
        while True:
            self._check()
            parameters = {
                "after": after,
                "version": model_version,
                "digest": model_digest,
                "limit": WATERMARKS_READ_MAX,
            }
            try:
                rows = self._pipeline.ask("watermarks", parameters)
            except READ_ERRORS as error:
                self._fail("reading the watermarks", error)
            yield from ((unescape(partition), committed_id) for partition, committed_id in rows)
            if len(rows) < WATERMARKS_READ_MAX:
                return
            after = rows[-1][0]

    def partition_names(self) -> Iterator[str]:
        """Every partition that has, or had, an event in this log, in short reads."""
        after = ""
        while True:
            rows = self.list("names_from", {"first": "", "after": after, "limit": NAMES_READ_MAX})
            yield from (unescape(name) for (name,) in rows)
            if len(rows) < NAMES_READ_MAX:
                return
            after = rows[-1][0]

    def names_from(self, prefix: str, after: str, limit: int) -> Sequence[str]:
        """See BrowsableLog."""
        asked = {"first": escape(prefix), "after": escape(after), "limit": limit}
        names = [unescape(name) for (name,) in self.list("names_from", asked)]
        return [name for name in names if name.startswith(prefix)]

    def partition_size(self, partition: str, limit: int) -> PartitionSize:
        """See BrowsableLog."""
        events, first, last = self.ask("partition_size", {"partition": escape(partition), "limit": limit})
        return PartitionSize(events, first or 0, last or 0)

    def newest_ids(self, partition: str, upto: int, limit: int) -> Sequence[int]:
        """See BrowsableLog."""
        asked = {"partition": escape(partition), "upto": upto, "limit": limit}
        return [committed_id for (committed_id,) in self.list("newest_ids", asked)]

    def nodes(self, limit: int) -> Sequence[NodeSeen]:
        """See BrowsableLog."""
        return [
            NodeSeen(name, max(0.0, seen_s)) for name, seen_s in self.list("list_nodes", {"limit": limit})
        ]

    def model_in_force(self) -> ModelBundle | None:
        """The model that nodes judge by; None when none was published."""
        self._check()
        try:
            return models.published(self._pipeline)
        except READ_ERRORS as error:
            self._fail("reading the model in force", error)

    def snapshots(self) -> Iterator[Snapshot]:
        """All there are, by partition."""
        self._check()
        at: tuple[str, int] = ("", 0)
        while True:
            parameters = {"partition": at[0], "version": at[1], "limit": SNAPSHOTS_READ_MAX}
            try:
                rows = self._pipeline.ask("all_snapshots", parameters)
            except READ_ERRORS as error:
                self._fail("reading the snapshots", error)
            for partition, *rest in rows:
                yield Snapshot(unescape(partition), *rest)
                at = (partition, rest[1])
            if len(rows) < SNAPSHOTS_READ_MAX:
                return

    def snapshots_in(self, partitions: Sequence[str]) -> Iterator[Snapshot]:
        """All of these partitions, of any model, in short reads."""
        for start in range(0, len(partitions), SNAPSHOTS_READ_MAX):
            asked = Texts(map(escape, partitions[start : start + SNAPSHOTS_READ_MAX]))
            for partition, *rest in self.list("snapshots_in", {"partitions": asked}):
                yield Snapshot(unescape(partition), *rest)

    def ask(self, query: str, parameters: Parameters = None) -> Row:
        """The row of a named query that always has exactly one."""
        self._check()
        try:
            rows = self._pipeline.ask(query, parameters)
        except READ_ERRORS as error:
            self._fail("reading the log", error)
        if not rows:
            self._fail("reading the log", StorageError("the head row is missing"))
        return rows[0]

    def list(self, query: str, parameters: Parameters = None) -> Sequence[Row]:
        """All rows of a named query."""
        self._check()
        try:
            return self._pipeline.ask(query, parameters)
        except READ_ERRORS as error:
            self._fail("reading the log", error)

    def close(self) -> None:
        self._closed = True
        self._pipeline.close()

    def _check(self) -> None:
        """Refuse work on a failed log."""
        if self._closed:
            raise StorageError("the log is closed")
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))

    def _fail(self, doing: str, error: Exception) -> NoReturn:
        """Close the connection, which releases its locks; every call fails until `reopen`."""
        if self._failure is None:
            self._failure = error if isinstance(error, StorageError) else storage_error(doing, error)
            self._pipeline.close()
        raise self._failure from error


def _asked_snapshots(partitions: Sequence[str], model_version: int, model_digest: str) -> Parameters:
    return {"partitions": Texts(map(escape, partitions)), "version": model_version, "digest": model_digest}


def _raise_if_pruned(since: int, row: Row | None) -> None:
    """`row`: the log's pruned_to and, for a page, the largest one of its partitions."""
    pruned_to = 0 if row is None else row[0]
    left = pruned_to if row is None or len(row) == 1 else row[1] or 0
    if since < left:
        raise Pruned(pruned_to)
