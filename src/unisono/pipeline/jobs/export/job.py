"""Copying the log into the lake: ranges of committed_id, each in the lake exactly once.

The driver cuts what is missing into stages, a stage into ranges, one task each. Tasks read the log, write files
and report them; the driver then names them in `by_partition` and after that in `log`, each by one commit that
states where it starts. Killed anywhere, the next run finds where each table stands and goes on from there; files
that no commit named are never read.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from unisono.lake.attempt_files import job_attempt, removed_unless_committed
from unisono.lake.columns import to_batch
from unisono.lake.commit_retry import retry_on_conflict
from unisono.lake.digests import Digest, total
from unisono.lake.lake import Lake
from unisono.lake.origin import Origin
from unisono.lake.scan import scan_log
from unisono.lake.storage import BY_PARTITION, LOG, Storage
from unisono.lake.write import DataFile, WrittenFiles, release_arrow_memory, write_runs
from unisono.pipeline.errors import Mismatch, NoSuchRange
from unisono.pipeline.open_log import extent, no_collection, open_reader, read_range
from unisono.pipeline.origin_check import origin_of, require_same_log

if TYPE_CHECKING:
    from pyspark import SparkContext

EVENTS_PER_FILE: Final = 250_000
"""Events of a run: a file of `log` of some 25 MB, and a worker of about 500 MB, however long the log is."""

TASK_EVENTS_MIN: Final = 20_000
"""Less than this is not worth a second task, nor a second file."""

TASKS_PER_CORE: Final = 4
"""Ranges of one stage for each core: what a kill can cost, against commits that wait for the slowest task."""

BOTH: Final = frozenset((LOG, BY_PARTITION))

Progress = Callable[[int, int], None]
"""Called with events exported so far and events to export in all."""


class ExportCommit(msgspec.Struct, frozen=True):
    """One commit's worth: a range, which tables it is missing in, and whether the lake's own log has it."""

    since: int
    upto: int
    tables: frozenset[str]
    from_lake: bool = False


class ExportTask(msgspec.Struct, frozen=True):
    """One executor's part of a stage."""

    store: str
    storage: Storage
    since: int
    upto: int
    tables: frozenset[str]
    buckets: int
    events_per_file: int
    lake_files: tuple[DataFile, ...] = ()


class ExportResult(msgspec.Struct, frozen=True):
    """What an export did: `(since, upto]` was missing in one table or both. `digest` is of what it added to `log`."""

    since: int
    upto: int
    events: int
    seconds: float
    digest: Digest = Digest()

    @property
    def rate(self) -> float:
        return self.events / self.seconds if self.seconds > 0 else 0.0


def plan(store: str, lake: Lake, to: int | None = None) -> list[ExportCommit]:
    """What is missing in the lake, up to `to` or the log's head; empty when nothing is."""
    view = lake.view()
    log, by_partition = view.head, view.by_partition.head
    held = extent(store)  # after the lake: another export may bring it beyond what the log held before
    target = held.head if to is None else to
    if target > held.head:
        raise NoSuchRange(f"the log ends at {held.head}, {target} was asked for")
    require_same_log(store, lake, log, held)
    stages = []
    if by_partition < log:
        stages.append(ExportCommit(by_partition, log, frozenset((BY_PARTITION,)), from_lake=True))
    if log < min(by_partition, target):
        stages.append(ExportCommit(log, min(by_partition, target), frozenset((LOG,))))
    start = max(log, by_partition)
    if start < target:
        stages.append(ExportCommit(start, target, BOTH))
    return stages


def export(
    spark: SparkContext,
    store: str,
    lake: Lake,
    *,
    to: int | None = None,
    events_per_file: int = EVENTS_PER_FILE,
    progress: Progress | None = None,
) -> ExportResult:
    """Bring the lake up to `to`, or to where the log ends now; safe to run beside another export."""
    began = time.monotonic()
    start = min(lake.table(LOG).head, lake.table(BY_PARTITION).head)
    upto = extent(store).head if to is None else to
    digests: list[Digest] = []
    done = 0

    def export_all() -> None:
        nonlocal done
        while stages := plan(store, lake, upto):
            wanted = done + sum(stage.upto - stage.since for stage in stages)
            for stage in _cut(stages, events_per_file * TASKS_PER_CORE * max(1, spark.defaultParallelism)):
                digests.append(export_stage(spark, store, lake, stage, events_per_file))
                done += stage.upto - stage.since
                if progress is not None:
                    progress(done, wanted)

    retry_on_conflict(export_all)
    return ExportResult(start, lake.head(), done, time.monotonic() - began, total(digests))


def level(spark: SparkContext, store: str, lake: Lake) -> int:
    """Bring both tables to the same event, should a kill have come between their commits; that event."""
    heads = lake.table(LOG).head, lake.table(BY_PARTITION).head
    if heads[0] != heads[1]:
        export(spark, store, lake, to=max(heads))
    return max(heads)


def export_stage(
    spark: SparkContext, store: str, lake: Lake, stage: ExportCommit, events_per_file: int
) -> Digest:
    """Write one stage and commit it; the digest of what it added to `log`."""
    view = lake.view()
    files = view.log_files if stage.from_lake else []
    parts = ranges(stage.since, stage.upto, events_per_file, max(1, spark.defaultParallelism))
    with job_attempt(lake.storage) as storage:
        tasks = [
            ExportTask(
                store,
                storage,
                since,
                upto,
                stage.tables,
                view.buckets,
                events_per_file,
                tuple(file for file in files if file.last_id > since and file.first_id <= upto),
            )
            for since, upto in parts
        ]
        written = spark.parallelize(tasks, len(tasks)).map(run_task).collect()
        return commit(lake, stage, written, origin_of(store))


@release_arrow_memory()
def run_task(task: ExportTask) -> WrittenFiles:
    """On an executor: read a range and write its files. Names are new each time: a retry disturbs nothing."""
    with no_collection():
        if task.lake_files:
            batches = scan_log(task.storage, task.lake_files, task.since, task.upto)
            return _write(task, batches)
        reader = open_reader(task.store)
        try:
            return _write(task, map(to_batch, read_range(reader, task.since, task.upto)))
        finally:
            reader.close()


def commit(
    lake: Lake, stage: ExportCommit, written: list[WrittenFiles], origin: Origin | None = None
) -> Digest:
    """Name the files of a stage in the tables that miss it; CommitConflict when a table stands elsewhere by now.

    `origin`: the log they come from, noted with what is added to `log`.
    """
    files = [file for part in written for file in part.files]
    log = total([part.log for part in written])
    by_partition = total([part.by_partition for part in written])
    if LOG in stage.tables:
        _require_whole(stage, log)
    with removed_unless_committed(lake.storage, files):
        # Before the files are looked for: whoever came first may have removed them.
        for name in stage.tables:
            lake.table(name).require_head(stage.since)
        require_present(lake.storage, files)
        for name, added in ((BY_PARTITION, by_partition), (LOG, log)):
            if name in stage.tables:
                own = [file for file in files if file.table == name]
                notes = {"digest": msgspec.to_builtins(added)}
                noted = origin.notes() if origin is not None and name == LOG else {}
                lake.table(name).append(own, stage.since, stage.upto, notes, noted)
    return log


def ranges(since: int, upto: int, size: int, cores: int) -> list[tuple[int, int]]:
    """`(since, upto]` in even parts of at most `size`, enough of them to keep every core busy to the end."""
    count = upto - since
    parts = -(-count // size)
    if parts > 1:
        parts = -(-parts // cores) * cores
    parts = min(count, max(parts, min(cores, count // TASK_EVENTS_MIN), 1))
    edges = [since + count * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(edges))


def _cut(stages: list[ExportCommit], size: int) -> Iterator[ExportCommit]:
    for stage in stages:
        for since in range(stage.since, stage.upto, size):
            yield msgspec.structs.replace(stage, since=since, upto=min(since + size, stage.upto))


def _write(task: ExportTask, batches: Iterator[object]) -> WrittenFiles:
    return write_runs(
        task.storage,
        batches,
        buckets=task.buckets,
        events_per_file=task.events_per_file,
        tables=task.tables,
    )


def _require_whole(stage: ExportCommit, log: Digest) -> None:
    if (log.rows, log.first, log.last) != (stage.upto - stage.since, stage.since + 1, stage.upto):
        raise Mismatch(
            f"({stage.since}, {stage.upto}] was to be written and {log.rows} events from {log.first} to "
            f"{log.last} were: nothing is committed"
        )


def require_present(storage: Storage, files: list[DataFile]) -> None:
    """Executors may have written to a directory of the same name on a machine of their own."""
    if not storage.is_local:
        return
    for file in files:
        path = Path(storage.uri(file.table, file.path))
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            size = -1
        if size != file.bytes:
            raise Mismatch(
                f"an executor wrote {path} and it is not here: a lake on a cluster needs a shared place"
            )
