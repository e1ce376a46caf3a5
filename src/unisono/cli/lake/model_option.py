"""`--model` of the commands that fold history."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from unisono.cli.lake.command import DATA, Command, LakeTarget

if TYPE_CHECKING:
    from unisono.pipeline.job_model import ShippedModel


def model_option(command: Command) -> Command:
    return click.option(
        "--model",
        metavar="DIR|open",
        help="The model to fold with; `open` reduces nothing but trees. [default: the one in force at the log]",
    )(command)


def chosen_model(place: LakeTarget, directory: str | None, *, folding: bool = False) -> ShippedModel:
    """The named model, or else the one in force at the log, if the lake is its copy.

    A model whose content differs from the lake's model of that version is refused. For `folding`, the fold itself
    compares it with the existing snapshots.
    """
    from unisono.lake.errors import ForeignFiles
    from unisono.pipeline.job_model import choose
    from unisono.pipeline.jobs.snapshot.job import folded_to
    from unisono.pipeline.origin_check import model_of_log, require_same_model

    lake = place.open_lake()
    known = place.store is not None or DATA.is_dir()
    from_log = directory is None and known
    model = model_of_log(place.store_uri, lake) if from_log else choose(directory, None)
    require_same_model(lake, model)
    if not folding:
        with suppress(ForeignFiles):  # snapshots that another program rearranged are not used
            folded_to(lake, model)
    return model
