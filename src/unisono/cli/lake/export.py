"""`unisono lake export`."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unisono.cli.lake.command import LakeTarget, at_place, sum_up
from unisono.cli.lake.verify import verify_copy
from unisono.cli.local_path import LocalPath

if TYPE_CHECKING:
    from unisono.lake.lake import Lake


@click.command("export")
@at_place
@click.option("--to", type=click.IntRange(min=0), metavar="N", help="Up to this committed_id. [default: all]")
@click.option("--events-per-file", type=click.IntRange(min=1), metavar="N", help="At most. [default: 250000]")
@click.option("--buckets", type=click.IntRange(1, 1024), metavar="N", help="Of a new lake. [default: 16]")
@click.option(
    "--adopt",
    is_flag=True,
    help="Continue with a log that was restored from a backup, if all events in both are equal.",
)
@click.option(
    "--verify", is_flag=True, help="Compare with the log what was added; all of it when nothing was."
)
@click.option("--follow", is_flag=True, help="Continue with newly committed events until SIGTERM or ctrl-c.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.01),
    metavar="S",
    help="With --follow, seconds between looks at the log. [default: 1]",
)
@click.option(
    "--events-per-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --follow, at most. [default: 100000]",
)
@click.option(
    "--checkpoint",
    type=LocalPath(),
    help="Where --follow keeps its place. [default: _follow in the lake's directory]",
)
def export_(
    place: LakeTarget,
    to: int | None,
    events_per_file: int | None,
    buckets: int | None,
    adopt: bool,
    verify: bool,
    follow: bool,
    every: float | None,
    events_per_batch: int | None,
    checkpoint: Path | None,
) -> None:
    """Copy new events of the log into the lake, each exactly once, also when the command is killed and run again."""
    from unisono.pipeline.origin_check import require_source
    from unisono.pipeline.spark.cluster import require_visible

    if follow and (verify or to is not None or events_per_file is not None):
        raise click.UsageError("--to, --verify and --events-per-file do not go with --follow")
    if not follow and not (every is None and events_per_batch is None and checkpoint is None):
        raise click.UsageError("--every, --events-per-batch and --checkpoint are for --follow")
    store = place.store_uri
    target = place.open_lake()
    if follow and checkpoint is None and not target.storage.is_local:
        raise click.UsageError("--follow to an object store needs --checkpoint, a directory")
    require_source(store, target, to)
    app = "unisono lake export --follow" if follow else "unisono lake export"
    if not target.exists() and (follow or _has_events(store, to)):
        require_visible(place.session(app), store)  # a refused session leaves no empty lake
    _make(target, buckets)
    place.rewrite_foreign_files(target)
    if adopt:
        from unisono.pipeline.origin_check import adopt as adopt_log

        place.say(f"compared {adopt_log(store, target)} events: the lake is a copy of this log from now on")
    if follow:
        _follow(place, app, store, target, every, events_per_batch, checkpoint)
    else:
        _export(place, app, store, target, to, events_per_file, verify)


def _has_events(store: str, to: int | None) -> bool:
    """Whether there is anything to export into a new lake: with nothing, no Spark is started."""
    from unisono.pipeline.open_log import extent

    return to != 0 and extent(store).head > 0


def _make(target: Lake, buckets: int | None) -> None:
    """Make the lake if there is none; refuse another number of buckets than it has."""
    from unisono.lake.errors import LakeUnusable
    from unisono.lake.table import BUCKETS

    target.make(buckets or BUCKETS)
    if buckets is not None and buckets != (own := target.view().buckets):
        raise LakeUnusable(
            f"the lake has {own} buckets: to have {buckets}, remove its table by_partition and export again"
        )


def _export(
    place: LakeTarget,
    app: str,
    store: str,
    target: Lake,
    to: int | None,
    events_per_file: int | None,
    verify: bool,
) -> None:
    from unisono.pipeline.jobs.export.job import EVENTS_PER_FILE, export, plan
    from unisono.pipeline.spark.cluster import require_visible

    head = target.head()
    if not plan(store, target, to) and not (verify and head):
        click.echo(f"nothing to export: the lake has all events up to {head}")
        return
    spark = place.session(app)
    require_visible(spark, store)
    done = export(
        spark,
        store,
        target,
        to=to,
        events_per_file=events_per_file or EVENTS_PER_FILE,
        progress=lambda events, of: place.say(f"exported {events} of {of} events"),
    )
    if verify:
        verify_copy(place, spark, store, target, done.since if done.events else 0)
    sum_up("exported", done.events, done.seconds, f"the lake has all events up to {done.upto}")


def _follow(
    place: LakeTarget,
    app: str,
    store: str,
    target: Lake,
    every: float | None,
    events_per_batch: int | None,
    checkpoint: Path | None,
) -> None:
    from unisono.pipeline.jobs.export.follow import EVERY_S, Follower, follow_by_polling
    from unisono.pipeline.jobs.export.job import ExportResult
    from unisono.pipeline.spark.cluster import require_visible
    from unisono.pipeline.spark.private import is_connect
    from unisono.pipeline.spark.source import EVENTS_PER_BATCH

    if checkpoint is None:
        checkpoint = Path(target.storage.location) / "_follow"
    began, events = time.monotonic(), 0
    stop = threading.Event()

    def on_batch(done: ExportResult) -> None:
        nonlocal events
        events += done.events
        place.say(f"exported {done.since + 1} to {done.upto} in {done.seconds:.1f} s")

    spark = place.session(app)
    for number in (signal.SIGTERM, signal.SIGINT):  # after Spark, which sets its own SIGINT handler
        signal.signal(number, lambda *_: stop.set())
    require_visible(spark, store)
    every_s, batch = every or EVERY_S, events_per_batch or EVENTS_PER_BATCH
    following = f"following {store.partition(':')[0]} from event {target.head()}"
    if is_connect(spark):
        place.say(following)
        follow_by_polling(
            spark, store, target, stop, every_s=every_s, events_per_batch=batch, on_batch=on_batch
        )
    else:
        follower = Follower(
            spark, store, target, checkpoint, every_s=every_s, events_per_batch=batch, on_batch=on_batch
        )
        place.say(following)
        follower.run(stop)
    sum_up("exported", events, time.monotonic() - began, f"stopped at event {target.head()}")
