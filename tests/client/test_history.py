"""The history of a partition in the Python client: its store first, the server beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.behaviour.server.harness import Server, running
from tests.behaviour.server.planting import history, plant, snapshot_of
from tests.client.running import NOWHERE, WAIT_S, WHOLE, asynchronous, client, of
from unisono.client import (
    BlockingClient,
    Committed,
    HistoryEntry,
    HistoryUnavailable,
    Phase,
    SyncClient,
    connect,
)
from unisono.client.errors import ClientClosed
from unisono.store.port import Record

EVENTS = 300
FLOOR = 200
NAMES = ("hist-a", "hist-b")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, list[Record]]]:
    """Two partitions, both with a snapshot, so that clients store only the end of their histories."""
    data = tmp_path_factory.mktemp("history") / "data"
    data.mkdir()
    records = history(Random(5), NAMES, EVENTS)
    plant(data, records, [snapshot_of(records, name, FLOOR) for name in NAMES])
    with running(data, "--access-default", "allow") as server:
        yield server, records


def expected(records: list[Record], name: str) -> list[int]:
    return [record.committed_id for record in reversed(records) if name in record.partitions]


async def walk(client: SyncClient, name: str, limit: int) -> list[HistoryEntry]:
    entries: list[HistoryEntry] = []
    before: int | None = None
    while True:
        page = await client.history(name, before=before, limit=limit)
        assert len(page.entries) <= limit
        entries += page.entries
        before = page.next_before
        if before is None:
            return entries


@pytest.mark.req("EXT-20")
@asynchronous
async def test_the_store_and_then_the_server(
    planted: tuple[Server, list[Record]], who: str, tmp_path: Path
) -> None:
    server, records = planted
    own, other = (expected(records, name) for name in NAMES)
    async with of(server, who, NAMES[0], store=tmp_path / "s.db") as reader:
        await reader.caught_up(WAIT_S)
        assert len([*reader._core.store.events(NAMES[0], 0)]) < len(own)  # the rest is the server's
        for limit in (1, 7, 90, 5000):
            assert [entry.committed_id for entry in await walk(reader, NAMES[0], limit)] == own
        first = (await reader.history(NAMES[0], before=FLOOR // 2, limit=1)).entries[0]
        record = next(r for r in records if r.committed_id == first.committed_id)
        assert (first.id, first.client_id, first.partitions) == (record.id, "planter", record.partitions)
        assert first.committed_at == record.status_updated_at
        # A partition that is not followed is read from the server alone, and not stored.
        assert [entry.committed_id for entry in await walk(reader, NAMES[1], 40)] == other
        assert list(reader.status.cursors) == [NAMES[0]]
        await reader.pause()
        held = [each for each in own if each > FLOOR]
        page = await reader.history(NAMES[0], limit=5000)
        assert [entry.committed_id for entry in page.entries] == held
        assert page.next_before == FLOOR + 1  # there is more, on the server
        with pytest.raises(HistoryUnavailable, match="not connected"):
            await reader.history(NAMES[0], before=page.next_before)
        with pytest.raises(HistoryUnavailable, match="not connected"):
            await reader.history(NAMES[1])


@asynchronous
async def test_a_whole_store_needs_no_server(
    planted: tuple[Server, list[Record]], who: str, tmp_path: Path
) -> None:
    server, records = planted
    store = tmp_path / "s.db"
    async with of(server, who, NAMES[0], store=store, options=WHOLE) as reader:
        await reader.caught_up(WAIT_S)
    async with client(NOWHERE, who, NAMES[0], store=store) as offline:
        entries = await walk(offline, NAMES[0], 33)
        assert [entry.committed_id for entry in entries] == expected(records, NAMES[0])
    with pytest.raises(ClientClosed):
        await offline.history(NAMES[0])


@pytest.mark.req("EXT-20", "EXT-03")
@asynchronous
async def test_who_what_and_when(server: Server, part: str) -> None:
    a, b = f"{part}-a", f"{part}-b"
    token = server.token(a, user_id="ann")
    async with of(server, a, part, token=token) as ann, of(server, b, part) as ben:
        await ann.caught_up(WAIT_S)
        assert (await ann.history()).entries == ()
        first = await (await ann.tree("outline").push({"id": "x", "title": "milk"})).settled(WAIT_S)
        assert isinstance(first, Committed)
        await ann.pause()
        await ann.set("settings.theme", "dark")
        await ben.caught_up(WAIT_S)
        pages = [await ben.history(), await ann.history()]
        for page in pages:  # a draft is no history
            (entry,) = page.entries
            assert (entry.committed_id, entry.client_id, entry.user_id) == (first.committed_id, a, "ann")
            assert (entry.type, entry.data["value"]["title"]) == ("treePush", "milk")
            assert page.next_before is None
        assert pages[0] == pages[1]
        with pytest.raises(ValueError, match="limit must be above 0"):
            await ann.history(limit=0)
        with pytest.raises(ValueError, match="before must be above 0"):
            await ann.history(before=0)


@pytest.mark.req("EXT-23")
@asynchronous
async def test_a_refusal_says_why(planted: tuple[Server, list[Record]], tmp_path: Path, part: str) -> None:
    with running(tmp_path / "data", "--model", "open") as server:
        token = server.token("ann", partitions=["p"])
        async with of(server, "ann", "p", token=token) as ann:
            await ann.caught_up(WAIT_S)
            with pytest.raises(HistoryUnavailable) as refused:
                await ann.history("q")
            assert refused.value.code == "forbidden"
            assert (await ann.history("p")).entries == ()
            assert ann.status.phase is Phase.LIVE


def test_blocking(planted: tuple[Server, list[Record]], who: str) -> None:
    server, records = planted
    with connect(
        server.url, token=server.token(who), client_id=who, partitions=[NAMES[0]], profile="compatibility"
    ) as reader:
        assert isinstance(reader, BlockingClient)
        reader.caught_up(WAIT_S)
        page = reader.history(limit=EVENTS)
        assert [entry.committed_id for entry in page.entries] == expected(records, NAMES[0])
        assert page.next_before is None
