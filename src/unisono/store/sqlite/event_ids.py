"""Which event has an id: the table `event_ids`, and the newest ids, which wait in memory for their row.

Events that have left the log keep their row. Ids are random, so rows written at once would each change a page of
their own (see `waiting_rows.py`). `head.ids_indexed_to` is the event up to which all have their row.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import repeat
from operator import rshift
from struct import unpack
from typing import Any, Final

import apsw
import msgspec

from unisono.store.port import RememberedId
from unisono.store.sqlite.waiting_rows import WaitingRows
from unisono.store.statements import load_queries

WAITING_MIN: Final = 32_768
WAITING_MAX: Final = 131_072
"""Bounds of how many ids wait in memory, about 200 bytes each."""

WAITING_SHARE: Final = 16
"""One event of so many waits: a page of the table then gets about twelve rows at a time, up to two million events."""

READER_WAITING_MAX: Final = 8 * WAITING_MAX
"""Ids a reader keeps before it drops those that have their row by now."""

READ_ROWS: Final = 5_000
"""Ids read at a time."""

_PART_SHIFT: Final = 52
"""The upper 12 bits of a key are its part: 4,096 of them."""

_SQL = load_queries("sqlite")


def id_key(id: str) -> int:
    """The key of an id in `event_ids`."""
    return id_keys((id,))[0]


def id_keys(ids: Sequence[str]) -> tuple[int, ...]:
    """The keys of many ids."""
    digests = b"".join([blake2b(id.encode(), digest_size=8).digest() for id in ids])
    keys: tuple[int, ...] = unpack(f">{len(ids)}q", digests)
    return keys


def register_functions(connection: apsw.Connection) -> None:
    """`id_key` for SQL."""
    connection.create_scalar_function("id_key", lambda *values: id_key(str(values[0])), 1, deterministic=True)


class EventIds:
    """Looks up ids beside the writer. `read_new` first: it reads the ids that have no row yet."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._waiting: dict[int, int] = {}
        self._same_key: list[tuple[int, int]] = []
        """Events whose key is that of a waiting one: in a lifetime none, unless somebody searches for such ids."""
        self._read_to = 0

    def read_new(self) -> None:
        indexed_to, head = self._extent()
        if len(self._waiting) > READER_WAITING_MAX:
            self._waiting = {key: at for key, at in self._waiting.items() if at > indexed_to}
        since = max(indexed_to, self._read_to)
        while rows := msgspec.convert(
            self._connection.execute(_SQL["ids_after"], (since, head, READ_ROWS)).fetchall(),
            list[tuple[int, str]],
        ):
            self.add(id_keys([id for _, id in rows]), [committed_id for committed_id, _ in rows])
            since = rows[-1][0]
        self._read_to = max(head, self._read_to)

    def find(
        self, ids: Sequence[str], keys: Sequence[int] | None = None
    ) -> Iterator[tuple[str, RememberedId]]:
        """The events, in the log or pruned, that have one of these ids; several for one id only in a damaged log."""
        if not ids:
            return
        if keys is None:
            keys = id_keys(ids)
        asked = apsw.carray(array("q", keys))
        candidates = {row[0] for row in self._connection.execute(_SQL["find_keys"], (asked,))}
        candidates.update(self._waiting[key] for key in self._waiting.keys() & keys)
        candidates.update(committed_id for key, committed_id in self._same_key if key in keys)
        if not candidates:
            return
        wanted = set(ids)
        for id, *row in self._connection.execute(_SQL["find_events"], (_array(sorted(candidates)),)):
            if id in wanted:
                yield id, RememberedId(*row)

    def _extent(self) -> tuple[int, int]:
        rows = self._connection.execute(_SQL["ids_extent"]).fetchall()
        return msgspec.convert(rows[0], tuple[int, int]) if rows else (0, 0)

    def add(self, keys: Sequence[int], committed_ids: Sequence[int]) -> Sequence[int]:
        """Events that may have no row yet; returns the keys that wait from now on."""
        waiting = self._waiting
        if waiting.keys().isdisjoint(keys) and len(set(keys)) == len(keys):
            waiting.update(zip(keys, committed_ids, strict=True))
            return keys
        fresh = []
        for key, committed_id in zip(keys, committed_ids, strict=True):
            if key in waiting:
                self._same_key.append((key, committed_id))
            else:
                waiting[key] = committed_id
                fresh.append(key)
        return fresh


class EventIdWriter(EventIds):
    """The ids of the writer. Between two groups every event has a row or waits in memory."""

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        indexed_to, _ = self._extent()
        self._rows = WaitingRows(indexed_to)
        """The keys of the waiting ids, by part."""
        self.read_new()

    def write_some(self, head: int, added: int) -> int:
        """Within the transaction after event `head`, which adds so many: write the rows of the next parts.

        Does so only if too many ids wait. Returns the event up to which all have their row.
        """
        capacity = min(max(head // WAITING_SHARE, WAITING_MIN), WAITING_MAX)
        rows, self._same_key = self._same_key, []
        take = self._waiting.pop
        for _, keys in self._rows.take(head, added, capacity):
            rows += [(key, take(key)) for key in sorted(keys)]
        if rows:
            self._connection.executemany(_SQL["insert_event_id"], rows)
        return self._rows.indexed_to

    def add(self, keys: Sequence[int], committed_ids: Sequence[int]) -> Sequence[int]:
        """Events that are durable now."""
        fresh = super().add(keys, committed_ids)
        self._rows.add(zip(map(rshift, fresh, repeat(_PART_SHIFT)), fresh, strict=True))
        return fresh


def _array(values: Sequence[Any]) -> str:
    return msgspec.json.encode(values).decode()
