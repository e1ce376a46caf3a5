"""`unisono client`: an outline in the terminal, live and offline."""

from __future__ import annotations

import asyncio
import hashlib
import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from unisono.cli.token_option import given_token, read_token, token_option
from unisono.cli.wire import NO_CLIENT_ID
from unisono.client import ClientError, Options, StoreInUse, SyncClient
from unisono.extras import install_command
from unisono.protocol.identities import client_id_of
from unisono.protocol.partitions import normalise

MEMORY: Final = ":memory:"

OPTIONS: Final = Options(backoff_cap_s=5.0)
"""A person watches: a server that is back is found within seconds."""

READABLE_MAX: Final = 80
DIGEST_LENGTH: Final = 16
"""With endings for SQLite's own files well below the 255 bytes that file systems allow a name."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--url", default="ws://127.0.0.1:8040/sync", show_default=True, help="The server's WebSocket address."
)
@token_option
@click.option("--partition", required=True, help="The partition to show and edit.")
@click.option("--client-id", help="Who you are. [default: the client_id of the token]")
@click.option(
    "--store",
    metavar="FILE",
    help=f"Where drafts and history are kept; {MEMORY} forgets them at the end. "
    "[default: a file of the user's data directory, one per server, client_id and partition]",
)
@click.option("--target", default="outline", show_default=True, help="The tree within the partition.")
def client(
    url: str, token: str | None, partition: str, client_id: str | None, store: str | None, target: str
) -> None:
    """Show a partition as an outline, live, and edit it, with or without a connection.

    What you change while offline is kept in the store and goes out with the next connection. The keys are at the
    bottom of the screen. A token in a file is read again when the server refuses the last one.

    \b
      unisono client --token alice.jwt --partition welcome
    """
    _check_url(url)
    source = _token_source(token)
    who = _who(source if isinstance(source, str) else source(), client_id)
    if find_spec("textual") is None:
        raise click.ClickException(f"this needs the package textual: {install_command('terminal')}")
    try:
        made = SyncClient(
            url,
            token=source,
            client_id=who,
            store=store or default_store(url, who, partition),
            partitions=[partition],
            profile="compatibility",
            options=OPTIONS,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.ClickException("this needs a terminal; `unisono tail` and `unisono submit` do not")
    try:
        asyncio.run(_run(made, target, who))
    except StoreInUse as error:
        raise click.ClickException(f"{error} (--store FILE)") from None
    except ClientError as error:
        raise click.ClickException(str(error)) from None


async def _run(made: SyncClient, target: str, who: str) -> None:
    # Imported here: the other commands start without it.
    from unisono.terminal.app import OutlineApp

    async with made as opened:
        (partition,) = opened.status.cursors
        app = OutlineApp(opened, partition=partition, target=target, client_id=who)
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, app.exit)
        await app.run_async()


def default_store(url: str, client_id: str, partition: str) -> Path:
    """A file for each server, client and partition: the histories of two servers must not mix.

    The name says whose it is; the digest tells apart what file systems do not.
    """
    from platformdirs import user_data_path

    whose = [urlsplit(url).netloc.lower(), client_id, *normalise([partition])]
    readable = re.sub(r"[^A-Za-z0-9@._-]+", "_", "-".join(whose[1:]))[:READABLE_MAX]
    digest = hashlib.sha256("\0".join(whose).encode()).hexdigest()[:DIGEST_LENGTH]
    return user_data_path("unisono", appauthor=False) / "clients" / f"{readable}-{digest}.db"


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise click.UsageError(f"--url: {url!r} is not an address like ws://127.0.0.1:8040/sync")


def _token_source(token: str | None) -> str | Callable[[], str]:
    """The token, or what reads it from its file each time one is needed."""
    given = given_token(token)
    return given if isinstance(given, str) else partial(read_token, given)


def _who(token: str, client_id: str | None) -> str:
    """The client_id to connect as; a token that names another one would only be refused later."""
    named = client_id_of(token)
    if named is None:
        if client_id is None:
            raise click.UsageError(f"{NO_CLIENT_ID}; give --client-id if it is a token all the same")
        return client_id
    if client_id not in (None, named):
        raise click.UsageError(f"--client-id: the token belongs to {named!r}, not to {client_id!r}")
    return named
