"""The events of one partition, read for a replay: from the log, or from the archive if they have left the log.

The log is read between two groups. The archive is read in a thread, some slices ahead of those being folded. While
the archive is unavailable the partition waits; it is never judged on less than its whole history.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from unisono.authority.one_shot_thread import OneShotThread
from unisono.lake.cold.archive import Archive, ArchiveFailed
from unisono.store.port import CommitLog, LogExtent, Page, Pruned, Record

logger = logging.getLogger("unisono.authority")

SLICE_EVENTS: Final = 200
"""Events of one partition folded at once: about 5 ms of work, by which commits of other partitions are delayed."""

SLICE_BYTES: Final = 4 * 1024 * 1024

AHEAD_EVENTS: Final = 2_000
"""Events read from the archive at once; while they are folded the next are read."""

RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
"""Pause between two attempts to read an unavailable archive; it doubles from the first to the second."""


class PartitionReplay:
    """The events of one partition after `since`, slice by slice, up to the head.

    Invariant: reading goes on at `_at`: in the log or, while `_archived` is set, in the archive; `_records` come
    before it and have not been returned yet.
    """

    def __init__(self, store: CommitLog, archive: Archive, partition: str, since: int) -> None:
        self._store = store
        self._archive = archive
        self._partition = partition
        self._at = since
        self._records: Sequence[Record] = ()
        self._reading: OneShotThread[Page] | None = None
        self._archived: LogExtent | None = None
        self._failures = 0

    @property
    def only_waits(self) -> bool:
        """Whether the next step depends on a thread that has not finished."""
        return not self._records and self._reading is not None and not self._reading.done

    def next_slice(self, *, allow_thread: bool) -> Page | None:
        """The next slice; None while it has to be read from the archive: call again.

        A thread is started only with `allow_thread`, which limits how many partitions have one at the same time.
        """
        if not self._records and self._reading is not None:
            if not self._reading.done:
                return None
            self._finish_reading(self._reading)
        if self._records:
            some, self._records = self._records[:SLICE_EVENTS], self._records[SLICE_EVENTS:]
            return Page(some, has_more=True)
        if self._archived is None:
            return self._read_log(allow_thread=allow_thread)
        return None

    def _read_log(self, *, allow_thread: bool) -> Page | None:
        try:
            page = self._store.page(
                (self._partition,), self._at, self._store.head(), limit=SLICE_EVENTS, bytes_max=SLICE_BYTES
            )
        except Pruned:
            if allow_thread:
                self._archived = self._store.extent()
                self._read_archive(self._archived)
            return None
        if page.records:
            self._at = page.records[-1].committed_id
        return page

    def _read_archive(self, extent: LogExtent, wait_s: float = 0.0) -> None:
        at = self._at

        def work() -> Page:
            time.sleep(wait_s)
            return self._archive.page(
                extent, (self._partition,), at, extent.pruned_to, limit=AHEAD_EVENTS, bytes_max=SLICE_BYTES
            )

        self._reading = OneShotThread(work)

    def _finish_reading(self, reading: OneShotThread[Page]) -> None:
        extent = self._archived
        assert extent is not None
        self._reading = None
        try:
            page = reading.result()
        except ArchiveFailed as error:
            wait_s = min(RETRY_MAX_S, RETRY_S * 2**self._failures)
            self._failures += 1
            logger.error(
                "partition %r cannot be loaded, retrying in %g s: %s",
                self._partition,
                wait_s,
                error,
                extra={"partition": self._partition, "retry_s": wait_s},
            )
            self._archived = self._store.extent()  # the archive may have another location by now
            self._read_archive(self._archived, wait_s)
            return
        self._failures = 0
        self._records = page.records
        if page.has_more:
            self._at = page.records[-1].committed_id
            self._read_archive(extent)
        else:
            self._at = extent.pruned_to
            self._archived = None
