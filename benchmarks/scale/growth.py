"""One history through all jobs, in one Spark session: each step on what the one before left."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.scale.history import increment_of, partitions_of
from benchmarks.scale.results import Measured, ResultFile
from benchmarks.scale.watch import Watch
from unisono.lake.lake import Lake
from unisono.pipeline.compare import verify
from unisono.pipeline.job_model import in_force
from unisono.pipeline.jobs.audit.job import AuditOptions, audit
from unisono.pipeline.jobs.compact.job import compact
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.report.job import report
from unisono.pipeline.jobs.retain.job import RetentionPolicy, retain
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.jobs.snapshot.publish import publish
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.service.run import ServiceStage
from unisono.pipeline.service.stages import ServiceOptions, stages
from unisono.pipeline.spark.private import java_process
from unisono.pipeline.spark.session import session

Step = tuple[str, Callable[[], object], int]


def measure(folder: Path, events: int, results: ResultFile) -> None:
    """Every step that has no result yet. A step that was interrupted begins the lake again."""
    name = f"growth {events}"
    if name in results.read().started:
        results.forget(name)
    data, place = folder / "data", folder / "lake"
    if not results.read().steps.get(name):
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(folder / "changed", ignore_errors=True)
    spark = session("local[*]", "scale", quick=True)
    warm = Lake.at(str(folder / "warm"))
    shutil.rmtree(folder / "warm", ignore_errors=True)
    warm.make()
    export(spark, sqlite_uri(data), warm, to=2_000)
    snapshot(spark, warm, in_force(sqlite_uri(data)))
    lake = Lake.at(str(place))
    lake.make()
    watch = Watch(java_process(spark).pid, lake)
    for step, work, items in _steps(spark, data, folder / "changed", lake, events):
        if step in results.read().steps.get(name, {}):
            continue
        results.begin(name, step)
        measured = watch.measure(work, items)
        results.end(name, step, measured)
        tell(step, measured)
    spark.stop()


def _steps(spark: SparkSession, data: Path, changed: Path, lake: Lake, events: int) -> Iterator[Step]:
    """What changes the log is done to a copy of it."""
    store, more = sqlite_uri(data), increment_of(events)
    model = in_force(store)
    yield "export", lambda: export(spark, store, lake, to=events), events
    yield "verify", lambda: _require(all(part.equal for part in verify(spark, store, lake))), events
    yield "fold", lambda: snapshot(spark, lake, model), events
    yield "export, 1 % more", lambda: export(spark, store, lake), more
    yield "fold, 1 % more", lambda: snapshot(spark, lake, model), more
    if not changed.exists():
        shutil.copytree(data, changed)
    store = sqlite_uri(changed)
    yield "publish", lambda: publish(lake, store, model.version), partitions_of(events)
    cycle = stages(spark, store, lake, ServiceOptions(RetentionPolicy(events=1 << 40), compact_every_s=None))
    _run(cycle)  # the first of a process looks at all snapshots
    yield "cycle, nothing new", lambda: _run(cycle), 0
    yield "audit", lambda: _require(audit(spark, lake, store, AuditOptions()).sound), events + more
    yield "compact", lambda: compact(spark, lake), events + more
    yield (
        "verify, compacted",
        lambda: _require(all(part.equal for part in verify(spark, store, lake))),
        events + more,
    )
    yield "retain", lambda: _retain(spark, store, lake), events + more
    # Last, because it leaves memory in the driver.
    yield "report", lambda: report(None, lake), events + more


def _run(cycle: list[ServiceStage]) -> None:
    for stage in cycle:
        stage.work()


def _retain(spark: SparkSession, store: str, lake: Lake) -> None:
    with closing(open_maintainer(store)) as maintainer:
        _require(retain(spark, store, maintainer, lake, RetentionPolicy(events=1_000)).events > 0)


def _require(holds: bool) -> None:
    assert holds, "the history of the benchmark is sound"


def tell(step: str, measured: Measured) -> None:
    rate = f"{measured.items / measured.seconds:>10,.0f} /s" if measured.items else " " * 13
    print(
        f"    {step:<22} {measured.seconds:>8.2f} s {rate}  cpu {measured.cpu:>7.1f} s   driver "
        f"{measured.driver_mb:,.0f} MB, Java {measured.java_mb:,.0f} MB, worker {measured.worker_mb:,.0f} MB",
        flush=True,
    )
