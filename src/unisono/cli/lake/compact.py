"""`unisono lake compact`."""

from __future__ import annotations

import time

import click

from unisono.cli.lake.command import LakeTarget, at_place, sum_up
from unisono.cli.lake.verify import verify_copy


@click.command("compact")
@at_place
@click.option(
    "--rows-per-file", type=click.IntRange(min=1), metavar="N", help="Of a full file. [default: 1000000]"
)
@click.option(
    "--vacuum-hours",
    type=click.IntRange(min=0),
    metavar="H",
    help="Then remove files that no version of the last H hours names, and what killed jobs left.",
)
@click.option("--verify", is_flag=True, help="Compare the whole lake with the log afterwards.")
def compact_(place: LakeTarget, rows_per_file: int | None, vacuum_hours: int | None, verify: bool) -> None:
    """Join small files into large ones, in both tables; readers and exports continue meanwhile.

    What another Delta tool wrote (OPTIMIZE, Z-ORDER) is checked and put in order again first.
    """
    from unisono.pipeline.jobs.compact.job import ROWS_PER_FILE, compact, needs_compaction, vacuum
    from unisono.pipeline.spark.cluster import require_visible

    began, target = time.monotonic(), place.open_lake()
    rows = rows_per_file or ROWS_PER_FILE
    before = after = rewritten = 0
    if needs_compaction(target, rows) or verify:
        spark = place.session("unisono lake compact")
        for table in compact(spark, target, rows, place.say):
            place.say(f"{table.table}: {table.files_before} files → {table.files_after}")
            before, after = before + table.files_before, after + table.files_after
            rewritten += table.rows_rewritten
        if verify:
            require_visible(spark, place.store_uri)
            verify_copy(place, spark, place.store_uri, target, 0)
    note = f"{before} files became {after}" if rewritten else "nothing to join"
    if vacuum_hours is not None:
        note += f", {vacuum(target, vacuum_hours)} old files removed"
    sum_up("rewrote", rewritten, time.monotonic() - began, note, "rows")
