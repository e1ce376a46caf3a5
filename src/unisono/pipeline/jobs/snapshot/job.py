"""Makes snapshots of all partitions: folds the lake's events into its table `snapshots`.

A run starts from the newest snapshots of the same model version and folds the events since, in one pass. Partitions
without new events keep their rows. The table records up to where all partitions are folded. A long run commits in
waves, and the last one moves that mark. Each row states how far it goes, so after a kill the next run produces the
same states. Files that no commit names are never read.

A snapshot of another model version is never used (DUR-07), nor is one of another content of the same version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from unisono.lake.attempt_files import job_attempt, removed_unless_committed
from unisono.lake.commit_retry import retry_on_conflict
from unisono.lake.digests import total
from unisono.lake.errors import CommitConflict, LakeUnusable
from unisono.lake.lake import Lake, View
from unisono.lake.merge import MERGED_BYTES_MAX, PartitionSubset
from unisono.lake.scan import OpenFiles, files_with, open_bytes, open_files_needed
from unisono.lake.snapshots import Snapshots, StateRow, files_of
from unisono.lake.storage import BY_PARTITION, SNAPSHOTS
from unisono.lake.table import Table
from unisono.lake.write import UNBUCKETED, DataFile
from unisono.pipeline.clock import now_ms
from unisono.pipeline.errors import ModelContentChanged, NoSuchPartition
from unisono.pipeline.fold import FoldResult, FoldTask, make_snapshots, normalise_names
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.compact.job import ROWS_PER_FILE, compact_table
from unisono.pipeline.jobs.compact.snapshot_compaction import join_generations
from unisono.pipeline.jobs.export.job import require_present
from unisono.pipeline.spark.executors import parallelism, run_on_executors
from unisono.pipeline.task_planning import FilesByBucket, by_name, plan_names, plan_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAVE_ROWS_PER_CORE: Final = 4_000_000
"""Rows per core folded between two commits, some minutes of work: what a kill can cost. A wave has at least two of
the largest tasks for each core, so that all cores are busy however many there are."""

UNBUCKETED_ROWS_MAX: Final = 100_000
"""Rows in runs that are not split by bucket. Every task reads all of them, so more are compacted first."""

RUNS_MAX: Final = 64
"""Runs read at the same time; more are compacted first."""

STATES_PER_TASK: Final = 100_000
"""Snapshots read by one task: their number follows the partitions, and not the buckets."""

GENERATIONS_MAX: Final = 64
"""Snapshot files open at once to find a partition's newest; more are joined first."""

FOLDS: Final = "unisono.folds"
"""The note that counts those commits of snapshots that fold events, also by model version. Those of different models
do not disturb each other; before any other a run begins again, because its states may be of an erased history."""

Progress = Callable[[int, int], None]
"""Called with the rows read so far, and all rows to read."""


class SnapshotResult(msgspec.Struct, frozen=True):
    """The `events` folded into snapshots of `partitions`, which now reach `upto`."""

    model_version: int
    since: int
    upto: int
    partitions: int
    events: int
    skipped: int
    seconds: float


def snapshot(
    spark: SparkSession,
    lake: Lake,
    model: ShippedModel,
    *,
    partitions: Sequence[str] | None = None,
    rebuild: bool = False,
    progress: Progress | None = None,
) -> SnapshotResult:
    """Bring the snapshots of all partitions, or of `partitions`, up to the lake's head."""
    began = time.monotonic()
    if partitions is not None:
        partitions = normalise_names(partitions)
    if rebuild:
        retry_on_conflict(lambda: _remove(lake, model.version))
    done: list[FoldResult] = []
    start = folded_to(lake, model)
    upto = retry_on_conflict(lambda: _run(spark, lake, model, partitions, done, progress))
    return SnapshotResult(
        model.version,
        start,
        upto,
        sum(result.partitions for result in done),
        sum(result.events for result in done),
        sum(result.skipped for result in done),
        time.monotonic() - began,
    )


def folded_to(lake: Lake, model: ShippedModel) -> int:
    """Every event up to the result is in a snapshot of this model; ModelContentChanged for another content."""
    table = lake.find(SNAPSHOTS)
    if table is None:
        return 0
    _require_same_content(_own(table, model.version), model)
    return table.folded_upto(model.version)


def latest(lake: Lake, model_version: int, upto: int | None = None) -> Iterator[StateRow]:
    """The newest snapshot of each partition, up to an id; bucket by bucket, without Spark."""
    table = lake.find(SNAPSHOTS)
    if table is None:
        return
    last = lake.head() if upto is None else upto
    for subset, files in by_bucket(table, model_version):
        with Snapshots.opened(lake.storage, files, last) as snapshots:
            for name, _ in snapshots.found(subset):
                row = snapshots.latest(name)
                assert row is not None
                yield row


def by_bucket(table: Table, model_version: int) -> Iterator[tuple[PartitionSubset, list[DataFile]]]:
    """The snapshots of a model version by bucket, and parts of large buckets: the subset of the partitions, and their
    files."""
    files, buckets = _own(table, model_version), table.description().buckets
    for bucket in range(buckets):
        own = [file for file in files if file.bucket in (UNBUCKETED, bucket)]
        for subset in by_name(table.storage, own, PartitionSubset(buckets, (bucket,)), STATES_PER_TASK):
            if found := [file for file in own if subset.may_be_in(file)]:
                yield subset, found


def _remove(lake: Lake, model_version: int) -> None:
    table = lake.find(SNAPSHOTS)
    if table is not None:
        own = _own(table, model_version)
        table.put_snapshots([], {model_version: 0}, {"removed": model_version}, old=own)


def _run(
    spark: SparkSession,
    lake: Lake,
    model: ShippedModel,
    partitions: Sequence[str] | None,
    done: list[FoldResult],
    progress: Progress | None,
) -> int:
    """One pass from the current table; returns the id it reached.

    The table is opened before the events: an erasure that changes history and then drops snapshots makes this run's
    commit fail.
    """
    table = Table.make(lake.storage, SNAPSHOTS, lake.table(BY_PARTITION).description().buckets)
    if open_files_needed(_own(table, model.version)) > GENERATIONS_MAX:
        join_generations(spark, lake, [model.version])
        table = lake.table(SNAPSHOTS)
    view = _settled_view(spark, lake, table.folded_upto(model.version))
    if table.description().buckets != view.buckets:
        raise LakeUnusable(
            f"the table {SNAPSHOTS} has {table.description().buckets} buckets and {BY_PARTITION} has {view.buckets}: "
            f"remove the directory {SNAPSHOTS}, and the next run makes it again"
        )
    own = _own(table, model.version)
    _require_same_content(own, model)
    tasks = _plan(spark, view, model, own, table.folded_upto(model.version), partitions)
    rows_done, rows = 0, sum(task.rows for task in tasks)
    for wave in _waves(tasks, WAVE_ROWS_PER_CORE * parallelism(spark)):
        last = partitions is None and wave[-1] is tasks[-1]
        with job_attempt(lake.storage) as storage:
            own_tasks = [msgspec.structs.replace(task, storage=storage) for task in wave]
            results = run_on_executors(spark, own_tasks, make_snapshots)
            table = _commit(table, results, model, {model.version: view.head} if last else {})
        done += results
        rows_done += sum(task.rows for task in wave)
        if progress is not None:
            progress(rows_done, rows)
    return view.head


def _settled_view(spark: SparkSession, lake: Lake, since: int) -> View:
    """The current lake, compacted if it has too many runs after `since`."""
    view = lake.view()
    new = [file for file in view.partition_files if file.last_id > since]
    fresh_rows = sum(file.rows for file in new if file.bucket == UNBUCKETED)
    memory = OpenFiles(open_bytes).with_more(new)
    if (
        fresh_rows <= UNBUCKETED_ROWS_MAX
        and open_files_needed(new) <= RUNS_MAX
        and memory <= MERGED_BYTES_MAX
    ):
        return view
    compact_table(spark, lake, BY_PARTITION, ROWS_PER_FILE)
    return lake.view()


def _plan(
    spark: SparkSession,
    view: View,
    model: ShippedModel,
    own: Sequence[DataFile],
    since: int,
    partitions: Sequence[str] | None,
) -> list[FoldTask]:
    cores, now = parallelism(spark), now_ms()
    if partitions is not None:
        return [
            _task_for_names(view, model, own, names, bucket, now)
            for bucket, names in plan_names(partitions, view.buckets, cores)
        ]
    if since == view.head:
        return []
    new = [file for file in view.partition_files if file.last_id > since]
    events, snapshots = FilesByBucket(new), FilesByBucket(own)
    return [
        FoldTask(
            view.storage,
            model,
            part.subset,
            since,
            view.head,
            events.of(part.subset),
            snapshots.of(part.subset),
            part.rows,
            part.bucket,
            now,
        )
        for part in plan_tasks(view.storage, new, view.buckets, view.head - since, cores)
    ]


def _task_for_names(
    view: View, model: ShippedModel, own: Sequence[DataFile], names: Sequence[str], bucket: int, now: int
) -> FoldTask:
    return FoldTask(
        view.storage,
        model,
        PartitionSubset(view.buckets),
        0,
        view.head,
        tuple(files_with(view.partition_files, view.buckets, names, 0, view.head)),
        tuple(files_with(own, view.buckets, names, -1, view.head)),
        bucket=bucket,
        created_at=now,
        names=tuple(names),
    )


def _waves(tasks: list[FoldTask], rows_max: int) -> Iterator[list[FoldTask]]:
    wave: list[FoldTask] = []
    rows = 0
    for task in tasks:
        wave.append(task)
        rows += task.rows
        if rows >= rows_max:
            yield wave
            wave, rows = [], 0
    if wave:
        yield wave


def _commit(
    table: Table, results: Sequence[FoldResult], model: ShippedModel, folded: dict[int, int]
) -> Table:
    """Commit the files of a wave; the table after it. CommitConflict when another process added snapshots of this
    model, or removed some."""
    unknown = [name for part in results for name in part.unknown]
    if unknown:
        raise NoSuchPartition(f"no event of partition {unknown[0]!r} is in the lake")
    files = [file for part in results for file in part.files]
    if not files and not folded:
        return table
    require_present(table.storage, files)
    notes = {"model": model.digest, "digest": msgspec.to_builtins(total([part.digest for part in results]))}
    own = f"{FOLDS}.{model.version}"
    with removed_unless_committed(table.storage, files):
        while True:
            now = _unless_overtaken(table, own, 0)
            try:
                counts = {name: _count(now, name) + 1 for name in (FOLDS, own)}
                now.put_snapshots(files, folded, notes, counts=counts)
                break
            except CommitConflict:
                if _reopened(table).version == now.version:
                    raise
    return _unless_overtaken(table, own, 1)


def _unless_overtaken(table: Table, own: str, commits: int) -> Table:
    """The table as it is now; CommitConflict when more happened since `table` than folds by other models, and so many
    commits of this run, which `own` counts."""
    now = _reopened(table)
    if not_folds(now) != not_folds(table) or _count(now, own) != _count(table, own) + commits:
        raise CommitConflict("another process changed the snapshots of the same lake")
    return now


def _count(table: Table, name: str) -> int:
    return table.read_note(name) or 0


def _reopened(table: Table) -> Table:
    now = Table.open(table.storage, SNAPSHOTS)
    if now is None:
        raise CommitConflict("another process removed the snapshots of the same lake")
    return now


def not_folds(table: Table) -> int:
    """Commits of snapshots that do more than add some: they also remove some, as an erasure does."""
    return table.snapshot_commits - _count(table, FOLDS)


def _own(table: Table, model_version: int) -> list[DataFile]:
    return files_of(table.readable_files(), model_version)


def _require_same_content(files: Sequence[DataFile], model: ShippedModel) -> None:
    others = {file.model_digest for file in files} - {model.digest}
    if others:
        raise ModelContentChanged(
            f"the lake's snapshots of model version {model.version} were folded by another content of it (digest "
            f"{str(others.pop())[:12]}, now {model.digest[:12]}): give the changed model a new model_version, or "
            "rebuild them with --rebuild"
        )
