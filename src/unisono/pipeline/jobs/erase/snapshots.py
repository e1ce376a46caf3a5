"""Replaces snapshots after an erasure: drops those of the affected partitions and folds them again.

A state cannot be split by event, so every snapshot of a partition with an erased event is dropped, of any model
version. Those of the model in force are folded again from the lake, which has tombstones by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from unisono.lake.commit_retry import retry_on_conflict
from unisono.lake.lake import Lake
from unisono.lake.merge import EVERY_ID
from unisono.lake.scan import files_with
from unisono.lake.snapshots import Snapshots, files_of
from unisono.lake.storage import SNAPSHOTS
from unisono.pipeline.job_model import ShippedModel, stored_digest
from unisono.pipeline.jobs.snapshot.drop import drop_snapshots
from unisono.pipeline.jobs.snapshot.job import not_folds, snapshot
from unisono.store.batching import in_batches
from unisono.store.port import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUBLISHED_AT_ONCE: Final = 1_000
PUBLISHED_BYTES: Final = 16 << 20
"""Snapshots per call to the log, which splits them into short transactions."""


class BeforeDrop(msgspec.Struct, frozen=True):
    """The lake's snapshots before some were dropped: the id up to which all partitions were folded, and how many
    commits had done more than add some."""

    folded_upto: int
    not_folds: int


def drop_states(
    spark: SparkSession, lake: Lake, names: Sequence[str], model: ShippedModel | None = None
) -> BeforeDrop:
    """Remove the lake's snapshots of these partitions, of any model version; returns how far `model` had folded all.

    A concurrent snapshot run may have read erased content. There is always one commit, so that its own fails.
    """

    def drop_and_commit() -> BeforeDrop:
        table = lake.find(SNAPSHOTS)
        if table is None:
            return BeforeDrop(0, 0)
        reached = 0 if model is None else table.folded_upto(model.version)
        before = BeforeDrop(reached, not_folds(table))
        if not drop_snapshots(spark, lake, names):
            table.put_snapshots([], {}, {"forgotten": 0})
        return before

    return retry_on_conflict(drop_and_commit)


def fold_again(
    spark: SparkSession, lake: Lake, model: ShippedModel, names: Sequence[str], before: BeforeDrop
) -> None:
    """Fold these partitions again. All are folded up to where they were, unless others were removed meanwhile."""
    snapshot(spark, lake, model, partitions=names)

    def restore_mark() -> None:
        table = lake.find(SNAPSHOTS)
        if (
            table is not None
            and not_folds(table) == before.not_folds + 1  # the drop itself
            and table.folded_upto(model.version) < before.folded_upto
        ):
            table.put_snapshots([], {model.version: before.folded_upto}, {"folded again": len(names)})

    retry_on_conflict(restore_mark)


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
