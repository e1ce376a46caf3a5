"""Colours for terminals. Where the output is none, `click.echo` takes them away; NO_COLOR does it everywhere."""

from __future__ import annotations

import os

import click


def coloured(text: str, colour: str) -> str:
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour)
