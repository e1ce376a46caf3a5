"""The parts of a lake and a log that an audit reads, as tasks of similar size."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from unisono.lake.write import DataFile
from unisono.pipeline.jobs.audit.compare_copies import StoreRange
from unisono.pipeline.jobs.audit.pruned_ids import PrunedIdMemory

SLICES_PER_CORE: Final = 4
"""Tasks of the first pass per core: more tasks leave cores idle for a shorter time at the end."""

SLICE_BYTES: Final = 64 << 20
"""Compressed bytes of files for one task: enough to be worth it, and a unit of progress."""

STORE_EVENT_BYTES: Final = 100
"""The weight of an event of the log against compressed bytes of files, to balance tasks."""

Part = DataFile | StoreRange | PrunedIdMemory


def balance(parts: Sequence[Part], cores: int, tasks_max: int | None = None) -> list[list[Part]]:
    """The parts as tasks of similar size, at most `tasks_max`, the largest parts first."""
    total = sum(map(_weight, parts))
    count = min(len(parts), max(cores * SLICES_PER_CORE, -(-total // SLICE_BYTES)))
    count = count if tasks_max is None else min(count, tasks_max)
    slices: list[list[Part]] = [[] for _ in range(count)]
    weights = [(0, number) for number in range(count)]
    for part in sorted(parts, key=_weight, reverse=True):
        weight, number = weights[0]
        slices[number].append(part)
        heapq.heapreplace(weights, (weight + _weight(part), number))
    return slices


def _weight(part: Part) -> int:
    if isinstance(part, DataFile):
        return part.bytes
    events = part.events if isinstance(part, PrunedIdMemory) else part.upto - part.since
    return events * STORE_EVENT_BYTES
