"""`unisono check`: is a log sound?"""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click.core import ParameterSource

from unisono.cli.colours import coloured
from unisono.cli.store_option import error_exit, needing_driver, store_option
from unisono.store.check import CheckReport, check_database, check_directory
from unisono.store.check_log import Progress


@click.command()
@click.argument("directory", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@store_option(required=False)
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@click.pass_context
def check(context: click.Context, directory: Path | None, store: str | None, quiet: bool) -> None:
    """Check the log in DIRECTORY, or in a database: what holds it, its indexes, the order, and every event's hash.

    Reads only, and may run beside servers. Exit code 0: sound; 1: damaged, with what and where; 2: not a log, or no
    way to it.

    \b
      unisono check /var/lib/unisono
      unisono check --store postgresql://unisono_node@db.example/unisono
    """
    if directory is not None and context.get_parameter_source("store") is not ParameterSource.COMMANDLINE:
        store = None
    if (directory is None) == (store is None):
        raise click.UsageError("name one log: DIRECTORY, or --store postgresql://…")
    with (
        click.progressbar(length=100, label="checking", file=sys.stderr, hidden=quiet) as bar,
        error_exit(),
    ):

        def progress(done: int, total: int) -> None:
            bar.update(int(done * 100 / total) - bar.pos if total else 0)

        report = _report(directory, store, progress)
    verdict, *rest = report.text().splitlines()
    click.echo("\n".join([coloured(verdict, "green" if report.ok else "red"), *rest]))
    sys.exit(0 if report.ok else 1)


def _report(directory: Path | None, store: str | None, progress: Progress) -> CheckReport:
    if directory is not None:
        return check_directory(directory, progress)
    assert store is not None
    with needing_driver():
        return check_database(store, progress)
