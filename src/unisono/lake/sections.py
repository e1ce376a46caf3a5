"""Sections: how long runs of `by_partition` are split further than into the lake's buckets.

A lake has a fixed number of buckets, by which other engines find a partition: `bucket` is a hash of its name modulo
that number. A file has a million rows, so with 16 buckets a run of one file each would end at 16 million rows, and a
partition of a lake with billions would be in hundreds of runs. So runs grow with the lake, and a run with more rows
than its buckets have room for has several *sections* in each bucket: the same hash modulo a larger number, a multiple
of the buckets. Every run has its own number of sections, which is in the paths of its files
(`bucket=5/section-64-21/…`), and a reader that does not know of them finds every row where its bucket says.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from unisono.lake.columns import bucket_of

if TYPE_CHECKING:
    from unisono.lake.write import DataFile

GROWTH: Final = 4
"""A longer run has so many times the sections: fewer steps rewrite a row less often, and make shorter files."""

SECTIONS_MAX: Final = 4_096

RUNS_WANTED: Final = 16
"""Full runs in a lake. With more, runs may become GROWTH times as long."""

_FOLDER: Final = re.compile(r"(?:^|/)section-(\d+)-(\d+)/")


class Section(msgspec.Struct, frozen=True, order=True):
    """The partitions with this `number`: their hash modulo `count`."""

    count: int
    number: int

    @property
    def folder(self) -> str:
        return f"section-{self.count}-{self.number}/"

    def holds(self, name: str) -> bool:
        return bucket_of(name, self.count) == self.number

    def meets(self, other: Section) -> bool:
        """Whether both can have a partition in common; one count is a multiple of the other."""
        count = min(self.count, other.count)
        return self.number % count == other.number % count

    def within(self, other: Section) -> bool:
        """Whether all of its partitions are in the other."""
        return self.count % other.count == 0 and self.meets(other)


@lru_cache(maxsize=1 << 16)
def _named(path: str) -> Section | None:
    found = _FOLDER.search(path)
    return None if found is None else Section(int(found[1]), int(found[2]))


def section_of(file: DataFile) -> Section | None:
    """The section of a file; None where it has all partitions of its bucket."""
    return _named(file.path)


def sections_for(rows: int, buckets: int, rows_per_file: int) -> int:
    """The number of sections of a run: the number of buckets while each has room for its rows in one file."""
    count = buckets
    while rows > count * rows_per_file and count * GROWTH <= max(SECTIONS_MAX, buckets):
        count *= GROWTH
    return count


def run_rows_max(rows: int, buckets: int, rows_per_file: int) -> int:
    """The rows of a full run in a table with so many: runs are joined up to this."""
    return rows_per_file * sections_for(-(-rows // RUNS_WANTED), buckets, rows_per_file)
