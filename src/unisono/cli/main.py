"""The one command, `unisono`."""

from __future__ import annotations

import click

from unisono import __version__
from unisono.cli.check import check
from unisono.cli.models import model, snapshot
from unisono.cli.poke import submit, tail
from unisono.cli.serve import serve
from unisono.cli.token import token


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="unisono")
def main() -> None:
    """Authoritative, offline-first event sync.

    \b
    Start a server to try things out:   unisono serve --dev
    Watch a partition:                  unisono tail --url … --token … --partition P
    Put an event into it:               unisono submit --url … --token … --partition P --set settings.theme=dark

    Every command has its own --help.
    """


for command in (serve, token, tail, submit, check, model, snapshot):
    main.add_command(command)
