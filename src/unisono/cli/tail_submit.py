"""`unisono tail` and `unisono submit`: print committed events, and submit events, from a terminal."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Final

import click

from unisono.cli.colours import coloured
from unisono.cli.token_option import given_token, read_token, token_option
from unisono.cli.wire import HEARTBEAT_S, Wire, WireFailed, connect
from unisono.protocol.client_codec import (
    Broadcast,
    CommittedEvent,
    Connected,
    SubmitResult,
    SyncResponse,
    field_errors,
    item_payload,
    submit_payload,
    sync_payload,
)
from unisono.protocol.extensions import IDENTITY

RETRY_MIN_S: Final = 0.2
RETRY_MAX_S: Final = 10.0
"""Between two tries to connect again; many who lost one server do not come back at the same moment."""

PAGE_EVENTS: Final = 1000
BATCH_EVENTS: Final = 100
"""The protocol's largest page, and its largest batch."""

url_option = click.option(
    "--url", default="ws://127.0.0.1:8040/sync", show_default=True, help="The server's WebSocket address."
)
_PARTITION = click.option("--partition", "partitions", multiple=True, required=True, help="May be repeated.")


@click.command()
@url_option
@token_option
@_PARTITION
@click.option("--since", default=0, show_default=True, help="Show events after this committed_id first.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line instead of a readable one.")
@click.option("--once", is_flag=True, help="End after the history instead of waiting for more.")
def tail(
    url: str, token: str | None, partitions: tuple[str, ...], since: int, as_json: bool, once: bool
) -> None:
    """Show the history of partitions, then every new event as it is committed.

    A connection that is lost is made again, and goes on after the last event that was shown; a token in a file is
    read again for it. After a restore of the log everything is shown from the beginning, since its past may differ.

    \b
      unisono tail --url ws://127.0.0.1:8040/sync --token alice.jwt --partition welcome
    """
    source = given_token(token)
    try:
        asyncio.run(EventTail(url, source, partitions, since, as_json, once).run())
    except (WireFailed, UnicodeEncodeError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        return


class EventTail:
    """Prints events in their order, each once, over as many connections as it takes.

    Invariant: everything of the partitions up to `_since` is printed.
    """

    def __init__(
        self,
        url: str,
        token: str | Path,
        partitions: tuple[str, ...],
        since: int,
        as_json: bool,
        once: bool,
    ) -> None:
        self._url = url
        self._token = token
        self._partitions = partitions
        self._since = since
        self._as_json = as_json
        self._once = once
        self._log: tuple[str | None, int | None] | None = None
        """The log of the last connection; None before the first one."""
        self._wait_s = RETRY_MIN_S

    async def run(self) -> None:
        while True:
            try:
                await self._connection()
            except WireFailed as error:
                if error.final or self._once or self._log is None:
                    raise
                self._note(f"Error: {error}")
            else:
                return
            await asyncio.sleep(self._wait_s * random.uniform(0.5, 1))  # noqa: S311
            self._wait_s = min(RETRY_MAX_S, self._wait_s * 2)

    async def _connection(self) -> None:
        token = read_token(self._token)
        # Either profile may read any event; a server may offer only one of them.
        async with connect(self._url, token, ("compatibility", "canonical"), "tail", (IDENTITY,)) as wire:
            again = self._log is not None
            if again:
                self._note("-- connected again --")
            self._follow_log(wire.connected)
            self._wait_s = RETRY_MIN_S
            printed = await self._history(wire)
            if self._once:
                return
            if not self._as_json and not again:
                print(f"-- {printed} events so far; waiting for more (Ctrl-C ends) --", flush=True)
            await self._live(wire)

    def _follow_log(self, connected: Connected) -> None:
        log = (connected.log_id, connected.log_epoch)
        if self._log not in (None, log) and log != (None, None):
            self._note("-- the log was restored: from the beginning --")
            self._since = 0
        self._log = log

    async def _history(self, wire: Wire) -> int:
        """Print every event after `_since`; the number of them."""
        printed = 0
        subscription: tuple[str, ...] | None = self._partitions
        while True:
            await wire.send("sync", sync_payload(self._partitions, self._since, PAGE_EVENTS, subscription))
            page = await wire.answer(SyncResponse)
            for event in page.events:
                self._show(event)
            printed += len(page.events)
            self._since = max(self._since, page.next_since_committed_id)
            if not page.has_more:
                break
            subscription = None
        for message in wire.take_early():
            if isinstance(message, Broadcast):
                self._show(message.event)
                printed += 1
        return printed

    async def _live(self, wire: Wire) -> None:
        beat_at = time.monotonic() + HEARTBEAT_S
        while True:
            message = await wire.receive(max(0.0, beat_at - time.monotonic()))
            if message is None:
                await wire.send("heartbeat")
                beat_at = time.monotonic() + HEARTBEAT_S
            elif isinstance(message, Broadcast):
                self._show(message.event)

    def _show(self, event: CommittedEvent) -> None:
        print_event(event, self._as_json)
        self._since = max(self._since, event.committed_id)

    def _note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def print_event(committed: CommittedEvent, as_json: bool, time_format: str = "%H:%M:%S") -> None:
    """One line: readable, or a JSON object."""
    event = json.loads(bytes(committed.event))
    if as_json:
        line: dict[str, Any] = {
            "id": committed.id,
            "client_id": committed.client_id,
            "partitions": committed.partitions,
            "committed_id": committed.committed_id,
            "event": event,
            "status_updated_at": committed.status_updated_at,
        }
        if committed.user_id is not None:
            line["user_id"] = committed.user_id
        if committed.claims:
            line["claims"] = committed.claims
        print(json.dumps(line, ensure_ascii=False), flush=True)
        return
    at = time.strftime(time_format, time.localtime(committed.status_updated_at / 1000))
    body = json.dumps(event["payload"], ensure_ascii=False)
    where = ",".join(committed.partitions)
    number, who = coloured(f"{committed.committed_id:>8}", "green"), coloured(_who(committed), "cyan")
    click.echo(f"{number}  {at}  {who}  [{where}]  {coloured(event['type'], 'yellow')}  {body}")


def _who(committed: CommittedEvent) -> str:
    """The client and, where it is known, the person behind it."""
    if committed.user_id is None:
        return committed.client_id
    return f"{committed.client_id} ({committed.user_id})"


@click.command()
@url_option
@token_option
@_PARTITION
@click.option("--event", "text", help='The event as JSON, or "-" to read one per line from stdin.')
@click.option("--schema", help="Canonical: the schema's name; --data is its data.")
@click.option("--data", "data_text", help="Canonical: the data as JSON.", default="{}", show_default=True)
@click.option(
    "--set", "assignment", metavar="TARGET=VALUE", help="A `set` action; VALUE is JSON or plain text."
)
@click.option("--id", "event_id", help="The event's id; a new UUID when not given. The same id is a retry.")
def submit(
    url: str,
    token: str | None,
    partitions: tuple[str, ...],
    text: str | None,
    schema: str | None,
    data_text: str,
    assignment: str | None,
    event_id: str | None,
) -> None:
    """Submit events and show what became of each; exit code 1 when one was rejected.

    \b
      unisono submit --token bob.jwt --partition welcome --set settings.theme=dark
      unisono submit --token bob.jwt --partition welcome --schema note.added --data '{"id":"n1","text":"Hi"}'
      unisono submit --token bob.jwt --partition welcome --event - < events.jsonl
    """
    events = list(_events(text, schema, data_text, assignment))
    if event_id is not None and len(events) != 1:
        raise click.UsageError("--id goes with exactly one event")
    profile = "canonical" if events[0].get("type") == "event" else "compatibility"
    try:
        items = [
            item_payload(event_id or str(uuid.uuid4()), partitions, json.dumps(event).encode())
            for event in events
        ]
        rejected = asyncio.run(_submit(url, read_token(given_token(token)), profile, items))
    except (WireFailed, UnicodeEncodeError) as error:
        raise click.ClickException(str(error)) from None
    sys.exit(1 if rejected else 0)


def _events(
    text: str | None, schema: str | None, data_text: str, assignment: str | None
) -> list[dict[str, Any]]:
    if sum(given is not None for given in (text, schema, assignment)) != 1:
        raise click.UsageError("give exactly one of --event, --schema and --set")
    if assignment is not None:
        target, equals, value = assignment.partition("=")
        if not equals:
            raise click.UsageError("--set needs TARGET=VALUE")
        payload = {"target": target, "value": _json_or_text(value), "options": {"replace": True}}
        return [{"type": "set", "payload": payload}]
    if schema is not None:
        return [{"type": "event", "payload": {"schema": schema, "data": _json(data_text, "--data")}}]
    assert text is not None
    lines = [line for line in sys.stdin if line.strip()] if text == "-" else [text]
    events = [_json(line, "--event") for line in lines]
    if not events or not all(isinstance(event, dict) for event in events):
        raise click.UsageError("--event: an event is a JSON object")
    return events


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: not JSON: {error}") from None


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


async def _submit(url: str, token: str, profile: str, items: list[bytes]) -> int:
    """Submit in batches and print each result; how many were rejected."""
    rejected = 0
    async with connect(url, token, (profile,), "submit") as wire:
        for start in range(0, len(items), BATCH_EVENTS):
            await wire.send("submit_events", submit_payload(items[start : start + BATCH_EVENTS]))
            for result in (await wire.answer(SubmitResult)).results:
                if result.status == "committed":
                    click.echo(f"{coloured('committed', 'green')} {result.committed_id}  {result.id}")
                    continue
                rejected += 1
                click.echo(f"{coloured('rejected', 'red')}  {result.reason}  {result.id}")
                for error in field_errors(result.errors):
                    print(f"          {error.field}: {error.message}", flush=True)
    return rejected
