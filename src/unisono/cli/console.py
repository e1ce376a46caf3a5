"""`unisono console`: the link to a running server's console."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from unisono.console.links import console_link
from unisono.ipc.files import ADMIN_FILE


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("unisono-data"),
    show_default=True,
    help="The running server's data directory; with a shared log, that of one of the nodes.",
)
def console(data: Path) -> None:
    """Print a link that opens the console of a running server, logged in.

    The link has the admin token of this run of the server: whoever has it may do what an operator may.
    """
    try:
        click.echo(console_link(data))
    except FileNotFoundError:
        raise click.ClickException(f"no server runs on {data}: there is no {data / ADMIN_FILE}") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise click.ClickException(f"{data / ADMIN_FILE}: {error}") from None
