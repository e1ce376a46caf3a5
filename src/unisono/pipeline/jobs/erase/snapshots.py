"""Replaces snapshots after an erasure: drops those of the affected partitions and folds them again.

A state cannot be split by event, so every snapshot of a partition with an erased event is dropped, of any model
version. Those of the model in force are folded again from the lake, which has tombstones by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from unisono.lake.commit_retry import retry_on_conflict
from unisono.lake.lake import Lake
from unisono.lake.merge import EVERY_ID
from unisono.lake.scan import files_with
from unisono.lake.snapshots import Snapshots, files_of
from unisono.lake.storage import SNAPSHOTS
from unisono.pipeline.job_model import ShippedModel, stored_digest
from unisono.pipeline.jobs.snapshot.drop import drop_snapshots
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.store.batching import in_batches
from unisono.store.port import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUBLISHED_AT_ONCE: Final = 1_000
PUBLISHED_BYTES: Final = 16 << 20
"""Snapshots per call to the log, which splits them into short transactions."""


def drop_states(spark: SparkSession, lake: Lake, names: Sequence[str]) -> int:
    """Remove the lake's snapshots of these partitions; returns their number.

    A concurrent snapshot run may have read erased content. There is always a commit, so that its own fails.
    """

    def drop_and_commit() -> int:
        table = lake.find(SNAPSHOTS)
        if table is None:
            return 0
        gone = drop_snapshots(spark, lake, names)
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


@contextmanager
def folded_states(
    lake: Lake, model_version: int, names: Sequence[str]
) -> Iterator[Callable[[Iterable[str]], Iterator[list[Snapshot]]]]:
    """Opens the newest snapshots of these partitions, for a function from some of the names to their snapshots.

    It gives them as the log stores them, in batches; fastest when it is called for ascending names.
    """
    table = lake.find(SNAPSHOTS)
    own = [] if table is None else files_of(table.files(), model_version)
    if table is not None:
        own = files_with(own, table.description().buckets, names, -1, EVERY_ID.upto)
    with Snapshots.opened(lake.storage, own) as snapshots:

        def stored(some: Iterable[str]) -> Iterator[list[Snapshot]]:
            encoded = sorted({name.encode() for name in some})
            rows = (row for name in encoded if (row := snapshots.latest(name)) is not None)
            for batch in in_batches(
                rows, lambda row: len(row.state), count_max=PUBLISHED_AT_ONCE, bytes_max=PUBLISHED_BYTES
            ):
                yield [
                    Snapshot(
                        row.partition,
                        row.committed_id,
                        model_version,
                        row.state,
                        row.created_at,
                        stored_digest(row.model_digest),
                    )
                    for row in batch
                ]

        yield stored
