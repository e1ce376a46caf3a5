"""`unisono model …` and `unisono snapshot`: look at a model, and give orders to a running server."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import click

from unisono.front.node import ADMIN_FILE, ORDER_TIMEOUT_S
from unisono.model.linting import check_model

_DATA = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("unisono-data"),
    show_default=True,
    help="The running server's data directory.",
)


@click.group()
def model() -> None:
    """Check a model, or hand a new one to a running server."""


@model.command("check")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--events", type=click.File("rb"), help="Try the model on these events, one JSON object per line."
)
def check(directory: Path, events: Any) -> None:
    """Lint the model in DIRECTORY and say what it would do.

    Exit code 1 when it cannot be used, or when it refuses one of the events.

    Lines of --events are bare events, or {"partitions": [...], "event": {...}} as in the log.
    """
    report = check_model(directory, events)
    click.echo(report.text())
    sys.exit(0 if report.ok else 1)


@model.command("reload")
@_DATA
@click.option(
    "--model", "directory", default="", help="Another model directory; default: the server's own, read anew."
)
def reload(data: Path, directory: str) -> None:
    """Put a newer model version into force without a restart.

    The new model is checked completely first; a broken one, or one whose model_version is not higher, changes
    nothing. Clients of the canonical profile are told by version_changed.
    """
    told = _order(data, "reload", {"model": str(Path(directory).resolve()) if directory else ""})
    click.echo(f"model_version {told['old_model_version']} → {told['new_model_version']}")
    for key, change in told["changes"].items():
        click.echo(f"  {key}: {json.dumps(change['before'])} → {json.dumps(change['after'])}")


@click.command()
@_DATA
@click.option("--partition", "partitions", multiple=True, required=True, help="May be repeated.")
def snapshot(data: Path, partitions: tuple[str, ...]) -> None:
    """Have a running server write snapshots of partitions, so that their states load fast."""
    for partition in partitions:
        told = _order(data, "snapshot", {"partition": partition})
        click.echo(f"{partition}: state at {told['committed_id']}, {told['bytes']} bytes")


def _order(data: Path, command: str, arguments: dict[str, str]) -> dict[str, Any]:
    try:
        admin = json.loads((data / ADMIN_FILE).read_text())
    except FileNotFoundError:
        raise click.ClickException(f"no server runs on {data} (there is no {ADMIN_FILE} in it)") from None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{data / ADMIN_FILE} cannot be read: {error}") from None
    try:
        return asyncio.run(_post(admin["url"], admin["token"], command, arguments))
    except (aiohttp.ClientError, TimeoutError) as error:
        raise click.ClickException(f"the server's admin port does not answer: {error}") from None


async def _post(url: str, token: str, command: str, arguments: dict[str, str]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ORDER_TIMEOUT_S + 10)) as session,
        session.post(f"{url}/orders/{command}", params=arguments, headers=headers) as answer,
    ):
        told: dict[str, Any] = await answer.json()
        if answer.status != 200:
            raise click.ClickException(str(told.get("error", told)))
        return told
