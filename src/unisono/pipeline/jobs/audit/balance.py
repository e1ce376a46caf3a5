"""The parts of a lake and a log that an audit reads, as tasks of similar size."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from unisono.lake.storage import LOG
from unisono.lake.write import DataFile
from unisono.pipeline.jobs.audit.compare_copies import StoreRange
from unisono.pipeline.jobs.audit.pruned_ids import PrunedIdMemory

SLICES_PER_CORE: Final = 4
"""Tasks of the first pass per core: more tasks leave cores idle for a shorter time at the end."""

SLICE_BYTES: Final = 64 << 20
"""Compressed bytes of files for one task: enough to be worth it, and a unit of progress."""

WHOLE_FILE_SHARE: Final = 5
"""What concerns a file as a whole takes about a fifth of the time of all its checks."""

DIVIDED_BYTES_MIN: Final = 8 << 20
"""Compressed bytes of a file from which its rows are worth several tasks. The first of them reads the file twice."""

ROWS_SHARE: Final = 6
"""Events are read, parsed and hashed in `log`; the same bytes of rows in other tables take about a sixth of that."""

STORE_EVENT_BYTES: Final = 100
"""The weight of an event of the log against compressed bytes of files, to balance tasks."""


class LogSlice(msgspec.Struct, frozen=True):
    """Slice `number` of `count`, from 0 on, of the row groups of a large file of `log`. The first one also has what
    concerns the file as a whole."""

    file: DataFile
    number: int
    count: int


Part = DataFile | LogSlice | StoreRange | PrunedIdMemory


def divide(parts: Sequence[Part], cores: int) -> Iterator[Part]:
    """The same, with those files of `log` in slices that would keep one core busy when all others are done."""
    total = sum(map(_weight, parts))
    slice_bytes = max(DIVIDED_BYTES_MIN, total // _tasks(parts, cores))
    for part in parts:
        if isinstance(part, DataFile) and part.table == LOG and part.bytes > max(total // cores, slice_bytes):
            count = -(-part.bytes // slice_bytes)
            yield from (LogSlice(part, number, count) for number in range(count))
        else:
            yield part


def balance(parts: Sequence[Part], cores: int, tasks_max: int | None = None) -> list[list[Part]]:
    """The parts as tasks of similar size, at most `tasks_max`, the largest parts first."""
    count = min(len(parts), _tasks(parts, cores))
    count = count if tasks_max is None else min(count, tasks_max)
    slices: list[list[Part]] = [[] for _ in range(count)]
    weights = [(0, number) for number in range(count)]
    for part in sorted(parts, key=_weight, reverse=True):
        weight, number = weights[0]
        slices[number].append(part)
        heapq.heapreplace(weights, (weight + _weight(part), number))
    return slices


def _tasks(parts: Sequence[Part], cores: int) -> int:
    return max(cores * SLICES_PER_CORE, -(-sum(map(_weight, parts)) // SLICE_BYTES))


def _weight(part: Part) -> int:
    if isinstance(part, DataFile):
        return part.bytes if part.table == LOG else part.bytes // ROWS_SHARE
    if isinstance(part, LogSlice):
        return part.file.bytes // part.count + (0 if part.number else part.file.bytes // WHOLE_FILE_SHARE)
    events = part.events if isinstance(part, PrunedIdMemory) else part.upto - part.since
    return events * STORE_EVENT_BYTES
