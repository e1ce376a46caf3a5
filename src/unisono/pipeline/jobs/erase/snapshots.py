"""Snapshots after an erasure: those of the partitions concerned go, and are folded anew from what is left.

A state cannot be taken apart into what each event put there, so every snapshot of a partition that had an erased
event is removed, of any model version. Those of the model in force are made again from the lake, which has tombstones
by then.
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
from unisono.pipeline.jobs.snapshot.job import forget, snapshot
from unisono.store.port import Snapshot

if TYPE_CHECKING:
    from pyspark import SparkContext

PUBLISHED_AT_ONCE: Final = 64
"""Snapshots in memory on their way to the log."""


def forget_states(lake: Lake, names: Sequence[str]) -> int:
    """Remove the lake's snapshots of these partitions; how many there were.

    A run that folds at this moment has perhaps read what was erased. There is a commit in any case, so that its own
    is refused.
    """

    def forget_all() -> int:
        table = lake.find(SNAPSHOTS)
        if table is None:
            return 0
        gone = forget(lake, names)
        if not gone:
            table.put_snapshots([], {}, {"forgotten": 0})
        return gone

    return retry_on_conflict(forget_all)


def fold_again(
    spark: SparkContext, lake: Lake, model: ShippedModel, names: Sequence[str], reached: int
) -> None:
    """Make snapshots of these partitions anew; `reached`: up to where all partitions had been folded before."""
    snapshot(spark, lake, model, partitions=names)
    table = lake.find(SNAPSHOTS)
    if table is not None and reached and not table.folded_upto(model.version):
        table.put_snapshots([], {model.version: reached}, {"folded again": len(names)})


def states_of(lake: Lake, model_version: int, names: Sequence[str]) -> Iterator[list[Snapshot]]:
    """The newest snapshots of these partitions as the log keeps them, some at a time."""
    table = lake.find(SNAPSHOTS)
    if table is None:
        return
    buckets = table.description().buckets
    own = files_with(files_of(table.files(), model_version), buckets, names, -1, EVERY_ID.upto)
    held: list[Snapshot] = []
    with Snapshots.opened(lake.storage, own) as snapshots:
        for name in sorted(set(names), key=str.encode):
            row = snapshots.latest(name.encode())
            if row is not None:
                digest = stored_digest(row.model_digest)
                held.append(
                    Snapshot(name, row.committed_id, model_version, row.state, row.created_at, digest)
                )
            if len(held) == PUBLISHED_AT_ONCE:
                yield held
                held = []
    if held:
        yield held
