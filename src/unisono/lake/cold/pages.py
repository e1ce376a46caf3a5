"""Pages of history from a lake, without Spark.

The ids of a page are found first, from the layouts of row groups; then only its records are read. The cost of a page
does not grow with the lake: an index in memory has the files that may contain a partition, and statistics select
their row groups. A partition that is rare in every file costs one probe per run of the range; compaction keeps runs
few.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from deltalake.exceptions import DeltaError

from unisono.lake.cold.index import Files, Index
from unisono.lake.cold.merge import CHUNK_ROWS, Chunk, Cursor, RowMerge, RowMerges
from unisono.lake.errors import LakeError, LakeUnusable
from unisono.lake.lake import Lake, View
from unisono.lake.row_groups import NO_NAME
from unisono.store.port import NO_SNAPSHOT_STARTS, Page, Record

log = logging.getLogger("unisono.archive")

REFRESH_S: Final = 5.0
"""How often a newer version of the lake is looked for, and so how long erased text may still be served."""

TRIES: Final = 4
"""Attempts to read a page whose files are replaced and removed meanwhile."""

RECORDS_AT_ONCE: Final = 128
"""Rows converted to records at once, for this page and the next ones."""

RECORDS_AHEAD_MAX: Final = 8_192
"""Records converted ahead for one history, divided among its partitions."""

READ_ERRORS: Final = (OSError, ValueError, pa.ArrowException, DeltaError)
"""What reading a missing, unreachable or damaged file can raise."""


class LakePages:
    """Reads one lake page by page; not thread-safe."""

    def __init__(self, lake: Lake, bytes_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._lake = lake
        self._clock = clock
        self._files = Files(lake.storage, bytes_max)
        self._view = lake.view()
        self._index = Index(self._view)
        self._refreshed_at = clock()
        self._merges = RowMerges()

    @property
    def head(self) -> int:
        """The last event of the version that is read."""
        return self._index.head

    def page(
        self,
        names: Sequence[str] | None,
        since: int,
        upto: int,
        *,
        limit: int,
        bytes_max: int,
        snapshot_starts: Mapping[str, int] = NO_SNAPSHOT_STARTS,
    ) -> Page:
        """As `LogReader.page`; of all partitions when `names` is None. `upto` must be in the lake."""
        wanted: tuple[str | None, ...] = (None,) if names is None else tuple(dict.fromkeys(names))
        if since >= upto or limit < 1 or not wanted:
            return Page((), has_more=False)
        return self._retried(upto, lambda: self._read(wanted, snapshot_starts, since, upto, limit, bytes_max))

    def newest_page(self, name: str, upto: int, *, limit: int, bytes_max: int) -> Page:
        """As `LogReader.newest_page`. `upto` must be in the lake."""
        if upto < 1 or limit < 1:
            return Page((), has_more=False)
        return self._retried(upto, lambda: self._read_newest(name, upto, limit, bytes_max))

    def _retried(self, upto: int, read: Callable[[], Page]) -> Page:
        """What `read` gives, tried again when the files were replaced meanwhile."""
        if self._clock() - self._refreshed_at > REFRESH_S:
            self._try_refresh()
        if upto > self.head:
            self.refresh()
        if upto > self.head:
            raise LakeUnusable(f"the lake ends at event {self.head}, {upto} was asked for")
        for _ in range(TRIES):
            paths = self._index.paths
            try:
                return read()
            except READ_ERRORS as error:
                self.close()
                self._refreshed_at = self._clock()
                self._use(self._lake.view(checked=False))
                if self._index.paths == paths:
                    raise LakeUnusable(str(error)) from error
        raise LakeUnusable(f"the lake's files were replaced during {TRIES} attempts to read a page")

    def close(self) -> None:
        self._merges.clear()
        self._files.close()

    # -- the version that is read --------------------------------------------------------------------------

    @property
    def _version(self) -> tuple[int, int]:
        return self._view.log.version, self._view.by_partition.version

    def refresh(self) -> None:
        """Switch to the newest version of the lake; raises LakeError."""
        self._refreshed_at = self._clock()
        newest = self._lake.view(checked=False)
        if (newest.log.version, newest.by_partition.version) != self._version:
            self._use(newest)

    def _try_refresh(self) -> None:
        try:
            self.refresh()
        except LakeError as error:
            log.warning("lake refresh failed, still reading the previous version: %s", error)

    def _use(self, view: View) -> None:
        self._index = Index(view)
        self._view = view
        self._merges.clear()
        self._files.keep_only(self._index.paths)

    # -- one page ------------------------------------------------------------------------------------------

    def _read(
        self,
        names: tuple[str | None, ...],
        snapshot_starts: Mapping[str, int],
        since: int,
        upto: int,
        limit: int,
        bytes_max: int,
    ) -> Page:
        fixed = tuple(snapshot_starts.items())
        merge = self._merges.take((names, fixed, since, upto))
        if merge is None:
            after = [since if name is None else max(since, snapshot_starts.get(name, 0)) for name in names]
            walks = [self._walk(name, start, upto) for name, start in zip(names, after, strict=True)]
            merge = RowMerge([Cursor(walk) for walk in walks])
        ahead = max(1, min(RECORDS_AT_ONCE, RECORDS_AHEAD_MAX // len(names)))
        page = self._records(merge.first(limit + 1), limit, bytes_max, ahead)
        if page.has_more:
            merge.drop(len(page.records))
            self._merges.put((names, fixed, page.records[-1].committed_id, upto), merge)
        return page

    def _walk(self, name: str | None, since: int, upto: int) -> Iterator[tuple[int, Chunk | None]]:
        """A partition's rows in `(since, upto]` by chunks, each with a lower bound of the next id."""
        own, reached = NO_NAME if name is None else name.encode(), 0
        for run in self._index.runs(name).within(since, upto):
            yield run.first_id, None
            for place in run.of(own):
                for group in self._files.row_groups(place.file).of(own, since, upto):
                    layout = self._files.layout(place.file, group)
                    first, last = layout.rows(own)
                    start = first + int(np.searchsorted(layout.ids[first:last], since, "right"))
                    end = first + int(np.searchsorted(layout.ids[first:last], upto, "right"))
                    if start < end:
                        if layout.ids[start] <= reached:
                            raise LakeUnusable(
                                f"event {layout.ids[start]} is out of order in {place.file.path}"
                            )
                        reached = int(layout.ids[end - 1])
                    for row in range(start, end, CHUNK_ROWS):
                        ids = layout.ids[row : min(end, row + CHUNK_ROWS)].copy()  # lets the rest be freed
                        yield int(ids[-1]) + 1, Chunk(place.file, group, row, ids)

    def _read_newest(self, name: str, upto: int, limit: int, bytes_max: int) -> Page:
        """Backwards through the files, so that what lies before the page is not read."""
        records: list[Record] = []
        left = bytes_max
        for chunk in self._walk_back(name, upto):
            for row in range(chunk.end - 1, chunk.start - 1, -1):
                place = row - chunk.at
                if not 0 <= place < len(chunk.records):
                    piece = self._files.piece(chunk.file, chunk.group, row, 1.0)
                    chunk.at = max(chunk.start, piece.start, row - RECORDS_AT_ONCE + 1)
                    chunk.records = piece.records(chunk.at, row + 1)
                    place = row - chunk.at
                record = chunk.records[place]
                left -= len(record.event)
                if records and (len(records) == limit or left < 0):
                    return Page(records, has_more=True)
                records.append(record)
        return Page(records, has_more=False)

    def _walk_back(self, name: str, upto: int) -> Iterator[Chunk]:
        """A partition's rows up to `upto` by chunks, the newest first."""
        own, reached = name.encode(), upto + 1
        for run in reversed(list(self._index.runs(name).within(0, upto))):
            for place in reversed(run.of(own)):
                for group in reversed(list(self._files.row_groups(place.file).of(own, 0, upto))):
                    layout = self._files.layout(place.file, group)
                    first, last = layout.rows(own)
                    end = first + int(np.searchsorted(layout.ids[first:last], upto, "right"))
                    if first == end:
                        continue
                    if layout.ids[end - 1] >= reached:
                        raise LakeUnusable(
                            f"event {layout.ids[end - 1]} is out of order in {place.file.path}"
                        )
                    reached = int(layout.ids[first])
                    for stop in range(end, first, -CHUNK_ROWS):
                        start = max(first, stop - CHUNK_ROWS)
                        yield Chunk(place.file, group, start, layout.ids[start:stop].copy())

    def _records(self, places: list[tuple[Chunk, int]], limit: int, bytes_max: int, ahead: int) -> Page:
        """The records at `places`, in order, within the limits; at least one."""
        share = 1 / max(1, len({(chunk.file.path, chunk.group.number) for chunk, _ in places}))
        records: list[Record] = []
        left = bytes_max
        for chunk, row in places:
            place = row - chunk.at
            if not 0 <= place < len(chunk.records):
                self._fill(chunk, row, share, ahead)
                place = 0
            record = chunk.records[place]
            left -= len(record.event)
            if records and (len(records) == limit or left < 0):
                return Page(records, has_more=True)
            records.append(record)
        return Page(records, has_more=False)

    def _fill(self, chunk: Chunk, row: int, share: float, ahead: int) -> None:
        """Convert some records of a chunk, from `row` on; a page of many partitions needs only a few of each."""
        piece = self._files.piece(chunk.file, chunk.group, row, share)
        chunk.at = row
        chunk.records = piece.records(row, min(row + ahead, chunk.end, piece.end))
