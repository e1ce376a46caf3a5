"""What a program may ask of a client: arguments that are checked, opening, closing, and snapshots of its views."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.behaviour.server.harness import Server
from tests.client.running import NOWHERE, WAIT_S, asynchronous, client, of, rows
from unisono.client import (
    ClientClosed,
    ClientError,
    InvalidEvent,
    Options,
    StoreDamaged,
    StoreInUse,
    SyncClient,
    UnknownPartition,
    connect,
)


@asynchronous
async def test_the_same_store_twice_is_an_error_at_once(
    server: Server, tmp_path: Path, part: str, who: str
) -> None:
    path = tmp_path / "c.db"
    async with of(server, who, part, store=path):
        with pytest.raises(StoreInUse):
            async with of(server, who, part, store=path):
                pass
    async with of(server, who, part, store=path) as one:
        await one.caught_up(WAIT_S)


@asynchronous
async def test_a_closed_client_says_so_and_keeps_its_drafts(tmp_path: Path, who: str) -> None:
    path = tmp_path / "c.db"
    never_opened = client(NOWHERE, who, "p", store=path)
    with pytest.raises(ClientClosed, match="not open"):
        await never_opened.set("a", 1)
    async with client(NOWHERE, who, "p", store=path) as one:
        draft = await one.set("a", 1)
        waiting = asyncio.create_task(draft.settled())
        changes = one.changes()
        with pytest.raises(TimeoutError):
            await draft.settled(0.01)
    with pytest.raises(ClientClosed):
        await waiting
    assert [change async for change in changes] == []
    with pytest.raises(ClientClosed):
        await one.set("b", 1)
    await one.close()
    async with client(NOWHERE, who, store=path) as again:
        assert [each.id for each in await again.pending()] == [draft.id]


@asynchronous
async def test_without_partitions_the_store_says_which(tmp_path: Path, who: str) -> None:
    path = tmp_path / "c.db"
    async with client(NOWHERE, who, "p", "q", store=path):
        pass
    async with client(NOWHERE, who, store=path) as one:
        assert one.status.cursors.keys() == {"p", "q"}
    async with client(NOWHERE, who, "q", store=path) as one:
        assert one.status.cursors.keys() == {"q"}


def test_what_a_client_is_made_from_is_checked_at_once() -> None:
    for wrong in (
        {"url": "http://x"},
        {"client_id": ""},
        {"client_id": "é" * 129},
        {"profile": "tree"},
        {"partitions": [""]},
        {"url": "ws://"},
        {"url": "ws:///sync"},
        {"url": "ws://x:99999/sync"},
        {"url": "wss://[::1"},
        {"url": "ws://x y/sync"},
        {"client_id": "x" * 257},
        {"token": ""},
        {"store": ""},
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            SyncClient(**{"url": "ws://x", "token": "t", "client_id": "c"} | wrong)
    mistyped: tuple[dict[str, Any], ...] = (
        {"url": None},
        {"client_id": 5},
        {"token": None},
        {"token": b"t"},
        {"store": None},
        {"partitions": "p"},
        {"partitions": [5]},
        {"options": {}},
    )
    for each in mistyped:
        with pytest.raises(TypeError):
            SyncClient(**{"url": "ws://x", "token": "t", "client_id": "c"} | each)


def test_calls_that_make_no_sense_are_refused_at_once() -> None:
    one = connect(NOWHERE, token="t", client_id="c", partitions=["p"], profile="compatibility")
    with one:
        with pytest.raises(ClientError, match="open already"):
            one.__enter__()
        for call in (one.view, one.changes, one.add_partition, one.remove_partition):
            with pytest.raises(TypeError, match="is a string, not int"):
                call(5)  # type: ignore[arg-type]
        with pytest.raises(UnknownPartition, match="add_partition"):
            one.changes("never-followed")
        with pytest.raises(TypeError):
            one.submit([5], {})  # type: ignore[list-item]
        with pytest.raises(InvalidEvent, match="id: must be a string"):
            one.submit(["p"], {"type": "unset", "payload": {"target": "a"}}, id=5)  # type: ignore[arg-type]
    for look in (one.changes, one.statuses):
        with pytest.raises(ClientClosed):
            look()
    with one:
        assert one.view() == {}, "a closed client may be opened again"


@asynchronous
async def test_a_snapshot_is_stored_at_the_end_and_used_at_the_start(
    server: Server, tmp_path: Path, part: str, who: str
) -> None:
    path = tmp_path / "c.db"
    async with of(server, who, part, store=path) as one:
        for number in range(20):
            await one.set(f"k{number}", number)
        await one.caught_up(WAIT_S)
        await one.pause()
        await one.set("mine", 1)
        shown, cursor = one.view(), one.status.cursor
    ((_, committed_id, model, _, _),) = rows(path, "snapshots")
    assert committed_id == cursor
    assert model == "tree"
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE events SET event = x'7b7d'")
    connection.close()
    async with client(NOWHERE, who, store=path) as again:
        assert again.view() == shown, "no event was folded again"
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE snapshots SET state = x'7b'")
    connection.close()
    with pytest.raises(StoreDamaged, match="is not what was stored"):
        await client(NOWHERE, who, store=path).__aenter__()  # without its snapshot the events are read


@asynchronous
async def test_snapshots_are_stored_on_the_way_too(
    server: Server, tmp_path: Path, part: str, who: str
) -> None:
    path = tmp_path / "c.db"
    options = Options(snapshot_every=256)
    async with of(server, who, part, store=path, options=options) as one:
        await asyncio.gather(*(one.set("n", number) for number in range(600)))
        await one.caught_up(WAIT_S)
        ((_, committed_id, *_),) = rows(path, "snapshots")
        assert 256 <= int(str(committed_id)) <= one.status.cursor
