"""JavaScript clients start from the server's snapshots, and see what the whole history gives."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import Server
from tests.behaviour.server.planting import state_of
from tests.client.running import NOWHERE
from tests.client.test_first_sync import WORLDS, planted, world
from tests.js.members import NodeProcess
from unisono.store.port import Record

__all__ = ["planted"]


def _places(path: Path) -> dict[str, list[int]]:
    """partition → the committed ids in a closed file store."""
    rows: dict[int, Any] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        for write in json.loads(line[8:]):
            if write["table"] == "events":
                if "row" in write:
                    rows[write["row"]["committedId"]] = write["row"]["places"]
                else:
                    rows.pop(write.get("key"), None)
    kept: dict[str, list[int]] = {}
    for committed_id, places in sorted(rows.items()):
        for name, _ in places:
            kept.setdefault(name, []).append(committed_id)
    return kept


@pytest.mark.req("CLIENT-15", "SYNC-12", "CLIENT-05", "CLIENT-13", "EXT-20")
@pytest.mark.parametrize("number", range(WORLDS))
def test_a_start_from_snapshots_is_the_fold_of_the_log(
    built: Path, planted: tuple[Server, list[Record], dict[str, int]], tmp_path: Path, number: int
) -> None:
    asyncio.run(_first_sync(planted, tmp_path, number))


async def _first_sync(
    planted: tuple[Server, list[Record], dict[str, int]], directory: Path, number: int
) -> None:
    server, records, floors = planted
    names, process = world(number), NodeProcess()
    due = {name: state_of(records, name).tree.dump() for name in names}
    fast, whole = f"js-fast-{number}", f"js-whole-{number}"
    await process.start()

    async def opened(who: str, url: str = server.url, **options: Any) -> dict[str, Any]:
        path = str(directory / f"{who}.store")
        token = server.token(who)
        arguments = {"url": url, "token": token, "path": path, "partitions": list(names)}
        await process.call(who, "open", **arguments, options={"pageLimit": 20 + 10 * number, **options})
        if url == server.url:
            await process.call(who, "caughtUp")
        return {name: await process.call(who, "view", partition=name) for name in names}

    try:
        assert await opened(fast) == due
        assert await opened(whole, snapshots=False) == due
        for name in names:
            assert await _whole_history(process, fast, name) == sorted(
                (each.committed_id for each in records if name in each.partitions), reverse=True
            )
        cursors = [(await process.call(who, "status"))["cursors"] for who in (fast, whole)]
        assert cursors[0] == cursors[1]
        for who in (fast, whole):
            await process.call(who, "close")
        ids = {name: [each.committed_id for each in records if name in each.partitions] for name in names}
        assert _places(directory / f"{whole}.store") == ids
        above = {name: [id for id in ids[name] if id > floors.get(name, 0)] for name in names}
        assert _places(directory / f"{fast}.store") == {name: some for name, some in above.items() if some}
        assert await opened(fast, url=NOWHERE) == due, "a restart works from the file alone"
        await process.call(fast, "close")
        assert await opened(fast) == due
    finally:
        await process.end()


async def _whole_history(process: NodeProcess, who: str, partition: str) -> list[int]:
    """Every page back to the beginning: what the store has, and what only the server has."""
    ids: list[int] = []
    bounds: dict[str, int] = {"limit": 37}
    while True:
        page = await process.call(who, "history", partition=partition, **bounds)
        ids += page["ids"]
        if page["next"] is None:
            return ids
        bounds["before"] = page["next"]
