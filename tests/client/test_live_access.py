"""A client whose access changes while it is connected: it keeps what it has, and goes on with the rest."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.behaviour.server.harness import running
from tests.behaviour.server.test_live_access import Guarded
from tests.client.running import WAIT_S, asynchronous, of, until


@pytest.mark.req("AUTHZ-09")
@asynchronous
async def test_a_client_goes_on_with_what_it_may_still_read(tmp_path: Path) -> None:
    acl = tmp_path / "acl.json"
    acl.write_text(json.dumps({"clients": {name: {"partitions": ["p", "q"]} for name in ("ann", "ben")}}))
    with running(tmp_path / "data", "--model", "open", "--acl", str(acl)) as server:
        guarded = Guarded(server, acl)
        async with of(server, "ann", "p", "q") as ann, of(server, "ben", "p", "q") as ben:
            await ann.caught_up(WAIT_S)
            guarded.write(ann={"partitions": ["q"]}, ben={"partitions": ["p", "q"]})
            await guarded_reload(guarded)
            await until(lambda: ann.status.set_aside == {"p": "forbidden"})
            await (await ben.set("a", 1, partition="p")).settled(WAIT_S)
            await (await ben.set("a", 2, partition="q")).settled(WAIT_S)
            await until(lambda: ann.view("q") == {"a": 2})
            assert ann.view("p") == {}
            assert ann.status.phase == "live"
            guarded.write(ann={"partitions": ["p", "q"]}, ben={"partitions": ["p", "q"]})
            await guarded_reload(guarded)
            await ann.pause()
            await ann.resume()
            await until(lambda: ann.view("p") == {"a": 1})


async def guarded_reload(guarded: Guarded) -> None:
    await asyncio.to_thread(guarded.command, "access", "reload")
