"""Clients of a test: quick to reconnect, quick to notice, each with what the test gives it."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ParamSpec

import apsw

from tests.behaviour.server.harness import Server
from tests.waiting import PATIENCE_S
from unisono.client import Options, SyncClient

P = ParamSpec("P")

WAIT_S = PATIENCE_S

NOWHERE = "ws://127.0.0.1:9/sync"
"""A port where nobody listens."""

QUICK = Options(backoff_base_s=0.02, backoff_cap_s=0.2, heartbeat_interval_s=1.0, dead_after_s=2 * PATIENCE_S)

WHOLE = Options(backoff_base_s=0.02, backoff_cap_s=0.2, snapshots=False)
"""Every history from its first event."""


def asynchronous(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on a loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 3 * PATIENCE_S))

    return run


def client(url: str, client_id: str, *partitions: str, **more: Any) -> SyncClient:
    """A client of the compatibility profile; `token` may be given, else a word that peers do not look at."""
    given: dict[str, Any] = {"token": "t", "profile": "compatibility", "options": QUICK}
    return SyncClient(url, client_id=client_id, partitions=partitions or None, **given | more)


def of(server: Server, client_id: str, *partitions: str, url: str = "", **more: Any) -> SyncClient:
    """A client of a real server, with a good token."""
    given: dict[str, Any] = {"token": lambda: server.token(client_id)}
    return client(url or server.url, client_id, *partitions, **given | more)


class Gate:
    """A token that is not to be had before the gate is opened: so long a client stays offline."""

    def __init__(self, token: str = "t") -> None:
        self._open = asyncio.Event()
        self._token = token

    def open(self) -> None:
        self._open.set()

    async def __call__(self) -> str:
        await self._open.wait()
        return self._token


async def until(condition: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    """Wait for something that is about to be."""
    end = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.005)


def rows(path: Path, table: str) -> list[tuple[object, ...]]:
    """What a client's file has in a table."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [tuple(row) for row in connection.execute(f"SELECT * FROM {table}")]
    finally:
        connection.close()
