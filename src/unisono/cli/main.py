"""The one command, `unisono`. A command's module is imported when the command runs."""

from __future__ import annotations

from typing import Final

import click

from unisono import __version__
from unisono.cli.lazy import Lazy

COMMANDS: Final = {
    "serve": "serve:serve",
    "token": "token:token",
    "tail": "tail_submit:tail",
    "submit": "tail_submit:submit",
    "history": "history:history",
    "bench": "bench:bench",
    "client": "client:client",
    "access": "access:access",
    "connections": "access:connections",
    "kick": "access:kick",
    "console": "console:console",
    "check": "check:check",
    "doctor": "doctor:doctor",
    "model": "model:model",
    "snapshot": "model:snapshot",
    "db": "db:db",
    "copy": "db:copy",
    "backup": "backup:backup",
    "restore": "db:restore",
    "verify-history": "verify_history:verify_history",
    "lake": "lake:lake",
}


@click.group(
    cls=Lazy,
    commands_at=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="unisono")
def main() -> None:
    """Authoritative, offline-first event sync.

    \b
    Start a server to try things out:   unisono serve --dev
    Watch a partition:                  unisono tail --url … --token … --partition P
    Put an event into it:               unisono submit --url … --token … --partition P --set settings.theme=dark
    Edit an outline, also offline:      unisono client --url … --token … --partition P

    Every command has its own --help.
    """
