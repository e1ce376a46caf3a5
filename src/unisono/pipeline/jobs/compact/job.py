"""Joins neighbouring runs of small files into larger ones; the rows stay the same.

Frequent exports leave many small runs. Only neighbours are joined, so runs still never overlap. An older run is at
most twice as large as what is joined to it, in rows or, where events are large, in bytes; so a row is rewritten about
as often as its run doubles. Readers of an older version are not disturbed: replaced files stay until a vacuum. Safe
to kill anywhere: a commit replaces a group of runs or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from unisono.lake.attempt_files import job_attempt, removed_unless_committed
from unisono.lake.columns import LOG_SCHEMA, PARTITION_SCHEMA
from unisono.lake.commit_retry import retry_on_conflict
from unisono.lake.digests import Digest, digest, total
from unisono.lake.lake import Lake
from unisono.lake.log_retention import VACUUM_HOURS_MAX, shorten_log
from unisono.lake.merge import (
    EVERY_ID,
    FILES_MERGED_MAX,
    MERGED_BYTES_MAX,
    PartitionSubset,
    batch_rows_for,
    scan_chain,
)
from unisono.lake.merge_rows import merge_rows
from unisono.lake.scan import OpenFiles, chains, names_of, open_bytes, runs_of, scan_file
from unisono.lake.sections import Section, run_rows_max, section_of, sections_for
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS, Storage
from unisono.lake.table import Table
from unisono.lake.write import (
    GROUP_BYTES,
    GROUP_ROWS,
    UNBUCKETED,
    UNBUCKETED_ROWS_MAX,
    DataFile,
    FileWriter,
    release_arrow_memory,
    row_groups,
)
from unisono.pipeline.errors import Mismatch
from unisono.pipeline.jobs.compact import foreign_files, snapshot_compaction
from unisono.pipeline.progress import Notify, silent
from unisono.pipeline.spark.executors import run_on_executors, tasks_worthwhile
from unisono.pipeline.task_planning import FilesByBucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_FILE: Final = 1_000_000
"""Rows of a full file, about 100 MB."""

FILE_BYTES_MAX: Final = 192 << 20
"""Compressed bytes of a file, which is built in memory."""

ALWAYS_JOINED_ROWS: Final = 20_000
ALWAYS_JOINED_BYTES: Final = 4 << 20
"""Runs with no more of both are joined whatever the size of their neighbours."""

BATCH_ROWS: Final = 2_048
BATCH_ROWS_MIN: Final = 1_024
BATCHES_ROWS: Final = 128 << 10
"""Rows read at a time from each of many files, and from all of them: fewer cost more each. Two batches of a file are
in memory."""

TASK_ROWS_WORTHWHILE: Final = 50_000
"""Rows for which a task is worth starting; the buckets of a short history share one."""

GROUPS_PER_COMMIT: Final = 16
"""Groups joined per commit: what a kill can cost."""


class CompactionResult(msgspec.Struct, frozen=True):
    """The compaction of one table."""

    table: str
    files_before: int
    files_after: int
    rows_rewritten: int


class CompactionTask(msgspec.Struct, frozen=True):
    """Files for one task to join, in id order; of `by_partition` the rows of one bucket, or all (UNBUCKETED), or of
    one section."""

    storage: Storage
    table: str
    files: tuple[DataFile, ...]
    rows_per_file: int
    bucket: int | None = None
    buckets: int = 1
    section: Section | None = None


class CompactionTaskResult(msgspec.Struct, frozen=True):
    """The files of a task, and digests of what it read and wrote."""

    files: list[DataFile]
    read: Digest
    written: Digest


def compact(
    spark: SparkSession, lake: Lake, rows_per_file: int = ROWS_PER_FILE, notify: Notify = silent
) -> list[CompactionResult]:
    """Join small files in all tables; safe beside exports, snapshots, readers and another compaction.

    Files of other programs are rewritten first. Some of the older snapshots are dropped.
    """
    foreign_files.rewrite_foreign_files(spark, lake, notify)
    return foreign_files.in_order(spark, lake, partial(_compact_all, spark, lake, rows_per_file))


def _compact_all(spark: SparkSession, lake: Lake, rows_per_file: int) -> list[CompactionResult]:
    done = [compact_table(spark, lake, name, rows_per_file) for name in (LOG, BY_PARTITION)]
    if lake.find(SNAPSHOTS) is not None:
        done.append(CompactionResult(SNAPSHOTS, *snapshot_compaction.compact_snapshots(spark, lake)))
    return done


def needs_compaction(lake: Lake, rows_per_file: int = ROWS_PER_FILE) -> bool:
    """Whether there are files to join or to rewrite."""
    return (
        foreign_files.has_work(lake)
        or snapshot_compaction.has_work(lake)
        or any(_groups(lake.table(name), rows_per_file) for name in (LOG, BY_PARTITION))
    )


def vacuum(lake: Lake, hours: int) -> int:
    """Delete files that no version younger than `hours` names, also those of killed jobs; returns their number.

    A reader of an older version loses its files, and so does a job that has been writing for longer than that.
    """
    removed = 0
    hours = min(hours, VACUUM_HOURS_MAX)
    for name in (LOG, BY_PARTITION, SNAPSHOTS):
        table = lake.find(name)
        if table is not None:
            removed += len(
                table.delta.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
            )
            shorten_log(table)
    return removed


def compact_table(spark: SparkSession, lake: Lake, name: str, rows_per_file: int) -> CompactionResult:
    """Join small files of `log` or `by_partition`."""
    before, rows = len(lake.table(name).files()), 0

    def join_all() -> None:
        nonlocal rows
        while groups := _groups(lake.table(name), rows_per_file):
            for start in range(0, len(groups), GROUPS_PER_COMMIT):
                batch = groups[start : start + GROUPS_PER_COMMIT]
                rows += _rewrite(spark, lake.table(name), batch, rows_per_file)

    retry_on_conflict(join_all)
    return CompactionResult(name, before, len(lake.table(name).files()), rows)


def _rewrite(spark: SparkSession, table: Table, groups: list[list[DataFile]], rows_per_file: int) -> int:
    """Join each group, and replace them all in one commit."""
    old = [file for group in groups for file in group]
    rows = sum(file.rows for file in old)
    with job_attempt(table.storage) as storage:
        buckets = table.description().buckets
        jobs = [
            job for group in groups for job in join_tasks(storage, table.name, group, buckets, rows_per_file)
        ]
        joined = run_on_executors(
            spark, jobs, join, at_once=tasks_worthwhile(spark, rows, TASK_ROWS_WORTHWHILE)
        )
        read, written = total([part.read for part in joined]), total([part.written for part in joined])
        if read != written or read.rows != rows:
            raise Mismatch(f"joining files of {table.name} read {read} and wrote {written}, of {rows} rows")
        new = [file for part in joined for file in part.files]
        with removed_unless_committed(table.storage, new):
            table.replace(old, new, {"digest": msgspec.to_builtins(written)}, same_rows=True)
    return rows


def _groups(table: Table, rows_per_file: int) -> list[list[DataFile]]:
    return groups_to_join(
        table.storage, table.name, table.files(), table.description().buckets, rows_per_file
    )


def groups_to_join(
    storage: Storage, table: str, files: Sequence[DataFile], buckets: int, rows_per_file: int
) -> list[list[DataFile]]:
    """The groups of runs of which joining makes other files."""
    fill = _fill(*_totals(files), rows_per_file)
    full = rows_per_file if table == LOG else run_rows_max(fill, buckets, rows_per_file)
    return [
        group
        for group in choose(list(runs_of(files)), full, rows_per_file)
        if not all(
            map(_is_joined, join_tasks(storage, table, group, buckets, rows_per_file, keep_sections=True))
        )
    ]


def choose(
    runs: Sequence[list[DataFile]], full: int, rows_per_file: int = ROWS_PER_FILE
) -> list[list[DataFile]]:
    """The groups of neighbouring runs to join, as files; chosen from the newest run back. A group fills at most as
    much as `full` rows, of which `rows_per_file` fill a file."""
    groups: list[list[list[DataFile]]] = [[]]
    rows, size, files, memory = 0, 0, OpenFiles(), OpenFiles(open_bytes)
    for run in reversed(runs):
        own_rows, own_size = _totals(run)
        small = own_rows <= ALWAYS_JOINED_ROWS and own_size <= ALWAYS_JOINED_BYTES
        alike = small or _fill(own_rows, own_size, rows_per_file) <= 2 * _fill(rows, size, rows_per_file)
        too_long = _fill(rows + own_rows, size + own_size, rows_per_file) > full
        too_many = files.with_more(run) > FILES_MERGED_MAX or memory.with_more(run) > MERGED_BYTES_MAX
        if groups[-1] and (not alike or too_long or too_many):
            groups.append([])
            rows, size, files, memory = 0, 0, OpenFiles(), OpenFiles(open_bytes)
        groups[-1].append(run)
        rows += own_rows
        size += own_size
        files.add(run)
        memory.add(run)
    return [[file for run in reversed(group) for file in run] for group in reversed(groups) if len(group) > 1]


def _totals(files: Sequence[DataFile]) -> tuple[int, int]:
    return sum(file.rows for file in files), sum(file.bytes for file in files)


def _fill(rows: int, size: int, rows_per_file: int) -> int:
    """How much of files they fill, in rows: where events are large, bytes end a file before its rows do."""
    return max(rows, size * rows_per_file // FILE_BYTES_MAX)


def _is_joined(job: CompactionTask) -> bool:
    """Whether joining these files would only make the same ones again.

    A joined run whose files do not overlap in ids looks like several runs: of `log` where events are large, and of
    `by_partition` where one partition's events come after all of another's.
    """
    files = sorted(job.files, key=lambda file: (*names_of(file), file.first_id))
    return (
        all((file.bucket, section_of(file)) == (job.bucket, job.section) for file in files)
        and all(file.rows >= job.rows_per_file or file.bytes >= FILE_BYTES_MAX for file in files[:-1])
        and all(names_of(left)[1] <= names_of(right)[0] for left, right in pairwise(files))
    )


def join_tasks(
    storage: Storage,
    table: str,
    group: Sequence[DataFile],
    buckets: int,
    rows_per_file: int,
    *,
    keep_sections: bool = False,
) -> list[CompactionTask]:
    """The tasks that join a group. `keep_sections`: with at least as many sections as it has."""
    if table == LOG:
        return [CompactionTask(storage, LOG, tuple(group), rows_per_file)]
    if (
        all(file.bucket == UNBUCKETED for file in group)
        and sum(file.rows for file in group) < UNBUCKETED_ROWS_MAX
    ):
        return [CompactionTask(storage, BY_PARTITION, tuple(group), rows_per_file, UNBUCKETED, buckets)]
    count = sections_for(sum(file.rows for file in group), buckets, rows_per_file)
    if keep_sections:
        count = max(count, *(its.count for file in group if (its := section_of(file)) is not None), 0)
    files = FilesByBucket(group)
    jobs = []
    for number in range(count):
        bucket = number % buckets
        section = None if count == buckets else Section(count, number)
        if own := files.of(PartitionSubset(buckets, (bucket,), section=section)):
            jobs.append(CompactionTask(storage, BY_PARTITION, own, rows_per_file, bucket, buckets, section))
    return jobs


@release_arrow_memory()
def join(job: CompactionTask) -> CompactionTaskResult:
    """On an executor: merge sorted files into sorted files of full size."""
    made: list[DataFile] = []
    written = Digest()
    counter = _Counter()
    rows = _in_order(job, counter)
    writer: FileWriter | None = None
    for group in _row_groups(rows, LOG_SCHEMA if job.table == LOG else PARTITION_SCHEMA):
        writer = writer or FileWriter(job.storage, job.table, job.bucket, section=job.section)
        writer.add(group)
        if writer.rows >= job.rows_per_file or writer.bytes_made >= FILE_BYTES_MAX:
            made.append(writer.close())
            written += writer.digest
            writer = None
    if writer is not None:
        made.append(writer.close())
        written += writer.digest
    return CompactionTaskResult(made, counter.digest, written)


class _Counter:
    """Computes the digest of the batches that pass through."""

    def __init__(self) -> None:
        self.digest = Digest()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.digest += digest(batch)
            yield batch


def _in_order(job: CompactionTask, counter: _Counter) -> Iterator[pa.RecordBatch]:
    if job.table == LOG:
        for file in job.files:
            yield from counter(scan_file(job.storage, file, EVERY_ID, LOG_SCHEMA.names))
        return
    buckets = None if job.bucket in (None, UNBUCKETED) else (job.bucket,)
    subset = PartitionSubset(job.buckets, buckets, section=job.section)
    found = chains(job.files)
    batch_rows = max(BATCH_ROWS_MIN, min(BATCH_ROWS, BATCHES_ROWS // len(found)), batch_rows_for(len(found)))
    yield from merge_rows(
        [
            counter(scan_chain(job.storage, chain, subset, EVERY_ID, PARTITION_SCHEMA.names, batch_rows))
            for chain in found
        ]
    )


def _row_groups(batches: Iterable[pa.RecordBatch], schema: Any) -> Iterator[pa.Table]:
    """Batches of any size as full row groups."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            *full, rest = row_groups(pa.Table.from_batches(pending, schema).combine_chunks())
            yield from full
            pending = rest.to_batches()
            rows, size = rest.num_rows, rest.nbytes
    if pending:
        yield from row_groups(pa.Table.from_batches(pending, schema).combine_chunks())
