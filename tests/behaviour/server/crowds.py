"""Many sockets at once, some of them with bad manners, and what they leave behind in the server's processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tests.behaviour.server.frames import CLOSE, TEXT, UPGRADE, frame
from tests.behaviour.server.harness import Server
from tests.behaviour.server.pressure import private_kib
from tests.waiting import until

AT_ONCE: Final = 100
"""Connections that are opened or ended at a time."""


def front_pid(server: Server) -> int:
    return list(server.children())[-1]


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def memory_kib(server: Server) -> int:
    """Of the server and its processes, without what they share."""
    return sum(map(private_kib, [server.process.pid, *server.children()]))


class Client:
    """A connection by hand, on an event loop with thousands of them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, url: str, first: bytes = UPGRADE) -> Client:
        address = urlsplit(url)
        client = cls(*await asyncio.open_connection(address.hostname, address.port, limit=4096))
        client.writer.write(first)
        if first == UPGRADE:
            head = await client.reader.readuntil(b"\r\n\r\n")
            if b" 101 " not in head:
                await client.end()
                raise AssertionError(head)
        return client

    async def connect(self, who: str, token: str) -> None:
        payload = {"token": token, "client_id": who, "supported_profiles": ["compatibility"]}
        await self.say("connect", payload)
        assert b'"connected"' in (await self.hear())[1]

    async def say(self, kind: str, payload: object) -> None:
        message = {"type": kind, "msg_id": "m", "timestamp": 1, "protocol_version": "1.0", "payload": payload}
        self.writer.write(frame(TEXT, json.dumps(message).encode()))
        await self.writer.drain()

    async def hear(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame."""
        first, size = await self.reader.readexactly(2)
        if size > 125:
            size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8), "big")
        return first & 0x0F, await self.reader.readexactly(size)

    async def close_code(self) -> int | None:
        """The code of the server's close; None where the socket ends without one."""
        try:
            while True:
                opcode, payload = await self.hear()
                if opcode == CLOSE:
                    return int.from_bytes(payload[:2], "big")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def end(self) -> None:
        """Without a goodbye of the WebSocket."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def vanish(self) -> None:
        """With a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def leave(self) -> None:
        self.writer.write(frame(CLOSE, b"\x03\xe8"))
        assert await self.close_code() == 1000
        await self.end()


async def in_turns(work: Iterable[Callable[[], Awaitable[None]]], at_once: int = AT_ONCE) -> None:
    """Do all of it, so many at a time."""
    waiting = iter(work)

    async def some() -> None:
        for each in waiting:
            await each()

    await asyncio.gather(*(some() for _ in range(at_once)))


async def hold(server: Server, count: int, name: str) -> list[Client]:
    """So many connected clients."""
    clients: list[Client] = []

    async def one(number: int) -> None:
        client = await Client.open(server.url)
        await client.connect(f"{name}-{number}", server.token(f"{name}-{number}"))
        clients.append(client)

    await in_turns((lambda number=number: one(number)) for number in range(count))  # type: ignore[misc]
    return clients


async def churn(server: Server, count: int, name: str) -> None:
    """So many clients that come and go: most with a goodbye, some with a reset, some before they are connected."""

    async def one(number: int) -> None:
        who = f"{name}-{number % 1000}-{number // 1000 % 7}"
        client = await Client.open(server.url)
        if number % 5 == 3:
            await client.vanish()
            return
        await client.connect(who, server.token(who))
        if number % 5 == 4:
            await client.vanish()
        else:
            await client.leave()

    await in_turns(((lambda number=number: one(number)) for number in range(count)), at_once=32)  # type: ignore[misc]


def settled_front(server: Server, connections: int) -> None:
    """The front has so many connections and no socket besides."""
    until(
        lambda: (
            server.metric("unisono_connections") == connections and server.metric("unisono_openings") == 0
        ),
        lambda: f"{server.metric('unisono_connections'):g} connections are left, not {connections}",
    )
