"""Joins small generations of snapshots, and keeps only some of each partition's older states.

The newest state always stays. Of the others, the oldest stays in each range of ages from 4^k to 4^(k+1) events before
the newest. So a state of the past needs a replay of a bounded multiple of the events between, and a partition has
about as many rows as its age has digits. Generations of similar size are joined, as runs of events are. Snapshots of
the two model versions that reach furthest stay, and those of the version that the lake's tables show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from unisono.lake.attempt_files import job_attempt, removed_unless_committed
from unisono.lake.commit_retry import retry_on_conflict
from unisono.lake.lake import Lake
from unisono.lake.merge import FILES_MERGED_MAX, PartitionSubset
from unisono.lake.scan import names_of, runs_of
from unisono.lake.snapshots import FILE_BYTES, Snapshots, SnapshotWriter, files_of
from unisono.lake.storage import SNAPSHOTS, Storage
from unisono.lake.table import Table
from unisono.lake.write import UNBUCKETED, DataFile, release_arrow_memory
from unisono.pipeline.errors import Mismatch
from unisono.pipeline.jobs.snapshot.in_force import noted_version
from unisono.pipeline.spark.executors import run_on_executors, tasks_worthwhile
from unisono.pipeline.task_planning import by_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AGE_BASE: Final = 4

VERSIONS_KEPT: Final = 2
"""Model versions whose snapshots stay: the one in use, and another for comparison."""

ALWAYS_JOINED_BYTES: Final = 4 << 20
"""Smaller generations are joined whatever the size of their neighbours."""

TASK_BYTES: Final = 4 << 20
"""Bytes of snapshots for which a task is worth starting; the buckets of a short history share one."""

STATES_PER_TASK: Final = 200_000
"""Snapshots joined by one task: their number follows the partitions, and not the buckets."""

UNBUCKETED_FILES_MIN: Final = 4
"""So many unbucketed files are joined. A generation with few partitions is such a file, and every lookup opens it."""


class SnapshotCompactionTask(msgspec.Struct, frozen=True):
    """A bucket of neighbouring generations, or a part of a large one, joined by one task."""

    storage: Storage
    files: tuple[DataFile, ...]
    bucket: int
    subset: PartitionSubset


class SnapshotCompactionResult(msgspec.Struct, frozen=True):
    """The files of a task, and the rows it read, kept and dropped."""

    files: list[DataFile]
    read: int
    kept: int
    dropped: int


def states_to_keep(ids: Sequence[int]) -> list[int]:
    """The ids of a partition's snapshots that stay; `ids` ascend."""
    stay: dict[int, int] = {}
    for committed_id in reversed(ids):
        age = ids[-1] - committed_id
        stretch = 0
        while age:
            age //= AGE_BASE
            stretch += 1
        stay[stretch] = committed_id
    return sorted(stay.values())


def has_work(lake: Lake) -> bool:
    """Whether there are snapshots to join or to drop."""
    table = lake.find(SNAPSHOTS)
    return table is not None and bool(_outdated(table) or any(_groups(table, _versions(table))))


def compact_snapshots(spark: SparkSession, lake: Lake) -> tuple[int, int, int]:
    """Join and drop snapshots; returns files before, files after, rows rewritten."""
    before = len(lake.table(SNAPSHOTS).files())
    rows = retry_on_conflict(lambda: _compact_snapshots(spark, lake))
    return before, len(lake.table(SNAPSHOTS).files()), rows


def _compact_snapshots(spark: SparkSession, lake: Lake) -> int:
    table = lake.table(SNAPSHOTS)
    if outdated := _outdated(table):
        # A later run with such a model folds from the first event.
        folded = {file.model_version: 0 for file in outdated if file.model_version is not None}
        table.put_snapshots([], folded, {"outdated": len(outdated)}, old=outdated)
    return join_generations(spark, lake, _versions(lake.table(SNAPSHOTS)))


def join_generations(spark: SparkSession, lake: Lake, model_versions: Sequence[int]) -> int:
    """Join the generations of some model versions; returns the rows rewritten."""
    table, rows = lake.table(SNAPSHOTS), 0
    for group in list(_groups(table, model_versions)):
        with job_attempt(lake.storage) as storage:
            jobs = list(_jobs(storage, group, table.description().buckets))
            size = sum(file.bytes for file in group)
            made = run_on_executors(spark, jobs, join, at_once=tasks_worthwhile(spark, size, TASK_BYTES))
            read = sum(part.read for part in made)
            if read != sum(file.rows for file in group):
                raise Mismatch(f"joining snapshots read {read} rows of {sum(file.rows for file in group)}")
            new = [file for part in made for file in part.files]
            notes = {"dropped": sum(part.dropped for part in made)}
            with removed_unless_committed(lake.storage, new):
                lake.table(SNAPSHOTS).replace(group, new, notes, same_rows=False)
        rows += read
    return rows


@release_arrow_memory()
def join(job: SnapshotCompactionTask) -> SnapshotCompactionResult:
    """On an executor: join one bucket of some generations, or a part of it."""
    first = job.files[0]
    assert first.model_version is not None
    writer = SnapshotWriter(job.storage, job.bucket, first.model_version, first.model_digest or "")
    read = written = 0
    with Snapshots.opened(job.storage, job.files) as snapshots:
        for name, ids in snapshots.found(job.subset):
            read += len(ids)
            for committed_id in states_to_keep(ids):
                row = snapshots.at(name, committed_id)
                row.require_sound()
                writer.add(row)
                written += 1
    return SnapshotCompactionResult(writer.close(), read, written, read - written)


def _outdated(table: Table) -> list[DataFile]:
    old = set(_versions(table)[:-VERSIONS_KEPT]) - {noted_version(table)}
    return [file for file in table.files() if file.model_version in old]


def _versions(table: Table) -> list[int]:
    """The model versions with snapshots, by how far these reach."""
    reach: dict[int, int] = {}
    for file in table.files():
        assert file.model_version is not None
        reach[file.model_version] = max(reach.get(file.model_version, 0), file.last_id)
    return sorted(reach, key=lambda version: (reach[version], version))


def _groups(table: Table, model_versions: Sequence[int]) -> Iterator[list[DataFile]]:
    """Neighbouring generations of similar size to join, per model version, from the newest back."""
    files = table.files()
    for version in model_versions:
        group: list[DataFile] = []
        size = 0
        for run in reversed(list(runs_of(files_of(files, version)))):
            own = sum(file.bytes for file in run)
            alike = own <= max(2 * size, ALWAYS_JOINED_BYTES)
            if group and (not alike or len(group) + len(run) > FILES_MERGED_MAX):
                if _worthwhile(group):
                    yield group
                group, size = [], 0
            group += run
            size += own
        if _worthwhile(group):
            yield group


def _worthwhile(group: Sequence[DataFile]) -> bool:
    """Whether joining makes other files: a bucket has overlapping or many ones, or many are not split by bucket."""
    buckets: dict[int | None, list[DataFile]] = {}
    for file in group:
        buckets.setdefault(file.bucket, []).append(file)
    if len(buckets.pop(UNBUCKETED, [])) >= UNBUCKETED_FILES_MIN:
        return True
    return any(_too_many(files) or _overlap(files) for files in buckets.values())


def _too_many(files: Sequence[DataFile]) -> bool:
    """Whether there are more files of a bucket than joining leaves: one for each task, and the full ones.

    Partitions that come one after the other have files that never overlap, however many and small they are.
    """
    tasks = -(-sum(file.rows for file in files) // STATES_PER_TASK)
    return len(files) > tasks + sum(file.bytes for file in files) // FILE_BYTES


def _overlap(files: Sequence[DataFile]) -> bool:
    """Whether a partition's states are in several files, other than where a full file ends, or can be thinned out."""
    placed = sorted((*names_of(file), file.last_id, file.bytes) for file in files)
    if any(
        last > first or (last == first and size < FILE_BYTES)
        for (_, last, _, size), (first, *_) in pairwise(placed)
    ):
        return True
    large: dict[bytes, list[int]] = {}
    shared = {name for first, last, *_ in placed if first != last for name in (first, last)}
    for first, last, last_id, _ in placed:
        if first == last and first not in shared:  # where one state is in another file, these are not all
            large.setdefault(first, []).append(last_id)
    return any(len(states_to_keep(ids)) < len(ids) for ids in large.values())


def _jobs(storage: Storage, group: list[DataFile], buckets: int) -> Iterator[SnapshotCompactionTask]:
    for bucket in range(buckets):
        own = [file for file in group if file.bucket in (UNBUCKETED, bucket)]
        for subset in by_name(storage, own, PartitionSubset(buckets, (bucket,)), STATES_PER_TASK):
            if files := tuple(file for file in own if subset.may_be_in(file)):
                yield SnapshotCompactionTask(storage, files, bucket, subset)
