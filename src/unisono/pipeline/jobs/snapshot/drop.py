"""Removes the snapshots of some partitions from the lake, because their history changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.attempt_files import job_attempt, removed_unless_committed
from unisono.lake.columns import SNAPSHOT_SCHEMA
from unisono.lake.file_checks import RowOrder, open_checked
from unisono.lake.lake import Lake
from unisono.lake.row_groups import Footer
from unisono.lake.scan import NameIndex
from unisono.lake.storage import SNAPSHOTS, Storage
from unisono.lake.write import DataFile, FileWriter, release_arrow_memory
from unisono.pipeline.spark.executors import run_on_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DropTask(msgspec.Struct, frozen=True):
    """One file of snapshots, and the names, as an Arrow array, of partitions it may have and must lose."""

    storage: Storage
    file: DataFile
    names: Any


class DropResult(msgspec.Struct, frozen=True):
    """The file with the remaining rows; None when none remain. Nothing is written when no row is `dropped`."""

    new: DataFile | None
    dropped: int


def drop_snapshots(spark: SparkSession, lake: Lake, names: Sequence[str]) -> int:
    """Remove all snapshots of these partitions, of any model version; rewrites only files that have some.

    The next run folds them from their first event. Returns the number of rows removed.
    """
    table = lake.find(SNAPSHOTS)
    if table is None or not names:
        return 0
    index = NameIndex(names, table.description().buckets)
    with job_attempt(lake.storage) as storage:
        tasks = [
            DropTask(storage, file, pa.array([name.decode() for name in own], pa.string()))
            for file in table.files()
            if (own := index.in_file(file))
        ]
        done = list(zip(tasks, run_on_executors(spark, tasks, drop_from_file), strict=True))
        old = [task.file for task, result in done if result.dropped]
        new = [result.new for _, result in done if result.new is not None]
        dropped = sum(result.dropped for _, result in done)
        if dropped:
            folded = {file.model_version: 0 for file in old if file.model_version is not None}
            with removed_unless_committed(lake.storage, new):
                table.put_snapshots(new, folded, {"forgotten": dropped}, old=old)
    return dropped


@release_arrow_memory()
def drop_from_file(task: DropTask) -> DropResult:
    """On an executor: write the rows of other partitions, by row group."""
    file, order = task.file, RowOrder(task.file, repeats=True)
    with open_checked(task.storage, file) as parquet:
        groups = range(len(Footer(parquet.metadata)))
        named = [_is_named(parquet.read_row_group(number, columns=["partition"]), task) for number in groups]
        dropped = sum(pc.sum(mask).as_py() or 0 for mask in named)
        if not dropped:
            return DropResult(None, 0)
        writer = FileWriter(
            task.storage,
            SNAPSHOTS,
            file.bucket,
            model_version=file.model_version,
            model_digest=file.model_digest,
        )
        for number, mask in zip(groups, named, strict=True):
            rows = parquet.read_row_group(number, columns=SNAPSHOT_SCHEMA.names)
            order.follow(rows.column("committed_id"), rows.column("partition"))
            remaining = rows.filter(pc.invert(mask))
            if remaining.num_rows:
                writer.add(remaining)
    return DropResult(writer.close() if writer.rows else None, dropped)


def _is_named(rows: pa.Table, task: DropTask) -> Any:
    return pc.is_in(rows.column("partition"), value_set=task.names)
