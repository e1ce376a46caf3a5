"""Splits all partitions into subsets of similar size, one task each: by bucket, and a large bucket by names."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from operator import itemgetter
from typing import Final

import msgspec

from unisono.lake.columns import bucket_of
from unisono.lake.file_checks import open_checked
from unisono.lake.merge import PartitionSubset
from unisono.lake.row_groups import Footer
from unisono.lake.sections import Section, section_of
from unisono.lake.storage import Storage
from unisono.lake.write import UNBUCKETED, DataFile

FEW_EVENTS: Final = 16_384
"""Up to this many events a task takes several buckets: a file per bucket would have a handful of states."""

TASK_EVENTS_MIN: Final = 2_000
"""Fewer events are not worth a second task."""

TASK_ROWS_MIN: Final = 50_000
TASK_ROWS_MAX: Final = 2_000_000
"""Rows per subset: enough to be worth a task, few enough that a lost worker costs a minute at most."""

TASK_NAMES_MAX: Final = 50_000
"""Named partitions per task, of one bucket."""

TASKS_PER_CORE: Final = 4
"""Keeps cores busy to the end although subsets differ in size."""

FOOTERS_AT_ONCE: Final = 32
"""Read side by side: an object store takes some 50 ms for each, and a long history has thousands of sections."""


class PlannedTask(msgspec.Struct, frozen=True):
    """A subset, its estimated rows, and the bucket of its output files."""

    subset: PartitionSubset
    rows: int
    bucket: int


class FilesByBucket:
    """Files of one table, to find those of a subset without looking at all of them for each task."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self._files = files
        self._by_bucket: dict[int | None, list[tuple[int, DataFile]]] = {}
        for place, file in enumerate(files):
            self._by_bucket.setdefault(file.bucket, []).append((place, file))

    def of(self, subset: PartitionSubset) -> tuple[DataFile, ...]:
        """The files that can have rows of a subset, in their order."""
        if subset.buckets is None:
            return tuple(file for file in self._files if subset.may_be_in(file))
        own = heapq.merge(
            *(self._by_bucket.get(bucket, ()) for bucket in {UNBUCKETED, *subset.buckets}), key=itemgetter(0)
        )
        return tuple(file for _, file in own if subset.may_be_in(file))


def plan_tasks(
    storage: Storage, files: Sequence[DataFile], buckets: int, events: int, cores: int
) -> list[PlannedTask]:
    """All partitions in disjoint subsets, the largest first; `files` have the rows to read."""
    if events <= FEW_EVENTS:
        count = min(cores, buckets, max(1, events // TASK_EVENTS_MIN))
        return [
            PlannedTask(
                PartitionSubset(buckets, tuple(range(number, buckets, count))), events // count, UNBUCKETED
            )
            for number in range(count)
        ]
    count = max((own.count for file in files if (own := section_of(file)) is not None), default=buckets)
    rows = Counter(dict.fromkeys(range(count), 0))
    largest: dict[int, DataFile] = {}
    for file in files:
        numbers = _numbers(file, buckets, count)
        rows.update(dict.fromkeys(numbers, -(-file.rows // len(numbers))))
        if file.bucket != UNBUCKETED:
            for number in numbers:
                if number not in largest or file.rows > largest[number].rows:
                    largest[number] = file
    size = min(max(rows.total() // (cores * TASKS_PER_CORE), TASK_ROWS_MIN), TASK_ROWS_MAX)
    names = _sampled(storage, {number: file for number, file in largest.items() if rows[number] > size})
    planned: list[PlannedTask] = []
    for number, own_rows in rows.items():
        section = None if count == buckets else Section(count, number)
        whole = PartitionSubset(buckets, (number % buckets,), section=section)
        planned += _of_bucket(names.get(number), whole, number % buckets, own_rows, size)
    return sorted(planned, key=lambda part: -part.rows)


def _numbers(file: DataFile, buckets: int, count: int) -> range:
    """The sections, of `count` in all, that a file can have rows of."""
    section = section_of(file)
    if section is not None:
        return range(section.number, count, section.count)
    return range(count) if file.bucket == UNBUCKETED else range(file.bucket or 0, count, buckets)


def plan_names(names: Sequence[str], buckets: int, cores: int) -> list[tuple[int, Sequence[str]]]:
    """Named partitions in disjoint parts, with the bucket of each part's output files."""
    if len(names) <= FEW_EVENTS:
        parts = [names[number::cores] for number in range(cores)]
        return [(UNBUCKETED, part) for part in parts if part]
    by_bucket: dict[int, list[str]] = {}
    for name in sorted(names, key=str.encode):
        by_bucket.setdefault(bucket_of(name, buckets), []).append(name)
    return [
        (bucket, own[start : start + TASK_NAMES_MAX])
        for bucket, own in sorted(by_bucket.items())
        for start in range(0, len(own), TASK_NAMES_MAX)
    ]


def by_name(
    storage: Storage, files: Sequence[DataFile], whole: PartitionSubset, size: int
) -> Iterator[PartitionSubset]:
    """A bucket in parts of about `size` rows of these files, by the names of partitions."""
    largest = max(
        (file for file in files if file.bucket != UNBUCKETED), key=lambda file: file.rows, default=None
    )
    rows = sum(file.rows for file in files)
    names = _sampled(storage, {0: largest} if largest is not None and rows > size else {})
    return (part.subset for part in _of_bucket(names.get(0), whole, UNBUCKETED, rows, size))


def _of_bucket(
    names: Sequence[bytes] | None, whole: PartitionSubset, bucket: int, rows: int, size: int
) -> Iterator[PlannedTask]:
    """A bucket, or a section of it, in parts, split at some of these names, which are those of its largest file."""
    if names is None:
        yield PlannedTask(whole, rows, bucket)
        return
    picked = [names[len(names) * part // -(-rows // size)] for part in range(1, -(-rows // size))]
    edges = sorted({*picked, *(name + b"\0" for name, count in Counter(picked).items() if count > 1)})
    for low, high in pairwise([None, *edges, None]):
        inside = sum((low is None or name >= low) and (high is None or name < high) for name in names)
        part = msgspec.structs.replace(whole, low=low, high=high)
        yield PlannedTask(part, rows * inside // len(names), bucket)


def _sampled(storage: Storage, files: Mapping[int, DataFile]) -> dict[int, list[bytes]]:
    """The first name of each row group of these files, ascending."""

    def first_names(file: DataFile) -> list[bytes]:
        with open_checked(storage, file) as parquet:
            return [group.first_name for group in Footer(parquet.metadata).row_groups()]

    # Those of another program's tables are sorted in memory, so one at a time.
    at_once = 1 if any(file.sources is not None for file in files.values()) else FOOTERS_AT_ONCE
    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip(files, pool.map(first_names, files.values()), strict=True))
