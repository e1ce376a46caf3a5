"""The findings of an audit: each with its event, all counted, the first of each kind kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np

from unisono.display import shorten

KINDS: Final = {
    "file": "a data file that cannot be read, or not in full",
    "foreign": "a file that another program wrote; its rows were checked in any order",
    "statistics": "what the table or the file says of its rows is not true",
    "head": "the tables do not end where they say",
    "gap": "committed ids that are missing",
    "duplicate": "a committed id that is there more than once",
    "order": "rows or files that are not in the order promised",
    "bucket": "a row in the wrong bucket",
    "column": "a column without a value, or with one that cannot be",
    "id": "an event id that is not valid, or belongs to several events",
    "partitions": "partitions that are not valid or not normalised",
    "event": "event text that is not canonical JSON",
    "hash": "a hash that is not that of event and partitions",
    "kind": "columns type and schema that are not those of the event",
    "shape": "an event that no profile could have accepted",
    "time": "a time that goes back, or is none",
    "by_partition": "rows of by_partition that are not those of log",
    "copy": "lake and log differ",
    "pruned": "what the log remembers of pruned events is not what the lake has",
    "erasure": "a tombstone that no erasure explains, or an erased event that is still there",
    "snapshot": "a snapshot that is missing, cannot be replayed, or is not what a replay gives",
    "tree": "a state with a tree that is not well formed",
    "model": "an event that the given model would refuse",
}
"""Every kind of finding, in the order of the report."""

WARNINGS: Final = frozenset(("foreign", "model"))
"""Kinds that do not make a history unsound: rows in another order, events made under other rules."""

KEPT_MAX: Final = 1_000
"""Findings of one kind that are listed; a lost disk can have millions, which are counted."""

PLACES: Final = 200
"""Parts of the history in which findings are counted separately: as many as a chart can show."""

MESSAGE_CHARS_MAX: Final = 400


class AuditFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finding, with `committed_id` and `partition` if it has them."""

    kind: str
    message: str
    committed_id: int | None = None
    partition: str | None = None

    def text(self) -> str:
        event = "" if self.committed_id is None else f"event {self.committed_id}: "
        place = "" if self.partition is None else f"partition {self.partition!r}: "
        return f"{self.kind}: {event}{place}{self.message}"


class FindingTally:
    """Findings, counted by kind and by place in the history.

    Tallies of parts add up. Of each kind the findings with the smallest ids are kept, in whatever order they come.
    """

    def __init__(self, head: int) -> None:
        self.head = max(1, head)
        self.counts: dict[str, int] = {}
        self.places: dict[str, Any] = {}
        self._kept: dict[str, list[AuditFinding]] = {}

    def add(
        self, kind: str, message: str, committed_id: int | None = None, partition: str | None = None
    ) -> None:
        assert kind in KINDS
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if committed_id is not None:
            self._histogram(kind)[self._place(committed_id)] += 1
        short = shorten(message, MESSAGE_CHARS_MAX)
        self._keep(kind, [AuditFinding(kind, short, committed_id, partition)])

    def count(self, kind: str, committed_ids: Any) -> None:
        """Count findings without keeping them."""
        if len(committed_ids):
            self.counts[kind] = self.counts.get(kind, 0) + len(committed_ids)
            np.add.at(self._histogram(kind), [self._place(int(id)) for id in committed_ids], 1)

    @property
    def errors(self) -> int:
        """Findings that make a history unsound."""
        return sum(count for kind, count in self.counts.items() if kind not in WARNINGS)

    def room(self, kind: str) -> int:
        """How many more findings of a kind would be kept."""
        return max(0, KEPT_MAX - len(self._kept.get(kind, ())))

    def merge(self, other: FindingTally) -> None:
        for kind, count in other.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + count
        for kind, places in other.places.items():
            self._histogram(kind)[:] += places
        for kind, kept in other._kept.items():
            self._keep(kind, kept)

    def kept(self) -> list[AuditFinding]:
        """By kind, then by place in the history."""
        return [
            finding
            for kind in KINDS
            for finding in sorted(self._kept.get(kind, ()), key=_place_of)[:KEPT_MAX]
        ]

    def _keep(self, kind: str, new: Iterable[AuditFinding]) -> None:
        kept = self._kept.setdefault(kind, [])
        kept.extend(new)
        if len(kept) > 2 * KEPT_MAX:
            kept.sort(key=_place_of)
            del kept[KEPT_MAX:]

    def _histogram(self, kind: str) -> Any:
        return self.places.setdefault(kind, np.zeros(PLACES, np.int64))

    def _place(self, committed_id: int) -> int:
        return min(PLACES - 1, max(0, (committed_id - 1) * PLACES // self.head))


def _place_of(finding: AuditFinding) -> tuple[int, str, str]:
    return finding.committed_id or 0, finding.partition or "", finding.message
