"""Groups of commands whose modules are imported when they run, so that no command waits for another's imports."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from unisono.cli.suggestions import SuggestingGroup


class Lazy(SuggestingGroup):
    """`commands_at`: name → "module:attribute" below `unisono.cli`, in the order a newcomer meets them."""

    def __init__(self, *arguments: Any, commands_at: Mapping[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        place = self._commands_at.get(cmd_name)
        if place is None:
            return None
        module, name = place.split(":")
        command = getattr(import_module(f"unisono.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command
