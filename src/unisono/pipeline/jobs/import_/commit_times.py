"""The times at which rows are going to be committed, settled before rows are judged by rules that read them.

A log's times never go back, so the time of a row depends on all rows before it. Which of these will be refused is not
known yet, so refused rows count, too; only rows with the id of an earlier one do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unisono.pipeline.jobs.import_.repeats import keyed, rows_of_split, write_by_split

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Times = dict[int, int]
"""By row: the time of its commit, where that is not its own time."""


class CommitTimes(msgspec.Struct, frozen=True):
    """The folder of the times that differ from those of their rows, and between which all times are."""

    folder: str
    earliest_ms: int
    latest_ms: int


def settle_times(
    spark: SparkSession, keys: Sequence[str], order: str | None, repeats: str, times: CommitTimes, files: int
) -> None:
    """Write the time of each row of `keys` whose own one is before its predecessor's, outside the bounds or missing.

    One task sorts all rows, of 24 bytes each. `order` and `files` are those of `find_repeats`, which wrote `repeats`.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    repeated = spark.read.schema("source BIGINT").parquet(repeats)
    frame = keyed(spark, keys, order).select("key", "source", "time").join(repeated, "source", "left_anti")
    so_far = Window.orderBy("key", "source").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # Both pass over nulls: rows without a time before the first one that has one.
    settled = F.least(
        F.greatest(F.max("time").over(so_far), F.lit(times.earliest_ms)), F.lit(times.latest_ms)
    )
    frame = frame.withColumn("committed_at", settled)
    frame = frame.where("time IS NULL OR time <> committed_at").select("source", "committed_at")
    write_by_split(frame, Path(times.folder), files, "import.times")


def read_times(folder: str, files: int, split: int) -> Times:
    """The times of one split; on an executor."""
    return dict(rows_of_split(folder, files, split))
