"""What clients that mean harm can do at the wire, and that a server lends them nothing they do not give back."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.behaviour.server.embedded import Embedded, connections_in_memory, nothing_collected
from tests.behaviour.server.harness import SECRET, item, running, set_event
from tests.behaviour.server.pressure import (
    BINARY,
    UPGRADE,
    RawSocket,
    padded,
    private_kib,
)
from tests.client.running import until as until_then
from tests.waiting import until
from unisono.front.auth.sources import JwksUrl
from unisono.front.auth.verify import sign_token
from unisono.front.timers import MAX_CANCELLED, Timers

# -- a dead connection holds nothing -------------------------------------------------------------------------

ALIVE_S = {"heartbeat_timeout_s": 600.0, "handshake_timeout_s": 600.0, "close_grace_s": 600.0}
"""No timer ends within the test: what is freed is freed because its connection is gone."""


class Raw:
    """A socket of this event loop, which ends as rudely as possible."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str, request: bytes = UPGRADE) -> Raw:
        address = urlsplit(url)
        raw = cls(*await asyncio.open_connection(address.hostname, address.port))
        raw._writer.write(request)
        if request.endswith(b"\r\n\r\n"):
            await raw._reader.readuntil(b"\r\n\r\n")
        return raw

    async def send(self, first: int, payload: bytes, announced: int | None = None) -> None:
        """A frame with this first byte, masked with zeros."""
        size = len(payload) if announced is None else announced
        length = (
            bytes([0x80 | size])
            if size < 126
            else b"\xfe" + struct.pack("!H", size)
            if size < 65536
            else b"\xff" + struct.pack("!Q", size)
        )
        self._writer.write(bytes([first]) + length + bytes(4) + payload)
        await self._writer.drain()

    async def say(self, kind: str, payload: object) -> None:
        message = {"type": kind, "msg_id": "m", "timestamp": 1, "protocol_version": "1.0", "payload": payload}
        await self.send(0x81, json.dumps(message).encode())

    async def hear(self) -> bytes:
        """The payload of the next frame."""
        size = (await self._reader.readexactly(2))[1]
        if size > 125:
            size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8), "big")
        return await self._reader.readexactly(size)

    async def connect(self, client_id: str) -> None:
        token = sign_token(SECRET, client_id, ttl_s=86_400, now_s=time.time())
        payload = {"token": token, "client_id": client_id, "supported_profiles": ["compatibility"]}
        await self.say("connect", payload)
        assert b'"connected"' in await self.hear()

    def vanish(self) -> None:
        """With a reset instead of a goodbye."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.close()


async def nothing(raw: Raw, name: str) -> None:
    """Just there."""


async def unfinished_message(raw: Raw, name: str) -> None:
    await raw.send(0x01, b"x" * 60_000)


async def unfinished_frame(raw: Raw, name: str) -> None:
    await raw.send(0x81, b"x" * 60_000, announced=65_000)


async def large_unfinished_message(raw: Raw, name: str) -> None:
    await raw.connect(name)
    await raw.send(0x01, b"x" * 1_000_000)


async def large_unfinished_frame(raw: Raw, name: str) -> None:
    await raw.connect(name)
    await raw.send(0x81, b"x" * 1_000_000, announced=1_048_576)


async def subscribed(raw: Raw, name: str) -> None:
    await raw.connect(name)
    await raw.say("sync", {"partitions": [name], "since_committed_id": 0, "subscription_partitions": [name]})
    await raw.hear()
    await raw.say("submit_event", item([name], set_event("x", "y")))
    await raw.hear()


async def asking_much(raw: Raw, name: str) -> None:
    await raw.connect(name)
    for _ in range(10):
        await raw.say("sync", {"partitions": [name], "since_committed_id": 0})
        await raw.say("submit_event", item([name], set_event("x", "y")))


async def half_connected(raw: Raw, name: str) -> None:
    token = sign_token(SECRET, name, ttl_s=86_400, now_s=time.time())
    await raw.say("connect", {"token": token, "client_id": name})
    for _ in range(10):
        await raw.say("heartbeat", {"pad": "x" * 6000})


async def not_a_websocket(raw: Raw, name: str) -> None:
    await raw.send(0x8F, b"")


async def refused(raw: Raw, name: str) -> None:
    await raw.say("connect", {"token": "no token", "client_id": name})
    await raw.hear()


@pytest.mark.req("LIM-05")
@pytest.mark.usefixtures("embedding")
@pytest.mark.parametrize(
    "behaviour",
    [
        nothing,
        unfinished_message,
        unfinished_frame,
        large_unfinished_message,
        large_unfinished_frame,
        subscribed,
        asking_much,
        half_connected,
        not_a_websocket,
        refused,
    ],
)
def test_a_dead_connection_holds_nothing(
    tmp_path: Path, behaviour: Callable[[Raw, str], Awaitable[None]]
) -> None:
    embedded = Embedded(tmp_path, **ALIVE_S)

    async def scenario() -> None:
        async with embedded.front() as (front, url):
            for number in range(100):
                raw = await Raw.open(url)
                await behaviour(raw, f"client-{number}")
                raw.vanish()
            await until_then(lambda: not connections_in_memory())
            assert len(front._services.timers) <= MAX_CANCELLED + 1

    with embedded.running(), nothing_collected():
        asyncio.run(scenario())


@pytest.mark.req("LIM-05")
@pytest.mark.usefixtures("embedding")
def test_an_upgrade_that_never_comes_is_forgotten_with_its_socket(tmp_path: Path) -> None:
    embedded = Embedded(tmp_path, **ALIVE_S)

    async def scenario() -> None:
        async with embedded.front() as (_, url):
            for _ in range(50):
                (await Raw.open(url, UPGRADE[:40])).vanish()
                (await Raw.open(url, b"")).vanish()
            await until_then(lambda: not connections_in_memory())

    with embedded.running(), nothing_collected():
        asyncio.run(scenario())


@pytest.mark.req("LIM-05")
@pytest.mark.usefixtures("embedding")
def test_a_connection_that_ends_while_its_token_is_verified_is_forgotten(tmp_path: Path) -> None:
    """The host of the keys takes the question and never answers."""
    embedded = Embedded(tmp_path, **ALIVE_S)
    token = sign_token(SECRET, "anybody", ttl_s=86_400, now_s=time.time())

    async def scenario() -> None:
        keys = JwksUrl("http://{}:{}/keys".format(*silent.getsockname()), timeout_s=600)
        async with embedded.front(keys) as (_, url):
            for _ in range(20):
                raw = await Raw.open(url)
                await raw.say("connect", {"token": token, "client_id": "anybody"})
                await asyncio.sleep(0)
                raw.vanish()
            await until_then(lambda: not connections_in_memory())

    with socket.create_server(("127.0.0.1", 0)) as silent, embedded.running(), nothing_collected():
        asyncio.run(scenario())


@pytest.mark.req("LIM-05")
def test_cancelled_timers_are_swept_out() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        timers = Timers(loop)
        kept = timers.at(loop.time() + 600, lambda now: None)
        for _ in range(1000):
            timers.cancel(timers.at(loop.time() + 300, lambda now: None))
        assert len(timers) <= MAX_CANCELLED + 1
        assert kept.call is not None
        rang: list[float] = []
        timers.at(loop.time() + 0.001, rang.append)
        timers.cancel(kept)
        timers.cancel(kept)
        await until_then(lambda: len(rang) == 1)
        timers.close()

    asyncio.run(scenario())


@pytest.mark.req("LIM-05", "CONN-10")
def test_who_closes_and_takes_nothing_more_is_cut(tmp_path: Path, who: str, part: str) -> None:
    """Its socket would stay, with all that was said to it, for as long as it likes."""
    with (
        running(tmp_path / "data", "--access-default", "allow", "--close-grace-s", "0.2") as server,
        server.client(f"{who}-b") as writer,
        RawSocket(server.url, receive_buffer_bytes=4096) as slow,
    ):
        slow.send(
            "connect",
            {"token": server.token(who), "client_id": who, "supported_profiles": ["compatibility"]},
        )
        slow.expect("connected")
        slow.send("sync", {"partitions": [part], "since_committed_id": 0, "subscription_partitions": [part]})
        slow.expect("sync_response")
        for _ in range(6):
            writer.commit([part], set_event("x", "y" * 500_000))
        slow.frame(0x8, struct.pack("!H", 1000))
        until(lambda: server.metric("unisono_connections") == 1, "the socket is still there")


# -- memory --------------------------------------------------------------------------------------------------


@pytest.mark.req("LIM-05")
def test_an_idle_connection_costs_little_whatever_it_sent_before(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--access-default", "allow") as server:
        peers = [server.client(f"client-{number}") for number in range(60)]
        front = list(server.children())[-1]
        large = padded(peers[0], 1_000_000)
        peers[0].raw(large)
        peers[0].expect("heartbeat_ack")
        before = private_kib(front)
        for peer in peers[1:]:
            peer.raw(large)
            peer.expect("heartbeat_ack")
        grown = private_kib(front) - before
        for peer in peers:
            peer.close()
        assert grown < 59 * 100  # each kept a MiB and more


@pytest.mark.req("LIM-05")
def test_connections_that_left_messages_unfinished_leave_no_memory_behind(tmp_path: Path) -> None:
    with running(
        tmp_path / "data", "--access-default", "allow", "--default-profile", "compatibility"
    ) as server:
        front = list(server.children())[-1]
        part = os.urandom(1_000_000)

        def come_and_go(number: int) -> None:
            who = f"client-{number}"
            with RawSocket(server.url) as raw:
                raw.send("connect", {"token": server.token(who), "client_id": who})
                raw.expect("connected")
                raw.frame(BINARY, b"", fin=False)
                raw.socket.sendall(b"\x00\xff" + struct.pack("!Q", len(part)) + bytes(4) + part)

        come_and_go(0)
        before = private_kib(front)
        for number in range(1, 100):
            come_and_go(number)
        until(lambda: server.metric("unisono_connections") == 0, "somebody is still connected")
        assert private_kib(front) - before < 30 * 1024
