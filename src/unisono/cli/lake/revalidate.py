"""`unisono lake revalidate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unisono.cli.lake.command import EXIT_NOT_DONE, LakeTarget, at_place
from unisono.cli.lake.output import json_option, out_option

if TYPE_CHECKING:
    from unisono.pipeline.job_model import ShippedModel


@click.command("revalidate")
@at_place
@click.option("--model", "directory", required=True, metavar="DIR", help="The new model.")
@click.option(
    "--against", metavar="DIR|open", help="The model to compare with. [default: the one in force on the log]"
)
@out_option("Write a page there, the result as JSON, and the rows behind it as Parquet.")
@json_option("The result as one JSON object.")
def revalidate_(
    place: LakeTarget, directory: str, against: str | None, out: Path | None, as_json: bool
) -> None:
    """Judge all history under a new model before anyone deploys it; change nothing.

    Shows which events would be rejected if they were submitted today in this order, which would be skipped in replay,
    and which partitions would have another state. Exit code 0: compatible; 1: there are differences.
    """
    from unisono.pipeline.job_model import choose
    from unisono.pipeline.jobs.revalidate.job import encode, revalidate, write
    from unisono.pipeline.jobs.revalidate.page import text
    from unisono.pipeline.open_log import extent
    from unisono.pipeline.origin_check import require_same_log

    now = choose(directory, None)
    before = _before(place, against)
    lake = place.open_lake()
    lake.view()
    head = 0
    if place.store is not None:
        log_extent = extent(place.store_uri)
        require_same_log(place.store_uri, lake, lake.head(), log_extent)
        head = log_extent.head
    spark = place.session("unisono lake revalidate")
    result = revalidate(spark, lake, before, now, out=out, notify=place.say, log_head=head)
    if out is not None:
        write(result, out)
    click.echo(encode(result).decode() if as_json else f"{text(result)}\n{result.verdict}")
    if not result.compatible:
        sys.exit(EXIT_NOT_DONE)


def _before(place: LakeTarget, against: str | None) -> ShippedModel:
    from unisono.pipeline.job_model import choose

    if against is None and place.store is None:
        raise click.UsageError(
            "say what to compare with: --against DIR, --against open, or the log (--data, --store)"
        )
    return choose(against, None if place.store is None else place.store_uri)
