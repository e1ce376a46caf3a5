"""Finds the rows in which two copies of the same events differ.

Sums over blocks of ids show where two copies differ (`row_fingerprints`). Here tasks collect the rows of such blocks
as hashes of their columns, and compare them one by one: `by_partition` with what `log` requires, and the server's log
with the lake. Unreadable parts are skipped, because they are findings already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from unisono.lake.columns import LATER_COLUMNS, bucket_of
from unisono.lake.sections import section_of
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.lake.write import UNBUCKETED, DataFile
from unisono.pipeline.jobs.audit.event_checks import REQUIRED, complete_rows
from unisono.pipeline.jobs.audit.findings import FindingTally
from unisono.pipeline.jobs.audit.read_file import readable
from unisono.pipeline.jobs.audit.read_log import LogReading
from unisono.pipeline.jobs.audit.tasks import AuditOutcome, Scope, UnreadableRows
from unisono.pipeline.row_fingerprints import (
    EVENT_COLUMNS,
    KIND_COLUMNS,
    LAKE_COLUMNS,
    batch_hashes,
    expected_partition_rows,
    mix,
    record_hashes,
    texts,
)

STORE_EVENTS_PER_TASK: Final = 50_000

BLOCKS_PER_TASK: Final = 16
"""Blocks per task, with their rows in memory as hashes: about 70,000 rows at the usual block size."""

BLOCKS_MAX: Final = 1_024
"""Blocks compared row by row: more differ only where a disk or a copy is lost, and are reported as ranges."""

Range = tuple[int, int]
Key = tuple[int, bytes | None]
"""committed_id, and the partition if rows have one."""

Cells = tuple[int, ...]
"""Hashes of a row's columns, in a fixed order."""


class StoreRange(msgspec.Struct, frozen=True):
    """A range of the server's log, read by one task."""

    since: int
    upto: int


class DifferingBlocks(msgspec.Struct, frozen=True):
    """Blocks in which two copies differ, the files that have them, and rows known to be unreadable."""

    ranges: tuple[Range, ...]
    files: tuple[DataFile, ...]
    unreadable: tuple[UnreadableRows, ...] = ()

    def within(self, ids: Any) -> Any:
        """Which of these ids are in the blocks."""
        edges = np.array([edge for low, high in self.ranges for edge in (low, high)], np.int64)
        return np.searchsorted(edges, ids, side="left") % 2 == 1


def store_ranges(scope: Scope) -> list[StoreRange]:
    starts = range(scope.store_since, scope.store_upto, STORE_EVENTS_PER_TASK)
    return [StoreRange(low, min(low + STORE_EVENTS_PER_TASK, scope.store_upto)) for low in starts]


def sum_store(scope: Scope, part: StoreRange, outcome: AuditOutcome) -> None:
    """On an executor: the fingerprints of the log's rows."""
    assert scope.store is not None
    with LogReading(scope.store) as reading:
        for records in reading.records(part.since, part.upto):
            ids = np.array([record.committed_id for record in records], np.int64)
            outcome.stored.add(ids, mix(ids, record_hashes(records)))
            outcome.count("stored", len(records))
    outcome.store_pruned_to = max(outcome.store_pruned_to, reading.pruned_to)
    for gap in reading.unreadable:
        outcome.tally.add("copy", gap.text(), gap.since + 1)


def plan_row_comparison(
    ranges: Sequence[Range],
    files: Sequence[DataFile],
    unreadable: Sequence[UnreadableRows],
    *,
    blocks_max: int = BLOCKS_MAX,
    blocks_per_task: int = BLOCKS_PER_TASK,
) -> tuple[list[DifferingBlocks], list[Range]]:
    """Tasks for the first `blocks_max` blocks that differ; and the ranges of the blocks beyond those."""
    tasks = []
    for start in range(0, min(len(ranges), blocks_max), blocks_per_task):
        some = tuple(ranges[start : min(start + blocks_per_task, blocks_max)])
        low, high = some[0][0], some[-1][1]
        own = tuple(file for file in files if file.last_id > low and file.first_id <= high)
        hidden = tuple(part for part in unreadable if part.last_id > low and part.first_id <= high)
        tasks.append(DifferingBlocks(some, own, hidden))
    return tasks, list(ranges[blocks_max:])


def compare_places(scope: Scope, task: DifferingBlocks) -> FindingTally:
    """On an executor: rows of `by_partition` against those that `log` says must be there."""
    tally = FindingTally(scope.head)
    expected: dict[Key, list[Cells]] = {}
    found: dict[Key, list[Cells]] = {}
    for rows in rows_within(scope, task):
        ids = np.asarray(rows.column("committed_id"))
        parents, columns = expected_partition_rows(rows, batch_hashes(rows, LAKE_COLUMNS))
        names = texts(rows.column("partitions").flatten())
        del columns["partition"]
        collect_rows(expected, ids[parents], names, columns)
    for rows in rows_within(scope, task, BY_PARTITION, ("partition", *REQUIRED)):
        ids = np.asarray(rows.column("committed_id"))
        collect_rows(found, ids, texts(rows.column("partition")), batch_hashes(rows, LAKE_COLUMNS))
    for key in sorted(expected.keys() | found.keys(), key=_in_order):
        if problem := difference(expected.get(key, []), found.get(key, []), LAKE_COLUMNS, _PLACES):
            id, name = key[0], key[1] or b""
            if not _is_unreadable(
                scope, task.unreadable, id, name.decode(errors="replace"), missing=key not in found
            ):
                tally.add("by_partition", problem, id, name.decode(errors="replace"))
    return tally


def compare_store(scope: Scope, task: DifferingBlocks) -> FindingTally:
    """On an executor: events of the log against those of the lake."""
    assert scope.store is not None
    tally = FindingTally(scope.head)
    lake: dict[Key, list[Cells]] = {}
    store: dict[Key, list[Cells]] = {}
    for rows in rows_within(scope, task):
        ids = np.asarray(rows.column("committed_id"))
        collect_rows(lake, ids, [None] * len(ids), batch_hashes(rows, EVENT_COLUMNS))
    with LogReading(scope.store) as reading:
        for low, high in task.ranges:
            for records in reading.records(low, high):
                ids = np.array([record.committed_id for record in records], np.int64)
                collect_rows(store, ids, [None] * len(ids), record_hashes(records))
    for key in sorted(lake.keys() | store.keys(), key=_in_order):
        problem = difference(lake.get(key, []), store.get(key, []), EVENT_COLUMNS, _STORE)
        gone = key not in store and reading.lacks(key[0])
        hidden = key not in lake and any(part.first_id <= key[0] <= part.last_id for part in task.unreadable)
        if problem and not gone and not hidden:
            tally.add("copy", problem, key[0])
    return tally


class DifferenceText(msgspec.Struct, frozen=True):
    """The texts of a difference."""

    missing: str
    extra: str
    repeated: str
    differs: str


_PLACES: Final = DifferenceText(
    "its row is missing in by_partition",
    "by_partition has a row for it that log does not know",
    "its row is in by_partition {} times",
    "its row in by_partition differs from log in {}",
)
_STORE: Final = DifferenceText(
    "the lake has it and the log does not",
    "the log has it and the lake does not",
    "the log has it {} times",
    "lake and log differ in {}",
)


def difference(
    expected: Sequence[Cells], found: Sequence[Cells], columns: Sequence[str], words: DifferenceText
) -> str | None:
    if not expected:
        return words.extra
    if not found:
        return words.missing
    if len(found) > 1:
        return words.repeated.format(len(found))
    if found[0] in expected:
        return None
    pairs = zip(columns, expected[0], found[0], strict=True)
    return words.differs.format(", ".join(name for name, one, other in pairs if one != other))


def _is_unreadable(
    scope: Scope, unreadable: Sequence[UnreadableRows], id: int, name: str, *, missing: bool
) -> bool:
    """Whether a row is missing because its file is unreadable, which is a finding already."""
    for part in unreadable:
        if not part.first_id <= id <= part.last_id:
            continue
        if part.file.table == LOG and not missing:
            return True
        if part.file.table == BY_PARTITION and missing:
            home = part.file.bucket in (UNBUCKETED, bucket_of(name, scope.buckets))
            section = section_of(part.file)
            home = home and (section is None or section.holds(name))
            if home and (part.file.first_partition or "") <= name <= (part.file.last_partition or name):
                return True
    return False


def rows_within(
    scope: Scope, task: DifferingBlocks, table: str = LOG, columns: Sequence[str] = REQUIRED
) -> Iterator[pa.RecordBatch]:
    """Complete rows of the blocks; incomplete rows are findings already."""
    quiet = FindingTally(scope.head)
    for file in task.files:
        if file.table == table:
            for batch in readable(scope.storage, file, (*columns, *KIND_COLUMNS, *LATER_COLUMNS)):
                rows = complete_rows(batch, quiet, columns)
                rows = rows.filter(pa.array(task.within(np.asarray(rows.column("committed_id")))))
                if rows.num_rows:
                    yield rows


def collect_rows(into: dict[Key, list[Cells]], ids: Any, names: Any, columns: Mapping[str, Any]) -> None:
    cells = zip(*(values.tolist() for values in columns.values()), strict=True)
    for id, name, row in zip(ids.tolist(), names, cells, strict=True):
        into.setdefault((id, name), []).append(row)


def _in_order(key: Key) -> tuple[int, bytes]:
    return key[0], key[1] or b""
