"""Changes on their way to the program: one slot per partition and reader, so a slow reader costs no memory.

A reader that comes late finds one change per partition that stands for all it missed. The engine's thread puts,
the reader's thread takes; waking is the reader's business (an asyncio event, a threading event).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec


class Change(msgspec.Struct, frozen=True):
    """A partition's view is another now: read it with `view(partition)`.

    `revision` rises with every change of the view; `merged` says how many changes this one stands for;
    `committed_id` is the cursor, `pending` the number of drafts still to be settled in the client.
    """

    partition: str
    revision: int
    committed_id: int
    pending: int
    merged: int = 1


T = TypeVar("T")


class Feed(Generic[T]):
    """The newest item per key for one reader, in the order the keys were first put."""

    def __init__(self, wanted: str | None, merge: Callable[[T, T], T]) -> None:
        self.wanted = wanted
        self._merge = merge
        self._lock = threading.Lock()
        self._slots: dict[str, T] = {}
        self._wake: Callable[[], None] = lambda: None
        self.closed = False

    def wake_by(self, wake: Callable[[], None]) -> None:
        """What to call, from the engine's thread, when there is something to take."""
        self._wake = wake

    def put(self, key: str, item: T) -> None:
        if self.wanted is not None and key != self.wanted:
            return
        with self._lock:
            older = self._slots.get(key)
            self._slots[key] = item if older is None else self._merge(older, item)
        self._wake()

    def take(self) -> T | None:
        """The oldest item waiting, if any."""
        with self._lock:
            return self._slots.pop(next(iter(self._slots))) if self._slots else None

    def close(self) -> None:
        """Nothing more will come."""
        self.closed = True
        self._wake()


def merge_changes(older: Change, newer: Change) -> Change:
    return msgspec.structs.replace(newer, merged=older.merged + newer.merged)


def newest(older: T, newer: T) -> T:  # noqa: ARG001
    return newer
