"""A lake in every shape its files take, questions to ask of it, and a log pruned beside it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lake.guests import optimize, vacuum, z_order
from tests.lake.lakes import compact, export_to
from tests.pipeline.history import NAMES
from unisono.lake.cold.archive import Archive, ArchivedReader
from unisono.lake.cold.pages import LakePages
from unisono.lake.lake import Lake
from unisono.lake.sections import section_of
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.store.port import Page, Record
from unisono.store.sqlite.log import SqliteLog, SqliteReader

EVENTS = 4_000
CACHE = 64 << 20
ROOMS = tuple(f"room-{number:03d}" for number in range(50))
ASKABLE = (*ROOMS, *NAMES, "never used", "", "~", "room-", "room-0000")

Shape = Callable[[Lake, Path], None]


def fresh(lake: Lake, data: Path) -> None:
    """Many small runs, each one file with all partitions."""
    export_to(lake, data, *range(700, EVENTS, 700), EVENTS)


def spread(lake: Lake, data: Path) -> None:
    """Runs in buckets, and fresh ones after them."""
    _spread_runs(lake, data, (1_500, 3_000))
    export_to(lake, data, 3_400, EVENTS)


def joined(lake: Lake, data: Path) -> None:
    """Compacted into files of few rows, so that partitions go on from one file to the next."""
    fresh(lake, data)
    compact(lake, rows_per_file=100)


def sectioned(lake: Lake, data: Path) -> None:
    """Runs of different lengths: in buckets, in sections of them, in more sections, and fresh ones."""
    lake.make(buckets=2)
    _spread_runs(lake, data, tuple(range(100, 2_001, 100)))
    compact(lake, rows_per_file=40)
    _spread_runs(lake, data, tuple(range(2_100, 3_001, 100)))
    compact(lake, rows_per_file=10)
    _spread_runs(lake, data, (3_200,))
    export_to(lake, data, 3_400, EVENTS)
    counts = {section.count for file in lake.view().partition_files if (section := section_of(file))}
    assert len(counts) > 1


def mixed(lake: Lake, data: Path) -> None:
    """Compacted runs, and fresh ones after them."""
    export_to(lake, data, *range(500, 2_500, 500))
    compact(lake)
    export_to(lake, data, 2_600, 3_500, EVENTS)


def optimised(lake: Lake, data: Path) -> None:
    """Small files joined by another program, which left the others and removed the former files."""
    mixed(lake, data)
    for table in (LOG, BY_PARTITION):
        optimize(lake, table)
    vacuum(lake)


def rearranged(lake: Lake, data: Path) -> None:
    """In no order at all, in buckets."""
    spread(lake, data)
    for table in (LOG, BY_PARTITION):
        z_order(lake, table)
    vacuum(lake)


SHAPES: list[Shape] = [fresh, spread, joined, mixed, sectioned, optimised, rearranged]


def _spread_runs(lake: Lake, data: Path, heads: tuple[int, ...]) -> None:
    from unisono.lake import write as runs

    whole = runs.UNBUCKETED_ROWS_MAX
    runs.UNBUCKETED_ROWS_MAX = 0  # type: ignore[misc]
    try:
        export_to(lake, data, *heads)
    finally:
        runs.UNBUCKETED_ROWS_MAX = whole  # type: ignore[misc]


def question(chance: random.Random, head: int) -> tuple[Any, ...]:
    """Some partitions, a range, and bounds of a page: ordinary ones and those at the edges."""
    names = chance.choices(ASKABLE, k=chance.choice((1, 1, 2, 5, len(ASKABLE))))
    since = chance.choice((0, chance.randrange(head + 1)))
    upto = chance.choice((head, chance.randrange(since, head + 1), since, since + 1))
    limit = chance.choice((1, 2, 50, 500, 1_000_000))
    bytes_max = chance.choice((0, 1, 150, 5_000, 1 << 20, 1 << 40))
    return names, since, min(upto, head), limit, bytes_max


def same(page: Page, expected: Page) -> bool:
    return list(page.records) == list(expected.records) and page.has_more == expected.has_more


def walk(pages: LakePages, names: tuple[str, ...], limit: int) -> list[Record]:
    records: list[Record] = []
    while True:
        since = records[-1].committed_id if records else 0
        page = pages.page(names, since, EVENTS, limit=limit, bytes_max=1 << 20)
        records += page.records
        if not page.has_more:
            return records


class Pruning:
    """A log whose beginning leaves it bit by bit, and a reader that spans it and the lake."""

    def __init__(self, whole: Path, lake: Lake, folder: Path) -> None:
        shutil.copytree(whole, folder / "data")
        self.log = SqliteLog.open(folder / "data")
        self.log.set_archive(lake.storage.location)
        self.hot = SqliteReader.open(folder / "data")
        self.reader = ArchivedReader(self.hot, Archive())

    def prune(self, upto: int) -> None:
        while self.log.prune_batch(upto):
            pass
        assert self.log.extent().pruned_to == upto

    def close(self) -> None:
        self.reader.close()
        self.log.close()
