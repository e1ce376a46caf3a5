"""The scope of an audit, and what its tasks return; both are sent between driver and executors."""

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
    """The audited history: ids 1 to `head`, of which `by_partition` has those up to `placed_to`.

    `store`: the server's log, if given; `(store_since, store_upto]` is in both log and lake, and the log ends at
    `store_head`. `model`: judges events, if given.
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
    """Unreadable rows of one file, with ids in `[first_id, last_id]`."""

    file: DataFile
    first_id: int
    last_id: int


class FileContent(msgspec.Struct, frozen=True):
    """The actual content of one file of `log`: its ids as ranges without gaps, and its first and last time."""

    path: str
    stretches: tuple[tuple[int, int], ...] = ()
    first_time: int = 0
    last_time: int = 0


class CommitTime(msgspec.Struct, frozen=True, array_like=True):
    """When an event was committed: a point in the chart of the log's growth."""

    committed_id: int
    time: int


class AuditOutcome:
    """The results of tasks; outcomes of parts add up.

    Sums that must be equal: `copied` (lake) and `stored` (log), of events that both should have; `left` (lake) and
    `remembered` (log), of pruned events; `expected` and `placed`, of rows that `by_partition` should have and has.
    `reaches`: actual first and last id of files whose statistics are wrong. `at_fault`: paths of files with findings
    that are errors. `memory_unreadable`: the log's record of pruned events cannot be read.
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
        self.unreadable: list[UnreadableRows] = []
        self.ticks: list[CommitTime] = []
        self.tombstones: list[Any] = []
        self.reaches: dict[str, tuple[int, int]] = {}
        self.at_fault: set[str] = set()
        self.store_pruned_to = 0
        self.memory_unreadable = False
        self.counts: dict[str, int] = {}

    def count(self, what: str, number: int) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def take(self, check: EventCheck) -> None:
        """Add what an event check collected beside its findings."""
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
        self.unreadable += other.unreadable
        self.ticks += other.ticks
        self.tombstones += other.tombstones
        self.reaches |= other.reaches
        self.at_fault |= other.at_fault
        self.store_pruned_to = max(self.store_pruned_to, other.store_pruned_to)
        self.memory_unreadable = self.memory_unreadable or other.memory_unreadable
        for what, number in other.counts.items():
            self.count(what, number)

    def erased(self) -> Any:
        """The ids of all tombstones, ascending."""
        return np.sort(np.concatenate([np.zeros(0, np.int64), *self.tombstones]))
