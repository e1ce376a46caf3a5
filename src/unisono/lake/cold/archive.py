"""Cold history: pruned events, read from the lake page by page, and a reader of log and lake together (DUR-06).

The packages of the lake are imported when its first page is needed, so a server with an unpruned log never loads
them. The combined reader gives exactly the pages that an unpruned log would give, also while pruning goes on: events
are in the archive before they are pruned.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from unisono.extras import install_command
from unisono.store.encoded_pages import EncodedPages
from unisono.store.port import (
    NO_SNAPSHOT_STARTS,
    SCAN_BYTES_MAX,
    Behind,
    CommitLog,
    LogExtent,
    LogReader,
    Page,
    Pruned,
    Record,
    RememberedId,
    Snapshot,
    StoreUnusable,
)
from unisono.vocabulary import LogIdentity

if TYPE_CHECKING:
    from unisono.lake.cold.pages import LakePages

CACHE_BYTES: Final = 128 * 1024 * 1024
"""Cache of what was read from files: a few hundred neighbouring pages."""

COLD_SETS_MAX: Final = 1_000
"""Sets of partitions remembered as read from the archive: about as many as clients that catch up at once."""

COLD_NAMES_MAX: Final = 100_000
"""Names in those sets, some 20 MB."""

NO_BYTES_MAX: Final = 1 << 62


class ArchiveFailed(Exception):
    """Archived history cannot be read; the text says why. A retry may succeed."""


class Archive:
    """The lake with the pruned events of one log; thread-safe, one thread reads at a time.

    `location`: the lake that the operator configured; it overrides the one that the log names.
    """

    def __init__(
        self,
        location: str | None = None,
        options: Mapping[str, str] | None = None,
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._chosen = location
        self._options = dict(options or {})
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()
        self._location: str | None = None
        self._pages: LakePages | None = None
        self._stale = False

    def page(
        self,
        extent: LogExtent,
        partitions: Sequence[str] | None,
        since: int,
        upto: int,
        *,
        limit: int,
        bytes_max: int,
        snapshot_starts: Mapping[str, int] = NO_SNAPSHOT_STARTS,
    ) -> Page:
        """As `LogReader.page`, of the pruned events of a log with this extent; None: of all partitions.

        Raises ArchiveFailed.
        """
        return self._read(
            extent,
            lambda pages: pages.page(
                partitions, since, upto, limit=limit, bytes_max=bytes_max, snapshot_starts=snapshot_starts
            ),
        )

    def newest_page(
        self, extent: LogExtent, partition: str, upto: int, *, limit: int, bytes_max: int
    ) -> Page:
        """As `LogReader.newest_page`, of the pruned events of a log with this extent; raises ArchiveFailed."""
        return self._read(
            extent, lambda pages: pages.newest_page(partition, upto, limit=limit, bytes_max=bytes_max)
        )

    def _read(self, extent: LogExtent, read: Callable[[LakePages], Page]) -> Page:
        location = self._chosen or extent.archive
        if location is None:
            raise ArchiveFailed(
                f"events up to {extent.pruned_to} have left the log and it names no archive: "
                "set `archive` to the lake that has them"
            )
        with self._lock:
            try:
                from unisono.lake.cold.pages import LakePages
                from unisono.lake.errors import LakeError
                from unisono.lake.lake import Lake
            except ImportError as error:
                raise ArchiveFailed(
                    f"events up to {extent.pruned_to} have left the log, and reading them at {location} needs "
                    f"more packages ({error}): {install_command('archive')}"
                ) from error
            try:
                if self._pages is None or location != self._location:
                    if self._pages is not None:
                        self._pages.close()
                    self._location, self._pages = location, None
                    self._pages = LakePages(Lake.at(location, self._options), self._cache_bytes)
                elif self._stale:
                    self._refresh_pages(self._pages)
                return read(self._pages)
            except LakeError as error:
                raise ArchiveFailed(
                    f"events up to {extent.pruned_to} have left the log, and the archive at {location} "
                    f"cannot be read: {error} (where it is elsewhere now, set `archive` to that place)"
                ) from error

    def scan(self, extent: LogExtent, since: int, upto: int, *, limit: int) -> Sequence[Record]:
        """As `LogReader.scan`, of the pruned events of a log with this extent; raises ArchiveFailed."""
        return self.page(extent, None, since, upto, limit=limit, bytes_max=NO_BYTES_MAX).records

    def last_pruned_event(self, extent: LogExtent) -> Record | None:
        """The last pruned event, if there is one; raises StoreUnusable when it cannot be read here."""
        if extent.pruned_to == 0:
            return None
        try:
            last = self.scan(extent, extent.pruned_to - 1, extent.pruned_to, limit=1)
        except ArchiveFailed as error:
            raise StoreUnusable(str(error)) from error
        if [record.committed_id for record in last] != [extent.pruned_to]:
            raise StoreUnusable(f"the archive at {self._location} has no event {extent.pruned_to}")
        return last[0]

    def require_same_log(self, log: CommitLog) -> None:
        """Raise StoreUnusable unless the pruned events of this log can be read here, and are not of another log."""
        last = self.last_pruned_event(log.extent())
        if last is None:
            return
        known = _known(log, last.id)
        if known is None or (known.committed_id, known.hash) != (last.committed_id, last.hash):
            raise StoreUnusable(
                f"the archive at {self._location} is of another log: its event {last.committed_id} has the id "
                f"{last.id!r}, which is not the id of event {last.committed_id} here"
            )

    def refresh(self) -> None:
        """Text was erased: read the newest version of the lake from the next page on. Does not block."""
        self._stale = True

    def close(self) -> None:
        with self._lock:
            if self._pages is not None:
                self._pages.close()
                self._pages = None

    def _refresh_pages(self, pages: LakePages) -> None:
        """`_stale` is cleared first: text erased during the refresh must cause another one."""
        self._stale = False
        try:
            pages.refresh()
        except BaseException:
            self._stale = True
            raise


class ColdWatermarks:
    """Up to which id the history of a set of partitions was found pruned; an LRU cache.

    The next page of such a history is read from the archive without trying the log first. May be shared by threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._upto: OrderedDict[tuple[str, ...], int] = OrderedDict()
        self._names = 0

    def note(self, names: tuple[str, ...], upto: int) -> None:
        with self._lock:
            if names not in self._upto:
                self._names += len(names)
            self._upto[names] = upto
            self._upto.move_to_end(names)
            while len(self._upto) > COLD_SETS_MAX or self._names > COLD_NAMES_MAX:
                self._names -= len(self._upto.popitem(last=False)[0])

    def upto(self, names: tuple[str, ...]) -> int:
        return self._upto.get(names, 0)


class ArchivedReader(EncodedPages):
    """A reader of the whole history: the log, and the archive for pruned events.

    Invariant: everything up to `_extent.pruned_to` is pruned; more may have been pruned since.
    """

    def __init__(
        self, log: LogReader, archive: Archive, cold_watermarks: ColdWatermarks | None = None
    ) -> None:
        """`cold_watermarks`: shared with a caller that has tried the log before."""
        self._log = log
        self._archive = archive
        self._extent = LogExtent(0, 0)
        self._cold = cold_watermarks or ColdWatermarks()

    def head(self) -> int:
        return self._log.head()

    def identity(self) -> LogIdentity:
        return self._log.identity()

    def extent(self) -> LogExtent:
        return self._log.extent()

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
        """As `LogReader.page`, also of pruned events; raises ArchiveFailed instead of Pruned."""
        if limit < 1:
            return Page((), has_more=False)
        records: list[Record] = []
        left = bytes_max
        while True:
            room = max(1, limit - len(records))
            part, at = self._part(partitions, snapshot_starts, since, upto, room, max(0, left))
            if records and part.records and (len(records) == limit or len(part.records[0].event) > left):
                return Page(records, has_more=True)
            records.extend(part.records)
            if part.has_more or at >= upto:
                return Page(records, has_more=part.has_more)
            left -= sum(len(record.event) for record in part.records)
            since = at

    def newest_page(self, partition: str, upto: int, *, limit: int, bytes_max: int) -> Page:
        """As `LogReader.newest_page`, also of pruned events; raises ArchiveFailed instead of Pruned."""
        try:
            return self._log.newest_page(partition, upto, limit=limit, bytes_max=bytes_max)
        except Pruned as pruned:
            self._read_extent(pruned.upto)
        end = min(upto, self._extent.pruned_to)
        return self._archive.newest_page(self._extent, partition, end, limit=limit, bytes_max=bytes_max)

    def scan(self, since: int, upto: int, *, limit: int, bytes_max: int = SCAN_BYTES_MAX) -> Sequence[Record]:
        """As `LogReader.scan`, also of pruned events; raises ArchiveFailed instead of Pruned."""
        records: list[Record] = []
        while since < upto and len(records) < limit:
            left = limit - len(records)
            try:
                return [*records, *self._log.scan(since, upto, limit=left, bytes_max=bytes_max)]
            except Pruned as pruned:
                self._read_extent(pruned.upto)
            end = min(upto, self._extent.pruned_to)
            for record in self._archive.scan(self._extent, since, end, limit=left):
                records.append(record)
                bytes_max -= len(record.event)
                if bytes_max <= 0:
                    return records
            since = end
        return records

    def last_status_updated_at(self) -> int:
        return self._log.last_status_updated_at()

    def last_before(self, time_ms: int, now_ms: int, upto: int) -> int:
        return self._log.last_before(time_ms, now_ms, upto)

    def snapshot(self, partition: str, model_version: int, model_digest: str = "") -> Snapshot | None:
        return self._log.snapshot(partition, model_version, model_digest)

    def snapshot_sizes(
        self, partitions: Sequence[str], model_version: int, model_digest: str = ""
    ) -> Mapping[str, tuple[int, int]]:
        return self._log.snapshot_sizes(partitions, model_version, model_digest)

    def snapshots_of(
        self, partitions: Sequence[str], model_version: int, model_digest: str = ""
    ) -> Sequence[Snapshot]:
        return self._log.snapshots_of(partitions, model_version, model_digest)

    def reopen(self) -> None:
        self._log.reopen()

    def close(self) -> None:
        self._archive.close()
        self._log.close()

    def _part(
        self,
        partitions: Sequence[str],
        snapshot_starts: Mapping[str, int],
        since: int,
        upto: int,
        limit: int,
        bytes_max: int,
    ) -> tuple[Page, int]:
        """The part of a page from the log or the archive, and up to which id it was read."""
        names = tuple(partitions)
        cold = self._cold.upto(names)
        if since >= cold:
            try:
                page = self._log.page(
                    names, since, upto, limit=limit, bytes_max=bytes_max, snapshot_starts=snapshot_starts
                )
            except Pruned as pruned:
                self._read_extent(pruned.upto)
                cold = self._extent.pruned_to
                self._cold.note(names, cold)
            else:
                return page, upto
        elif cold > self._extent.pruned_to:
            self._read_extent(cold)
        end = min(upto, cold)
        try:
            page = self._archive.page(
                self._extent,
                names,
                since,
                end,
                limit=limit,
                bytes_max=bytes_max,
                snapshot_starts=snapshot_starts,
            )
        except ArchiveFailed:
            self._read_extent(self._extent.pruned_to)  # the log may name another archive by now
            raise
        return page, end

    def _read_extent(self, pruned_to: int) -> None:
        """Read the extent again; events up to `pruned_to` are known to be pruned."""
        extent = self._log.extent()
        self._extent = msgspec.structs.replace(extent, pruned_to=max(extent.pruned_to, pruned_to))


def _known(log: CommitLog, id: str) -> RememberedId | None:
    """What the log remembers about an event id, pruned or not."""
    while True:
        try:
            known = log.begin([id]).known.get(id)
        except Behind:
            continue
        log.abandon()
        return known
