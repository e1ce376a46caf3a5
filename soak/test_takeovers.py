"""One client_id, taken over a thousand times while it writes, on a server with two fronts."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.behaviour.server.harness import Closed, Peer, Server, item, running, tree_event
from websockets.exceptions import ConnectionClosed

from unisono.protocol.errors import CloseCode
from unisono.store.check import check_directory
from unisono.store.sqlite.log import SqliteReader

TAKEOVERS = int(os.environ.get("SOAK_ROUNDS", "1000"))
THREADS = 4
"""Several at once, so that connections of one client claim it from both fronts at the same time."""

CLIENT = "the-one"
REPLACED = CloseCode.REPLACED


class Device:
    """Connects as the client, drafts and submits, until another device takes over; then again.

    A draft keeps its id until it is answered: a retry that were not recognised would be rejected, since it
    pushes the same node a second time.
    """

    def __init__(self, server: Server, number: int) -> None:
        self._server = server
        self._names = (f"device-{number}-{turn}" for turn in count())
        self._pending: dict[str, dict[str, Any]] = {}
        self.told: dict[str, int] = {}
        self.peer: Peer | None = None

    def take_over(self, times: int) -> None:
        for turn in range(times):
            if self.peer is not None:
                self.peer.close()
            self.peer = self._server.peer()
            try:
                self._connect()
                self._converse(requests=1 + turn % 5)
            except ConnectionClosed as closed:
                if closed.rcvd is None or closed.rcvd.code != REPLACED:
                    raise
            except Closed as closed:
                if closed.code != REPLACED:
                    raise

    def finish(self) -> None:
        """Nobody else is there any more: what is unanswered gets its answer."""
        with self._server.client(CLIENT) as peer:
            if self._pending:
                self._settle(peer.submit(*self._pending.values()))

    def alive(self) -> bool:
        assert self.peer is not None
        try:
            self.peer.send("heartbeat", {})
            while self.peer.receive()["type"] != "heartbeat_ack":
                pass
        except (Closed, ConnectionClosed):
            return False
        return True

    def _connect(self) -> None:
        assert self.peer is not None
        token = self._server.token(CLIENT)
        self.peer.connect(CLIENT, token, supported_profiles=["compatibility"])

    def _converse(self, requests: int) -> None:
        """Some requests at once, then their answers; a takeover can fall anywhere between."""
        assert self.peer is not None
        retries = list(self._pending.values())
        if retries:
            self.peer.send("submit_events", {"events": retries})
        for _ in range(requests):
            name = next(self._names)
            self._pending[name] = item(["p"], tree_event(name), id=name)
            self.peer.send("submit_events", {"events": [self._pending[name]]})
        for _ in range(requests + bool(retries)):
            self._settle(self.peer.expect("submit_events_result")["results"])

    def _settle(self, results: Sequence[dict[str, Any]]) -> None:
        for result in results:
            assert result["status"] == "committed", result
            assert self.told.setdefault(result["id"], result["committed_id"]) == result["committed_id"]
            self._pending.pop(result["id"], None)


@pytest.mark.req("CONN-05", "ORD-03", "ORD-05")
@pytest.mark.timeout(60 + TAKEOVERS)
def test_a_thousand_takeovers_leave_one_connection_and_lose_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--access-default", "allow", "--fronts", "2") as server:
        devices = [Device(server, number) for number in range(THREADS)]
        with ThreadPoolExecutor(THREADS) as pool:
            for future in [pool.submit(device.take_over, TAKEOVERS // THREADS) for device in devices]:
                future.result()
        assert sum(device.alive() for device in devices) == 1
        deadline = time.monotonic() + 10
        while server.metric("unisono_connections") != 1:
            assert time.monotonic() < deadline, "a replaced connection is still held"
            time.sleep(0.05)
        assert server.metric("unisono_closes_total", code=str(REPLACED)) > 0
        for device in devices:
            device.finish()
        assert server.stop() == 0
    told = {id: committed_id for device in devices for id, committed_id in device.told.items()}
    assert check_directory(server.data).ok
    reader = SqliteReader.open(server.data)
    try:
        records = reader.scan(0, 2**53, limit=10_000_000)
    finally:
        reader.close()
    assert {record.id: record.committed_id for record in records} == told
    assert [record.committed_id for record in records] == list(range(1, len(told) + 1))
