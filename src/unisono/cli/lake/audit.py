"""`unisono lake audit`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unisono.cli.lake.command import EXIT_NOT_DONE, LakeTarget, at_place, sum_up
from unisono.cli.lake.output import json_option, out_option, write_files

if TYPE_CHECKING:
    from unisono.lake.lake import Lake
    from unisono.pipeline.jobs.audit.result import AuditReport


@click.command("audit")
@at_place
@click.option(
    "--sample",
    type=int,
    metavar="N",
    help="Replay the snapshots of N partitions, 0 for none. [default: 100]",
)
@click.option("--full", is_flag=True, help="Replay the snapshots of all partitions.")
@click.option(
    "--model",
    metavar="DIR",
    help="Also judge every event by this model (warnings), and replay snapshots of its version by it.",
)
@out_option("Write the report as a page there, and as audit.json.")
@json_option("The report as one JSON object instead of text.")
@click.option("--record", is_flag=True, help="Keep the result in the lake's tables _runs and _audit.")
def audit_(
    place: LakeTarget,
    sample: int | None,
    full: bool,
    model: str | None,
    out: Path | None,
    as_json: bool,
    record: bool,
) -> None:
    """Check the whole history in the lake, and the log when one is named.

    Only reads, but for --record. Reports each finding with its committed_id, and continues after it. Exit code 0:
    sound; 1: findings; 2: cannot be audited.
    """
    if full and sample is not None:
        raise click.UsageError("give --sample or --full, not both")
    from unisono.lake.errors import LakeError
    from unisono.pipeline.clock import now_ms
    from unisono.pipeline.errors import PipelineError, brief
    from unisono.pipeline.job_model import choose
    from unisono.pipeline.jobs.audit.job import SAMPLE, AuditOptions, audit
    from unisono.pipeline.open_log import normal_uri
    from unisono.pipeline.spark.cluster import require_visible

    store = None if place.store is None else normal_uri(place.store)
    options = AuditOptions(
        sample=None if full else SAMPLE if sample is None else sample,
        model=None if model is None else choose(model, None),
    )
    target = place.open_lake()
    target.view(checked=False)  # the audit itself reports what is wrong with it
    spark = place.session("unisono lake audit")
    if store is not None:
        require_visible(spark, store)
    began_ms = now_ms()
    try:
        report = audit(spark, target, store, options, place.say)
    except (PipelineError, LakeError):
        raise
    except Exception as error:
        if os.environ.get("UNISONO_TRACEBACK"):
            raise
        # Exit code 1 means findings; a failed audit has no result.
        raise PipelineError(f"the audit could not be finished: {brief(error)}") from error
    if as_json:
        click.echo(report.json().decode())
        place.say(report.verdict())
    else:
        click.echo(report.text())
    # After the text, so that findings are printed even if a file cannot be written.
    if out is not None:
        from unisono.pipeline.jobs.audit.page import page

        write_files(out, {"audit.json": report.json() + b"\n", "index.html": page(report).encode()})
    if record:
        _record(target, report, began_ms)
    if not as_json:
        sum_up("audited", report.events, report.seconds, report.verdict())
    if not report.sound:
        sys.exit(EXIT_NOT_DONE)


def _record(lake: Lake, report: AuditReport, began_ms: int) -> None:
    from unisono.lake.run_tables import RunRecord, new_run_id, record_findings, record_runs

    run_id = new_run_id()
    wrong = "" if report.sound else report.verdict()
    record_findings(lake.storage, report.records(run_id, began_ms))
    run = RunRecord(
        run_id, "audit", began_ms, report.seconds, report.events, report.sound, report.verdict(), wrong
    )
    record_runs(lake.storage, [run])
