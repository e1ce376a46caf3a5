"""Plans which snapshots are replayed, with which models, and merges the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from unisono.lake.merge import PartitionSubset
from unisono.lake.storage import BY_PARTITION, SNAPSHOTS
from unisono.lake.table import Table
from unisono.lake.write import DataFile
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel, in_force
from unisono.pipeline.jobs.audit.read_file import UNREADABLE
from unisono.pipeline.jobs.audit.result import AuditStep
from unisono.pipeline.jobs.audit.snapshot_replay import ReplayResult, StateTask, replay_subset
from unisono.pipeline.jobs.audit.tasks import AuditOutcome, Scope
from unisono.pipeline.open_log import open_reader
from unisono.pipeline.progress import Notify
from unisono.pipeline.spark.executors import parallelism, run_on_executors
from unisono.pipeline.task_planning import FilesByBucket, plan_tasks
from unisono.store.maintenance import NO_MODEL_VERSION
from unisono.store.port import StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS_PER_SUBSET: Final = 1 << 20
"""Given to `plan_tasks` when all snapshots are replayed: enough to make each bucket a subset of its own."""


def replay_snapshots(
    spark: SparkSession,
    scope: Scope,
    files: Sequence[DataFile],
    states: Table | None,
    sample: int | None,
    outcome: AuditOutcome,
    notify: Notify,
) -> list[AuditStep]:
    """Replay the snapshots of some partitions, or of all (`sample` None), by model version. Whether all events are in
    snapshots, and whether the log's go past its head, is asked of all partitions, also where none is replayed.

    `states`: the table of snapshots, which records how far all partitions are folded.
    """
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
        tasks = _tasks(spark, scope, files, version, models.get(version), sample, store, upto, digest)
        notify(f"replaying snapshots of model version {version}")
        parts: list[ReplayResult] = run_on_executors(spark, tasks, replay_subset)
        for part in parts:
            outcome.tally.merge(part.tally)
        if any(part.partitions or part.unread for part in parts):
            checked.append(_step_of(version, version in models, parts))
    return checked


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
    version: int,
    model: ShippedModel | None,
    sample: int | None,
    store: str | None,
    folded: int,
    digest: str,
) -> list[StateTask]:
    events = [file for file in files if file.table == BY_PARTITION]
    own = [file for file in files if file.table == SNAPSHOTS and (file.model_version or 0) == version]
    subsets = _subsets(spark, scope, events, sample)
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
            None if sample is None else -(-sample // len(subsets)),
            store,
            folded,
            digest,
        )
        for subset in subsets
    ]


def _subsets(
    spark: SparkSession, scope: Scope, events: Sequence[DataFile], sample: int | None
) -> list[PartitionSubset]:
    cores = parallelism(spark)
    if sample is None:
        try:
            count = max(scope.head, EVENTS_PER_SUBSET)
            return [part.subset for part in plan_tasks(scope.storage, events, scope.buckets, count, cores)]
        except (*UNREADABLE, AttributeError):
            return [PartitionSubset(scope.buckets, (bucket,)) for bucket in range(scope.buckets)]
    count = min(cores, scope.buckets, sample or cores)
    return [
        PartitionSubset(scope.buckets, tuple(range(number, scope.buckets, count))) for number in range(count)
    ]


def _step_of(version: int, replayed: bool, parts: Sequence[ReplayResult]) -> AuditStep:
    partitions, unread = sum(part.partitions for part in parts), sum(part.unread for part in parts)
    note = f"of {partitions} partitions"
    if replayed:
        note += f", {sum(part.events for part in parts)} events"
    else:
        note += "; not replayed, because this model is not available: give it with --model"
    if unread:
        note += f"; {unread} could not be read completely"
    what = (
        f"snapshots of model version {version} against a replay"
        if replayed
        else f"snapshots of model version {version}"
    )
    return AuditStep(what, sum(part.snapshots for part in parts), "snapshots", note=note)
