"""A partition's events on their way into its state: from the log, or from the archive where they have left it.

The log is read between two groups. The archive is read in a thread beside them, some slices ahead of those that are
being folded; while it is out of reach the partition waits, and is never judged on less than its whole history.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from unisono.authority.one_shot_thread import OneShotThread
from unisono.lake.cold.archive import Archive, ArchiveFailed
from unisono.store.port import CommitLog, LogExtent, Page, Pruned, Record

log = logging.getLogger("unisono.authority")

SLICE_EVENTS: Final = 200
"""Events of one partition folded at once: about 5 ms of work, which a commit of another partition waits for."""

SLICE_BYTES: Final = 4 * 1024 * 1024

AHEAD_EVENTS: Final = 2_000
"""Events read from the archive at once: while they are folded the next are read."""

RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
"""Between two tries to read from an archive that is out of reach: soon at first, then patiently."""


class PartitionReplay:
    """The events of one partition after `since`, slice by slice, up to the head.

    Invariant: `_at` is where reading goes on, in the log or, while `_reading` is set, in the archive; `_records` come
    before it and have not been handed out.
    """

    def __init__(self, store: CommitLog, archive: Archive, partition: str, since: int) -> None:
        self._store = store
        self._archive = archive
        self._partition = partition
        self._at = since
        self._records: Sequence[Record] = ()
        self._reading: OneShotThread[Page] | None = None
        self._held: LogExtent | None = None
        self._failures = 0

    @property
    def only_waits(self) -> bool:
        """Whether all that is left to do for now is done in a thread."""
        return not self._records and self._reading is not None and not self._reading.done

    def take(self, *, beside: bool) -> Page | None:
        """The next slice; None when it has to come from the archive first: ask again.

        A thread is started for that only with `beside`, so that not every partition has one at the same time.
        """
        if not self._records and self._reading is not None:
            if not self._reading.done:
                return None
            self._take_over(self._reading)
        if self._records:
            some, self._records = self._records[:SLICE_EVENTS], self._records[SLICE_EVENTS:]
            return Page(some, has_more=True)
        if self._held is None:
            return self._from_log(beside=beside)
        return None

    def _from_log(self, *, beside: bool) -> Page | None:
        try:
            page = self._store.page(
                (self._partition,), self._at, self._store.head(), limit=SLICE_EVENTS, bytes_max=SLICE_BYTES
            )
        except Pruned:
            if beside:
                self._held = self._store.extent()
                self._read(self._held)
            return None
        if page.records:
            self._at = page.records[-1].committed_id
        return page

    def _read(self, held: LogExtent, wait_s: float = 0.0) -> None:
        at = self._at

        def work() -> Page:
            time.sleep(wait_s)
            return self._archive.page(
                held, (self._partition,), at, held.pruned_to, limit=AHEAD_EVENTS, bytes_max=SLICE_BYTES
            )

        self._reading = OneShotThread(work)

    def _take_over(self, reading: OneShotThread[Page]) -> None:
        held = self._held
        assert held is not None
        self._reading = None
        try:
            page = reading.result()
        except ArchiveFailed as error:
            wait_s = min(RETRY_MAX_S, RETRY_S * 2**self._failures)
            self._failures += 1
            log.error("%r cannot be loaded, next try in %g s: %s", self._partition, wait_s, error)
            self._held = self._store.extent()  # the archive may have another name by now
            self._read(self._held, wait_s)
            return
        self._failures = 0
        self._records = page.records
        if page.has_more:
            self._at = page.records[-1].committed_id
            self._read(held)
        else:
            self._at = held.pruned_to
            self._held = None
