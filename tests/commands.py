"""The command `unisono`, run within a test's own process, always from its top, as a user comes to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from click.testing import CliRunner, Result

from unisono.cli.main import main


def unisono(*arguments: str, env: Mapping[str, str | None] | None = None, **options: Any) -> Result:
    """Run one command. A part of it must not be called alone: it keeps the settings of its first caller."""
    return CliRunner().invoke(main, arguments, env=env, **options)
