"""`unisono bench`: how fast a server is, measured from here, by a small and bounded load."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from unisono.cli.bench_load import LoadFailed, LoadPlan, LoadReport, generate
from unisono.cli.serve import DEV_SECRET_FILE
from unisono.cli.tail_submit import BATCH_EVENTS
from unisono.config import Settings
from unisono.front.auth.keys import KeySourceError, read_secret
from unisono.front.auth.verify import sign_token
from unisono.protocol.identities import client_id_of

TOKEN_TTL_S: Final = 3600.0
SECONDS_MAX: Final = 300.0
CONNECTIONS_MAX: Final = 1000
EVENT_BYTES: Final = 400
GENERATOR_LIMIT: Final = 0.85
"""Of a core: above, this program may be what limits the figures."""

HINTS: Final = {
    "auth_failed": "is the token made for this server, and not expired?",
    "forbidden": "the token may not write there: give --prefix with one that it may",
    "validation_failed": "the server's model refuses the event: give one that it accepts with --event"
    " ({n} in it becomes a new number each time)",
    "profile_unsupported": "the server offers another profile: an --event of type `event` is canonical, any other"
    " is compatibility",
    "rate_limited": "the server limits its clients (rate_events_per_s, rate_burst_events): use fewer --connections"
    " or a smaller --batch",
}


@click.command()
@click.option(
    "--url", default="ws://127.0.0.1:8040/sync", show_default=True, help="The server's WebSocket address."
)
@click.option(
    "--token",
    "tokens",
    multiple=True,
    help="A token, or @FILE with one in each line; each is one connection. May be repeated."
    " [default: $UNISONO_TOKEN]",
)
@click.option(
    "--jwt-secret-file",
    "secret_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Sign the tokens with the secret that the server verifies with.",
)
@click.option(
    "--dev",
    is_flag=True,
    help="The server is one of `unisono serve --dev` on this machine: take its secret, and do not ask.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(Settings().data),
    show_default=True,
    help="With --dev: the server's data directory.",
)
@click.option(
    "--connections",
    type=click.IntRange(1, CONNECTIONS_MAX),
    help="Connections, each with one request at a time. [default: 10, or one for each token]",
)
@click.option(
    "--seconds", type=click.FloatRange(0.1, SECONDS_MAX), default=10.0, show_default=True, help="How long."
)
@click.option(
    "--batch",
    type=click.IntRange(1, BATCH_EVENTS),
    default=1,
    show_default=True,
    help="Events in one request.",
)
@click.option(
    "--events-max",
    type=click.IntRange(1),
    default=100_000,
    show_default=True,
    help="Write no more than this, however fast the server is.",
)
@click.option(
    "--prefix", default="unisono-bench/", show_default=True, help="Partitions written to begin with this."
)
@click.option("--event", "event_text", help="The event to submit, as JSON. [default: a `set` of 400 bytes]")
@click.option("--yes", is_flag=True, help="Do not ask before writing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def bench(
    url: str,
    tokens: tuple[str, ...],
    secret_file: Path | None,
    dev: bool,
    data: Path,
    connections: int | None,
    seconds: float,
    batch: int,
    events_max: int,
    prefix: str,
    event_text: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Measure a server: durable submits per second, and how long each takes.

    Connections submit in a closed loop: each waits for its result before it submits again. What is written stays
    in the log, in partitions of its own; the command says beforehand what it will write, and asks.

    \b
      unisono bench --dev
      unisono bench --url wss://sync.example.org/sync --token @ten-tokens --seconds 5
    """
    if dev:
        secret_file = secret_file or data / DEV_SECRET_FILE
        if not secret_file.is_file():
            raise click.ClickException(
                f"{secret_file} is not there: start `unisono serve --dev`, or name its data directory with --data"
            )
    run = f"{int(time.time()):x}{secrets.token_hex(2)}"
    signed = _tokens(tokens, secret_file, connections, run)
    event, profile = _event(event_text)
    plan = LoadPlan(
        url=url,
        tokens=signed,
        partitions=[f"{prefix}{run}/{number}" for number in range(len(signed))],
        profile=profile,
        event=event,
        batch=batch,
        seconds=seconds,
        events_max=events_max,
    )
    _announce(plan, f"{prefix}{run}/")
    if not (yes or dev):
        _ask()
    try:
        report = generate(plan)
    except LoadFailed as error:
        hint = HINTS.get(error.code)
        raise click.ClickException(f"{error}\n{hint}" if hint else str(error)) from None
    if report.events == 0:
        raise click.ClickException(f"no result came within {seconds:g} s: give more --seconds")
    print(json.dumps(_summary(plan, report)) if as_json else _text(plan, report))


def _tokens(given: tuple[str, ...], secret_file: Path | None, connections: int | None, run: str) -> list[str]:
    """One for each connection: a client has one connection at a time."""
    if secret_file is not None:
        try:
            secret = read_secret(secret_file)
            return [
                sign_token(secret, f"unisono-bench-{run}-{number}", ttl_s=TOKEN_TTL_S, now_s=time.time())
                for number in range(connections or 10)
            ]
        except KeySourceError as error:
            raise click.ClickException(str(error)) from None
    listed = given or tuple(filter(None, [os.environ.get("UNISONO_TOKEN")]))
    tokens: list[str] = []
    for token in listed:
        if not token.startswith("@"):
            tokens.append(token)
            continue
        try:
            tokens += Path(token[1:]).read_text().split()
        except OSError as error:
            raise click.ClickException(f"{token[1:]}: {error.strerror}") from None
    if not tokens:
        raise click.UsageError("give --token, set UNISONO_TOKEN, or give --jwt-secret-file or --dev")
    names = [client_id_of(token) for token in tokens]
    if len(set(names)) < len(names):
        raise click.UsageError("two of the tokens are for one client, which has one connection at a time")
    if connections is not None and connections > len(tokens):
        raise click.UsageError(
            f"--connections {connections} with {len(tokens)} token(s): a client has one connection at a time."
            " Give a token for each, or sign them with --jwt-secret-file"
        )
    return tokens[: connections or CONNECTIONS_MAX]


def _event(text: str | None) -> tuple[bytes, str]:
    """The event's JSON, and the profile that it is for."""
    if text is None:
        value = "x" * (EVENT_BYTES - 180)
        payload = {"target": "settings.bench", "value": value, "options": {"replace": True}}
        return msgspec.json.encode({"type": "set", "payload": payload}), "compatibility"
    try:
        event: Any = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--event: not JSON: {error}") from None
    if not isinstance(event, dict):
        raise click.UsageError("--event: an event is a JSON object")
    return msgspec.json.encode(event), "canonical" if event.get("type") == "event" else "compatibility"


def _announce(plan: LoadPlan, where: str) -> None:
    size = len(plan.event) + 100
    click.echo(
        f"{plan.url}: {len(plan.tokens)} connection(s), {plan.seconds:g} s, {plan.batch} event(s) in a request.\n"
        f"Writes at most {plan.events_max:,} events of about {size} bytes"
        f" ({plan.events_max * size / 1e6:,.1f} MB) to the partitions {where}*; they stay in the log.",
        err=True,
    )


def _ask() -> None:
    if not sys.stdin.isatty():
        raise click.ClickException("nothing was written: add --yes to write to this server")
    click.confirm("Go on?", abort=True, err=True)


def _summary(plan: LoadPlan, report: LoadReport) -> dict[str, float | int | str]:
    def at(part: float, latencies: list[float]) -> float:
        return round(latencies[min(len(latencies) - 1, int(len(latencies) * part))], 3)

    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {
        "url": plan.url,
        "connections": len(plan.tokens),
        "batch": plan.batch,
        "seconds": round(report.elapsed_s, 3),
        "events": report.events,
        "events_per_s": round(report.events / report.elapsed_s, 1),
        **{f"submit_{name}_ms": at(part, report.latencies_ms) for name, part in shares.items()},
        **{f"echo_{name}_ms": at(part, report.echoes_ms) for name, part in shares.items()},
        "written": report.written,
        "generator_cores": round(report.cpu_s / report.elapsed_s, 2),
    }


def _text(plan: LoadPlan, report: LoadReport) -> str:
    found: dict[str, Any] = _summary(plan, report)
    lines = [
        f"{'':8}{'p50':>10}{'p90':>10}{'p99':>10}",
        *(
            f"{name:8}" + "".join(f"{found[f'{name}_{part}_ms']:>7.2f} ms" for part in ("p50", "p90", "p99"))
            for name in ("echo", "submit")
        ),
        "",
        f"{found['events_per_s']:,.0f} events/s durable: {report.events:,} in {report.elapsed_s:.2f} s",
        f"A submit takes {found['submit_p50_ms'] / max(found['echo_p50_ms'], 0.001):.1f} times an echo (a heartbeat"
        " and its answer, which are neither judged nor stored, on one connection).",
    ]
    if found["generator_cores"] > GENERATOR_LIMIT:
        lines.append(
            f"This program used {found['generator_cores']} of a core and may be what limits the figures."
        )
    if report.written >= plan.events_max:
        lines.append(f"It ended at --events-max {plan.events_max:,}.")
    return "\n".join(lines)
