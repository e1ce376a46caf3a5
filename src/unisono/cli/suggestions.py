"""What somebody who mistyped a name may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

import click

SUGGESTIONS_MAX: Final = 3


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of an error message about an unknown name; empty when no known one is like it."""
    close = get_close_matches(name, list(names), SUGGESTIONS_MAX)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


class SuggestingGroup(click.Group):
    """A group of commands that names the nearest one for a name it does not have, or all of them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            ending = did_you_mean(args[0], names) or f"; there are {', '.join(names)}"
            ctx.fail(f"there is no command {args[0]!r}{ending}")
        return super().resolve_command(ctx, args)
