"""Lists from the log for the console: events as they are committed, and partitions.

One thread with a read connection of its own; at most READS_WAITING_MAX reads wait for it. A read is bounded in events
and bytes, and says up to where it looked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias, TypeVar

import msgspec

from unisono.config import Settings
from unisono.console.errors import ConsoleBusy, ConsoleRefused
from unisono.console.partition_history import event_row
from unisono.node.open_log import open_reader
from unisono.store.browse import BrowsableLog
from unisono.store.maintenance import NO_MODEL_VERSION
from unisono.store.port import LogExtent, Pruned, Record, StorageError, StoreUnusable
from unisono.vocabulary import Json, JsonObject

READS_WAITING_MAX: Final = 16
SCAN_EVENTS: Final = 20
"""Events of all partitions read at a time, so that a page of the largest ones stays small."""

LOOKED_AT_MAX: Final = 2_000
"""Events that one request looks at for its filter."""

BYTES_MAX: Final = 8 << 20
ROWS_MAX: Final = 200
PARTITIONS_MAX: Final = 50
NODES_MAX: Final = 100
COUNTED_MAX: Final = 100_000
"""Events of a partition that are counted; a larger one has this many or more."""

ROW_NAMES_MAX: Final = 8

T = TypeVar("T")

Portion: TypeAlias = "tuple[Sequence[Record], int]"
"""Events in the order in which they are shown, and up to which id that is all there are."""


class EventFilter(msgspec.Struct, frozen=True):
    """Which events are wanted; empty fields want all. `type` matches the type, the schema or the target."""

    partition: str = ""
    client: str = ""
    user: str = ""
    type: str = ""

    def wants(self, row: JsonObject) -> bool:
        return (
            (not self.client or row["client_id"] == self.client)
            and (not self.user or row["user_id"] == self.user)
            and (not self.type or self.type in (row["type"], row["about"]))
        )


class LogViews:
    """Reads in one thread. A failed log is opened again by the next read."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, "console-log")
        self._waiting = 0
        self._log: BrowsableLog | None = None
        self._closed = False

    async def after(
        self, committed_id: int, wanted: EventFilter, limit: int, behind_max: int | None = None
    ) -> JsonObject:
        """Events after an id, oldest first; `looked_to` is where the next request goes on. With more than
        `behind_max` events after it: the newest ones as of `before`, and `skipped` is true."""
        return await self._run(lambda log: _after(log, committed_id, wanted, limit, behind_max))

    async def before(self, committed_id: int | None, wanted: EventFilter, limit: int) -> JsonObject:
        """The newest events before an id, newest first; `looked_to` is where the next request goes on."""
        return await self._run(lambda log: _before(log, committed_id, wanted, limit))

    async def partitions(self, prefix: str, after: str, limit: int) -> list[JsonObject]:
        return await self._run(lambda log: _partitions(log, prefix, after, limit))

    async def nodes(self) -> list[JsonObject]:
        """The nodes of a shared log."""
        return [msgspec.to_builtins(node) for node in await self._run(lambda log: log.nodes(NODES_MAX))]

    async def close(self) -> None:
        """Reads that wait are still answered."""
        self._closed = True

        def close() -> None:
            if self._log is not None:
                self._log.close()
                self._log = None

        await asyncio.get_running_loop().run_in_executor(self._thread, close)
        self._thread.shutdown()

    async def _run(self, read: Callable[[BrowsableLog], T]) -> T:
        if self._closed:
            raise ConsoleBusy("the server is stopping")
        if self._waiting >= READS_WAITING_MAX:
            raise ConsoleBusy("other reads are waiting; try again")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, read)
        finally:
            self._waiting -= 1

    def _read(self, read: Callable[[BrowsableLog], T]) -> T:
        try:
            if self._log is None:
                self._log = open_reader(self._settings)  # type: ignore[assignment]
            assert self._log is not None
            return read(self._log)
        except (StorageError, StoreUnusable) as error:
            if self._log is not None:
                self._log.close()
                self._log = None
            raise ConsoleRefused(f"the log cannot be read: {error}") from error


def _filtered(
    extent: LogExtent, at: int, more: Callable[[int], Portion | None], wanted: EventFilter, limit: int
) -> JsonObject:
    """The events from `at` on that are wanted, until there are enough, or enough was looked at.

    `more` gives the next ones and where they end; None at the end of the log.
    """
    rows: list[Json] = []
    looked = size = 0
    while len(rows) < limit and looked < LOOKED_AT_MAX and size < BYTES_MAX:
        portion = more(at)
        if portion is None:
            break
        records, at = portion
        for record in records:
            looked += 1
            size += len(record.event)
            row = _row(record)
            if wanted.wants(row):
                rows.append(row)
                if len(rows) == limit:
                    at = record.committed_id
                    break
    return {"events": rows, "looked_to": at, "head": extent.head, "pruned_to": extent.pruned_to}


def _after(
    log: BrowsableLog, since: int, wanted: EventFilter, limit: int, behind_max: int | None = None
) -> JsonObject:
    extent = log.extent()
    at = max(since, extent.pruned_to)
    if behind_max is not None and extent.head - at > behind_max:
        return {**_before(log, None, wanted, limit), "skipped": True}

    def following(at: int) -> Portion | None:
        return _next(log, at, extent.head, wanted.partition) if at < extent.head else None

    return _filtered(extent, at, following, wanted, limit)


def _next(log: BrowsableLog, since: int, head: int, partition: str) -> Portion:
    """The next events, and up to which id that is all there are."""
    try:
        if partition:
            page = log.page((partition,), since, head, limit=SCAN_EVENTS, bytes_max=BYTES_MAX)
            return page.records, page.records[-1].committed_id if page.has_more else head
        records = log.scan(since, head, limit=SCAN_EVENTS)
    except Pruned as pruned:
        return (), max(since, pruned.upto)
    return records, records[-1].committed_id if records else head


def _before(log: BrowsableLog, before: int | None, wanted: EventFilter, limit: int) -> JsonObject:
    extent = log.extent()
    at = extent.head + 1 if before is None else min(before, extent.head + 1)

    def preceding(at: int) -> Portion | None:
        if at <= extent.pruned_to + 1:
            return None
        records, at = _previous(log, at, extent.pruned_to, wanted.partition)
        return records[::-1], at

    return _filtered(extent, at, preceding, wanted, limit)


def _previous(log: BrowsableLog, before: int, pruned_to: int, partition: str) -> Portion:
    """The events before an id, ascending, and down to which id that is all there are."""
    try:
        if partition:
            ids = log.newest_ids(partition, before - 1, SCAN_EVENTS)
            if not ids:
                return (), pruned_to + 1
            since = max(ids[-1] - 1, pruned_to)
            page = log.page((partition,), since, before - 1, limit=SCAN_EVENTS, bytes_max=1 << 40)
            return page.records, ids[-1]
        since = max(pruned_to, before - 1 - SCAN_EVENTS)
        return log.scan(since, before - 1, limit=SCAN_EVENTS), since + 1
    except Pruned as pruned:
        return (), min(before, pruned.upto + 1)


def _row(record: Record) -> JsonObject:
    row = event_row(record)
    names = record.partitions
    row["partitions"] = list(names[:ROW_NAMES_MAX])
    row["more_partitions"] = max(0, len(names) - ROW_NAMES_MAX)
    return row


def _partitions(log: BrowsableLog, prefix: str, after: str, limit: int) -> list[JsonObject]:
    names = log.names_from(prefix, after, limit)
    bundle = log.model_in_force()
    version, digest = (NO_MODEL_VERSION, "") if bundle is None else (bundle.version, bundle.digest)
    snapshots = log.snapshot_sizes(names, version, digest) if names else {}
    found: list[JsonObject] = []
    for name in names:
        size = log.partition_size(name, COUNTED_MAX)
        at, snapshot_bytes = snapshots.get(name, (None, None))
        found.append(
            {
                "name": name,
                "events": size.events,
                "more": size.events == COUNTED_MAX,
                "last": size.last,
                "snapshot": at,
                "snapshot_bytes": snapshot_bytes,
            }
        )
    return found
