"""`unisono lake snapshot`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from unisono.cli.lake.command import LakeTarget, at_place, sum_up
from unisono.cli.lake.model_option import chosen_model, model_option

if TYPE_CHECKING:
    from unisono.lake.lake import Lake
    from unisono.pipeline.job_model import ShippedModel
    from unisono.pipeline.jobs.snapshot.job import SnapshotResult


@click.command("snapshot")
@at_place
@click.option(
    "--partition", "partitions", multiple=True, metavar="P", help="Only of this partition. May be repeated."
)
@model_option
@click.option(
    "--publish", is_flag=True, help="Then put into the store those that are newer than what it has."
)
@click.option("--rebuild", is_flag=True, help="Remove those of this model version and fold everything again.")
def snapshot_(
    place: LakeTarget, partitions: tuple[str, ...], model: str | None, publish: bool, rebuild: bool
) -> None:
    """Fold what is new in the lake into snapshots of all partitions, by the server's own reducers.

    Starts from the newest snapshots of the same model version. If it is killed, run it again.
    """
    if partitions and rebuild:
        raise click.UsageError("--rebuild folds all partitions: leave --partition out")
    began, target = time.monotonic(), place.open_lake()
    chosen = chosen_model(place, model, folding=True)
    if publish:
        from unisono.pipeline.jobs.snapshot.publish import require_publishable

        require_publishable(place.store_uri, chosen.version, [chosen.digest])
    place.rewrite_foreign_files(target)
    done = _fold(place, target, chosen, partitions, rebuild)
    if model is None and not partitions:
        from unisono.pipeline.jobs.snapshot.in_force import record_in_force

        record_in_force(target, chosen.version)
    note = f"{done.partitions} snapshots of model version {done.model_version} at event {done.upto}"
    if done.skipped:
        note += f", {done.skipped} events do not fit the model"
    if publish:
        note += f", {_publish(place, target, chosen.version)} published"
    sum_up("folded", done.events, time.monotonic() - began, note)


def _fold(
    place: LakeTarget, target: Lake, model: ShippedModel, partitions: tuple[str, ...], rebuild: bool
) -> SnapshotResult:
    from unisono.pipeline.jobs.snapshot.job import SnapshotResult, folded_to, snapshot

    head = target.view().head
    if not partitions and not rebuild and folded_to(target, model) == head:
        return SnapshotResult(model.version, head, head, 0, 0, 0, 0.0)
    return snapshot(
        place.session("unisono lake snapshot"),
        target,
        model,
        partitions=partitions or None,
        rebuild=rebuild,
        progress=lambda rows, of: place.say(f"folded {rows} of about {of} rows") if of else None,
    )


def _publish(place: LakeTarget, target: Lake, model_version: int) -> int:
    from unisono.pipeline.jobs.snapshot.publish import publish

    reported = time.monotonic()

    def report(count: int) -> None:
        nonlocal reported
        if time.monotonic() - reported > 1:
            reported = time.monotonic()
            place.say(f"published {count} snapshots")

    return publish(target, place.store_uri, model_version, report).snapshots
