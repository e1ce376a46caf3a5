"""Deletes files of a lake that have erased content and that no table names any more.

They belong to older versions of a table, or to killed and refused jobs. Their content decides; a killed job may also
have left one half written, which nobody can read. A file that a running job has written and will commit is safe: an
export cannot add an erased event any more, and a compaction or a snapshot run that read one fails to commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from unisono.lake.errors import CommitConflict, LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS
from unisono.pipeline.jobs.erase.all_files import SearchedFile, UnreadableFile, lake_files, remove
from unisono.pipeline.jobs.erase.fragments import Pieces
from unisono.pipeline.jobs.erase.rewrite import TombstoneTimes, rewrite
from unisono.pipeline.jobs.erase.search import NONE_UNSEEN, Unseen, search
from unisono.pipeline.spark.executors import run_on_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS_MAX: Final = 5
"""Searches for such files; concurrent compactions may leave some again once or twice."""


def clear_events(
    spark: SparkSession,
    lake: Lake,
    erased: TombstoneTimes,
    partitions: Mapping[str, int],
    salt: bytes,
    unseen: Unseen = NONE_UNSEEN,
) -> tuple[int, frozenset[bytes]]:
    """Delete until no file of `log` or `by_partition` has erased content; the number deleted, and tokens of the
    unseen events in them.
    """
    removed, pieces = 0, frozenset[bytes]()
    for _ in range(ROUNDS_MAX):
        current = set(_current_files(lake, LOG)) | set(_current_files(lake, BY_PARTITION))
        places = [place for place in lake_files(lake.storage) if place.holds_events]
        traces = search(spark, places, erased, Pieces((), salt), unseen).traces
        # The final search tells of other files that cannot be read.
        traces = [trace for trace in traces if not trace.unreadable or trace.place.may_be_cut]
        if not traces:
            return removed, pieces
        for trace in traces:
            if trace.unreadable and trace.place.path in current:
                raise LakeUnusable(
                    f"{trace.place.location} cannot be read: run `unisono lake audit` for details"
                )
        pieces = pieces.union(*(trace.pieces for trace in traces))
        stale = [trace.place for trace in traces if trace.place.path not in current]
        for place in stale:
            remove(place)
        removed += len(stale)
        if len(stale) < len(traces):
            for name in (BY_PARTITION, LOG):
                rewrite(spark, lake, name, erased, partitions)
    raise CommitConflict(
        "other jobs keep writing files with erased events to the lake: run this again when they have ended"
    )


def clear_states(spark: SparkSession, lake: Lake, partitions: Mapping[str, int], before_ms: int) -> int:
    """Delete unnamed files with snapshots of these partitions from before `before_ms`; returns their number."""
    current = set(_current_files(lake, SNAPSHOTS))
    places = [place for place in lake_files(lake.storage) if place.holds_states and place.path not in current]
    if not places:
        return 0
    found = run_on_executors(spark, places, partial(_stale, sorted(partitions), before_ms))
    stale = [place for place in found if place]
    for place in stale:
        remove(place)
    return len(stale)


def _current_files(lake: Lake, name: str) -> Iterator[str]:
    """The paths, under the lake, of the current files of a table."""
    table = lake.find(name)
    if table is not None:
        yield from (f"{name}/{file.path}" for file in table.files())


def _stale(partitions: Sequence[str], before_ms: int, place: SearchedFile) -> SearchedFile | None:
    """On an executor: the file if it must be deleted."""
    names = pa.array(partitions, pa.string())
    try:
        rows = place.read(_names_and_times)
    except FileNotFoundError:
        return None
    except UnreadableFile:
        return place if place.may_be_cut else None
    concerned = pc.is_in(rows.column("partition"), value_set=names)
    old = pc.less(rows.column("created_at"), before_ms)
    return place if pc.any(pc.and_(concerned, old)).as_py() else None


def _names_and_times(source: Any) -> pa.Table:
    with pq.ParquetFile(source) as parquet:
        return parquet.read(["partition", "created_at"])
