"""Plans which snapshots are replayed, with which models, and merges the results."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any, Final

import msgspec

from unisono.lake.columns import bucket_of
from unisono.lake.errors import LakeUnusable
from unisono.lake.file_checks import is_own
from unisono.lake.merge import EVERY_ID, NamedPartitions, PartitionSubset
from unisono.lake.rearranged import stored_paths
from unisono.lake.remedies import remedy
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS
from unisono.lake.table import Table
from unisono.lake.write import DataFile
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel, in_force
from unisono.pipeline.jobs.audit.findings import FindingTally
from unisono.pipeline.jobs.audit.read_file import UNREADABLE, has_statistics
from unisono.pipeline.jobs.audit.result import AuditStep
from unisono.pipeline.jobs.audit.snapshot_replay import (
    ReplayResult,
    StateTask,
    SurveyTask,
    replay_subset,
    sample_of,
    survey,
)
from unisono.pipeline.jobs.audit.tasks import AuditOutcome, Scope
from unisono.pipeline.open_log import open_reader, readers_at_once
from unisono.pipeline.progress import Notify
from unisono.pipeline.spark.executors import parallelism, run_on_executors, tasks_worthwhile
from unisono.pipeline.task_planning import FilesByBucket, plan_tasks
from unisono.store.maintenance import NO_MODEL_VERSION
from unisono.store.port import StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


EVENTS_SURVEYED: Final = 2_000_000
"""Worth a Spark task: of so many events names and ids are read in half a second."""

BUCKETS_REPLAYED: Final = 4
"""Worth a Spark task: a default sample has some six partitions in each of sixteen buckets."""

EVENTS_REPLAYED: Final = 1 << 20
"""Given to `plan_tasks` where all snapshots are replayed: enough to make each bucket a subset of its own, so that a
damaged file keeps only its own partitions from being replayed."""

_LAST_NAME: Final = "\U0010ffff"

_REMEDIES: Final = {
    SNAPSHOTS: "`unisono lake snapshot --rebuild` folds all snapshots again",
    BY_PARTITION: remedy(BY_PARTITION),
}


def replay_snapshots(
    spark: SparkSession,
    scope: Scope,
    files: Sequence[DataFile],
    states: Table | None,
    sample: int | None,
    outcome: AuditOutcome,
    notify: Notify,
) -> list[AuditStep]:
    """Replay the snapshots of `sample` partitions, or of all (None), by model version. Whether all events are in
    snapshots, and whether the log's go past its head, is asked of all partitions, also where none is replayed.

    `states`: the table of snapshots, which records how far all partitions are folded.
    """
    explained = outcome.at_fault | {file.path for file in files if not has_statistics(file)}
    files = [_findable(file) for file in files]
    own = [file for file in files if file.table == SNAPSHOTS]
    models, current = _available_models(scope)
    checked = []
    for version in sorted({file.model_version or 0 for file in own} | set(models)):
        store = None
        if current is not None and version == current.version and _has_snapshots(scope.store, current):
            store = scope.store
        upto = 0 if states is None else states.folded_upto(version)
        if store is None and not upto and all((file.model_version or 0) != version for file in own):
            continue
        digest = "" if current is None else current.stored_digest
        events = max(scope.head, EVENTS_REPLAYED) if sample is None else scope.head
        tasks = _tasks(spark, scope, files, events, version, models.get(version), store, upto, digest)
        notify(f"replaying snapshots of model version {version}")
        done: list[tuple[StateTask, ReplayResult]] = []
        if sample is not None:
            surveys = _surveys(tasks, scope, sample)
            surveyed: list[tuple[ReplayResult, list[bytes]]] = run_on_executors(
                spark, surveys, survey, at_once=tasks_worthwhile(spark, scope.head, EVENTS_SURVEYED)
            )
            done += ((one.of, part) for one, (part, _) in zip(surveys, surveyed, strict=True))
            names = sample_of({name for _, some in surveyed for name in some}, sample, scope.placed_to)
            tasks = _named(tasks[0], scope, files, names)
        at_once = len(tasks) if sample is None else tasks_worthwhile(spark, len(tasks), BUCKETS_REPLAYED)
        if store is not None:
            at_once = min(at_once, readers_at_once(store) or at_once)
        replayed = run_on_executors(spark, tasks, replay_subset, at_once=at_once)
        done += zip(tasks, replayed, strict=True)
        for _, part in done:
            outcome.tally.merge(part.tally)
        _report_unread(version, done, explained, outcome.tally)
        if any(part.partitions or part.unread for _, part in done):
            checked.append(_step_of(version, version in models, [part for _, part in done]))
    return checked


def _findable(file: DataFile) -> DataFile:
    """A file without statistics may have rows of any partition: none of those that it may have can be replayed,
    since readers refuse it."""
    if file.table == LOG or (has_statistics(file) and file.first_id):
        return file
    return msgspec.structs.replace(
        file, first_id=0, last_id=EVERY_ID.upto, first_partition="", last_partition=_LAST_NAME
    )


def _report_unread(
    version: int, done: Sequence[tuple[StateTask, ReplayResult]], explained: Set[str], tally: FindingTally
) -> None:
    """Where snapshots were not compared, the history cannot be called sound: a finding, unless one that is an error
    names a file already. One of another program is no error, and readers may refuse it."""
    told: dict[tuple[str, str], int | None] = {}
    for task, part in done:
        for table in part.unread:
            files = task.snapshots if table == SNAPSHOTS else task.events
            if explained.isdisjoint(stored_paths(files)):
                first = min(files, key=is_own, default=None)
                told[table, "" if first is None else first.path] = None if first is None else first.first_id
    for (table, path), first_id in sorted(told.items()):
        message = (
            f"those of model version {version} cannot be compared with a replay: {table}/{path} cannot be "
        )
        tally.add("snapshot", f"{message}read in order; {_REMEDIES[table]}", first_id)


def _available_models(scope: Scope) -> tuple[dict[int, ShippedModel], ShippedModel | None]:
    """The available models by version, and the model of the log's own snapshots."""
    models = {NO_MODEL_VERSION: ShippedModel.open()}
    current = None
    if scope.store is not None:
        try:
            current = in_force(scope.store)
        except (PipelineError, StorageError):
            current = None  # a log that can be read and not maintained: its snapshots are not checked
        else:
            models[current.version] = current
    if scope.model is not None:
        models[scope.model.version] = scope.model
    return models, current


def _has_snapshots(store: str | None, model: ShippedModel) -> bool:
    reader: Any = open_reader(str(store))
    try:
        return next(reader.watermarks(model.version, model.stored_digest), None) is not None
    except StorageError:
        return True  # reading them reports the error
    finally:
        reader.close()


def _tasks(
    spark: SparkSession,
    scope: Scope,
    files: Sequence[DataFile],
    count: int,
    version: int,
    model: ShippedModel | None,
    store: str | None,
    folded: int,
    digest: str,
) -> list[StateTask]:
    events = [file for file in files if file.table == BY_PARTITION]
    own = [file for file in files if file.table == SNAPSHOTS and (file.model_version or 0) == version]
    subsets = _subsets(spark, scope, events, count)
    events_of, snapshots_of = FilesByBucket(events), FilesByBucket(own)
    return [
        StateTask(
            scope.storage,
            version,
            model,
            subset,
            scope.placed_to,
            events_of.of(subset),
            snapshots_of.of(subset),
            store,
            folded,
            digest,
        )
        for subset in subsets
    ]


def _subsets(
    spark: SparkSession, scope: Scope, events: Sequence[DataFile], count: int
) -> list[PartitionSubset]:
    try:
        planned = plan_tasks(scope.storage, events, scope.buckets, count, parallelism(spark))
        return [part.subset for part in planned]
    except (*UNREADABLE, LakeUnusable, AttributeError):  # a finding already, of the file
        return [PartitionSubset(scope.buckets, (bucket,)) for bucket in range(scope.buckets)]


def _surveys(tasks: Sequence[StateTask], scope: Scope, sample: int) -> list[SurveyTask]:
    surveys = [SurveyTask(task, task.subset, sample) for task in tasks]
    if tasks[0].store is None:
        return surveys
    everywhere = msgspec.structs.replace(
        tasks[0], subset=PartitionSubset(scope.buckets), events=(), snapshots=()
    )
    return [SurveyTask(everywhere, None, sample), *surveys]


def _named(
    task: StateTask, scope: Scope, files: Sequence[DataFile], names: Sequence[bytes]
) -> list[StateTask]:
    """Tasks like this one that replay the named partitions, those of a bucket together."""
    events_of = FilesByBucket([file for file in files if file.table == BY_PARTITION])
    own = [file for file in files if file.table == SNAPSHOTS and (file.model_version or 0) == task.version]
    snapshots_of = FilesByBucket(own)
    by_bucket: dict[int, list[bytes]] = {}
    for name in sorted(names):
        by_bucket.setdefault(bucket_of(name.decode(), scope.buckets), []).append(name)
    subsets = [
        NamedPartitions(scope.buckets, (bucket,), names=tuple(some))
        for bucket, some in sorted(by_bucket.items())
    ]
    return [
        msgspec.structs.replace(
            task, subset=subset, events=events_of.of(subset), snapshots=snapshots_of.of(subset)
        )
        for subset in subsets
    ]


def _step_of(version: int, replayed: bool, parts: Sequence[ReplayResult]) -> AuditStep:
    partitions, moved = sum(part.partitions for part in parts), sum(part.moved for part in parts)
    unread = sum(part.unread.total() for part in parts)
    note = f"of {partitions} partitions"
    if replayed:
        note += f", {sum(part.events for part in parts)} events"
    else:
        note += "; not replayed, because this model is not available: give it with --model"
    if unread + moved:
        note += f"; {unread + moved} could not be read completely"
    what = (
        f"snapshots of model version {version} against a replay"
        if replayed
        else f"snapshots of model version {version}"
    )
    return AuditStep(what, sum(part.snapshots for part in parts), "snapshots", note=note)
