"""Files that another program wrote into the lake's tables, checked and written anew in our order.

OPTIMIZE and Z-ORDER of any Delta tool keep the rows and lose their order, on which readers rely; until this was done
they refuse the table. Of `log` the rows are sorted again; each id must be there once, each event must fit its hash.
Of `by_partition` the rows are made anew from `log`, and must be those that were there. Snapshots are dropped, and the
next run folds them. Killed anywhere, nothing has happened, or a stretch of a table is mended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.attempt_files import job_attempt, removed_unless_committed
from unisono.lake.columns import LOG_SCHEMA, PARTITION_SCHEMA
from unisono.lake.digests import Digest, digest, total
from unisono.lake.errors import LakeUnusable
from unisono.lake.file_checks import is_own
from unisono.lake.lake import Lake
from unisono.lake.scan import BATCH_ROWS, runs_of, scan_log
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS, Storage
from unisono.lake.table import Table
from unisono.lake.write import RUN_BYTES_MAX, DataFile, WrittenFiles, release_arrow_memory, write_runs
from unisono.pipeline.compare import first_wrong_hash
from unisono.pipeline.errors import Mismatch
from unisono.pipeline.jobs.export.job import EVENTS_PER_FILE, ranges, require_present

if TYPE_CHECKING:
    from pyspark import SparkContext

Say = Callable[[str], None]

UNPACKED: Final = 8
"""How much larger events may be in memory than in a file, about: a stretch of `log` is sorted there."""

_FROM_LOG: Final = (
    f"remove the directory {BY_PARTITION}, and `unisono lake export` makes it anew from the table {LOG}"
)


class _File(msgspec.Struct, frozen=True):
    """A file to be looked at: what the table says of it may be nothing, or untrue."""

    storage: Storage
    file: DataFile


class _Looked(msgspec.Struct, frozen=True):
    """A file with the rows and ids that it really has, and their digest."""

    file: DataFile
    digest: Digest


class _Stretch(msgspec.Struct, frozen=True):
    """Events to be written anew, from files of `log` in any order."""

    storage: Storage
    table: str
    since: int
    upto: int
    files: tuple[DataFile, ...]
    buckets: int


class _Made(msgspec.Struct, frozen=True):
    written: WrittenFiles
    problem: str | None


def work(lake: Lake) -> bool:
    """Whether another program has written to one of the tables."""
    return any(
        table.foreign_files()
        for name in (LOG, BY_PARTITION, SNAPSHOTS)
        if (table := lake.find(name)) is not None
    )


def mend(spark: SparkContext, lake: Lake, say: Say | None = None) -> int:
    """Write anew what others wrote, in all tables; how many rows. Mismatch, and nothing changed, when a table does
    not have what it must."""
    told, rows = say or (lambda _: None), 0
    for name, made in ((LOG, _of_log), (BY_PARTITION, _of_places)):
        table = lake.table(name)
        if strange := table.foreign_files():
            told(f"{name}: {len(strange)} files are of another program, they are checked and written anew")
            for group in _groups(spark, table):
                with job_attempt(lake.storage) as storage:
                    rows += made(spark, lake, table, group, storage)
    states = lake.find(SNAPSHOTS)
    if states is not None and states.foreign_files():
        states.clear_snapshots({"mended": True})
        told(
            f"{SNAPSHOTS}: another program changed the table, it is emptied: `unisono lake snapshot` folds all anew"
        )
    return rows


def _groups(spark: SparkContext, table: Table) -> list[list[_Looked]]:
    """Files whose ids interleave, in each group at least one of another program; with all that they really hold."""
    files = table.listed_files()
    tasks = [_File(table.storage, file) for file in files]
    looked = {each.file.path: each for each in spark.parallelize(tasks, len(tasks)).map(_look).collect()}
    own = {file.path for file in files if is_own(file)}
    groups = [
        [looked[file.path] for file in run]
        for run in runs_of(each.file for each in looked.values())
        if any(file.path not in own for file in run)
    ]
    _require_rows(table, list(looked.values()))
    return groups


def _require_rows(table: Table, looked: Sequence[_Looked]) -> None:
    rows = sum(each.file.rows for each in looked)
    wanted = table.head if table.name == LOG else table.rows
    if wanted is not None and rows != wanted:
        raise Mismatch(
            f"the files of {table.storage.table(table.name)} have {rows} rows and {wanted} were committed: "
            + ("put the table back from a backup of the lake" if table.name == LOG else _FROM_LOG)
        )


def _of_log(spark: SparkContext, lake: Lake, table: Table, group: list[_Looked], storage: Storage) -> int:
    return _written_anew(spark, lake, table, group, [each.file for each in group], storage)


def _of_places(spark: SparkContext, lake: Lake, table: Table, group: list[_Looked], storage: Storage) -> int:
    log = lake.table(LOG)
    if table.head > log.head:
        raise LakeUnusable(
            f"the table {BY_PARTITION} goes on to {table.head} and {LOG} ends at {log.head}, so what another program "
            f"wrote cannot be compared: {_FROM_LOG}"
        )
    return _written_anew(spark, lake, table, group, log.files(), storage)


def _written_anew(
    spark: SparkContext,
    lake: Lake,
    table: Table,
    group: list[_Looked],
    source: Sequence[DataFile],
    storage: Storage,
) -> int:
    """The events of a group of files as new runs, in its place by one commit, if they are the same rows."""
    old = [each.file for each in group]
    first, last = min(file.first_id for file in old), max(file.last_id for file in old)
    buckets = lake.table(BY_PARTITION).description().buckets
    packed = sum(file.bytes for file in source) * UNPACKED
    size = max(1, min(EVENTS_PER_FILE, sum(file.rows for file in source) * RUN_BYTES_MAX // max(1, packed)))
    tasks = [
        _Stretch(
            storage,
            table.name,
            since,
            upto,
            tuple(file for file in source if file.last_id > since and file.first_id <= upto),
            buckets,
        )
        for since, upto in ranges(first - 1, last, size, max(1, spark.defaultParallelism))
    ]
    made: list[_Made] = spark.parallelize(tasks, len(tasks)).map(_make).collect()
    new = [file for part in made for file in part.written.files]
    was = total([each.digest for each in group])
    now = total([part.written.log + part.written.by_partition for part in made])
    with removed_unless_committed(lake.storage, new):
        if problem := next((part.problem for part in made if part.problem), None):
            raise Mismatch(f"{problem}: {table.storage.table(table.name)} is left as it is")
        if was != now:
            raise Mismatch(
                f"what another program wrote into {table.storage.table(table.name)} within events {first} to {last} "
                f"is not what the table {LOG} has: {_FROM_LOG}"
            )
        require_present(lake.storage, new)
        table = lake.table(table.name)
        table.replace(
            old, new, {"mended": len(old), "digest": msgspec.to_builtins(now)}, same_rows=True, foreign=True
        )
    return now.rows


@release_arrow_memory()
def _look(task: _File) -> _Looked:
    """On an executor: what is in a file, whatever its order."""
    file, found = task.file, Digest()
    columns = ["committed_id", "hash", *([] if file.table == LOG else ["partition"])]
    with task.storage.read(file.table, file.path) as source, task.storage.open_parquet(source) as parquet:
        for batch in parquet.iter_batches(BATCH_ROWS, columns=columns):
            found += digest(_plain(batch))
    real = msgspec.structs.replace(file, rows=found.rows, first_id=found.first, last_id=found.last)
    return _Looked(real, found)


@release_arrow_memory()
def _make(task: _Stretch) -> _Made:
    """On an executor: one stretch, sorted."""
    if task.table == BY_PARTITION:
        batches: Iterator[pa.RecordBatch] = scan_log(task.storage, task.files, task.since, task.upto)
        return _Made(_write(task, batches), None)
    rows = pa.Table.from_batches(list(_within(task)), LOG_SCHEMA)
    rows = rows.take(pc.sort_indices(rows, [("committed_id", "ascending")])).combine_chunks()
    wanted = np.arange(task.since + 1, task.upto + 1)
    if not np.array_equal(np.asarray(rows.column("committed_id")), wanted):
        return _Made(
            _write(task, ()), f"the table {LOG} does not have each event {wanted[0]} to {wanted[-1]} once"
        )
    if problem := first_wrong_hash(LOG, rows.to_batches()):
        return _Made(_write(task, ()), problem)
    return _Made(_write(task, rows.to_batches(max_chunksize=BATCH_ROWS)), None)


def _write(task: _Stretch, batches: Any) -> WrittenFiles:
    return write_runs(
        task.storage,
        batches,
        buckets=task.buckets,
        events_per_file=EVENTS_PER_FILE,
        tables=frozenset((task.table,)),
    )


def _within(task: _Stretch) -> Iterator[pa.RecordBatch]:
    wanted = (pc.field("committed_id") > task.since) & (pc.field("committed_id") <= task.upto)
    for file in task.files:
        with task.storage.read(file.table, file.path) as source, task.storage.open_parquet(source) as parquet:
            for number in range(parquet.num_row_groups):
                # From the rows: another program's statistics may be missing or wrong.
                ids = pc.min_max(parquet.read_row_group(number, columns=["committed_id"]).column(0)).as_py()
                if ids["max"] > task.since and ids["min"] <= task.upto:
                    for batch in parquet.iter_batches(
                        BATCH_ROWS, row_groups=[number], columns=LOG_SCHEMA.names
                    ):
                        yield _plain(batch).filter(wanted)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """In our types: other programs' files may be read as views, dictionaries or long strings."""
    fields = [PARTITION_SCHEMA.field(name) for name in batch.schema.names]
    return batch.cast(pa.schema(fields))
