"""`--model`: what the commands that fold history share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from unisono.cli.lake.place import DATA, Command, Place

if TYPE_CHECKING:
    from unisono.pipeline.models import ShippedModel


def model_option(command: Command) -> Command:
    return click.option(
        "--model",
        metavar="DIR|open",
        help="The model to fold with; `open` reduces nothing but trees. [default: the one in force at the log]",
    )(command)


def chosen_model(place: Place, directory: str | None) -> ShippedModel:
    """The model that was named, or else the one of the log that was named or lies here."""
    from unisono.pipeline.models import choose

    known = place.store is not None or DATA.is_dir()
    return choose(directory, place.store_uri if known else None)
