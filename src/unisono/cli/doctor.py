"""`unisono doctor`: is this machine fit for a server?"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click
import msgspec

from unisono.cli.colours import coloured
from unisono.cli.settings import ConfigError, load
from unisono.node.doctor import Finding, examine

EXIT_BAD: Final = 1
_COLOURS: Final = {"good": "green", "warning": "yellow", "bad": "red"}


@click.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="UNISONO_CONFIG",
    help="The server's TOML file.",
)
@click.option("--data", metavar="DIR", help="The server's data directory. [default: as for serve]")
@click.option("--store", metavar="DSN", help="The shared log, postgresql://… [default: as for serve]")
@click.option("--json", "as_json", is_flag=True, help="One object per line.")
def doctor(config: Path | None, data: str | None, store: str | None, as_json: bool) -> None:
    """Look at what a server depends on: disk syncs, file system, free space, limits, clock, versions, the log.

    Settings are read as `unisono serve` reads them. It may run beside a server; for three seconds at most it
    writes and syncs a file in the data directory. Exit codes: 0 nothing bad, 1 something is bad, 2 a setting is
    wrong.

    \b
      unisono doctor --data /var/lib/unisono
      unisono doctor --config /etc/unisono/unisono.toml
    """
    given = {name: value for name, value in (("data", data), ("store", store)) if value is not None}
    try:
        settings = load(config, os.environ, given)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    bad = False
    for finding in examine(settings):
        bad |= finding.verdict == "bad"
        click.echo(msgspec.json.encode(finding).decode() if as_json else _line(finding))
    sys.exit(EXIT_BAD if bad else 0)


def _line(finding: Finding) -> str:
    verdict = coloured(f"{finding.verdict:<8}", _COLOURS[finding.verdict])
    return f"{verdict} {finding.subject:<12} {finding.text}"
