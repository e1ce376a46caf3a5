"""`unisono model new`: a directory to begin a model in."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import click

from unisono.samples import SAMPLES, sample_model


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--like",
    type=click.Choice(SAMPLES),
    default="starter",
    show_default=True,
    help="Which sample to begin with: starter has tasks and two rules; outline has notes and trees; board is reduced "
    "by data alone, for clients in any language; roles knows who may do what.",
)
@click.option("--name", help="The model's name. [default: that of the directory]")
def new(directory: Path, like: str, name: str | None) -> None:
    """Begin a model in DIRECTORY, which is new or empty: schemas, rules and examples to change.

    \b
      unisono model new tasks
      unisono model check tasks
      unisono serve --dev --model tasks
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise click.ClickException(f"{directory} is there and not empty: give a new directory")
    called = name or directory.resolve().name
    if re.search(r'["\\\x00-\x1f]', called):
        raise click.BadParameter("has a quote, a backslash or a control character", param_hint="--name")
    try:
        shutil.copytree(
            sample_model(like), directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        settings = directory / "model.toml"
        text = settings.read_text(encoding="utf-8")
        settings.write_text(re.sub(r'(?m)^name = ".*"$', f'name = "{called}"', text), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{directory}: {error.strerror or error}") from None
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        click.echo(path)
    click.echo(
        f"\nTry it:    unisono model check {directory}\nServe it:  unisono serve --dev --model {directory}"
    )
