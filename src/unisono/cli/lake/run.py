"""`unisono lake run`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from unisono.cli.lake.command import DATA, EXIT_NOT_DONE, LakeTarget, at_place
from unisono.cli.lake.durations import DurationType
from unisono.cli.lake.output import out_option
from unisono.cli.local_path import LocalPath

if TYPE_CHECKING:
    from unisono.pipeline.service.lease import Holder, Wait
    from unisono.pipeline.service.stages import ServiceOptions

APP: Final = "unisono lake run"


@click.command("run")
@at_place
@click.option(
    "--every",
    type=DurationType(100),
    default="60s",
    show_default=True,
    metavar="SPAN",
    help="From cycle to cycle.",
)
@click.option(
    "--keep", type=DurationType(), metavar="SPAN", help="Retain: keep events younger than this in the log."
)
@click.option(
    "--keep-events", type=click.IntRange(min=0), metavar="N", help="Retain: keep the newest N in the log."
)
@click.option(
    "--keep-newest",
    type=click.IntRange(min=0),
    metavar="N",
    help="Retain: never prune these, whatever --keep says. [default: 1000]",
)
@click.option(
    "--compact-every",
    type=DurationType(),
    default="1h",
    show_default=True,
    metavar="SPAN",
    help="Join small files.",
)
@click.option(
    "--vacuum-hours",
    type=click.IntRange(min=0),
    default=24,
    show_default=True,
    metavar="H",
    help="When compacting, remove files that no version of the last H hours names.",
)
@out_option("Audit and report into this directory.")
@click.option(
    "--audit-every", type=DurationType(), default="24h", show_default=True, metavar="SPAN", help="With --out."
)
@click.option(
    "--report-every",
    type=DurationType(),
    default="24h",
    show_default=True,
    metavar="SPAN",
    help="With --out.",
)
@click.option(
    "--status",
    type=LocalPath(),
    metavar="FILE",
    help="Where to keep the status. [default: pipeline.json in the data directory, where the admin port shows it]",
)
@click.option("--no-wait", is_flag=True, help="End at once when another service works on the lake.")
@click.option("--cycles", type=click.IntRange(min=1), metavar="N", help="End after so many.")
def run_(
    place: LakeTarget,
    every: int,
    keep: int | None,
    keep_events: int | None,
    keep_newest: int | None,
    compact_every: int,
    vacuum_hours: int,
    out: Path | None,
    audit_every: int,
    report_every: int,
    status: Path | None,
    no_wait: bool,
    cycles: int | None,
) -> None:
    """Keep the lake up to date: export, snapshot, publish, and with --keep or --keep-events retain, in cycles.

    At longer intervals compact, audit and report. All stages use one Spark session; only one service at a
    time works on a lake. Ends on SIGTERM or ctrl-c after the current stage, on a second one at once. It can be killed
    and started again at any point.
    """
    from unisono.ipc.files import STATUS_FILE
    from unisono.pipeline.jobs.retain.job import KEEP_NEWEST, RetentionPolicy
    from unisono.pipeline.open_log import extent, sqlite_directory
    from unisono.pipeline.service.stages import ServiceOptions
    from unisono.pipeline.service.status import require_writable

    if keep is None and keep_events is None and keep_newest is not None:
        raise click.UsageError(
            "--keep-newest goes with --keep or --keep-events: without them nothing leaves the log"
        )
    store = place.store_uri
    extent(store)
    newest = KEEP_NEWEST if keep_newest is None else keep_newest
    retained = None if keep is None and keep_events is None else RetentionPolicy(keep, keep_events, newest)
    options = ServiceOptions(
        retained, compact_every / 1_000, vacuum_hours, audit_every / 1_000, report_every / 1_000, out
    )
    directory = sqlite_directory(store)
    file = status or ((directory or DATA) / STATUS_FILE)
    require_writable(file)
    if not _serve(place, store, options, every / 1_000, file, cycles, no_wait):
        sys.exit(EXIT_NOT_DONE)


def _serve(
    place: LakeTarget,
    store: str,
    options: ServiceOptions,
    every_s: float,
    file: Path,
    cycles: int | None,
    no_wait: bool,
) -> bool:
    from unisono.lake.table import BUCKETS
    from unisono.pipeline.origin_check import require_source
    from unisono.pipeline.service.lease import Lease, LeaseTaken
    from unisono.pipeline.service.run import Service
    from unisono.pipeline.service.stages import stages
    from unisono.pipeline.spark.cluster import require_visible
    from unisono.pipeline.spark.private import is_stopped

    began, lake = time.monotonic(), place.open_lake()
    require_source(store, lake)
    stop = threading.Event()
    _handle_signals(place, stop)
    if not lake.exists():
        require_visible(place.session(APP), store)  # a refused session leaves no empty lake
    lake.make(BUCKETS)
    lease = Lease(lake.storage)
    try:
        lease.acquire(None if no_wait else _waiting(place, stop))
    except LeaseTaken:
        if stop.is_set():
            return True
        raise
    try:
        spark = place.session(APP)
        require_visible(spark, store)
        service = Service(
            store,
            lake,
            stages(spark, store, lake, options),
            every_s=every_s,
            status_file=file,
            notify=place.say,
            lease=lease,
            alive=lambda: not is_stopped(spark),
            out=options.out,
        )
        place.say(f"at work on {lake.storage.location}, status in {file}")
        good = service.run(stop, cycles)
    finally:
        lease.release()
    status = service.status
    click.echo(
        f"{status.cycles} cycles in {time.monotonic() - began:.1f} s: the log holds "
        f"{_range(status.log_pruned_to + 1, status.log_head)}, the lake {_range(1, status.lake_head)}"
    )
    return good


def _range(first: int, last: int) -> str:
    return f"{first} to {last}" if first <= last else "nothing"


def _handle_signals(place: LakeTarget, stop: threading.Event) -> None:
    def handle(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if not place.quiet:  # not sys.stderr: the interrupted code may be writing to it
            os.write(2, b"ending after the current stage; ctrl-c or SIGTERM once more to end at once\n")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def _waiting(place: LakeTarget, stop: threading.Event) -> Wait:
    reported = ""

    def wait(holder: Holder, seconds: float) -> bool:
        nonlocal reported
        if reported != holder.name:
            reported = holder.name
            silence = f"does not renew its lease for {holder.lease_s:.0f} s"
            place.say(f"{holder.text()} holds the lake: waiting until it ends or {silence}")
        return stop.wait(seconds)

    return wait
