"""Copies the log into the lake: ranges of committed_id, each in the lake exactly once.

The driver splits the missing events into stages, and a stage into ranges, one task each. Tasks read the log, write
files and return their names. The driver commits them to `by_partition` and then to `log`; each commit states where it
starts. After a kill, the next run continues from where each table ends. Files that no commit names are never read.
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
from unisono.lake.lake import Lake, View
from unisono.lake.origin import Origin
from unisono.lake.scan import scan_log
from unisono.lake.storage import BY_PARTITION, LOG, Storage
from unisono.lake.write import DataFile, WrittenFiles, release_arrow_memory, write_runs
from unisono.pipeline.compare import same_places
from unisono.pipeline.errors import Mismatch
from unisono.pipeline.open_log import extent, gc_paused, open_reader, read_range, readers_at_once
from unisono.pipeline.origin_check import origin_of, require_reached, require_same_log
from unisono.pipeline.spark.executors import parallelism, run_on_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS_PER_FILE: Final = 250_000
"""Events per run: a file of `log` of about 25 MB, a worker of about 500 MB, for a log of any length."""

TASK_EVENTS_MIN: Final = 20_000
"""Fewer events are not worth a second task or file."""

TASKS_PER_CORE: Final = 4
"""Ranges of one stage per core. More cost more work at a kill; fewer make commits wait for the slowest task."""

BOTH: Final = frozenset((LOG, BY_PARTITION))

Progress = Callable[[int, int], None]
"""Called with the events exported so far, and all events to export."""


class ExportCommit(msgspec.Struct, frozen=True):
    """A range for one commit, the tables that lack it, and whether it is read from the lake's own `log`."""

    since: int
    upto: int
    tables: frozenset[str]
    from_lake: bool = False


class ExportTask(msgspec.Struct, frozen=True):
    """One task of a stage."""

    store: str
    storage: Storage
    since: int
    upto: int
    tables: frozenset[str]
    buckets: int
    events_per_file: int
    lake_files: tuple[DataFile, ...] = ()


class ExportResult(msgspec.Struct, frozen=True):
    """The range `(since, upto]` that one table or both lacked. `digest` is of the events added to `log`."""

    since: int
    upto: int
    events: int
    seconds: float
    digest: Digest = Digest()

    @property
    def rate(self) -> float:
        return self.events / self.seconds if self.seconds > 0 else 0.0


def plan(store: str, lake: Lake, to: int | None = None) -> list[ExportCommit]:
    """The ranges that the lake lacks, up to `to` or the log's head."""
    view = lake.view()
    log, by_partition = view.head, view.by_partition.head
    log_extent = extent(store)  # read after the lake: another export may add newer events
    require_reached(log_extent, to)
    target = log_extent.head if to is None else to
    require_same_log(store, lake, log, log_extent)
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
    spark: SparkSession,
    store: str,
    lake: Lake,
    *,
    to: int | None = None,
    events_per_file: int = EVENTS_PER_FILE,
    progress: Progress | None = None,
) -> ExportResult:
    """Export up to `to`, or to the log's current head. Safe to run beside another export."""
    began = time.monotonic()
    start = min(lake.table(LOG).head, lake.table(BY_PARTITION).head)
    upto = extent(store).head if to is None else to
    digests: list[Digest] = []
    done = 0

    def export_all() -> None:
        nonlocal done
        while stages := plan(store, lake, upto):
            events_total = done + sum(stage.upto - stage.since for stage in stages)
            for stage in _split_stages(stages, events_per_file * TASKS_PER_CORE * parallelism(spark)):
                digests.append(export_stage(spark, store, lake, stage, events_per_file))
                done += stage.upto - stage.since
                if progress is not None:
                    progress(done, events_total)

    retry_on_conflict(export_all)
    return ExportResult(start, lake.head(), done, time.monotonic() - began, total(digests))


def align_tables(spark: SparkSession, store: str, lake: Lake) -> int:
    """Bring both tables to the same event, after a kill between their commits; returns that event."""
    heads = lake.table(LOG).head, lake.table(BY_PARTITION).head
    if heads[0] != heads[1]:
        export(spark, store, lake, to=max(heads))
    return max(heads)


def export_stage(
    spark: SparkSession, store: str, lake: Lake, stage: ExportCommit, events_per_file: int
) -> Digest:
    """Write and commit one stage; the digest of the events added to `log`."""
    view = lake.view()
    files = view.log_files if stage.from_lake else []
    parts = ranges(stage.since, stage.upto, events_per_file, parallelism(spark))
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
        at_once = None if stage.from_lake else readers_at_once(store)
        written = run_on_executors(spark, tasks, run_task, at_once=at_once)
        if BY_PARTITION not in stage.tables:
            _require_same_places(spark, store, view, stage)
        return commit(lake, stage, written, origin_of(store))


@release_arrow_memory()
def run_task(task: ExportTask) -> WrittenFiles:
    """On an executor: read a range and write its files. File names are unique, so a retry is harmless."""
    with gc_paused():
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
    """Commit the files of a stage to the tables that lack it; CommitConflict when a table has moved on.

    `origin`: the log they come from, recorded with the commit to `log`.
    """
    files = [file for part in written for file in part.files]
    log = total([part.log for part in written])
    by_partition = total([part.by_partition for part in written])
    if LOG in stage.tables:
        _require_whole(stage, log)
    with removed_unless_committed(lake.storage, files):
        # Before the files are checked: a commit that came first may have removed them.
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
    """`(since, upto]` in even parts of at most `size`, enough to keep all cores busy."""
    count = upto - since
    parts = -(-count // size)
    if parts > 1:
        parts = -(-parts // cores) * cores
    parts = min(count, max(parts, min(cores, count // TASK_EVENTS_MIN), 1))
    edges = [since + count * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(edges))


def _split_stages(stages: list[ExportCommit], size: int) -> Iterator[ExportCommit]:
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
            f"({stage.since}, {stage.upto}] expected, but {log.rows} events from {log.first} to "
            f"{log.last} were written: nothing is committed"
        )


def _require_same_places(spark: SparkSession, store: str, view: View, stage: ExportCommit) -> None:
    """Refuse a table `by_partition` that was filled from what the log no longer has."""
    if not same_places(spark, store, view, stage.since, stage.upto):
        raise Mismatch(
            f"events {stage.since + 1} to {stage.upto} are in the table {BY_PARTITION} and differ from those of the "
            f"log, which was probably restored from a backup: remove the directory {BY_PARTITION}, and "
            f"`unisono lake export` makes it again from the table {LOG}"
        )


def require_present(storage: Storage, files: list[DataFile]) -> None:
    """Refuse files that executors wrote to a local directory on another machine."""
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
                f"an executor wrote {path}, and the driver does not see it: a lake on a cluster needs shared storage"
            )
