"""The one command, `unisono`. A command's module is loaded when it is asked for, so none pays for another."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

from unisono import __version__

COMMANDS: Final = {
    "serve": "serve:serve",
    "token": "token:token",
    "tail": "poke:tail",
    "submit": "poke:submit",
    "client": "client:client",
    "check": "check:check",
    "model": "models:model",
    "snapshot": "models:snapshot",
    "db": "db:db",
    "copy": "db:copy",
    "lake": "lake:lake",
}


class Commands(click.Group):
    """The commands by name, in the order a newcomer meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, name = place.split(":")
        command = getattr(import_module(f"unisono.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
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
