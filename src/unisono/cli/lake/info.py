"""`unisono lake info`."""

from __future__ import annotations

import click
import msgspec

from unisono.cli.lake.command import LakeTarget, at_place


@click.command("info")
@at_place
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def info_(place: LakeTarget, as_json: bool) -> None:
    """Tell what is in the lake, and how far it is behind the log when one is named."""
    from unisono.pipeline.lake_info import info
    from unisono.pipeline.open_log import normal_uri

    told = info(place.open_lake(), None if place.store is None else normal_uri(place.store))
    click.echo(msgspec.json.encode(told).decode() if as_json else told.text())
