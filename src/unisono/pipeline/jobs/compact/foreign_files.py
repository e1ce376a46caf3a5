"""Checks and rewrites files that another program wrote into the lake's tables.

OPTIMIZE and Z-ORDER of any Delta tool keep the rows and lose the order on which readers rely. Readers use the version
before; jobs that change the lake rewrite such files first. Rows of `log` are sorted again; each id must occur once,
each event must match its hash, and columns that no hash covers must be those of the version before, or else those of
`by_partition`. Rows of `by_partition` are made from `log`, and must have the hashes that were there.
Snapshots are dropped; the next run folds them. Safe to kill anywhere: each commit rewrites a range of a table or
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.attempt_files import job_attempt, removed_unless_committed
from unisono.lake.columns import LOG_SCHEMA, PARTITION_SCHEMA
from unisono.lake.commit_retry import retry_on_conflict
from unisono.lake.content_check import first_wrong_hash
from unisono.lake.digests import Digest, digest, total
from unisono.lake.errors import ForeignFiles, LakeUnusable
from unisono.lake.file_checks import is_own
from unisono.lake.foreign_commits import files_before_foreign
from unisono.lake.lake import Lake
from unisono.lake.remedies import remedy
from unisono.lake.same_rows import partition_rows_digest, recorded_ids
from unisono.lake.scan import BATCH_ROWS, runs_of, scan_log
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS, Storage
from unisono.lake.table import Table
from unisono.lake.write import RUN_BYTES_MAX, DataFile, WrittenFiles, release_arrow_memory, write_runs
from unisono.pipeline.errors import Mismatch
from unisono.pipeline.jobs.export.job import EVENTS_PER_FILE, ranges, require_present
from unisono.pipeline.progress import Notify, silent
from unisono.pipeline.spark.executors import parallelism, run_on_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


T = TypeVar("T")

UNPACKED: Final = 8
"""Estimated ratio of event size in memory to size in a file: a range of `log` is sorted in memory."""

_FROM_LOG: Final = (
    f"remove the directory {BY_PARTITION}, and `unisono lake export` makes it again from the table {LOG}"
)


class _MeasureTask(msgspec.Struct, frozen=True):
    """A file to read: its statistics in the table may be missing or wrong."""

    storage: Storage
    file: DataFile


class _Measured(msgspec.Struct, frozen=True):
    """A file with its actual rows and ids, and their digest."""

    file: DataFile
    digest: Digest


class _DigestTask(msgspec.Struct, frozen=True):
    """A file of which the rows of some events are compared, in every column; `erased`: tombstones may be of these."""

    storage: Storage
    file: DataFile
    since: int
    upto: int
    erased: Any


class _RewriteTask(msgspec.Struct, frozen=True):
    """A range of events to rewrite, from files of `log` in any order."""

    storage: Storage
    table: str
    since: int
    upto: int
    files: tuple[DataFile, ...]
    buckets: int


class _Rewritten(msgspec.Struct, frozen=True):
    written: WrittenFiles
    problem: str | None


_Rewriter: TypeAlias = Callable[["SparkSession", Lake, Table, list[_Measured], Storage], int]


def has_work(lake: Lake) -> bool:
    """Whether another program has written to one of the tables."""
    return any(
        table.foreign_files()
        for name in (LOG, BY_PARTITION, SNAPSHOTS)
        if (table := lake.find(name)) is not None
    )


def rewrite_foreign_files(spark: SparkSession, lake: Lake, notify: Notify = silent) -> int:
    """Rewrite foreign files in all tables; returns the number of rows. Mismatch, and nothing changed, when a table
    lacks rows or has others. Safe beside another command that does the same."""
    rows = 0

    def rewrite(name: str, made: _Rewriter) -> None:
        nonlocal rows
        table = lake.table(name)
        if strange := table.foreign_files():
            notify(
                f"{name}: {len(strange)} files were written by another program: checking and rewriting them"
            )
            for group in _groups(spark, table):
                with job_attempt(lake.storage) as storage:
                    rows += made(spark, lake, table, group, storage)

    def clear_snapshots() -> None:
        states = lake.find(SNAPSHOTS)
        if states is not None and states.foreign_files():
            states.clear_snapshots({"mended": True})
            notify(
                f"{SNAPSHOTS}: another program changed the table: "
                "all snapshots removed, `unisono lake snapshot` makes them again"
            )

    retry_on_conflict(partial(rewrite, LOG, _rewrite_log))
    retry_on_conflict(partial(rewrite, BY_PARTITION, _rewrite_by_partition))
    retry_on_conflict(clear_snapshots)
    return rows


def in_order(spark: SparkSession, lake: Lake, work: Callable[[], T]) -> T:
    """`work`; once more where another program rearranged a table since the files were put in order."""
    try:
        return work()
    except ForeignFiles:
        rewrite_foreign_files(spark, lake)
        return work()


def _groups(spark: SparkSession, table: Table) -> list[list[_Measured]]:
    """Groups of files whose ids overlap, each with at least one foreign file."""
    files = table.listed_files()
    tasks = [_MeasureTask(table.storage, file) for file in files]
    measured = {each.file.path: each for each in run_on_executors(spark, tasks, _measure)}
    own = {file.path for file in files if is_own(file)}
    groups = [
        [measured[file.path] for file in run]
        for run in runs_of(each.file for each in measured.values())
        if any(file.path not in own for file in run)
    ]
    _require_rows(table, list(measured.values()))
    return groups


def _require_rows(table: Table, measured: Sequence[_Measured]) -> None:
    rows = sum(each.file.rows for each in measured)
    expected = table.head if table.name == LOG else table.rows
    if expected is not None and rows != expected:
        raise Mismatch(
            f"the files of {table.storage.table(table.name)} have {rows} rows and {expected} were committed: "
            + ("put the table back from a backup of the lake" if table.name == LOG else _FROM_LOG)
        )


def _rewrite_log(
    spark: SparkSession, lake: Lake, table: Table, group: list[_Measured], storage: Storage
) -> int:
    files = [each.file for each in group]
    _require_same_columns(spark, lake, table, files)
    return _rewrite_group(spark, lake, table, group, files, storage)


def _require_same_columns(spark: SparkSession, lake: Lake, table: Table, group: Sequence[DataFile]) -> None:
    """Refuse an UPDATE of `log` that leaves events and hashes as they are."""
    first, last = min(file.first_id for file in group), max(file.last_id for file in group)
    known, by_partition = files_before_foreign(table), lake.table(BY_PARTITION)
    if known is None:
        if by_partition.head < last:
            return  # it is to be made again from `log`: there is nothing to compare with
        known = by_partition.listed_files()
    known = [file for file in known if not is_own(file) or (file.last_id >= first and file.first_id <= last)]
    erased = recorded_ids(lake.storage)
    erased = erased[(erased >= first) & (erased <= last)]
    tasks = [_DigestTask(table.storage, file, first - 1, last, erased) for file in (*group, *known)]
    found: list[Digest] = run_on_executors(spark, tasks, _digest_rows)
    if total(found[: len(group)]) != total(found[len(group) :]):
        there = "what it had before" if known[0].table == LOG else f"what the table {BY_PARTITION} has"
        raise Mismatch(
            f"what another program wrote into {table.storage.table(LOG)} within events {first} to {last} is not "
            f"{there}: the table is left as it is; {remedy(LOG)}"
        )


def _rewrite_by_partition(
    spark: SparkSession, lake: Lake, table: Table, group: list[_Measured], storage: Storage
) -> int:
    log = lake.table(LOG)
    if table.head > log.head:
        raise LakeUnusable(
            f"the table {BY_PARTITION} ends at {table.head} and {LOG} at {log.head}, so files of another program "
            f"cannot be compared: {_FROM_LOG}"
        )
    return _rewrite_group(spark, lake, table, group, log.files(), storage)


def _rewrite_group(
    spark: SparkSession,
    lake: Lake,
    table: Table,
    group: list[_Measured],
    source: Sequence[DataFile],
    storage: Storage,
) -> int:
    """Replace a group of files by new runs in one commit, if the rows are the same."""
    old = [each.file for each in group]
    first, last = min(file.first_id for file in old), max(file.last_id for file in old)
    buckets = lake.table(BY_PARTITION).description().buckets
    packed = sum(file.bytes for file in source) * UNPACKED
    size = max(1, min(EVENTS_PER_FILE, sum(file.rows for file in source) * RUN_BYTES_MAX // max(1, packed)))
    tasks = [
        _RewriteTask(
            storage,
            table.name,
            since,
            upto,
            tuple(file for file in source if file.last_id > since and file.first_id <= upto),
            buckets,
        )
        for since, upto in ranges(first - 1, last, size, parallelism(spark))
    ]
    made: list[_Rewritten] = run_on_executors(spark, tasks, _rewrite)
    new = [file for part in made for file in part.written.files]
    before = total([each.digest for each in group])
    after = total([part.written.log + part.written.by_partition for part in made])
    with removed_unless_committed(lake.storage, new):
        if problem := next((part.problem for part in made if part.problem), None):
            raise Mismatch(f"{problem}: {table.storage.table(table.name)} is left as it is")
        if before != after:
            raise Mismatch(
                f"what another program wrote into {table.storage.table(table.name)} within events {first} to {last} "
                f"is not what the table {LOG} has: {_FROM_LOG}"
            )
        require_present(lake.storage, new)
        table = lake.table(table.name)
        table.replace(
            old, new, {"mended": len(old), "digest": msgspec.to_builtins(after)}, same_rows=True, foreign=True
        )
    return after.rows


@release_arrow_memory()
def _measure(task: _MeasureTask) -> _Measured:
    """On an executor: the content of a file in any order."""
    file, found = task.file, Digest()
    columns = ["committed_id", "hash", *([] if file.table == LOG else ["partition"])]
    with task.storage.read(file.table, file.path) as source, task.storage.open_parquet(source) as parquet:
        for batch in parquet.iter_batches(BATCH_ROWS, columns=columns):
            found += digest(_plain(batch))
    real = msgspec.structs.replace(file, rows=found.rows, first_id=found.first, last_id=found.last)
    return _Measured(real, found)


@release_arrow_memory()
def _digest_rows(task: _DigestTask) -> Digest:
    """On an executor: every column of a file's rows, as `by_partition` has them."""
    file = task.file
    return partition_rows_digest(task.storage, file.table, [file.path], task.since, task.upto, task.erased)


@release_arrow_memory()
def _rewrite(task: _RewriteTask) -> _Rewritten:
    """On an executor: rewrite one range, sorted."""
    if task.table == BY_PARTITION:
        batches: Iterator[pa.RecordBatch] = scan_log(task.storage, task.files, task.since, task.upto)
        return _Rewritten(_write(task, batches), None)
    rows = pa.Table.from_batches(list(_read_range(task)), LOG_SCHEMA)
    rows = rows.take(pc.sort_indices(rows, [("committed_id", "ascending")])).combine_chunks()
    expected = np.arange(task.since + 1, task.upto + 1)
    if not np.array_equal(np.asarray(rows.column("committed_id")), expected):
        return _Rewritten(
            _write(task, ()), f"the table {LOG} does not have each event {expected[0]} to {expected[-1]} once"
        )
    if problem := first_wrong_hash(LOG, rows.to_batches()):
        return _Rewritten(_write(task, ()), problem)
    return _Rewritten(_write(task, rows.to_batches(max_chunksize=BATCH_ROWS)), None)


def _write(task: _RewriteTask, batches: Any) -> WrittenFiles:
    return write_runs(
        task.storage,
        batches,
        buckets=task.buckets,
        events_per_file=EVENTS_PER_FILE,
        tables=frozenset((task.table,)),
    )


def _read_range(task: _RewriteTask) -> Iterator[pa.RecordBatch]:
    expected = (pc.field("committed_id") > task.since) & (pc.field("committed_id") <= task.upto)
    for file in task.files:
        with task.storage.read(file.table, file.path) as source, task.storage.open_parquet(source) as parquet:
            for number in range(parquet.num_row_groups):
                # From the rows: another program's statistics may be missing or wrong.
                ids = pc.min_max(parquet.read_row_group(number, columns=["committed_id"]).column(0)).as_py()
                if ids["max"] > task.since and ids["min"] <= task.upto:
                    for batch in parquet.iter_batches(
                        BATCH_ROWS, row_groups=[number], columns=LOG_SCHEMA.names
                    ):
                        yield _plain(batch).filter(expected)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the lake's column types: foreign files may have views, dictionaries or large strings."""
    fields = [PARTITION_SCHEMA.field(name) for name in batch.schema.names]
    return batch.cast(pa.schema(fields))
