"""`unisono lake import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from unisono.cli.lake.command import (
    LakeTarget,
    _pairs,
    data_option,
    explain_option,
    explaining,
    master_option,
    named_store,
    reporting,
    store_option,
    sum_up,
)
from unisono.cli.lake.output import json_option, out_option, write_files
from unisono.cli.local_path import LocalPath
from unisono.protocol.identities import client_id_fault

if TYPE_CHECKING:
    from unisono.pipeline.job_model import ShippedModel
    from unisono.pipeline.jobs.import_.result import ImportReport

STAGING = Path("unisono-import")


@click.command("import")
@click.argument("paths", nargs=-1, required=True, metavar="FILE|DIR|URL …")
@data_option("Into the log of this data directory.")
@store_option("Into this log: sqlite:DIRECTORY or postgresql://…")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "parquet", "csv", "insieme-sqlite"]),
    help="What the files are. [default: by their names]",
)
@click.option(
    "--map",
    "mapped",
    multiple=True,
    metavar="FIELD=COLUMN",
    callback=_pairs,
    help="A field that has another name in the files. May be repeated.",
)
@click.option(
    "--order",
    type=click.Choice(["keep", "assign"]),
    default="keep",
    show_default=True,
    help="keep: by committed_id, or as the rows stand; assign: by time, then as they stand.",
)
@click.option(
    "--model",
    metavar="DIR",
    help="Judge by this model, or `open`: any schema, data unchecked. [default: the one in force in the log]",
)
@click.option(
    "--shape-only",
    "--no-validate",
    "shape_only",
    is_flag=True,
    help="Check each event by itself, not against the states it finds.",
)
@click.option(
    "--client-id",
    default="import",
    show_default=True,
    help="Whose the events are, where a row does not say.",
)
@click.option(
    "--events-per-group",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Loaded in one transaction, at most. [default: 10000]",
)
@click.option("--dry-run", is_flag=True, help="Load nothing; report what would happen to every row.")
@click.option(
    "--rejects",
    type=LocalPath(file_okay=False),
    help="The Delta table for rejected rows. [default: rejects in the staging directory]",
)
@out_option("Write all figures there, as import.json.")
@json_option("All figures as one JSON object instead of text.")
@click.option(
    "--staging",
    type=LocalPath(file_okay=False),
    default=STAGING,
    show_default=True,
    help="Where work is kept, so that a killed import goes on. Shared by all executors.",
)
@master_option
@click.option(
    "--spark-conf", multiple=True, metavar="K=V", callback=_pairs, help="A setting of Spark. May be repeated."
)
@click.option(
    "--storage-option",
    multiple=True,
    metavar="K=V",
    callback=_pairs,
    help="For files in an object store, as delta-rs takes them (aws_region=…). May be repeated.",
)
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@explain_option
def import_(
    paths: tuple[str, ...],
    data: str | None,
    store: str | None,
    format_: str | None,
    mapped: dict[str, str],
    order: str,
    model: str | None,
    shape_only: bool,
    client_id: str,
    events_per_group: int | None,
    dry_run: bool,
    rejects: Path | None,
    out: Path | None,
    as_json: bool,
    staging: Path,
    master: str | None,
    spark_conf: dict[str, str],
    storage_option: dict[str, str],
    quiet: bool,
    explain: bool,
) -> None:
    """Load history from files into a log: every row is judged as the server would, and loaded once, in order.

    Files are JSON lines (also .gz), Parquet, CSV, or the SQLite store of the JavaScript library. All but the last may
    be in an object store: s3://, gs://, az:// or abfss://, a file or everything below a URL. The log may hold events
    already; no server may run on an embedded one. If it is killed, the same command continues.

    \b
      unisono lake import old.jsonl --data unisono-data --dry-run
      unisono lake import events.csv --data unisono-data --map id=uuid --map partition=room
      unisono lake import s3://bucket/old/ --store postgresql://db/unisono --storage-option aws_region=eu-central-1
    """
    if (fault := client_id_fault(client_id)) is not None:
        raise click.UsageError(f"--client-id {fault}")
    with reporting(), explaining(explain):
        from unisono.pipeline.jobs.import_.job import ImportPlan, run
        from unisono.pipeline.jobs.import_.sources import FIELDS, FieldMapping, find
        from unisono.store.bulk_load import GROUP_ROWS_MAX

        place = LakeTarget(named_store(data, store), "", {}, master, spark_conf, quiet)
        unknown = sorted(set(mapped) - set(FIELDS))
        if unknown:
            raise click.UsageError(f"--map {unknown[0]}=…: fields are {', '.join(FIELDS)}")
        plan = ImportPlan(
            place.store_uri,
            tuple(find(paths, format_, place.say, storage_option)),
            staging.absolute(),
            str((rejects or staging / "rejects").absolute()),
            FieldMapping(mapped),
            order,
            not shape_only,
            _model(model, place.store_uri),
            client_id,
            dry_run,
            group_rows=events_per_group or GROUP_ROWS_MAX,
        )
        report = run(plan, lambda: place.session("unisono lake import", few_rows=False), place.say)
        _report(report, out, as_json)
        _require_some(report)


def _model(path: str | None, store: str) -> ShippedModel:
    from unisono.pipeline.job_model import ShippedModel, choose
    from unisono.pipeline.open_log import sqlite_directory
    from unisono.store.sqlite.files import LOG_FILE

    directory = sqlite_directory(store)
    if path is None and directory is not None and not (directory / LOG_FILE).exists():
        return ShippedModel.open()
    return choose(path, store)


def _require_some(report: ImportReport) -> None:
    """Nothing but rejected rows is a wrong file, format or --map, and no success."""
    from unisono.pipeline.errors import PipelineError

    totals = report.prepared.totals
    if totals.rows and totals.rejected == totals.rows:
        raise PipelineError(
            f"each of the {totals.rows} rows was rejected: are --format and --map those of the files?"
        )


def _report(report: ImportReport, out: Path | None, as_json: bool) -> None:
    encoded: bytes = msgspec.json.format(msgspec.json.encode(report), indent=2)
    if out is not None:
        write_files(out, {"import.json": encoded + b"\n"})
    if as_json:
        click.echo(encoded.decode())
        return
    click.echo(report.text())
    if report.loaded is None:
        kept = f"prepared in {report.staging}: the same command without --dry-run loads it"
        sum_up("read", report.prepared.totals.rows, report.seconds, kept, "rows")
        return
    note = f"the log ends at {report.loaded.head}"
    if report.loaded.present:
        note += f"; {report.loaded.present} were loaded before"
    sum_up("loaded", report.loaded.committed, report.seconds, note)
