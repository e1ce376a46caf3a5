"""Snapshots of all partitions, folded from the lake into its table `snapshots`, and put into the server's store.

A run starts from the newest snapshots of the same model version and folds what came since, in one pass; partitions
without new events keep the rows they have. The table remembers how far all partitions have been folded. A long run
is committed in several waves, the last of which moves that mark: whatever is killed when, the next run finds rows
that each say how far they go, and the same states come out. Files that no commit named are never read.

A snapshot of another model version is never used (DUR-07), and neither is one of another content of the same version.
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
from unisono.lake.merge import Share
from unisono.lake.scan import files_with, open_files_needed
from unisono.lake.snapshots import Snapshots, SnapshotWriter, StateRow, files_of
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
from unisono.pipeline.task_planning import cut

if TYPE_CHECKING:
    from pyspark import SparkContext

WAVE_ROWS: Final = 8_000_000
"""Rows folded between two commits: what a kill can cost, some minutes of work."""

UNBUCKETED_ROWS_MAX: Final = 100_000
"""Rows in runs that are not spread over the buckets; every task reads all of them, so more are compacted first."""

RUNS_MAX: Final = 64
"""Runs read side by side; more are compacted first."""

GENERATIONS_MAX: Final = 64
"""Files of snapshots open at once to find a partition's newest; more are joined first."""

Progress = Callable[[int, int], None]
"""Called with rows looked at so far and rows to look at in all."""


class SnapshotResult(msgspec.Struct, frozen=True):
    """What a run did: `events` folded into the snapshots of `partitions`, which now reach `upto`."""

    model_version: int
    since: int
    upto: int
    partitions: int
    events: int
    skipped: int
    seconds: float


def snapshot(
    spark: SparkContext,
    lake: Lake,
    model: ShippedModel,
    *,
    partitions: Sequence[str] | None = None,
    rebuild: bool = False,
    progress: Progress | None = None,
) -> SnapshotResult:
    """Bring the snapshots of all partitions, or of those named, up to the lake's head."""
    began = time.monotonic()
    if partitions is not None:
        partitions = normalise_names(partitions)
    if rebuild:
        _remove(lake, model.version)
    done: list[FoldResult] = []
    start = reached(lake, model)
    upto = retry_on_conflict(lambda: _run(spark, lake, model, partitions, done, progress))
    return SnapshotResult(
        model.version,
        start,
        upto,
        sum(made.partitions for made in done),
        sum(made.events for made in done),
        sum(made.skipped for made in done),
        time.monotonic() - began,
    )


def reached(lake: Lake, model: ShippedModel) -> int:
    """Up to where the snapshots of a model hold every partition's events, or ModelContentChanged."""
    table = lake.find(SNAPSHOTS)
    if table is None:
        return 0
    _require_same_content(_own(table, model.version), model)
    return table.folded_upto(model.version)


def latest(lake: Lake, model_version: int, upto: int | None = None) -> Iterator[StateRow]:
    """The newest snapshot of each partition, up to an id; bucket by bucket, without Spark, in little memory."""
    table = lake.find(SNAPSHOTS)
    if table is None:
        return
    last = lake.head() if upto is None else upto
    for share, files in by_bucket(table, model_version):
        with Snapshots.opened(lake.storage, files, last) as held:
            for name, _ in held.found(share):
                row = held.latest(name)
                assert row is not None
                yield row


def by_bucket(table: Table, model_version: int) -> Iterator[tuple[Share, list[DataFile]]]:
    """The snapshots of a model version, cut by bucket: the partitions, and the files that have them."""
    files, buckets = _own(table, model_version), table.description().buckets
    for bucket in range(buckets):
        own = [file for file in files if file.bucket in (UNBUCKETED, bucket)]
        if own:
            yield Share(buckets, (bucket,)), own


def forget(lake: Lake, names: Sequence[str]) -> int:
    """Remove every snapshot of these partitions, of any model version, because their history was changed.

    The next run folds them anew from their first event. How many rows there were.
    """
    table = lake.find(SNAPSHOTS)
    if table is None or not names:
        return 0
    buckets, gone = table.description().buckets, {name.encode() for name in names}
    touched = files_with(table.files(), buckets, names, -1, 1 << 53)
    kept: list[DataFile] = []
    dropped = 0
    for file in touched:
        assert file.bucket is not None
        assert file.model_version is not None
        writer = SnapshotWriter(lake.storage, file.bucket, file.model_version, file.model_digest or "")
        with Snapshots.opened(lake.storage, [file]) as held:
            for name, ids in held.found():
                if name in gone:
                    dropped += len(ids)
                    continue
                for committed_id in ids:
                    writer.add(held.at(name, committed_id))
        kept += writer.close()
    if dropped:
        folded = {file.model_version: 0 for file in touched if file.model_version is not None}
        with removed_unless_committed(lake.storage, kept):
            table.put_snapshots(kept, folded, {"forgotten": dropped}, old=touched)
    return dropped


def _remove(lake: Lake, model_version: int) -> None:
    table = lake.find(SNAPSHOTS)
    if table is not None and (own := _own(table, model_version)):
        table.put_snapshots([], {model_version: 0}, {"removed": model_version}, old=own)


def _run(
    spark: SparkContext,
    lake: Lake,
    model: ShippedModel,
    partitions: Sequence[str] | None,
    done: list[FoldResult],
    progress: Progress | None,
) -> int:
    """One pass, from how the table stands; the id it reached.

    The table is opened before the events are: who changes history and then forgets snapshots makes this run's commit
    be refused.
    """
    table = Table.make(lake.storage, SNAPSHOTS, lake.table(BY_PARTITION).description().buckets)
    if open_files_needed(_own(table, model.version)) > GENERATIONS_MAX:
        join_generations(spark, lake, [model.version])
        table = lake.table(SNAPSHOTS)
    view = _settled_view(spark, lake, table.folded_upto(model.version))
    if table.description().buckets != view.buckets:
        raise LakeUnusable(
            f"the table {SNAPSHOTS} has {table.description().buckets} buckets and {BY_PARTITION} has {view.buckets}: "
            f"remove the directory {SNAPSHOTS} and it is made anew"
        )
    own = _own(table, model.version)
    _require_same_content(own, model)
    works = _works(spark, view, model, own, table.folded_upto(model.version), partitions)
    looked, rows = 0, sum(work.rows for work in works)
    for wave in _waves(works):
        last = partitions is None and wave[-1] is works[-1]
        with job_attempt(lake.storage) as storage:
            own_works = [msgspec.structs.replace(work, storage=storage) for work in wave]
            made = spark.parallelize(own_works, len(wave)).map(make_snapshots).collect()
            table = _commit(table, made, model, {model.version: view.head} if last else {})
        done += made
        looked += sum(work.rows for work in wave)
        if progress is not None:
            progress(looked, rows)
    return view.head


def _settled_view(spark: SparkContext, lake: Lake, since: int) -> View:
    """The lake as it is now, its runs after `since` few enough to be read side by side."""
    view = lake.view()
    new = [file for file in view.partition_files if file.last_id > since]
    fresh_rows = sum(file.rows for file in new if file.bucket == UNBUCKETED)
    if fresh_rows <= UNBUCKETED_ROWS_MAX and open_files_needed(new) <= RUNS_MAX:
        return view
    compact_table(spark, lake, BY_PARTITION, ROWS_PER_FILE)
    return lake.view()


def _works(
    spark: SparkContext,
    view: View,
    model: ShippedModel,
    own: Sequence[DataFile],
    since: int,
    partitions: Sequence[str] | None,
) -> list[FoldTask]:
    cores, now = max(1, spark.defaultParallelism), now_ms()
    if partitions is not None:
        groups = [partitions[number::cores] for number in range(cores)]
        return [_work_of_names(view, model, own, names, now) for names in groups if names]
    if since == view.head:
        return []
    new = [file for file in view.partition_files if file.last_id > since]
    return [
        FoldTask(
            view.storage,
            model,
            part.share,
            since,
            view.head,
            tuple(file for file in new if part.share.may_be_in(file)),
            tuple(file for file in own if part.share.may_be_in(file)),
            part.rows,
            part.bucket,
            now,
        )
        for part in cut(view.storage, new, view.buckets, view.head - since, cores)
    ]


def _work_of_names(
    view: View, model: ShippedModel, own: Sequence[DataFile], names: Sequence[str], now: int
) -> FoldTask:
    return FoldTask(
        view.storage,
        model,
        Share(view.buckets),
        0,
        view.head,
        tuple(files_with(view.partition_files, view.buckets, names, 0, view.head)),
        tuple(files_with(own, view.buckets, names, -1, view.head)),
        bucket=UNBUCKETED,
        created_at=now,
        names=tuple(names),
    )


def _waves(works: list[FoldTask]) -> Iterator[list[FoldTask]]:
    wave: list[FoldTask] = []
    rows = 0
    for work in works:
        wave.append(work)
        rows += work.rows
        if rows >= WAVE_ROWS:
            yield wave
            wave, rows = [], 0
    if wave:
        yield wave


def _commit(table: Table, made: Sequence[FoldResult], model: ShippedModel, folded: dict[int, int]) -> Table:
    """Name the files of a wave; the table as it is then, to which nobody else has added snapshots."""
    unknown = [name for part in made for name in part.unknown]
    if unknown:
        raise NoSuchPartition(f"no event of partition {unknown[0]!r} is in the lake")
    files = [file for part in made for file in part.files]
    if not files and not folded:
        return table
    require_present(table.storage, files)
    commits = table.snapshot_commits
    notes = {"model": model.digest, "digest": msgspec.to_builtins(total([part.digest for part in made]))}
    with removed_unless_committed(table.storage, files):
        table.put_snapshots(files, folded, notes)
    now = Table.open(table.storage, SNAPSHOTS)
    if now is None or now.snapshot_commits != commits + 1:
        raise CommitConflict("another process adds snapshots of the same lake")
    return now


def _own(table: Table, model_version: int) -> list[DataFile]:
    return files_of(table.files(), model_version)


def _require_same_content(files: Sequence[DataFile], model: ShippedModel) -> None:
    others = {file.model_digest for file in files} - {model.digest}
    if others:
        raise ModelContentChanged(
            f"the lake's snapshots of model version {model.version} were folded by another content of it (digest "
            f"{str(others.pop())[:12]}, now {model.digest[:12]}): give the changed model a new model_version, or "
            "make them anew with --rebuild"
        )
