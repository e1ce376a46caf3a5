"""What an audit is about, and what its tasks bring back; both travel between driver and executors."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from unisono.lake.storage import Storage
from unisono.lake.write import DataFile
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.audit.event_checks import EventCheck
from unisono.pipeline.jobs.audit.findings import FindingTally
from unisono.pipeline.row_fingerprints import Sums


class Scope(msgspec.Struct, frozen=True):
    """The history looked at: ids 1 to `head`, of which `by_partition` has those up to `placed_to`.

    `store` and `(store_since, store_upto]`: the server's log and what it and the lake both hold; None where none
    was named. The log itself goes on to `store_head`. `model` is what events are judged by, if any.
    """

    storage: Storage
    head: int
    placed_to: int
    places_head: int
    buckets: int
    store: str | None = None
    store_since: int = 0
    store_upto: int = 0
    store_head: int = 0
    model: ShippedModel | None = None


class UnreadableRows(msgspec.Struct, frozen=True):
    """Rows that could not be read: of ids in `[first_id, last_id]`, within one file."""

    file: DataFile
    first_id: int
    last_id: int


class FileContent(msgspec.Struct, frozen=True):
    """What one file of `log` really holds: its ids as stretches without gaps, and the times at its ends."""

    path: str
    stretches: tuple[tuple[int, int], ...] = ()
    first_time: int = 0
    last_time: int = 0


class CommitTime(msgspec.Struct, frozen=True, array_like=True):
    """When an event was committed: the points through which the growth of the log is drawn."""

    committed_id: int
    time: int


class AuditOutcome:
    """What tasks found; outcomes of parts add up.

    Prints that must be equal: `copied` and `stored`, of the events that lake and log both should have; `left` and
    `remembered`, of those that have left the log, and of what it remembers of them; `expected` and `placed`, of the
    rows that `by_partition` should have and of those it has. `reaches`: the first and last id in each file of which
    the table says something else. `memory_dark`: what the log remembers could not be read.
    """

    def __init__(self, scope: Scope) -> None:
        self.tally = FindingTally(scope.head)
        self.copied = Sums(scope.head)
        self.stored = Sums(scope.head)
        self.left = Sums(scope.head)
        self.remembered = Sums(scope.head)
        self.expected = Sums(scope.head)
        self.placed = Sums(scope.head)
        self.extents: list[FileContent] = []
        self.blind: list[UnreadableRows] = []
        self.ticks: list[CommitTime] = []
        self.tombstones: list[Any] = []
        self.reaches: dict[str, tuple[int, int]] = {}
        self.store_pruned_to = 0
        self.memory_dark = False
        self.counts: dict[str, int] = {}

    def count(self, what: str, number: int) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def take(self, check: EventCheck) -> None:
        """What a check of events collected beside its findings."""
        self.count("hashed", check.hashed)
        self.count("erased", len(check.tombstones))
        self.tombstones.append(np.array(check.tombstones, np.int64))

    def merge(self, other: AuditOutcome) -> None:
        self.tally.merge(other.tally)
        for mine, its in (
            (self.copied, other.copied),
            (self.stored, other.stored),
            (self.left, other.left),
            (self.remembered, other.remembered),
            (self.expected, other.expected),
            (self.placed, other.placed),
        ):
            mine.merge(its)
        self.extents += other.extents
        self.blind += other.blind
        self.ticks += other.ticks
        self.tombstones += other.tombstones
        self.reaches |= other.reaches
        self.store_pruned_to = max(self.store_pruned_to, other.store_pruned_to)
        self.memory_dark = self.memory_dark or other.memory_dark
        for what, number in other.counts.items():
            self.count(what, number)

    def erased(self) -> Any:
        """The ids of all tombstones, ascending."""
        return np.sort(np.concatenate([np.zeros(0, np.int64), *self.tombstones]))
