"""`unisono lake retain`."""

from __future__ import annotations

import time

import click

from unisono.cli.lake.command import LakeTarget, at_place, sum_up
from unisono.cli.lake.durations import DurationType


@click.command("retain")
@at_place
@click.option(
    "--keep", type=DurationType(), metavar="SPAN", help="Keep events younger than this: 30d, 12h, 90m."
)
@click.option("--keep-events", type=click.IntRange(min=0), metavar="N", help="Keep the newest N events.")
@click.option(
    "--keep-newest",
    type=click.IntRange(min=0),
    metavar="N",
    help="Never prune these, whatever --keep says. [default: 1000]",
)
@click.option(
    "--dry-run", is_flag=True, help="Show what would be pruned and what keeps the rest; change nothing."
)
def retain_(
    place: LakeTarget, keep: int | None, keep_events: int | None, keep_newest: int | None, dry_run: bool
) -> None:
    """Prune old events from the log that the lake has; clients still get their whole history.

    An event is pruned when all its partitions have a snapshot at or past it in the store, and its copy in the lake
    was compared with it and hashed again just before. A server on the log continues to run.
    """
    from unisono.pipeline.jobs.retain.job import KEEP_NEWEST, RetentionPolicy, extent_text, plan, retain
    from unisono.pipeline.maintain.embedded import open_maintainer
    from unisono.pipeline.spark.cluster import require_visible

    if keep is None and keep_events is None:
        raise click.UsageError("give what to keep: --keep SPAN, --keep-events N, or both")
    policy = RetentionPolicy(keep, keep_events, KEEP_NEWEST if keep_newest is None else keep_newest)
    began, store, lake = time.monotonic(), place.store_uri, place.open_lake()
    maintainer = open_maintainer(store)
    try:
        lake.view()
        if not dry_run:
            place.rewrite_foreign_files(lake)
        spark = place.session("unisono lake retain")
        require_visible(spark, store)
        if dry_run:
            click.echo(plan(spark, store, maintainer, lake, policy).text())
            return
        done = retain(spark, store, maintainer, lake, policy, place.say)
        log_extent = maintainer.extent()
    finally:
        maintainer.close()
    if not done.events:
        place.say(done.plan.text())
    sum_up("pruned", done.events, time.monotonic() - began, extent_text(log_extent))
