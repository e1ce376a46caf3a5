"""The events that a history knows: those of the final read, or of what anyone saw where there was none."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from unisono.history.records import HistoryEvent

NO_STARTS: Mapping[str, int] = {}


class KnownEvents:
    """Events by id and by partition."""

    def __init__(self, events: Iterable[HistoryEvent]) -> None:
        self.by_committed_id: dict[int, HistoryEvent] = {}
        self.by_id: dict[str, HistoryEvent] = {}
        for event in events:
            self.by_committed_id.setdefault(event.committed_id, event)
            self.by_id.setdefault(event.id, event)
        self._by_partition: dict[str, list[int]] = defaultdict(list)
        for committed_id in sorted(self.by_committed_id):
            for partition in self.by_committed_id[committed_id].partitions:
                self._by_partition[partition].append(committed_id)

    def between(
        self, partitions: Iterable[str], since: int, upto: int, starts: Mapping[str, int] = NO_STARTS
    ) -> list[int]:
        """The ids in `since < id <= upto` of any of the partitions, ascending; of each those above its start."""
        found: set[int] = set()
        for partition in set(partitions):
            ids = self._by_partition.get(partition, ())
            first = bisect_right(ids, max(since, starts.get(partition, 0)))
            found.update(ids[first : bisect_right(ids, upto)])
        return sorted(found)


class FinalRead(msgspec.Struct):
    """What storage had in the end; None where it was not read."""

    log: list[HistoryEvent] = []
    lake: list[HistoryEvent] = []
    head: int | None = None
    pruned_to: int = 0
    lake_upto: int | None = None

    @property
    def complete(self) -> bool:
        """Whether every event of the past is in it."""
        return self.head is not None and (not self.pruned_to or (self.lake_upto or 0) >= self.pruned_to)

    def events(self) -> Sequence[HistoryEvent]:
        return [*self.lake, *self.log]
