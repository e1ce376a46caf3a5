"""Rows of an index that wait in memory until the writer comes around to their part of it.

If each event wrote its rows at once, each row would change a page of its own: 4 KiB in the WAL and again in the
file, for some 10 to 20 bytes. So the newest rows wait, sorted into parts of the index, and every group writes the
rows of the next parts. Neighbouring rows then share a page.

A mark in the head row, `indexed_to`, is the event up to which all have their rows. It advances each time the writer
has been around the index. The rows after it are made from the events: when the log is opened, and by readers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

ROWS_MIN: Final = 64
"""Rows a group writes at most, besides two for each of its own: no group is much slower than its neighbours."""

PART_ROWS_MAX: Final = 256
"""Rows of one part written at a time: about a page. A part that has more is written in several steps."""


class WaitingRows:
    """The waiting rows of one index, each a number; the index decides what it stands for.

    Invariants, between two groups: every row of the index is in its table or here. Of the events up to `_round_head`
    the waiting rows are in parts still to come in this round. Rows of a part leave in the order in which they came.
    """

    def __init__(self, indexed_to: int) -> None:
        self.indexed_to = indexed_to
        self.count = 0
        self._parts: defaultdict[int, list[int]] = defaultdict(list)
        self._round: list[int] = []
        """The parts still to come, the next one last; empty: the next row begins a round."""
        self._left_of_part = 0
        """Rows of the next part that were there when its turn came, and still are; 0: its turn has not begun."""
        self._round_head = 0
        """The head when this round began: at its end all events up to it have their rows."""

    def add(self, rows: Iterable[tuple[int, int]]) -> None:
        """(part, row) of events that are durable now."""
        parts = self._parts
        count = 0
        for count, (number, row) in enumerate(rows, 1):  # noqa: B007
            parts[number].append(row)
        self.count += count

    def take(self, head: int, added: int, capacity: int) -> list[tuple[int, Sequence[int]]]:
        """The rows of the next parts, in the order of the index, while more than `capacity` wait: (part, rows).

        They are written in the transaction that follows event `head` and adds so many rows.
        """
        taken: list[tuple[int, Sequence[int]]] = []
        rows_left = ROWS_MIN + 2 * added
        parts = self._parts
        while self.count > capacity and rows_left > 0:
            if not self._round:
                self._round = sorted(parts, reverse=True)
                self._round_head = head
            number = self._round[-1]
            rows = parts.pop(number, [])
            left_of_part = self._left_of_part or len(rows)
            if len(rows) > PART_ROWS_MAX:
                parts[number] = rows[PART_ROWS_MAX:]
                rows = rows[:PART_ROWS_MAX]
            count = len(rows)
            if count:
                taken.append((number, rows))
                self.count -= count
                rows_left -= count
            if count < left_of_part:
                self._left_of_part = left_of_part - count
                continue
            self._left_of_part = 0
            self._round.pop()
            if not self._round:
                self.indexed_to = self._round_head
        return taken

    def written_up_to(self, head: int) -> None:
        """All rows that waited are in the table, and `head` is the last event."""
        self._parts.clear()
        self._round.clear()
        self.count = 0
        self._left_of_part = 0
        self.indexed_to = head

    def rows(self) -> Iterator[tuple[int, int]]:
        """(part, row) of every waiting row; of each part in the order in which they came."""
        for number, rows in self._parts.items():
            for row in rows:
                yield number, row
