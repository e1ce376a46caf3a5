"""`unisono history`: what happened in a partition, newest first."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from unisono.cli.tail_submit import print_event, url_option
from unisono.cli.token_option import given_token, read_token, token_option
from unisono.cli.wire import Wire, WireFailed, connect
from unisono.protocol.client_codec import HistoryResult, history_payload
from unisono.protocol.extensions import HISTORY, IDENTITY

PAGE_EVENTS: Final = 1000
"""The protocol's largest page; a server may give less."""

TIME_FORMAT: Final = "%Y-%m-%d %H:%M:%S"


@click.command()
@url_option
@token_option
@click.argument("name", metavar="[PARTITION]", required=False)
@click.option("--partition", help="The partition; also accepted as the argument.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="Show so many events.")
@click.option("--before", type=click.IntRange(1), help="Only events below this committed_id.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line instead of a readable one.")
def history(
    url: str,
    token: str | None,
    name: str | None,
    partition: str | None,
    limit: int,
    before: int | None,
    as_json: bool,
) -> None:
    """Show what happened in a partition, newest first: when, who and what.

    \b
      unisono history --token alice.jwt --partition welcome --limit 20
    """
    if (name is None) == (partition is None):
        raise click.UsageError("name one partition: --partition P")
    shown = name if partition is None else partition
    assert shown is not None
    signed = read_token(given_token(token))
    try:
        asyncio.run(_history(url, signed, shown, before, limit, as_json))
    except (WireFailed, UnicodeEncodeError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        return


async def _history(
    url: str, token: str, partition: str, before: int | None, limit: int, as_json: bool
) -> None:
    # Either profile may read any event; a server may offer only one of them.
    async with connect(url, token, ("compatibility", "canonical"), "history", (IDENTITY, HISTORY)) as wire:
        if HISTORY not in wire.extensions:
            raise WireFailed(
                "this server does not know the extension history; `unisono tail --once` shows all of it"
            )
        while limit > 0:
            page = await _page(wire, partition, before, min(limit, PAGE_EVENTS))
            for event in page.events:
                print_event(event, as_json, TIME_FORMAT)
            limit -= len(page.events)
            before = page.next_before
            if before is None:
                return
    if not as_json:
        print(f"-- older ones: --before {before} --", flush=True)


async def _page(wire: Wire, partition: str, before: int | None, limit: int) -> HistoryResult:
    await wire.send("history", history_payload("1", partition, before, limit))
    page = await wire.answer(HistoryResult)
    if page.error is not None:
        raise WireFailed(f"{page.error.code}: {page.error.message}")
    return page
