"""The stages of the service; each does what its command does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from unisono.lake.lake import Lake
from unisono.lake.run_tables import join_small_files, new_run_id, record_findings
from unisono.pipeline.clock import now_ms
from unisono.pipeline.job_model import in_force
from unisono.pipeline.jobs.compact.foreign_files import has_work as has_foreign_files
from unisono.pipeline.jobs.compact.foreign_files import rewrite_foreign_files
from unisono.pipeline.jobs.compact.job import compact, needs_compaction, vacuum
from unisono.pipeline.jobs.export.job import export, plan
from unisono.pipeline.jobs.retain.job import RetentionPolicy, retain
from unisono.pipeline.jobs.snapshot.in_force import record_in_force
from unisono.pipeline.jobs.snapshot.job import folded_to, snapshot
from unisono.pipeline.jobs.snapshot.publish import PublishedFiles, publish
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.pipeline.origin_check import model_of_log
from unisono.pipeline.service.run import ServiceStage, StageResult
from unisono.pipeline.spark.executors import runs_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_S: Final = 3_600.0


class ServiceOptions(msgspec.Struct, frozen=True):
    """The stages beside export, snapshot and publish, and their intervals. None: not run."""

    keep: RetentionPolicy | None = None
    compact_every_s: float | None = HOUR_S
    vacuum_hours: int = 24
    audit_every_s: float | None = 24 * HOUR_S
    report_every_s: float | None = 24 * HOUR_S
    out: Path | None = None


def stages(spark: SparkSession, store: str, lake: Lake, options: ServiceOptions) -> list[ServiceStage]:
    """The stages in the order of a cycle."""
    return list(_list_stages(_StageWork(spark, store, lake, options)))


def _list_stages(work: _StageWork) -> Iterator[ServiceStage]:
    options = work.options
    yield ServiceStage("export", work.export)
    yield ServiceStage("snapshot", work.snapshot)
    yield ServiceStage("publish", work.publish)
    if options.keep is not None:
        yield ServiceStage("retain", work.retain)
    if options.compact_every_s is not None:
        yield ServiceStage("compact", work.compact, options.compact_every_s)
    if options.out is not None and options.audit_every_s is not None:
        yield ServiceStage("audit", work.audit, options.audit_every_s)
    if options.out is not None and options.report_every_s is not None:
        yield ServiceStage("report", work.report, options.report_every_s)


class _StageWork:
    """The work of each stage, on one Spark session, store and lake."""

    def __init__(self, spark: SparkSession, store: str, lake: Lake, options: ServiceOptions) -> None:
        self._spark = spark
        self._store = store
        self._lake = lake
        self._published: PublishedFiles | None = None
        self.options = options

    def export(self) -> StageResult:
        if has_foreign_files(self._lake):
            rewrite_foreign_files(self._spark, self._lake)
        if not plan(self._store, self._lake):
            return StageResult(0, f"the lake has all events up to {self._lake.head()}")
        done = export(self._spark, self._store, self._lake)
        return StageResult(done.events, f"{done.events} events, up to {done.upto}")

    def snapshot(self) -> StageResult:
        model = model_of_log(self._store, self._lake)
        if folded_to(self._lake, model) == self._lake.head():
            record_in_force(self._lake, model.version)
            return StageResult(0, f"snapshots of model version {model.version} are at the lake's head")
        done = snapshot(self._spark, self._lake, model)
        record_in_force(self._lake, model.version)
        return StageResult(
            done.partitions, f"{done.partitions} partitions, {done.events} events, up to {done.upto}"
        )

    def publish(self) -> StageResult:
        done = publish(self._lake, self._store, in_force(self._store).version, before=self._published)
        self._published = done.published
        return StageResult(done.snapshots, f"{done.snapshots} snapshots into the store")

    def retain(self) -> StageResult:
        assert self.options.keep is not None
        with closing(open_maintainer(self._store)) as maintainer:
            done = retain(self._spark, self._store, maintainer, self._lake, self.options.keep)
        if done.events:
            return StageResult(done.events, f"{done.events} events left the log, up to {done.plan.upto}")
        return StageResult(0, f"nothing to go: {done.plan.bounds[0].why}")

    def compact(self) -> StageResult:
        rows = 0
        if needs_compaction(self._lake):
            rows = sum(table.rows_rewritten for table in compact(self._spark, self._lake))
        removed = vacuum(self._lake, self.options.vacuum_hours)
        join_small_files(self._lake.storage, self.options.vacuum_hours)
        return StageResult(rows + removed, f"{rows} rows joined, {removed} old files removed")

    def audit(self) -> StageResult:
        from unisono.pipeline.jobs.audit.job import audit
        from unisono.pipeline.jobs.audit.page import page

        assert self.options.out is not None
        out = self.options.out / "audit"
        out.mkdir(parents=True, exist_ok=True)  # fails before the audit, not after it
        run_id, began_ms = new_run_id(), now_ms()
        done = audit(self._spark, self._lake, self._store)
        record_findings(self._lake.storage, done.records(run_id, began_ms))
        (out / "index.html").write_text(page(done), "utf-8")
        (out / "audit.json").write_bytes(done.json() + b"\n")
        wrong = "" if done.sound else f"{done.verdict()} (see {out / 'index.html'})"
        return StageResult(done.events, done.verdict(), wrong, run_id)

    def report(self) -> StageResult:
        from unisono.pipeline.jobs.report.job import report, write
        from unisono.pipeline.jobs.report.server_metrics import counts_beside

        assert self.options.out is not None
        counts = counts_beside(self._store)
        spark = None if runs_here(self._spark) else lambda: self._spark
        done = report(spark, self._lake, store=self._store, server=counts)
        write(done, self.options.out / "report")
        return StageResult(done.totals.events, f"{done.totals.events} events")
