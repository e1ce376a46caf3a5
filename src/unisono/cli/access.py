"""`unisono access`, `unisono connections` and `unisono kick`: who may do what now, and who is here."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any, Final

import click

from unisono.ipc.files import ADMIN_FILE, read_admin_file

TIMEOUT_S: Final = 30.0
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

_DATA = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("unisono-data"),
    show_default=True,
    help="The running server's data directory; with a shared log, that of one of the nodes.",
)


def _seconds(_context: click.Context, _option: click.Parameter, text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None:
        raise click.BadParameter("a time like 30s, 10m, 2h or 7d")
    return float(match[1]) * _UNITS[match[2] or "s"]


@click.group()
def access() -> None:
    """Change who may do what, while the server runs."""


@access.command()
@_DATA
def reload(data: Path) -> None:
    """Read the ACL file again, on all nodes. What is no longer allowed ends at once."""
    _admin(data, "POST", "/orders/access", {})
    click.echo("ACL reloaded")


@access.command()
@_DATA
@click.argument("jti")
@click.option(
    "--for", "for_s", default="30d", callback=_seconds, show_default=True, help="How long; 0: no longer."
)
def revoke(data: Path, jti: str, for_s: float) -> None:
    """Refuse the token with this id (claim `jti`), and end its connection, on all nodes.

    Refuse it for at least as long as it is valid. The list is kept in the log's store.
    """
    _admin(data, "POST", "/orders/access", {"kind": "jti", "name": jti, "for_s": for_s})
    click.echo(f"token {jti} {_refused(for_s)}")


@access.command("list")
@_DATA
def list_revocations(data: Path) -> None:
    """Show which tokens, clients and users are refused, and until when."""
    now_ms = time.time() * 1000
    for each in _admin(data, "GET", "/revocations")["revocations"]:
        if each["until_ms"] > now_ms:
            until = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["until_ms"] / 1000))
            click.echo(f"{each['kind']:<7} {each['name']}  until {until}")


@click.command()
@_DATA
@click.option(
    "--client", "client_id", help="End the connection of this client_id, and of those derived from it."
)
@click.option("--user", "user_id", help="End the connections of this user_id.")
@click.option(
    "--for", "for_s", default="0", callback=_seconds, help="Refuse them for so long: 30s, 10m, 2h, 7d."
)
def kick(data: Path, client_id: str | None, user_id: str | None, for_s: float) -> None:
    """End connections, on all nodes, and refuse new ones for a time.

    \b
      unisono kick --client ann-phone
      unisono kick --user ann --for 10m
    """
    if (client_id is None) == (user_id is None):
        raise click.UsageError("give either --client or --user")
    kind, name = ("client", client_id) if client_id is not None else ("user", user_id)
    _admin(data, "POST", "/orders/access", {"kind": kind, "name": name, "for_s": for_s})
    click.echo(f"{kind} {name} {_refused(for_s)}")


def _refused(for_s: float) -> str:
    return f"ended, and refused for {for_s:.0f} s" if for_s else "ended; it may connect again"


@click.command()
@_DATA
@click.option("--limit", default=1000, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def connections(data: Path, limit: int, as_json: bool) -> None:
    """Show who is connected, on all nodes: client, user, node, profile, subscriptions, and how far behind it is.

    A node that does not answer within a second is named on stderr, and its clients are shown by their names alone.
    """
    import json

    answer = _admin(data, "GET", f"/connections?limit={limit}")
    for node in answer["silent_nodes"]:
        click.echo(
            f"unisono: node {node} did not answer within a second: only the names of its clients are known",
            err=True,
        )
    for each in sorted(answer["connections"], key=lambda each: each["client_id"] or ""):
        if as_json:
            click.echo(json.dumps(each, ensure_ascii=False))
            continue
        line = f"{each['client_id'] or '(not connected yet)'}  {each.get('user_id') or '-'}  {each['node']}"
        if "subscriptions" in each:
            state = (
                f"{each['lag']} events behind" if each["lag"] else "syncing" if each["syncing"] else "live"
            )
            line += (
                f"  {each['profile'] or '-'}  {each['subscriptions']} subscriptions  {state}"
                f"  {each['in_flight']} in flight  {each['unsent_bytes']} bytes unsent"
            )
        click.echo(line)


def _admin(data: Path, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        admin = read_admin_file(data)
    except FileNotFoundError:
        raise click.ClickException(f"no server runs on {data} (there is no {ADMIN_FILE} in it)") from None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{data / ADMIN_FILE} cannot be read: {error}") from None
    return asyncio.run(_request(admin.url, admin.token, method, path, body))


async def _request(
    url: str, token: str, method: str, path: str, body: dict[str, Any] | None
) -> dict[str, Any]:
    import aiohttp  # takes as long as the rest of a command that needs no server

    headers = {"Authorization": f"Bearer {token}"}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.request(method, f"{url}{path}", json=body) as response,
        ):
            answer: dict[str, Any] = await response.json()
            if response.status != 200:
                raise click.ClickException(str(answer.get("error", answer)))
            return answer
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise click.ClickException(f"the server does not answer: {error or type(error).__name__}") from None
