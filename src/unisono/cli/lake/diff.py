"""`unisono lake diff`."""

from __future__ import annotations

import click

from unisono.cli.lake.command import LakeTarget, at_place
from unisono.cli.lake.model_option import chosen_model, model_option
from unisono.cli.lake.output import json_option
from unisono.display import escape_controls


@click.command("diff")
@at_place
@click.option("--partition", required=True, metavar="P", help="Whose states.")
@click.option("--from", "since", required=True, metavar="N|TIME", help="The earlier moment.")
@click.option("--to", "upto", metavar="N|TIME", help="The later moment. [default: the end]")
@model_option
@json_option("As a JSON array of operations.")
def diff_(
    place: LakeTarget, partition: str, since: str, upto: str | None, model: str | None, as_json: bool
) -> None:
    """Show what changed in a partition between two moments.

    `+` is new, `-` is gone, `~` has another value, `>` was moved within a tree. Needs no Spark.
    """
    from unisono.pipeline.deep_json import text
    from unisono.pipeline.jobs.past.job import after_end_note, state_at
    from unisono.pipeline.state_diff import changes

    chosen, view = chosen_model(place, model), place.open_lake().view()
    old, new = state_at(view, partition, chosen, since), state_at(view, partition, chosen, upto)
    if note := after_end_note(view, upto):
        click.echo(note, err=True)
    found = list(changes(old.state, new.state))
    if as_json:
        click.echo(text([change.operation() for change in found]))
        return
    place.say(
        f"{escape_controls(new.partition)} from event {old.committed_id} to {new.committed_id}, model version "
        f"{new.model_version}: {abs(new.events - old.events)} events, {len(found)} changes"
    )
    for change in found:
        click.echo(change.line())
