"""`unisono check`: is a data directory sound?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from unisono.store.checking import check_directory
from unisono.store.port import StoreUnusable


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def check(directory: Path, quiet: bool) -> None:
    """Check the log in DIRECTORY: the file, its indexes, the order, and every event's hash.

    Reads only, and may run beside a server. Exit code 0: sound; 1: damaged, with what and where; 2: not a log.
    """
    with click.progressbar(length=100, label="checking", file=sys.stderr, hidden=quiet) as bar:

        def progress(done: int, total: int) -> None:
            bar.update(int(done * 100 / total) - bar.pos if total else 0)

        try:
            report = check_directory(directory, progress)
        except StoreUnusable as error:
            click.echo(f"unisono: {error}", err=True)
            sys.exit(2)
    click.echo(report.text())
    sys.exit(0 if report.ok else 1)
