"""Deleting the files of a lake that still hold what was erased though no table names them any more.

They are what a table's older versions consist of, and what killed or refused jobs left. Which ones, their content
decides. So a file that a job at work has written and will name is left alone: an export can no longer add any erased
event, a compaction that had read one is refused, and so is a run of snapshots that began before they were forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from unisono.lake.errors import CommitConflict
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS
from unisono.pipeline.jobs.erase.all_files import SearchedFile, lake_files, remove
from unisono.pipeline.jobs.erase.fragments import Pieces
from unisono.pipeline.jobs.erase.rewrite import TombstoneTimes, rewrite
from unisono.pipeline.jobs.erase.search import search

if TYPE_CHECKING:
    from pyspark import SparkContext

ROUNDS_MAX: Final = 5
"""Looks for such files; beside compactions there can be some again once or twice."""


def clear_events(
    spark: SparkContext, lake: Lake, erased: TombstoneTimes, partitions: Mapping[str, int], salt: bytes
) -> tuple[int, frozenset[bytes]]:
    """Until no file of the tables of events says anything of these: how many were deleted, and tokens of those."""
    removed, pieces = 0, frozenset[bytes]()
    for _ in range(ROUNDS_MAX):
        named = set(_named(lake, LOG)) | set(_named(lake, BY_PARTITION))
        places = [place for place in lake_files(lake.storage) if place.holds_events]
        traces = search(spark, places, erased, Pieces((), salt)).traces
        if not traces:
            return removed, pieces
        pieces = pieces.union(*(trace.pieces for trace in traces))
        stale = [trace.place for trace in traces if trace.place.path not in named]
        for place in stale:
            remove(place)
        removed += len(stale)
        if len(stale) < len(traces):
            for name in (BY_PARTITION, LOG):
                rewrite(spark, lake, name, erased, partitions)
    raise CommitConflict(
        "other jobs keep leaving files with erased events in the lake: run this again when they are done"
    )


def clear_states(spark: SparkContext, lake: Lake, partitions: Mapping[str, int], before_ms: int) -> int:
    """Delete unnamed files with snapshots of these partitions that were begun before `before_ms`; how many."""
    named = set(_named(lake, SNAPSHOTS))
    places = [place for place in lake_files(lake.storage) if place.holds_states and place.path not in named]
    if not places:
        return 0
    names = spark.broadcast(sorted(partitions))
    try:
        tasks = [_Look(place, names, before_ms) for place in places]
        stale = [place for place in spark.parallelize(tasks, len(tasks)).map(_stale).collect() if place]
    finally:
        names.destroy()
    for place in stale:
        remove(place)
    return len(stale)


def _named(lake: Lake, name: str) -> Iterator[str]:
    """The paths, under the lake, of the files that a table has now."""
    table = lake.find(name)
    if table is not None:
        yield from (f"{name}/{file.path}" for file in table.files())


class _Look(msgspec.Struct, frozen=True):
    place: SearchedFile
    names: Any
    before_ms: int


def _stale(task: _Look) -> SearchedFile | None:
    """On an executor: the file's place when it is to go."""
    wanted = pa.array(task.names.value, pa.string())
    try:
        with task.place.opened() as source, pq.ParquetFile(source) as parquet:
            rows = parquet.read(["partition", "created_at"])
    except FileNotFoundError:
        return None
    concerned = pc.is_in(rows.column("partition"), value_set=wanted)
    old = pc.less(rows.column("created_at"), task.before_ms)
    return task.place if pc.any(pc.and_(concerned, old)).as_py() else None
