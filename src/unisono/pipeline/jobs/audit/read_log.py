"""Reading the server's log as far as it can be read: what cannot is narrowed down to the events it is about."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Final

import msgspec

from unisono.pipeline.open_log import READ_ROWS_MAX, open_reader
from unisono.store.cluster import StoreLost
from unisono.store.port import LogReader, Pruned, Record, StorageError

FAILURES_MAX: Final = 200
"""Failed reads after which a stretch is told as a whole: some ten damaged events are found in fewer."""


class UnreadableEvents(msgspec.Struct, frozen=True):
    """Events of `(since, upto]`, which cannot be read, and why."""

    since: int
    upto: int
    reason: str

    def text(self) -> str:
        here = "here" if self.upto == self.since + 1 else f"from here up to {self.upto}"
        return f"the log cannot be read {here}: {self.reason}"


class StoreReading:
    """Reads stretches of the log that ascend, open while it is used.

    `dark`: what could not be read. `pruned_to`: what left the log meanwhile and was passed over.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._reader: LogReader | None = None
        self._failures = 0
        self.dark: list[UnreadableEvents] = []
        self.pruned_to = 0

    def __enter__(self) -> StoreReading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def records(self, since: int, upto: int) -> Iterator[list[Record]]:
        """What the log holds of `(since, upto]`, gaps or not, in short reads."""
        for low in range(since, upto, READ_ROWS_MAX):
            yield from self._stretch(low, min(low + READ_ROWS_MAX, upto))

    def lacks(self, committed_id: int) -> bool:
        """Whether an event was not seen for want of reading it."""
        return committed_id <= self.pruned_to or any(
            part.since < committed_id <= part.upto for part in self.dark
        )

    def _stretch(self, since: int, upto: int) -> Iterator[list[Record]]:
        waiting = [(since, upto)]
        while waiting:
            low, high = waiting.pop()
            low = max(low, self.pruned_to)
            try:
                records = list(self._opened().scan(low, high, limit=READ_ROWS_MAX)) if low < high else []
            except Pruned as pruned:
                self.pruned_to = max(self.pruned_to, pruned.upto)
                waiting.append((low, high))
            except StoreLost:
                raise  # out of reach for now, which says nothing about it: the task is tried again
            except StorageError as error:
                self._close()
                self._failures += 1
                if high - low > 1 and self._failures < FAILURES_MAX:
                    middle = (low + high) // 2
                    waiting += [(middle, high), (low, middle)]
                else:
                    self._note(UnreadableEvents(low, high, str(error)))
            else:
                if records:
                    yield records

    def _opened(self) -> LogReader:
        if self._reader is None:
            self._reader = open_reader(self._store)
        return self._reader

    def _close(self) -> None:
        """A reader that has failed once reads no more."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _note(self, part: UnreadableEvents) -> None:
        if self.dark and self.dark[-1].upto == part.since:
            part = UnreadableEvents(self.dark.pop().since, part.upto, part.reason)
        self.dark.append(part)
