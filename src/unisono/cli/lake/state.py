"""`unisono lake state`."""

from __future__ import annotations

import click
import msgspec

from unisono.cli.lake.command import LakeTarget, at_place
from unisono.cli.lake.model_option import chosen_model, model_option
from unisono.cli.lake.output import json_option
from unisono.display import escape_controls


@click.command("state")
@at_place
@click.option("--partition", required=True, metavar="P", help="Whose state.")
@click.option(
    "--at", metavar="N|TIME", help="After this committed_id, or by this time (ISO 8601). [default: the end]"
)
@model_option
@json_option("As one JSON object, with where it comes from.")
def state_(place: LakeTarget, partition: str, at: str | None, model: str | None, as_json: bool) -> None:
    """Show the state of a partition at any moment: the nearest snapshot, and a replay of the rest. Needs no Spark."""
    from unisono.pipeline.deep_json import text
    from unisono.pipeline.jobs.past.job import after_end_note, state_at

    chosen, view = chosen_model(place, model), place.open_lake().view()
    found = state_at(view, partition, chosen, at)
    if note := after_end_note(view, at):
        click.echo(note, err=True)
    if as_json:
        click.echo(text(msgspec.structs.asdict(found)))
        return
    source = f"{found.replayed} replayed after the snapshot at {found.base}" if found.base else "all replayed"
    place.say(
        f"{escape_controls(found.partition)} at event {found.committed_id}, model version {found.model_version}: "
        f"{found.events} events, {source}"
        + (f", {found.skipped} do not fit the model" if found.skipped else "")
    )
    click.echo(text(found.state, pretty=True))
