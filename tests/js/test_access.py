"""A JavaScript client whose access ends while it is connected: what it may still do goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import running
from tests.behaviour.server.test_live_access import Guarded
from tests.js.members import NodeProcess
from tests.waiting import PATIENCE_S


@pytest.mark.req("AUTHZ-09", "AUTH-11")
def test_access_that_ends_is_seen_in_the_status(built: Path, tmp_path: Path) -> None:
    acl = tmp_path / "acl.json"
    acl.write_text("{}")
    with running(tmp_path / "data", "--model", "open", "--acl", str(acl)) as server:
        asyncio.run(_access_ends(Guarded(server, acl), tmp_path))


async def _access_ends(guarded: Guarded, directory: Path) -> None:
    guarded.write(ann={"partitions": ["kept", "lost"]})
    await asyncio.to_thread(guarded.command, "access", "reload")
    process = NodeProcess()
    await process.start()

    async def status(condition: str, **expected: Any) -> dict[str, Any]:
        for _ in range(int(PATIENCE_S * 20)):
            now: dict[str, Any] = await process.call("ann", "status")
            if all(now[name] == value for name, value in expected.items()):
                return now
            await asyncio.sleep(0.05)
        raise AssertionError(f"{condition}: {now}")

    def change(partition: str) -> dict[str, Any]:
        return {"event": {"type": "set", "payload": {"target": "a", "value": 1}}, "partitions": [partition]}

    try:
        server = guarded.server
        await process.call(
            "ann",
            "open",
            url=server.url,
            token=server.token("ann"),
            path=str(directory / "ann.store"),
            partitions=["kept", "lost"],
        )
        await process.call("ann", "caughtUp")
        guarded.write(ann={"partitions": ["kept"]})
        await asyncio.to_thread(guarded.command, "access", "reload")
        now = await status("the partition is not set aside", phase="live", setAside={"lost": "forbidden"})
        assert now["lastError"]["code"] == "forbidden"
        assert await process.call("ann", "submit", **change("kept"))
        refused = await process.call("ann", "submit", **change("lost"))
        await status("the drafts are not answered", pending=0, rejected=1, phase="live")
        assert await process.call("ann", "rejected") == [refused]
        # The operator refuses the client: no further connection is tried with a token that cannot be replaced.
        await asyncio.to_thread(guarded.command, "kick", "--client", "ann", "--for", "10m")
        now = await status("the client is still there", phase="offline")
        assert "auth_failed" in now["stopped"]
    finally:
        await process.end()
