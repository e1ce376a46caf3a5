"""The stages of the pipeline as a service, each from what its command does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from unisono.lake.lake import Lake
from unisono.pipeline.job_model import in_force
from unisono.pipeline.jobs.compact.job import compact, vacuum, work
from unisono.pipeline.jobs.export.job import export, plan
from unisono.pipeline.jobs.retain.job import RetentionPolicy, retain
from unisono.pipeline.jobs.snapshot.job import reached, snapshot
from unisono.pipeline.jobs.snapshot.publish import publish
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.pipeline.service.run import ServiceStage, StageResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_S: Final = 3_600.0


class ServiceOptions(msgspec.Struct, frozen=True):
    """Which stages there are beside export, snapshot and publish, and how often. None: not at all."""

    keep: RetentionPolicy | None = None
    compact_every_s: float | None = HOUR_S
    vacuum_hours: int = 24
    audit_every_s: float | None = 24 * HOUR_S
    report_every_s: float | None = 24 * HOUR_S
    out: Path | None = None


def stages(spark: SparkSession, store: str, lake: Lake, wanted: ServiceOptions) -> list[ServiceStage]:
    """In the order of a cycle."""
    return list(_stages(_Work(spark, store, lake, wanted)))


def _stages(work: _Work) -> Iterator[ServiceStage]:
    wanted = work.wanted
    yield ServiceStage("export", work.export)
    yield ServiceStage("snapshot", work.snapshot)
    yield ServiceStage("publish", work.publish)
    if wanted.keep is not None:
        yield ServiceStage("retain", work.retain)
    if wanted.compact_every_s is not None:
        yield ServiceStage("compact", work.compact, wanted.compact_every_s)
    if wanted.out is not None and wanted.audit_every_s is not None:
        yield ServiceStage("audit", work.audit, wanted.audit_every_s)
    if wanted.out is not None and wanted.report_every_s is not None:
        yield ServiceStage("report", work.report, wanted.report_every_s)


class _Work:
    """What the stages share."""

    def __init__(self, spark: SparkSession, store: str, lake: Lake, wanted: ServiceOptions) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._store = store
        self._lake = lake
        self.wanted = wanted

    def export(self) -> StageResult:
        if not plan(self._store, self._lake):
            return StageResult(0, f"the lake has all events up to {self._lake.head()}")
        done = export(self._context, self._store, self._lake)
        return StageResult(done.events, f"{done.events} events, up to {done.upto}")

    def snapshot(self) -> StageResult:
        model = in_force(self._store)
        if reached(self._lake, model) == self._lake.head():
            return StageResult(0, f"snapshots of model version {model.version} are at the lake's head")
        done = snapshot(self._context, self._lake, model)
        return StageResult(
            done.partitions, f"{done.partitions} partitions, {done.events} events, up to {done.upto}"
        )

    def publish(self) -> StageResult:
        done = publish(self._lake, self._store, in_force(self._store).version)
        return StageResult(done.snapshots, f"{done.snapshots} snapshots into the store")

    def retain(self) -> StageResult:
        assert self.wanted.keep is not None
        with closing(open_maintainer(self._store)) as maintainer:
            done = retain(self._context, self._store, maintainer, self._lake, self.wanted.keep)
        if done.events:
            return StageResult(done.events, f"{done.events} events left the log, up to {done.plan.upto}")
        return StageResult(0, f"nothing to go: {done.plan.bounds[0].why}")

    def compact(self) -> StageResult:
        rows = 0
        if work(self._lake):
            rows = sum(table.rows_rewritten for table in compact(self._context, self._lake))
        removed = vacuum(self._lake, self.wanted.vacuum_hours)
        return StageResult(rows + removed, f"{rows} rows joined, {removed} old files removed")

    def audit(self) -> StageResult:
        from unisono.pipeline.jobs.audit.job import audit
        from unisono.pipeline.jobs.audit.page import page

        assert self.wanted.out is not None
        out = self.wanted.out / "audit"
        out.mkdir(parents=True, exist_ok=True)  # before all of history is looked at for nothing
        done = audit(self._context, self._lake, self._store)
        (out / "index.html").write_text(page(done), "utf-8")
        (out / "audit.json").write_bytes(done.json() + b"\n")
        wrong = "" if done.sound else f"{done.verdict()} (see {out / 'index.html'})"
        return StageResult(done.events, done.verdict(), wrong)

    def report(self) -> StageResult:
        from unisono.pipeline.jobs.report.job import report, write
        from unisono.pipeline.jobs.report.server_metrics import counts_beside

        assert self.wanted.out is not None
        counts = counts_beside(self._store)
        done = report(lambda: self._spark, self._lake, store=self._store, server=counts)
        write(done, self.wanted.out / "report")
        return StageResult(done.totals.events, f"{done.totals.events} events")
