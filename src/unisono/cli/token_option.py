"""The option `--token`: a token, or a file that has one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

TOKEN_CHARS_MIN: Final = 80
"""A signed token is longer: its signature alone has 43 characters or more. File names are shorter."""

token_option = click.option("--token", help="The token, or a file that has it. [default: $UNISONO_TOKEN]")


def given_token(token: str | None) -> str | Path:
    """The token, or the file it is in. A leading @ says that it is a file, and is not necessary."""
    token = token or os.environ.get("UNISONO_TOKEN")
    if not token:
        raise click.UsageError("give --token, or set UNISONO_TOKEN")
    if token.count(".") == 2 and len(token) >= TOKEN_CHARS_MIN and not token.startswith("@"):
        return token
    return Path(token.removeprefix("@"))


def read_token(source: str | Path) -> str:
    if isinstance(source, str):
        return source
    try:
        token = source.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not a text"
        raise click.ClickException(
            f"--token: neither a token nor a file with one: {source}: {reason}"
        ) from None
    if not token:
        raise click.ClickException(f"{source}: is empty")
    return token
