"""Reads the server's log as far as possible, and narrows unreadable parts down to their events."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Final

import msgspec

from unisono.pipeline.open_log import READ_BYTES, READ_ROWS_MAX, open_reader
from unisono.store.cluster import StoreLost
from unisono.store.port import LogReader, Pruned, Record, StorageError

FAILURES_MAX: Final = 200
"""Failed reads after which a whole range is reported: about ten damaged events are found with fewer."""


class UnreadableEvents(msgspec.Struct, frozen=True):
    """Events of `(since, upto]` that cannot be read, and why."""

    since: int
    upto: int
    reason: str

    def text(self) -> str:
        here = "here" if self.upto == self.since + 1 else f"from here up to {self.upto}"
        return f"the log cannot be read {here}: {self.reason}"


class LogReading:
    """Reads ascending ranges of the log.

    `unreadable`: ranges that could not be read. `pruned_to`: events that were pruned meanwhile and skipped.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._reader: LogReader | None = None
        self._failures = 0
        self.unreadable: list[UnreadableEvents] = []
        self.pruned_to = 0

    def __enter__(self) -> LogReading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def records(self, since: int, upto: int) -> Iterator[list[Record]]:
        """The events of `(since, upto]`, with or without gaps, in short reads."""
        for low in range(since, upto, READ_ROWS_MAX):
            yield from self._stretch(low, min(low + READ_ROWS_MAX, upto))

    def lacks(self, committed_id: int) -> bool:
        """Whether an event was not read because it was pruned or unreadable."""
        return committed_id <= self.pruned_to or any(
            part.since < committed_id <= part.upto for part in self.unreadable
        )

    def _stretch(self, since: int, upto: int) -> Iterator[list[Record]]:
        ranges = [(since, upto)]
        while ranges:
            low, high = ranges.pop()
            low = max(low, self.pruned_to)
            try:
                records = self._read(low, high) if low < high else []
            except Pruned as pruned:
                self.pruned_to = max(self.pruned_to, pruned.upto)
                ranges.append((low, high))
            except StoreLost:
                raise  # unavailable, not damaged: the task is retried
            except StorageError as error:
                self._close()
                self._failures += 1
                if high - low > 1 and self._failures < FAILURES_MAX:
                    middle = (low + high) // 2
                    ranges += [(middle, high), (low, middle)]
                else:
                    self._add_unreadable(UnreadableEvents(low, high, str(error)))
            else:
                if records:
                    yield records
                    if sum(len(record.event) for record in records) >= READ_BYTES:
                        ranges.append((records[-1].committed_id, high))

    def _read(self, since: int, upto: int) -> list[Record]:
        """The events there are; when they come to READ_BYTES, more may follow."""
        return list(self._opened().scan(since, upto, limit=READ_ROWS_MAX, bytes_max=READ_BYTES))

    def _opened(self) -> LogReader:
        if self._reader is None:
            self._reader = open_reader(self._store)
        return self._reader

    def _close(self) -> None:
        """A reader that has failed cannot be used again."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _add_unreadable(self, part: UnreadableEvents) -> None:
        if self.unreadable and self.unreadable[-1].upto == part.since:
            part = UnreadableEvents(self.unreadable.pop().since, part.upto, part.reason)
        self.unreadable.append(part)
