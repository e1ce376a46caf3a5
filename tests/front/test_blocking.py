"""Nothing in a front blocks its event loop; and the authority can live in threads beside it (embedding)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from blockbuster import BlockingError, blockbuster_ctx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.waiting import PATIENCE_S
from unisono.config import Settings
from unisono.front.access import Access
from unisono.front.auth.sources import SharedSecret
from unisono.front.auth.verify import Verifier, sign_token
from unisono.front.server import Front
from unisono.ipc.channel import Channel, socket_pair
from unisono.ipc.link import Link
from unisono.ipc.messages import Drain, Message, Ready
from unisono.model.model import open_model
from unisono.node.processes import run_authority, run_reader

SECRET = b"a secret that is long enough for an HS256 signature"
TTLS_S = (0.5, 4.0, 20.0)


class Helper:
    """What is a process of its own in a server: here a thread behind the same sockets."""

    def __init__(self, run: Callable[[socket.socket, socket.socket], int]) -> None:
        self.front_end, its_end = socket_pair()
        control, its_control = socket_pair()
        self._its_ends = (its_control, its_end)
        self._thread = threading.Thread(target=run, args=self._its_ends, daemon=True)
        self._thread.start()
        self._channel = Channel(control)
        control.setblocking(True)
        assert self._channel.receive() == [Ready()]

    def end(self) -> None:
        self._channel.send([Drain()])
        self._thread.join(PATIENCE_S)
        for sock in (self._channel, *self._its_ends):
            sock.close()
        assert not self._thread.is_alive()


@contextlib.contextmanager
def helpers(settings: Settings) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The front's ends of its channels to an authority and a reader."""
    authority = Helper(lambda control, end: run_authority(settings, open_model(), control, [end]))
    reader = Helper(lambda control, end: run_reader(settings, control, [end]))
    try:
        yield authority.front_end, reader.front_end
    finally:
        reader.end()
        authority.end()


class Client:
    """A client in the same event loop."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, kind: str, payload: dict[str, Any]) -> None:
        envelope = {"type": kind, "msg_id": "m", "timestamp": 0, "protocol_version": "1.0"}
        await self.socket.send(json.dumps(envelope | {"payload": payload}))

    async def expect(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            message = json.loads(await self.socket.recv())
        assert message["type"] == kind, message
        payload: dict[str, Any] = message["payload"]
        return payload

    async def expect_close(self, code: int) -> None:
        with pytest.raises(ConnectionClosed) as closed:
            async with asyncio.timeout(PATIENCE_S):
                await self.socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == code

    async def login(self, client_id: str, ttl_s: float) -> dict[str, Any]:
        token = sign_token(SECRET, client_id, ttl_s=ttl_s, now_s=time.time())
        await self.send(
            "connect", {"token": token, "client_id": client_id, "supported_profiles": ["canonical"]}
        )
        return await self.expect("connected")


@contextlib.asynccontextmanager
async def client(url: str, client_id: str, ttl_s: float = 60) -> AsyncIterator[Client]:
    async with connect(url, compression=None, proxy=None) as socket:
        one = Client(socket)
        await one.login(client_id, ttl_s)
        yield one


@contextlib.asynccontextmanager
async def outlived(url: str, client_id: str) -> AsyncIterator[Client]:
    """A client whose token ends soon, but not before it is connected."""
    for ttl_s in TTLS_S:
        async with connect(url, compression=None, proxy=None) as socket:
            one = Client(socket)
            try:
                await one.login(client_id, ttl_s)
            except AssertionError:
                continue
            yield one
            return
    raise AssertionError("no token lasts long enough to connect")


def draft(id: str, data: object = None) -> dict[str, Any]:
    return {
        "id": id,
        "partitions": ["p"],
        "event": {"type": "event", "payload": {"schema": "s", "data": data}},
    }


async def converse(url: str) -> None:
    """Everything a front does for clients."""
    async with client(url, "a") as a, client(url, "b") as b:
        await b.send("sync", {"partitions": ["p"], "since_committed_id": 0, "subscription_partitions": ["p"]})
        assert (await b.expect("sync_response"))["effective_subscriptions"] == ["p"]
        await a.send("submit_events", {"events": [draft(f"e{n}", n) for n in range(100)]})
        results = (await a.expect("submit_events_result"))["results"]
        assert [result["committed_id"] for result in results] == list(range(1, 101))
        assert [(await b.expect("event_broadcast"))["committed_id"] for _ in range(100)] == list(
            range(1, 101)
        )
        await a.send("submit_event", draft("e0", 0))
        assert (await a.expect("event_committed"))["committed_id"] == 1
        await a.send("submit_event", draft("e0", "another"))
        await a.expect("event_rejected")
        since = 0
        for expected in (50, 50):
            await b.send("sync", {"partitions": ["p"], "since_committed_id": since, "limit": 50})
            page = await b.expect("sync_response")
            assert len(page["events"]) == expected
            since = page["next_since_committed_id"]
        await b.send("sing", {})
        assert (await b.expect("error"))["code"] == "bad_request"
        await b.send("heartbeat", {})
        await b.expect("heartbeat_ack")
        async with client(url, "a") as successor:
            await a.expect_close(4003)
            await successor.send("disconnect", {})
            await successor.expect_close(1000)
    async with outlived(url, "c") as idle:
        assert (await idle.expect("error"))["code"] == "auth_failed"  # its timer came up
        await idle.expect_close(4001)


async def embedded(settings: Settings, authority: socket.socket, reader: socket.socket) -> list[str]:
    """A front between clients and helpers; gives what went wrong unheard in the event loop."""
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(str(context)))
    with pytest.raises(BlockingError):
        time.sleep(0.001)  # noqa: ASYNC251  (the detector works here)

    verifier = Verifier(SharedSecret(SECRET))
    front = Front(0, settings, verifier, Access(default="allow"))
    here, there = socket_pair()
    ready = asyncio.Event()

    def heard(message: Message) -> None:
        assert message == Ready()
        ready.set()

    node = await Link.open(here, "front 0", heard, lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await front.start(authority=authority, reader=reader, node=there, listening=[listening])
        async with asyncio.timeout(PATIENCE_S):
            await ready.wait()
        url = f"ws://127.0.0.1:{listening.getsockname()[1]}/sync"
        await converse(url)
        async with connect(url, compression=None, proxy=None) as waiting:
            node.send(Drain())
            await Client(waiting).expect_close(1001)
        async with asyncio.timeout(PATIENCE_S):
            assert await front.exit_code == 0
        await front.close()
    node.close()
    await asyncio.sleep(0.01)  # the transports close their sockets
    return complaints


@pytest.mark.usefixtures("embedding")
@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_nothing_in_a_front_blocks_its_event_loop(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    new_event_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    settings = Settings(data=str(tmp_path), access_default="allow")
    with (
        caplog.at_level(logging.WARNING),
        helpers(settings) as (authority, reader),
        asyncio.Runner(loop_factory=new_event_loop) as runner,
        blockbuster_ctx(),
    ):
        assert runner.run(embedded(settings, authority, reader)) == []
    assert [record.getMessage() for record in caplog.records] == []
