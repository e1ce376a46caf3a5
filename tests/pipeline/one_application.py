"""Several `unisono lake` commands in one process: Spark is started by the first, and the others find it running.

On a cluster each start of an application takes longer than what a small command does there.
"""

from __future__ import annotations

import json
import sys

import click

from unisono.cli.lake import lake


def code_of(arguments: list[str]) -> int:
    """What the command would have ended its process with."""
    try:
        lake(arguments, prog_name="unisono lake")
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


if __name__ == "__main__":
    for arguments in json.loads(sys.argv[1]):
        click.echo(f"{arguments[0]} ended with {code_of(arguments)}")
