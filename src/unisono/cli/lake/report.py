"""`unisono lake report`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from unisono.cli.lake.command import LakeTarget, at_place, sum_up
from unisono.cli.lake.durations import DurationType
from unisono.cli.lake.output import out_option


class Moment(click.ParamType[int]):
    """Milliseconds since the epoch, from a date or a time in ISO 8601; without a zone it is UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time: write 2026-05-01 or 2026-05-01T12:30+02:00", param, ctx)
        zoned = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return round(zoned.timestamp() * 1000)


@click.command("report")
@at_place
@out_option("Where to write it.", required=True)
@click.option(
    "--from", "from_ms", type=Moment(), metavar="TIME", help="Events committed at or after this time."
)
@click.option("--to", "to_ms", type=Moment(), metavar="TIME", help="Events committed before this time.")
@click.option(
    "--since",
    "last_ms",
    type=DurationType(),
    metavar="SPAN",
    help="The last 30d, 12h, … before the lake's last event.",
)
@click.option(
    "--top", type=click.IntRange(1, 1000), default=20, metavar="N", help="Of the busiest. [default: 20]"
)
@click.option(
    "--within",
    type=DurationType(),
    default=5_000,
    metavar="SPAN",
    help="Edits of one item by two clients are contested when they are this close. [default: 5s]",
)
@click.option(
    "--metrics",
    multiple=True,
    metavar="URL",
    help="A server's admin port, for rejections. May be repeated. [default: the server on the data directory]",
)
def report_(
    place: LakeTarget,
    out: Path,
    from_ms: int | None,
    to_ms: int | None,
    last_ms: int | None,
    top: int,
    within: int,
    metrics: tuple[str, ...],
) -> None:
    """Write a report on the history: a page with pictures, and its tables as Parquet.

    Activity, the busiest partitions and clients, kinds and sizes of events, contested edits, time from draft to
    commit, growth, and what retention would free. With --data or --store it knows what the hot log still holds.
    Without --master it is computed in this process, which needs no Spark.
    """
    from unisono.pipeline.jobs.report.job import report, write
    from unisono.pipeline.jobs.report.server_metrics import counts_beside, server_counts

    began, lake = time.monotonic(), place.open_lake()
    store = None if place.store is None else place.store_uri
    made = report(
        (lambda: place.session("unisono lake report", few_rows=False)) if place.chooses_spark else None,
        lake,
        from_ms=from_ms,
        to_ms=to_ms,
        last_ms=last_ms,
        top=top,
        within_ms=within,
        store=store,
        server=server_counts(metrics) if metrics else counts_beside(store, place.say),
        notify=place.say,
    )
    write(made, out)
    if made.head and not made.totals.events:
        last = datetime.fromtimestamp(made.head_at / 1000, UTC).isoformat(timespec="seconds")
        click.echo(
            f"no event was committed in that time: the lake's last one, event {made.head}, was at {last}",
            err=True,
        )
    sum_up("reported on", made.totals.events, time.monotonic() - began, f"see {out / 'index.html'}")
