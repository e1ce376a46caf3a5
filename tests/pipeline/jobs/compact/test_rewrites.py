"""How often compaction rewrites a byte, by the size of events: its plans on files that are named and not there."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Final

import pytest

from unisono.lake.scan import OpenFiles, open_bytes, runs_of
from unisono.lake.sections import Section
from unisono.lake.storage import BY_PARTITION, LOG, Storage
from unisono.lake.write import UNBUCKETED, UNBUCKETED_ROWS_MAX, DataFile
from unisono.pipeline.jobs.compact.job import FILE_BYTES_MAX, ROWS_PER_FILE, groups_to_join, join_tasks

BUCKETS: Final = 16
EXPORTS_PER_COMPACTION: Final = 2

_numbers = count()


def stored(
    table: str, rows: int, size: int, first: int, last: int, bucket: int | None, section: Section | None
) -> Iterator[DataFile]:
    """The files of a table for some rows of a run: each ends where it is full."""
    per_file = max(1, min(ROWS_PER_FILE, FILE_BYTES_MAX * rows // size + 1))
    for start in range(0, rows, per_file):
        own = min(per_file, rows - start)
        ids = (first + start, first + start + own - 1) if table == LOG else (first, last)
        names = () if table == LOG else (f"{start:012d}", f"{start + own:012d}")
        folder = ("" if bucket is None else f"bucket={bucket}/") + ("" if section is None else section.folder)
        path = f"{folder}{ids[0]:012d}-{ids[1]:012d}-{next(_numbers):032x}.parquet"
        yield DataFile(table, path, size * own // rows, own, *ids, bucket, *names)


def exported(table: str, rows: int, event_bytes: int, head: int) -> Iterator[DataFile]:
    places: list[int | None] = list(range(BUCKETS))
    if table == LOG:
        places = [None]
    elif rows < UNBUCKETED_ROWS_MAX:
        places = [UNBUCKETED]
    for place in places:
        own = rows // len(places)
        yield from stored(table, own, own * event_bytes, head + 1, head + rows, place, None)


class Lake:
    """A table's files, and the bytes that its exports added and its compactions wrote."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._storage = Storage.at("/nowhere")
        self.files: list[DataFile] = []
        self.added = self.rewritten = 0

    def export(self, rows: int, event_bytes: int) -> None:
        self.files += exported(
            self._table, rows, event_bytes, max((file.last_id for file in self.files), default=0)
        )
        self.added += rows * event_bytes

    def compact(self) -> None:
        rounds = count()
        while groups := groups_to_join(self._storage, self._table, self.files, BUCKETS, ROWS_PER_FILE):
            assert next(rounds) < 5, "compaction comes to an end"
            for group in groups:
                self._join(group)

    def _join(self, group: list[DataFile]) -> None:
        """What the tasks make of a group, where all partitions have as many events."""
        tasks = join_tasks(self._storage, self._table, group, BUCKETS, ROWS_PER_FILE)
        rows, size = sum(file.rows for file in group), sum(file.bytes for file in group)
        first, last = min(file.first_id for file in group), max(file.last_id for file in group)
        paths = {file.path for file in group}
        self.files = [file for file in self.files if file.path not in paths]
        for task in tasks:
            own, own_size = rows // len(tasks), size // len(tasks)
            self.files += stored(self._table, own, own_size, first, last, task.bucket, task.section)
        self.rewritten += size


def grown(table: str, exports: Iterable[tuple[int, int]]) -> Lake:
    """A lake after exports of so many events of so many bytes."""
    lake = Lake(table)
    for number, (rows, event_bytes) in enumerate(exports, 1):
        lake.export(rows, event_bytes)
        if number % EXPORTS_PER_COMPACTION == 0:
            lake.compact()
    return lake


@pytest.mark.parametrize(
    ("event_bytes", "rows", "exports", "times"),
    [
        (60, 10_000, 400, {LOG: 4.1, BY_PARTITION: 5.3}),
        (200, 50_000, 400, {LOG: 2.9, BY_PARTITION: 5.3}),
        (20_000, 1_000, 200, {LOG: 2.4, BY_PARTITION: 4.3}),
        (100_000, 100, 400, {LOG: 2.9, BY_PARTITION: 5.3}),
        (100_000, 1_100, 100, {LOG: 0, BY_PARTITION: 2.9}),
        (300_000, 20_000, 60, {LOG: 0, BY_PARTITION: 2.0}),
    ],
)
def test_large_events_are_rewritten_no_more_often_than_small_ones(
    event_bytes: int, rows: int, exports: int, times: dict[str, float]
) -> None:
    for table, expected in times.items():
        lake = grown(table, [(rows, event_bytes)] * exports)
        assert lake.rewritten / lake.added == pytest.approx(expected, abs=0.05), table
        require_few_files(lake, table)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("table", [LOG, BY_PARTITION])
def test_events_of_all_sizes(table: str, seed: int) -> None:
    chance = random.Random(seed)
    kinds = [(1, 300), (300, 60), (20_000, 200), (1_000, 20_000), (200, 1_000_000), (100_000, 2_000)]
    lake = grown(table, chance.choices(kinds, k=300))
    assert lake.rewritten < 4 * lake.added
    require_few_files(lake, table)


def require_few_files(lake: Lake, table: str) -> None:
    if table == LOG:
        assert len(lake.files) <= 2 * lake.added / FILE_BYTES_MAX + 20
    else:
        assert len(list(runs_of(lake.files))) <= 16
        assert OpenFiles(open_bytes).with_more(lake.files) < 400 << 20, "to merge the files of one bucket"
