"""Options that name a file or directory of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from unisono.vocabulary import URL_START


class LocalPath(click.Path):
    """A path; a URL is refused, which would become a directory of that name."""

    def __init__(self, **kinds: Any) -> None:
        super().__init__(path_type=Path, **kinds)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if URL_START.match(str(value)):
            self.fail(f"{value} is a URL: name a path of this machine", param, ctx)
        return super().convert(value, param, ctx)
