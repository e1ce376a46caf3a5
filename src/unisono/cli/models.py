"""`unisono model …` and `unisono snapshot`: look at a model, and give orders to a running server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import click

from unisono.front.node import ADMIN_FILE, ORDER_TIMEOUT_S
from unisono.model.linting import check_model

ANSWER_LINE_BYTES_MAX: Final = 16 << 20
"""One line of an answer: the history of a log with many kinds of events."""

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
@click.option(
    "--dry-run", is_flag=True, help="Check the model and read the log through it, and switch nothing."
)
@click.option("--strict", is_flag=True, help="Switch nothing when committed events no longer apply.")
@click.option("--skip-history", is_flag=True, help="Switch without reading the log first.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def reload(data: Path, directory: str, dry_run: bool, strict: bool, skip_history: bool, quiet: bool) -> None:
    """Put a newer model version into force without a restart.

    The new model is checked completely first; a broken one, or one whose model_version is not higher, changes
    nothing. Then the whole log is read through it, beside the server's work, and before anything switches it is told
    how many committed events no longer apply. Clients of the canonical profile are told by version_changed.

    Exit code 1: nothing was switched. For a very long log, `unisono lake revalidate` answers the same and more with
    Spark; then --skip-history.
    """
    if skip_history and strict:
        raise click.UsageError("--strict needs the history that --skip-history leaves out")
    wish = {"dry_run": dry_run, "strict": strict, "skip_history": skip_history}
    arguments = {name: "1" for name, given in wish.items() if given}
    arguments["model"] = str(Path(directory).resolve()) if directory else ""
    with click.progressbar(
        length=100, label="reading the log", file=sys.stderr, hidden=quiet or skip_history
    ) as bar:
        told = _order(data, "reload", arguments, _Following(bar))
    switched = "would be" if dry_run else "→"
    click.echo(f"model_version {told['old_model_version']} {switched} {told['new_model_version']}")
    for key, change in told["changes"].items():
        click.echo(f"  {key}: {json.dumps(change['before'])} → {json.dumps(change['after'])}")


class _Following:
    """Shows how far a reload is, and what it found before it switches."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def __call__(self, told: dict[str, Any]) -> None:
        if "history" not in told:
            self._bar.update(int(told["events"] * 100 / max(1, told["of"])) - self._bar.pos)
            return
        self._bar.update(100 - self._bar.pos)
        self._bar.render_finish()
        click.echo("\n".join(told["history"]["lines"]))


@click.command()
@_DATA
@click.option("--partition", "partitions", multiple=True, required=True, help="May be repeated.")
def snapshot(data: Path, partitions: tuple[str, ...]) -> None:
    """Have a running server write snapshots of partitions, so that their states load fast."""
    for partition in partitions:
        told = _order(data, "snapshot", {"partition": partition}, None)
        click.echo(f"{partition}: state at {told['committed_id']}, {told['bytes']} bytes")


def _order(
    data: Path, command: str, arguments: dict[str, str], follow: Callable[[dict[str, Any]], None] | None
) -> dict[str, Any]:
    try:
        admin = json.loads((data / ADMIN_FILE).read_text())
    except FileNotFoundError:
        raise click.ClickException(f"no server runs on {data} (there is no {ADMIN_FILE} in it)") from None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{data / ADMIN_FILE} cannot be read: {error}") from None
    try:
        return asyncio.run(_post(admin["url"], admin["token"], command, arguments, follow))
    except (aiohttp.ClientError, TimeoutError) as error:
        raise click.ClickException(f"the server's admin port does not answer: {error}") from None


async def _post(
    url: str,
    token: str,
    command: str,
    arguments: dict[str, str],
    follow: Callable[[dict[str, Any]], None] | None,
) -> dict[str, Any]:
    """Give an order; with `follow` the answer comes in lines, and only its silence is limited."""
    headers = {"Authorization": f"Bearer {token}"}
    limit_s = ORDER_TIMEOUT_S + 10
    timeout = aiohttp.ClientTimeout(total=limit_s if follow is None else None, sock_read=limit_s)
    parameters = arguments if follow is None else {**arguments, "progress": "1"}
    async with (
        aiohttp.ClientSession(timeout=timeout, read_bufsize=ANSWER_LINE_BYTES_MAX) as session,
        session.post(f"{url}/orders/{command}", params=parameters, headers=headers) as answer,
    ):
        status, told = answer.status, None
        if follow is None or status != 200:
            told = await answer.json()
        else:
            async for line in answer.content:
                told = json.loads(line)
                if "status" in told:
                    status, told = told["status"], told["answer"]
                    break
                follow(told)
        if not isinstance(told, dict) or (status == 200 and "events" in told):
            raise click.ClickException("the server ended before it answered; its log says why")
        if status != 200:
            raise click.ClickException(str(told.get("error", told)))
        return told
