"""The pipeline from Python: thin functions over the jobs, for notebooks and schedulers.

`lake` is a directory, the URL of an object store, or a `Lake`. `store` is a log: `sqlite:DIRECTORY`, a directory, or
`postgresql://…`. `model` is a directory, "open", or a `ShippedModel`; without one, the model in force at `store`.
Directories may be `Path`s. All of them work on a classic session and on Spark Connect.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from unisono.lake.lake import Lake
from unisono.lake.table import BUCKETS
from unisono.pipeline.errors import NoModel, NoSuchRange, PipelineError
from unisono.pipeline.job_model import ShippedModel, choose
from unisono.pipeline.jobs.audit.job import SAMPLE, AuditOptions
from unisono.pipeline.jobs.audit.job import audit as audit_job
from unisono.pipeline.jobs.compact.foreign_files import rewrite_foreign_files
from unisono.pipeline.jobs.export.job import EVENTS_PER_FILE, ExportResult
from unisono.pipeline.jobs.export.job import export as export_job
from unisono.pipeline.jobs.past.job import Moment, state_at
from unisono.pipeline.jobs.past.job import states_at as states_at_job
from unisono.pipeline.jobs.snapshot.frames import newest_snapshots
from unisono.pipeline.jobs.snapshot.in_force import record_in_force
from unisono.pipeline.jobs.snapshot.job import SnapshotResult
from unisono.pipeline.jobs.snapshot.job import snapshot as snapshot_job
from unisono.pipeline.open_log import normal_uri
from unisono.pipeline.origin_check import model_of_log, require_same_model, require_source
from unisono.pipeline.spark import frames
from unisono.pipeline.spark.cluster import require_visible
from unisono.pipeline.spark.private import is_stopped
from unisono.pipeline.spark.session import session
from unisono.pipeline.spark.source import UnisonoSource
from unisono.pipeline.spark.times import COMMITTED_AT
from unisono.pipeline.state_diff import StateChange, changes
from unisono.pipeline.views import create_catalog_tables, create_temporary_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from unisono.pipeline.jobs.audit.result import AuditReport

__all__ = [
    "audit",
    "create_tables",
    "create_views",
    "diff",
    "export",
    "make_snapshots",
    "read_log",
    "read_partitions",
    "register",
    "session",
    "snapshots",
    "states_at",
]

LocalPath = str | os.PathLike[str]
LakePlace = Lake | LocalPath
Options = Mapping[str, str]
_NO_OPTIONS: Final[Options] = {}


def register(spark: SparkSession) -> SparkSession:
    """Make `format("unisono")` known to this session, for reads, writes and streams; returns the session."""
    spark.dataSource.register(UnisonoSource)
    return spark


def export(
    spark: SparkSession,
    store: LocalPath,
    lake: LakePlace,
    *,
    to: int | None = None,
    events_per_file: int = EVENTS_PER_FILE,
    storage_options: Options = _NO_OPTIONS,
) -> ExportResult:
    """Copy what the lake lacks, each event exactly once; makes the lake if there is none."""
    if to is not None and to < 0:
        raise NoSuchRange(f"to must be a committed_id, 0 or more, not {to}")
    if events_per_file < 1:
        raise PipelineError(f"events_per_file must be a whole number from 1 on, not {events_per_file}")
    target, uri = _lake(lake, storage_options), normal_uri(store)
    require_source(uri, target, to)
    if is_stopped(spark):
        raise PipelineError("the Spark session has stopped: make another one, pipeline.session()")
    require_visible(spark, uri)
    target.make(BUCKETS)
    rewrite_foreign_files(spark, target)
    return export_job(spark, uri, target, to=to, events_per_file=events_per_file)


def read_log(
    spark: SparkSession,
    lake: LakePlace,
    since: int = 0,
    upto: int | None = None,
    *,
    storage_options: Options = _NO_OPTIONS,
) -> DataFrame:
    """The lake's events with `since < committed_id <= upto`, one row each; `committed_at` is their time."""
    return _timed(frames.read_log(spark, _lake(lake, storage_options), since, upto))


def read_partitions(
    spark: SparkSession,
    lake: LakePlace,
    names: str | Sequence[str] | None = None,
    since: int = 0,
    upto: int | None = None,
    *,
    storage_options: Options = _NO_OPTIONS,
) -> DataFrame:
    """The lake's events of one partition, of several, or of all, one row for each partition of an event."""
    return _timed(frames.read_partitions(spark, _lake(lake, storage_options), names, since, upto))


def create_views(
    spark: SparkSession, lake: LakePlace, *, prefix: str = "", storage_options: Options = _NO_OPTIONS
) -> list[str]:
    """Temporary views of the lake as it is now, in the session's catalog; returns their names.

    `events`, `partition_events`, `states`, `items`, `runs` and `audit`, each after `prefix`.
    """
    return create_temporary_views(spark, *_place(lake, storage_options), prefix)


def create_tables(
    spark: SparkSession,
    lake: LakePlace,
    *,
    database: str | None = None,
    prefix: str = "",
    storage_options: Options = _NO_OPTIONS,
) -> list[str]:
    """The same as tables that stay in the session's catalog and show the lake as it is at each query.

    Tables of an earlier call are made again. A catalog keeps the options, so none may hold a secret.
    """
    return create_catalog_tables(spark, *_place(lake, storage_options), database, prefix)


def states_at(
    spark: SparkSession,
    lake: LakePlace,
    at: Moment | None = None,
    *,
    model: ShippedModel | LocalPath | None = None,
    store: LocalPath | None = None,
    storage_options: Options = _NO_OPTIONS,
) -> DataFrame:
    """The states of all partitions at a committed_id, a time (a datetime, or ISO 8601; UTC unless it
    says otherwise) or the lake's end, as JSON text."""
    target = _lake(lake, storage_options)
    return states_at_job(spark, target, at, model=_model(target, model, store))


def snapshots(
    spark: SparkSession,
    lake: LakePlace,
    *,
    model: ShippedModel | LocalPath | None = None,
    store: LocalPath | None = None,
    storage_options: Options = _NO_OPTIONS,
) -> DataFrame:
    """The newest snapshot of each partition in the lake; their states as JSON text."""
    target = _lake(lake, storage_options)
    return newest_snapshots(spark, target, _model(target, model, store))


def make_snapshots(
    spark: SparkSession,
    lake: LakePlace,
    *,
    model: ShippedModel | LocalPath | None = None,
    store: LocalPath | None = None,
    partitions: str | Sequence[str] | None = None,
    storage_options: Options = _NO_OPTIONS,
) -> SnapshotResult:
    """Fold what is new in the lake into snapshots of all partitions, of one, or of several."""
    target = _lake(lake, storage_options)
    names = [partitions] if isinstance(partitions, str) else partitions
    rewrite_foreign_files(spark, target)
    chosen = _model(target, model, store)
    done = snapshot_job(spark, target, chosen, partitions=names)
    if model is None and names is None:
        record_in_force(target, chosen.version)
    return done


def diff(
    lake: LakePlace,
    partition: str,
    since: Moment,
    upto: Moment | None = None,
    *,
    model: ShippedModel | LocalPath | None = None,
    store: LocalPath | None = None,
    storage_options: Options = _NO_OPTIONS,
) -> list[StateChange]:
    """What changed in a partition between two moments; needs no Spark."""
    target = _lake(lake, storage_options)
    chosen, view = _model(target, model, store), target.view()
    old, new = (state_at(view, partition, chosen, at) for at in (since, upto))
    return list(changes(old.state, new.state))


def audit(
    spark: SparkSession,
    lake: LakePlace,
    store: LocalPath | None = None,
    *,
    sample: int | None = SAMPLE,
    model: ShippedModel | LocalPath | None = None,
    storage_options: Options = _NO_OPTIONS,
) -> AuditReport:
    """Check the whole history in the lake, and against the log where one is named.

    `sample`: partitions whose snapshots are replayed, None for all. `model`: also judge every event by it.
    """
    target, uri = _lake(lake, storage_options), None if store is None else normal_uri(store)
    options = AuditOptions(sample, None if model is None else _model(target, model, uri))
    if uri is not None:
        require_visible(spark, uri)
    return audit_job(spark, target, uri, options)


def _timed(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return rows.withColumn(COMMITTED_AT, f.timestamp_millis("status_updated_at"))


def _lake(lake: LakePlace, storage_options: Options) -> Lake:
    return lake if isinstance(lake, Lake) else Lake.at(os.fspath(lake), dict(storage_options))


def _place(lake: LakePlace, storage_options: Options) -> tuple[str, Options]:
    """A lake's location and the options that were given for it, without those that are found by themselves."""
    if isinstance(lake, Lake):
        return lake.storage.location, lake.storage.options
    return _lake(lake, storage_options).storage.location, storage_options


def _model(lake: Lake, model: ShippedModel | LocalPath | None, store: LocalPath | None) -> ShippedModel:
    if isinstance(model, ShippedModel):
        chosen = model
    elif model is not None:
        chosen = choose(os.fspath(model), None)
    elif store is not None:
        chosen = model_of_log(normal_uri(store), lake)
    else:
        raise NoModel('no model given: model=DIRECTORY, model="open", or store= the log that has one')
    require_same_model(lake, chosen)
    return chosen
