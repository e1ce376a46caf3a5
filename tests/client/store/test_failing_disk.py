"""A disk that fails under the client: nothing is promised that is not there, and the program is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest

from tests.behaviour.server.harness import Server
from tests.client.running import WAIT_S, asynchronous, client, of, until
from tests.simulation.disk import SimulatedDisk, no_fault, simulated_disk
from unisono.client import ClientStopped, Phase, StoreFailed, StoreFull


def failing(disk: SimulatedDisk, on: str, error: type[apsw.Error]) -> None:
    def fault(operation: str, name: str) -> None:
        if operation == on and "lock" not in name:
            raise error("the disk says no")

    disk.fault = fault


@pytest.mark.req("CLIENT-01")
@asynchronous
async def test_a_full_disk_refuses_the_draft_and_the_client_goes_on(tmp_path: Path, who: str) -> None:
    with simulated_disk(tmp_path) as disk:
        async with client("ws://127.0.0.1:9", who, "p", store=tmp_path / "c.db") as one:
            await one.set("a", 1)
            failing(disk, "write", apsw.FullError)
            with pytest.raises(StoreFull):
                await one.set("b", 2)
            assert one.view() == {"a": 1}
            assert one.status.pending == 1
            disk.fault = no_fault
            await one.set("c", 3)
            assert one.view() == {"a": 1, "c": 3}


@pytest.mark.req("CLIENT-01")
@asynchronous
async def test_a_sync_that_fails_stops_the_client(tmp_path: Path, who: str) -> None:
    """After it the kernel may have dropped what was written, so a later draft could not be promised."""
    path = tmp_path / "c.db"
    with simulated_disk(tmp_path) as disk:
        async with client("ws://127.0.0.1:9", who, "p", store=path) as one:
            safe = await one.set("a", 1)
            waiting = asyncio.create_task(safe.settled())
            failing(disk, "sync", apsw.IOError)
            with pytest.raises(StoreFailed):
                await one.set("b", 2)
            await until(lambda: one.status.stopped is not None)
            disk.fault = no_fault
            with pytest.raises(StoreFailed):
                await one.set("c", 3)
            with pytest.raises(StoreFailed):
                await waiting
        async with client("ws://127.0.0.1:9", who, store=path) as again:
            drafts = [draft.id for draft in await again.pending()]
            assert safe.id in drafts


@asynchronous
async def test_a_page_that_cannot_be_stored_stops_the_client(
    server: Server, tmp_path: Path, part: str, who: str
) -> None:
    with simulated_disk(tmp_path) as disk:
        async with (
            of(server, f"{who}-writer", part) as writer,
            of(server, who, part, store=tmp_path / "c.db") as one,
        ):
            await one.caught_up(WAIT_S)
            failing(disk, "write", apsw.IOError)
            await writer.set("a", 1)
            await until(lambda: one.status.stopped is not None)
            assert one.status.phase is Phase.OFFLINE
            with pytest.raises((StoreFailed, ClientStopped)):
                await one.caught_up(WAIT_S)
            disk.fault = no_fault
