"""The state of a partition at any past moment: the nearest snapshot before it, and a replay of the rest.

One partition needs no Spark; all partitions at once are a DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, SupportsIndex

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from unisono.display import utc_time
from unisono.lake.errors import ForeignFiles
from unisono.lake.file_checks import open_checked
from unisono.lake.lake import Lake, View
from unisono.lake.merge import PartitionSubset
from unisono.lake.row_groups import Footer
from unisono.lake.scan import files_with
from unisono.lake.snapshots import files_of
from unisono.lake.storage import SNAPSHOTS
from unisono.lake.write import DataFile
from unisono.model.pack import unpack
from unisono.pipeline.deep_json import state_text
from unisono.pipeline.errors import NoSuchMoment, NoSuchPartition
from unisono.pipeline.fold import FoldTask, PartitionFold, fold_names, fold_subset, normalise_names
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.spark.executors import parallelism, task_frame
from unisono.pipeline.task_planning import FilesByBucket, plan_tasks
from unisono.store.batching import in_batches
from unisono.vocabulary import JsonObject

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Moment = int | str | datetime
"""A committed_id, also as NumPy has it, or a time."""

STATES_SCHEMA: Final = "partition STRING, committed_id BIGINT, state STRING, events BIGINT, skipped BIGINT"

BATCH_BYTES: Final = 4 << 20
BATCH_ROWS: Final = 1_024
"""Bounds of one Arrow batch of a worker."""


class StateAt(msgspec.Struct, frozen=True):
    """A partition after its events up to `committed_id`; `replayed` of them came after the snapshot at `base`."""

    partition: str
    committed_id: int
    model_version: int
    events: int
    skipped: int
    base: int
    replayed: int
    state: JsonObject
    model_digest: str = ""


def state_at(lake: Lake | View, partition: str, model: ShippedModel, at: Moment | None = None) -> StateAt:
    """The state of one partition at a committed_id or a time (see `resolve_moment`), or where the lake ends."""
    (partition,) = normalise_names([partition])
    view = lake.view() if isinstance(lake, Lake) else lake
    upto = resolve_moment(view, at)
    own, _ = snapshots_of(view, model)
    task = FoldTask(
        view.storage,
        model,
        PartitionSubset(view.buckets),
        0,
        upto,
        tuple(files_with(view.partition_files, view.buckets, [partition], 0, upto)),
        tuple(files_with(own, view.buckets, [partition], -1, upto)),
        names=(partition,),
    )
    (folded,) = fold_names(task)
    if not folded.events and not _exists(view, partition):
        raise NoSuchPartition(f"no event of partition {partition!r} is in the lake")
    return StateAt(
        partition,
        upto,
        model.version,
        folded.events,
        folded.skipped,
        folded.base,
        folded.new,
        unpack(folded.state),
        model.digest,
    )


def states_at(
    spark: SparkSession, lake: Lake | View, at: Moment | None = None, *, model: ShippedModel
) -> DataFrame:
    """All partitions that have events by then, in the columns of STATES_SCHEMA: `committed_id` is the moment, `state`
    JSON text.
    """
    view = lake.view() if isinstance(lake, Lake) else lake
    upto = resolve_moment(view, at)
    own, folded = snapshots_of(view, model)
    # Where a partition has snapshots past `upto`, the one before may be older than `folded`.
    since = folded if all(file.last_id <= upto for file in own) else 0
    files = [file for file in view.partition_files if file.last_id > since and file.first_id <= upto]
    own = [file for file in own if file.first_id <= upto]
    cores = parallelism(spark)
    rows = sum(file.rows for file in (*files, *own))
    events, snapshots = FilesByBucket(files), FilesByBucket(own)
    tasks = [
        FoldTask(
            view.storage,
            model,
            part.subset,
            since,
            upto,
            events.of(part.subset),
            snapshots.of(part.subset),
        )
        for part in plan_tasks(view.storage, [*files, *own], view.buckets, rows, cores)
    ]
    return task_frame(spark, tasks, _batches, STATES_SCHEMA)


def resolve_moment(view: View, at: Moment | None) -> int:
    """The committed_id of a number, a time (UTC by default; a datetime, or ISO 8601), or the end.

    A time means the last event committed by then.
    """
    if at is None:
        return view.head
    if (number := _number(at)) is not None:
        if not 0 <= number <= view.head:
            raise NoSuchMoment(f"the lake ends at event {view.head}, {number} is requested")
        return number
    found = _last_committed_by(view, _milliseconds(at))
    if found is None:
        raise NoSuchMoment(
            f"no event was committed by {_time(at).isoformat()}: the lake's first one is later"
        )
    return found


def _number(at: Moment) -> int | None:
    if isinstance(at, SupportsIndex) or (isinstance(at, str) and at.strip().isdecimal()):
        return int(at)
    return None


def _time(at: Moment) -> datetime:
    try:
        when = at if isinstance(at, datetime) else datetime.fromisoformat(str(at).strip())
    except ValueError:
        raise NoSuchMoment(
            f"{at!r} is neither a committed_id nor a time as in 2026-01-31T12:00:00Z"
        ) from None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def _milliseconds(at: Moment) -> int:
    return int(_time(at).timestamp() * 1000)


def after_end_note(view: View, at: Moment | None) -> str | None:
    """A warning when the time is after the lake's last event: later events may not be exported yet."""
    if at is None or _number(at) is not None or resolve_moment(view, at) < view.head:
        return None
    batches = view.scan_arrow(None, view.head - 1, columns=["status_updated_at"])
    (last,) = (time for batch in batches for time in batch.column(0).to_pylist())
    if _milliseconds(at) <= last:
        return None
    ended = utc_time(last)
    return (
        f"the lake ends at event {view.head}, committed at {ended}: what came after it is not in this answer"
    )


def snapshots_of(view: View, model: ShippedModel) -> tuple[list[DataFile], int]:
    """The files with snapshots of a model, and the id up to which they cover all partitions.

    Snapshots of another content of the same version are not used.
    """
    table = Lake(view.storage).find(SNAPSHOTS)
    if table is None or table.description().buckets != view.buckets:
        return [], 0
    try:
        files = files_of(table.readable_files(), model.version)
    except ForeignFiles:  # nothing can tell whether these are the states that were folded
        return [], 0
    if any(file.model_digest != model.digest for file in files):
        return [], 0
    return files, table.folded_upto(model.version)


def _batches(task: FoldTask) -> Iterator[pa.RecordBatch]:
    """On an executor: the states of one subset."""
    for batch in in_batches(
        fold_subset(task, unchanged=True),
        lambda folded: len(folded.state),
        count_max=BATCH_ROWS,
        bytes_max=BATCH_BYTES,
    ):
        yield _batch(batch, task.upto)


def _batch(batch: list[PartitionFold], upto: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([folded.partition for folded in batch], pa.string()),
            "committed_id": pa.array([upto] * len(batch), pa.int64()),
            "state": pa.array([state_text(folded.state) for folded in batch], pa.string()),
            "events": pa.array([folded.events for folded in batch], pa.int64()),
            "skipped": pa.array([folded.skipped for folded in batch], pa.int64()),
        }
    )


def _exists(view: View, partition: str) -> bool:
    return any(batch.num_rows for batch in view.scan_arrow([partition], columns=["committed_id"], limit=1))


def _last_committed_by(view: View, when_ms: int) -> int | None:
    """The last event committed by a time, from the statistics of files and row groups, newest first."""
    for file in reversed(view.log_files):
        if file.times is not None and file.times[0] > when_ms:
            continue
        with open_checked(view.storage, file) as parquet:
            footer = Footer(parquet.metadata)
            for group in reversed(range(len(footer))):
                times = footer.bounds(group, "status_updated_at")
                if times is not None and times[0] > when_ms:
                    continue
                rows = parquet.read_row_group(group, columns=["committed_id", "status_updated_at"])
                early = rows.filter(pc.less_equal(rows.column("status_updated_at"), when_ms))
                return int(pc.max(early.column("committed_id")).as_py())
    return None
