"""Replaces snapshots after an erasure: drops those of the affected partitions and folds them again.

A state cannot be split by event, so every snapshot of a partition with an erased event is dropped, of any model
version. Those of the model in force are folded again from the lake, which has tombstones by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from unisono.lake.commit_retry import retry_on_conflict
from unisono.lake.lake import Lake
from unisono.lake.merge import EVERY_ID
from unisono.lake.scan import files_with
from unisono.lake.snapshots import Snapshots, files_of
from unisono.lake.storage import SNAPSHOTS
from unisono.pipeline.job_model import ShippedModel, stored_digest
from unisono.pipeline.jobs.snapshot.job import drop_snapshots, snapshot
from unisono.store.port import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUBLISHED_AT_ONCE: Final = 64
"""Snapshots per call to the log."""


def drop_states(lake: Lake, names: Sequence[str]) -> int:
    """Remove the lake's snapshots of these partitions; returns their number.

    A concurrent snapshot run may have read erased content. There is always a commit, so that its own fails.
    """

    def drop_and_commit() -> int:
        table = lake.find(SNAPSHOTS)
        if table is None:
            return 0
        gone = drop_snapshots(lake, names)
        if not gone:
            table.put_snapshots([], {}, {"forgotten": 0})
        return gone

    return retry_on_conflict(drop_and_commit)


def fold_again(
    spark: SparkSession, lake: Lake, model: ShippedModel, names: Sequence[str], reached: int
) -> None:
    """Fold these partitions again; `reached`: the id up to which all partitions were folded before."""
    snapshot(spark, lake, model, partitions=names)
    table = lake.find(SNAPSHOTS)
    if table is not None and reached and not table.folded_upto(model.version):
        table.put_snapshots([], {model.version: reached}, {"folded again": len(names)})


def states_of(lake: Lake, model_version: int, names: Sequence[str]) -> Iterator[list[Snapshot]]:
    """The newest snapshots of these partitions as the log stores them, in batches."""
    table = lake.find(SNAPSHOTS)
    if table is None:
        return
    buckets = table.description().buckets
    own = files_with(files_of(table.files(), model_version), buckets, names, -1, EVERY_ID.upto)
    batch: list[Snapshot] = []
    with Snapshots.opened(lake.storage, own) as snapshots:
        for name in sorted(set(names), key=str.encode):
            row = snapshots.latest(name.encode())
            if row is not None:
                digest = stored_digest(row.model_digest)
                batch.append(
                    Snapshot(name, row.committed_id, model_version, row.state, row.created_at, digest)
                )
            if len(batch) == PUBLISHED_AT_ONCE:
                yield batch
                batch = []
    if batch:
        yield batch
