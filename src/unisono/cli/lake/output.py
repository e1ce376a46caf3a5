"""Where results go, by the same two options in every command: --out DIRECTORY for files, --json for stdout."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from unisono.cli.local_path import LocalPath

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def out_option(help_text: str, *, required: bool = False) -> Decorator:
    return click.option(
        "--out",
        type=LocalPath(file_okay=False),
        metavar="DIRECTORY",
        required=required,
        callback=_writable,
        help=help_text,
    )


def _writable(_: click.Context, option: click.Parameter, directory: Path | None) -> Path | None:
    """Refuse a directory that cannot be written, or made, before the work; leaves nothing there."""
    if directory is not None:
        place = directory.absolute()
        present = next(path for path in (place, *place.parents) if os.path.lexists(path))
        try:
            tempfile.TemporaryFile(dir=present).close()
        except OSError as error:
            reason = error.strerror or error
            raise click.BadParameter(f"{directory} cannot be written: {reason}", param=option) from error
    return directory


def json_option(help_text: str) -> Decorator:
    return click.option("--json", "as_json", is_flag=True, help=help_text)


def write_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Into a directory that is made if it is missing."""
    from unisono.pipeline.errors import PipelineError

    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (directory / name).write_bytes(content)
    except OSError as error:
        raise PipelineError(f"{directory} cannot be written: {error.strerror or error}") from error
