"""Two copies of the same events: which of them differ, and in what.

Sums over blocks of ids tell where two copies differ (`prints`). Here the rows of such blocks are brought together, as
hashes of their columns, and compared one by one: `by_partition` with what `log` says it must hold, and the server's
log with the lake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from unisono.lake.columns import bucket_of
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.lake.write import UNBUCKETED, DataFile
from unisono.pipeline.jobs.audit.event_checks import REQUIRED, whole_rows
from unisono.pipeline.jobs.audit.findings import FindingTally
from unisono.pipeline.jobs.audit.read_file import readable
from unisono.pipeline.jobs.audit.read_log import StoreReading
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
"""Blocks whose rows one task holds, as hashes: some 70,000 rows with the usual size of a block."""

BLOCKS_MAX: Final = 1_024
"""Blocks looked at row by row: more differ only where a disk or a whole copy is lost, and are told as ranges."""

Range = tuple[int, int]
Key = tuple[int, bytes | None]
"""committed_id, and the partition where rows have one."""

Cells = tuple[int, ...]
"""Hashes of a row's columns, in a fixed order."""


class StoreRange(msgspec.Struct, frozen=True):
    """A stretch of the server's log, read by one task."""

    since: int
    upto: int


class DifferingBlocks(msgspec.Struct, frozen=True):
    """Blocks in which two copies differ, the files that hold them, and rows known to be out of reach."""

    ranges: tuple[Range, ...]
    files: tuple[DataFile, ...]
    blind: tuple[UnreadableRows, ...] = ()

    def within(self, ids: Any) -> Any:
        """Which of these ids lie in the blocks."""
        edges = np.array([edge for low, high in self.ranges for edge in (low, high)], np.int64)
        return np.searchsorted(edges, ids, side="left") % 2 == 1


def store_ranges(scope: Scope) -> list[StoreRange]:
    starts = range(scope.store_since, scope.store_upto, STORE_EVENTS_PER_TASK)
    return [StoreRange(low, min(low + STORE_EVENTS_PER_TASK, scope.store_upto)) for low in starts]


def sum_store(scope: Scope, part: StoreRange, outcome: AuditOutcome) -> None:
    """On an executor: the prints of the log's own rows."""
    assert scope.store is not None
    with StoreReading(scope.store) as reading:
        for records in reading.records(part.since, part.upto):
            ids = np.array([record.committed_id for record in records], np.int64)
            outcome.stored.add(ids, mix(ids, record_hashes(records)))
            outcome.count("stored", len(records))
    outcome.store_pruned_to = max(outcome.store_pruned_to, reading.pruned_to)
    for dark in reading.dark:
        outcome.tally.add("copy", dark.text(), dark.since + 1)


def suspects(
    ranges: Sequence[Range],
    files: Sequence[DataFile],
    blind: Sequence[UnreadableRows],
    *,
    most: int = BLOCKS_MAX,
    each: int = BLOCKS_PER_TASK,
) -> tuple[list[DifferingBlocks], list[Range]]:
    """Tasks for the first `most` blocks that differ, `each` taking so many; and the blocks beyond those."""
    tasks = []
    for start in range(0, min(len(ranges), most), each):
        some = tuple(ranges[start : min(start + each, most)])
        low, high = some[0][0], some[-1][1]
        own = tuple(file for file in files if file.last_id > low and file.first_id <= high)
        dark = tuple(part for part in blind if part.last_id > low and part.first_id <= high)
        tasks.append(DifferingBlocks(some, own, dark))
    return tasks, list(ranges[most:])


def compare_places(scope: Scope, task: DifferingBlocks) -> FindingTally:
    """On an executor: rows of `by_partition` against those that `log` says must be there."""
    tally = FindingTally(scope.head)
    wanted: dict[Key, list[Cells]] = {}
    found: dict[Key, list[Cells]] = {}
    for rows in rows_within(scope, task):
        ids = np.asarray(rows.column("committed_id"))
        parents, columns = expected_partition_rows(rows, batch_hashes(rows, LAKE_COLUMNS))
        names = texts(rows.column("partitions").flatten())
        del columns["partition"]
        gathered(wanted, ids[parents], names, columns)
    for rows in rows_within(scope, task, BY_PARTITION, ("partition", *REQUIRED)):
        ids = np.asarray(rows.column("committed_id"))
        gathered(found, ids, texts(rows.column("partition")), batch_hashes(rows, LAKE_COLUMNS))
    for key in sorted(wanted.keys() | found.keys(), key=_in_order):
        if problem := difference(wanted.get(key, []), found.get(key, []), LAKE_COLUMNS, _PLACES):
            id, name = key[0], key[1] or b""
            if not _explained(scope, task.blind, id, name.decode(errors="replace"), missing=key not in found):
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
        gathered(lake, ids, [None] * len(ids), batch_hashes(rows, EVENT_COLUMNS))
    with StoreReading(scope.store) as reading:
        for low, high in task.ranges:
            for records in reading.records(low, high):
                ids = np.array([record.committed_id for record in records], np.int64)
                gathered(store, ids, [None] * len(ids), record_hashes(records))
    for key in sorted(lake.keys() | store.keys(), key=_in_order):
        problem = difference(lake.get(key, []), store.get(key, []), EVENT_COLUMNS, _STORE)
        gone = key not in store and reading.lacks(key[0])
        dark = key not in lake and any(part.first_id <= key[0] <= part.last_id for part in task.blind)
        if problem and not gone and not dark:
            tally.add("copy", problem, key[0])
    return tally


class DifferenceText(msgspec.Struct, frozen=True):
    """How a difference is told."""

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
    wanted: Sequence[Cells], found: Sequence[Cells], columns: Sequence[str], words: DifferenceText
) -> str | None:
    if not wanted:
        return words.extra
    if not found:
        return words.missing
    if len(found) > 1:
        return words.repeated.format(len(found))
    if found[0] in wanted:
        return None
    pairs = zip(columns, wanted[0], found[0], strict=True)
    return words.differs.format(", ".join(name for name, one, other in pairs if one != other))


def _explained(scope: Scope, blind: Sequence[UnreadableRows], id: int, name: str, *, missing: bool) -> bool:
    """Whether a row is lacking because its file could not be read, which is a finding already."""
    for part in blind:
        if not part.first_id <= id <= part.last_id:
            continue
        if part.file.table == LOG and not missing:
            return True
        if part.file.table == BY_PARTITION and missing:
            home = part.file.bucket in (UNBUCKETED, bucket_of(name, scope.buckets))
            if home and (part.file.first_partition or "") <= name <= (part.file.last_partition or name):
                return True
    return False


def rows_within(
    scope: Scope, task: DifferingBlocks, table: str = LOG, columns: Sequence[str] = REQUIRED
) -> Iterator[pa.RecordBatch]:
    """Whole rows of the blocks in question; what else is wrong with them was found before."""
    quiet = FindingTally(scope.head)
    for file in task.files:
        if file.table == table:
            for batch in readable(scope.storage, file, (*columns, *KIND_COLUMNS)):
                rows = whole_rows(batch, quiet, columns)
                rows = rows.filter(pa.array(task.within(np.asarray(rows.column("committed_id")))))
                if rows.num_rows:
                    yield rows


def gathered(into: dict[Key, list[Cells]], ids: Any, names: Any, columns: Mapping[str, Any]) -> None:
    cells = zip(*(values.tolist() for values in columns.values()), strict=True)
    for id, name, row in zip(ids.tolist(), names, cells, strict=True):
        into.setdefault((id, name), []).append(row)


def _in_order(key: Key) -> tuple[int, bytes]:
    return key[0], key[1] or b""
