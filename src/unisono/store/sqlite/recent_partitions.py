"""Which events a partition has: the table `event_partitions`, and the newest events, whose rows are not there yet.

The events of a group belong to many partitions, so rows written at once would each change a page of their own (see
`waiting_rows.py`). `head.partitions_indexed_to` is the event up to which all have their rows. The events name their
partitions themselves, so whoever reads pages reads those of the events after the mark from there, each once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Final

import apsw
import msgspec

from unisono.store.port import StorageError
from unisono.store.sqlite.waiting_rows import WaitingRows
from unisono.store.statements import load_queries

WAITING_MAX: Final = 8_192
"""Rows that wait in memory. Readers have up to four times as many to read when they begin: some 30 milliseconds."""

ROWS_TOGETHER_MIN: Final = 8
"""Rows of a partition from which one statement for all of them costs less than one for each."""

READ_ROWS: Final = 5_000
"""Events read at a time."""

LookUp = Callable[[Iterable[str]], dict[str, int]]
"""Partition names → their numbers, of those that exist."""

_SQL = load_queries("sqlite")
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


class RecentPartitions:
    """The events that pages do not find in the table.

    Invariant: `_ids` has every event after `indexed_to` and up to `read_to`, by the number of each of its partitions,
    ascending. Which events there are up to `read_to` changes only by pruning, so a page up to there is the same
    whenever its statements read.
    """

    def __init__(self, connection: apsw.Connection, look_up: LookUp) -> None:
        self._connection = connection
        self._look_up = look_up
        self._ids: dict[int, list[int]] = {}
        self.indexed_to = 0
        self.read_to = 0

    def cover(self, upto: int) -> int:
        """Read what is new, if pages up to `upto` need it; returns up to where they can go: `upto`, or the head."""
        return upto if upto <= self.read_to else min(upto, self.read_new())

    def read_new(self) -> int:
        """Read the events after `read_to`; returns the head."""
        indexed_to, head = _extent(self._connection)
        if indexed_to > self.indexed_to:
            self._ids = {
                number: ids[bisect_right(ids, indexed_to) :]
                for number, ids in self._ids.items()
                if ids[-1] > indexed_to
            }
            self.indexed_to = indexed_to
        known = self._ids
        for number, committed_id in _read(
            self._connection, self._look_up, max(indexed_to, self.read_to), head
        ):
            ids = known.get(number)
            if ids is None:
                known[number] = [committed_id]
            else:
                ids.append(committed_id)
        self.read_to = max(head, self.read_to)
        return self.read_to

    def ids(self, numbers: Sequence[int], since: int, upto: int, limit: int) -> list[int]:
        """The first events of any of these partitions after the table and `since`, up to `upto`, ascending."""
        found = []
        for number in numbers:
            ids = self._ids.get(number)
            if ids is not None and since < ids[-1] and ids[0] <= upto:
                first = bisect_right(ids, since)
                found.append(ids[first : min(first + limit, bisect_right(ids, upto))])
        if len(found) <= 1:
            return found[0] if found else []
        return list(islice(dict.fromkeys(merge(*found)), limit))

    def newest_ids(self, number: int, upto: int, limit: int) -> list[int]:
        """The last events of a partition after the table, up to `upto`, descending."""
        ids = self._ids.get(number, [])
        end = bisect_right(ids, upto)
        return ids[max(0, end - limit) : end][::-1]


class EventPartitionWriter:
    """The rows of the writer. Between two groups each is in the table or waits in memory."""

    def __init__(self, connection: apsw.Connection, look_up: LookUp) -> None:
        self._connection = connection
        indexed_to, head = _extent(connection)
        self._rows = WaitingRows(indexed_to)
        """Events, by the number of their partition."""
        self._rows.add(_read(connection, look_up, indexed_to, head))
        self.add = self._rows.add
        """Takes (partition, committed_id) of events that are durable now."""

    def write_some(self, head: int, added: int) -> int:
        """Within the transaction after event `head`, which adds so many rows: write those of the next partitions.

        Does so only if too many wait. Returns the event up to which all have their rows.
        """
        few: list[tuple[int, int]] = []
        for number, ids in self._rows.take(head, added, WAITING_MAX):
            if len(ids) == 1:
                few.append((number, ids[0]))
            elif len(ids) < ROWS_TOGETHER_MIN:
                few += [(number, committed_id) for committed_id in ids]
            else:
                together = apsw.carray(array("q", ids))
                self._connection.execute(_SQL["insert_events_of_partition"], (number, together))
        if few:
            self._connection.executemany(_SQL["insert_event_partition"], few)
        return self._rows.indexed_to

    def write_all(self) -> None:
        """Within a transaction of its own: write every row that waits."""
        rows = sorted(self._rows.rows())
        self._connection.executemany(_SQL["insert_event_partition"], rows)
        self._connection.execute(_SQL["all_partitions_indexed"])
        _, head = _extent(self._connection)
        self._rows.written_up_to(head)

    @property
    def indexed_to(self) -> int:
        """The event up to which all have their rows."""
        return self._rows.indexed_to


def partitions_indexed_to(connection: apsw.Connection) -> int:
    """The event up to which all have their rows in the table, by what is durable."""
    return _extent(connection)[0]


def _extent(connection: apsw.Connection) -> tuple[int, int]:
    rows = connection.execute(_SQL["partitions_extent"]).fetchall()
    if not rows:
        raise StorageError("the head row is missing: run `unisono check`")
    return msgspec.convert(rows[0], tuple[int, int])


def _read(connection: apsw.Connection, look_up: LookUp, since: int, upto: int) -> Iterator[tuple[int, int]]:
    """(partition, committed_id) of the events within (since, upto], in their order."""
    while rows := msgspec.convert(
        connection.execute(_SQL["partitions_after"], (since, upto, READ_ROWS)).fetchall(),
        list[tuple[int, str]],
    ):
        names = {text: _decode_names(text) for text in {text for _, text in rows}}
        numbers = look_up(name for of_event in names.values() for name in of_event)
        try:
            known = {text: [numbers[name] for name in of_event] for text, of_event in names.items()}
        except KeyError as error:
            raise StorageError(f"partition {error} has events and no number: run `unisono check`") from None
        for committed_id, text in rows:
            for number in known[text]:
                yield number, committed_id
        since = rows[-1][0]
