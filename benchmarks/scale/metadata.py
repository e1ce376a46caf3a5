"""A lake of many files that are named and not there: what opening, planning and committing cost the driver."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.scale.growth import tell
from benchmarks.scale.results import ResultFile
from benchmarks.scale.watch import Watch
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.lake.write import DataFile
from unisono.pipeline.task_planning import FilesByBucket, plan_tasks

ROWS = 5_000
BUCKETS = 256
COMMIT_FILES = 8 * BUCKETS
CORES = 60
"""With more, planning would look into files to split buckets, and these are not there."""


def make(location: Path, files: int) -> None:
    """Both tables with so many files each; runs are as long as there are buckets."""
    lake = Lake.at(str(location))
    lake.make(BUCKETS)
    for first in range(0, files, COMMIT_FILES):
        since, upto = first * ROWS, min(files, first + COMMIT_FILES) * ROWS
        numbers = range(first, min(files, first + COMMIT_FILES))
        lake.table(BY_PARTITION).append([_by_partition(number) for number in numbers], since, upto, {})
        lake.table(LOG).append([_log(number) for number in numbers], since, upto, {})
        print(f"    {upto // ROWS:,} of {files:,} files named", flush=True)


def _path(first: int, last: int, number: int) -> str:
    return f"{first:012d}-{last:012d}-{number:032x}.parquet"


def _log(number: int) -> DataFile:
    first, last = number * ROWS + 1, (number + 1) * ROWS
    return DataFile(
        LOG, _path(first, last, number), 2_000_000, ROWS, first, last, times=(first, last), clients=("a", "z")
    )


def _by_partition(number: int) -> DataFile:
    run, bucket = divmod(number, BUCKETS)
    first, last = run * BUCKETS * ROWS + 1, (run + 1) * BUCKETS * ROWS
    names = f"room-{bucket:08d}", f"room-{99_999_999 - bucket:08d}"
    path = f"bucket={bucket}/{_path(first, last, number)}"
    return DataFile(
        BY_PARTITION,
        path,
        2_000_000,
        ROWS,
        first,
        last,
        bucket,
        *names,
        times=(first, last),
        clients=("a", "z"),
    )


def measure(folder: Path, files: int, results: ResultFile) -> None:
    files = -(-files // BUCKETS) * BUCKETS
    name = f"metadata {files}"
    steps = ("open both tables", "plan a fold of all", "commit one file more")
    if set(steps) <= set(results.read().steps.get(name, {})):
        return
    shutil.rmtree(folder, ignore_errors=True)
    make(folder, files)
    watch = Watch(None)
    lake = Lake.at(str(folder))

    def plan() -> None:
        view = lake.view()
        found = FilesByBucket(view.partition_files)
        planned = plan_tasks(view.storage, view.partition_files, view.buckets, view.head, CORES)
        assert sum(len(found.of(task.subset)) for task in planned) >= files

    def commit() -> None:
        table = lake.table(LOG)
        table.append([_log(files)], files * ROWS, (files + 1) * ROWS, {})

    works: list[Callable[[], object]] = [lake.view, plan, commit]
    for step, work in zip(steps, works, strict=True):
        measured = watch.measure(work)
        results.end(name, step, measured)
        tell(step, measured)
