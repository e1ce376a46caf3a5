"""The lake's newest snapshots as a DataFrame: executors merge the files of one bucket each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from unisono.lake.lake import Lake
from unisono.lake.merge import PartitionSubset
from unisono.lake.snapshots import Snapshots, StateRow, files_of
from unisono.lake.storage import SNAPSHOTS, Storage
from unisono.lake.table import Table
from unisono.lake.write import DataFile
from unisono.pipeline.deep_json import state_text
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.snapshot.job import by_bucket, folded_to
from unisono.pipeline.spark.executors import task_frame
from unisono.store.batching import in_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SNAPSHOTS_SCHEMA: Final = (
    "partition STRING, committed_id BIGINT, model_version BIGINT, state STRING, events BIGINT, skipped BIGINT, "
    "created_at BIGINT"
)

BATCH_BYTES: Final = 4 << 20
BATCH_ROWS: Final = 1_024
"""Bounds of one Arrow batch of a worker."""


class _BucketTask(msgspec.Struct, frozen=True):
    storage: Storage
    subset: PartitionSubset
    files: tuple[DataFile, ...]
    model_version: int
    upto: int


def newest_snapshots(spark: SparkSession, lake: Lake, model: ShippedModel) -> DataFrame:
    """The newest snapshot of each partition, in the columns of SNAPSHOTS_SCHEMA; `created_at` in milliseconds.

    PipelineError when there are none, only those of other models, or of some partitions.
    """
    folded_to(lake, model)  # refuses snapshots of another content of the same version
    table, head = lake.find(SNAPSHOTS), lake.head()
    if table is not None:
        require_model_version(table.readable_files(), model.version)
    require_all_folded(table, model.version, head)
    buckets = [] if table is None else list(by_bucket(table, model.version))
    tasks = [
        _BucketTask(lake.storage, subset, tuple(files), model.version, head) for subset, files in buckets
    ]
    return task_frame(spark, tasks, _newest, SNAPSHOTS_SCHEMA)


def require_model_version(files: Sequence[DataFile], version: int) -> None:
    """Refuse a model version of which these files of the table `snapshots` have nothing, if they have others."""
    versions = {file.model_version or 0 for file in files}
    if versions and version not in versions:
        there = ", ".join(map(str, sorted(versions)))
        raise PipelineError(
            f"the lake has no snapshots of model version {version}; there are those of {there}: "
            "`unisono lake snapshot` folds them"
        )


def require_all_folded(table: Table | None, version: int, upto: int) -> None:
    """Refuse the snapshots of a model version that may be of some partitions only: a first fold did not reach its
    end, an erasure removed some, or only named ones were folded. And refuse to show none of events up to `upto`.
    """
    require_some_folded(table, version, upto)
    if upto and table is not None and not table.folded_upto(version):
        raise PipelineError(
            f"the lake's snapshots of model version {version} are of some partitions only: `unisono lake snapshot` "
            "folds the others, and the option partitions reads those that it names"
        )


def require_some_folded(table: Table | None, version: int, upto: int) -> None:
    """Refuse to show no state at all of events up to `upto`: nothing was folded, or a new fold has only begun."""
    if not upto or (table is not None and table.folded_upto(version)):
        return
    if table is None or not files_of(table.readable_files(), version):
        which = f" of model version {version}" if version else ""
        raise PipelineError(f"the lake has no snapshots{which}: `unisono lake snapshot` folds its events")


def _newest(task: _BucketTask) -> Iterator[pa.RecordBatch]:
    """On an executor: the newest rows of one bucket."""
    return state_batches(newest_states(task.storage, task.subset, task.files, task.upto), task.model_version)


def state_batches(rows: Iterable[StateRow], model_version: int) -> Iterator[pa.RecordBatch]:
    """Snapshots in the columns of SNAPSHOTS_SCHEMA."""
    for batch in in_batches(rows, lambda row: len(row.state), count_max=BATCH_ROWS, bytes_max=BATCH_BYTES):
        yield _batch(batch, model_version)


def newest_states(
    storage: Storage, subset: PartitionSubset, files: Sequence[DataFile], upto: int
) -> Iterator[StateRow]:
    """The newest snapshot of each partition of a subset up to an id, in the order of partitions."""
    with Snapshots.opened(storage, files, upto) as snapshots:
        for name, _ in snapshots.found(subset):
            yield _sound_row(snapshots, name)


def _sound_row(snapshots: Snapshots, name: bytes) -> StateRow:
    row = snapshots.latest(name)
    assert row is not None
    row.require_sound()
    return row


def _batch(rows: list[StateRow], model_version: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([row.partition for row in rows], pa.string()),
            "committed_id": pa.array([row.committed_id for row in rows], pa.int64()),
            "model_version": pa.array([model_version] * len(rows), pa.int64()),
            "state": pa.array([state_text(row.state) for row in rows], pa.string()),
            "events": pa.array([row.events for row in rows], pa.int64()),
            "skipped": pa.array([row.skipped for row in rows], pa.int64()),
            "created_at": pa.array([row.created_at for row in rows], pa.int64()),
        }
    )
