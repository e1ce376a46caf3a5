"""A whole node in this process, so that what is left of its connections can be counted."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from tests.behaviour.server.harness import SECRET
from tests.waiting import PATIENCE_S
from unisono.config import Settings
from unisono.front.access import Access
from unisono.front.auth.sources import KeySource, SharedSecret
from unisono.front.auth.verify import Verifier
from unisono.front.client_sockets import ClientSocket
from unisono.front.connection import ClientConnection
from unisono.front.frame_reader import FrameReader
from unisono.front.openings import PendingUpgrade
from unisono.front.server import Front
from unisono.ipc.channel import frame, socket_pair
from unisono.ipc.messages import Drain
from unisono.model.model import open_model
from unisono.node.processes import run_authority, run_reader


class Embedded:
    """The threads of authority and reader, and how a front joins them."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self.settings = Settings(data=str(data), **settings)
        self.authority, self.reader, self.node, self._to_authority, self._to_reader = (
            socket_pair() for _ in range(5)
        )
        self._threads = [
            threading.Thread(
                target=run_authority,
                args=(self.settings, open_model(), self._to_authority[1], [self.authority[1]]),
            ),
            threading.Thread(target=run_reader, args=(self.settings, self._to_reader[1], [self.reader[1]])),
        ]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        controls = (self._to_authority[0], self._to_reader[0])
        for thread, control in zip(self._threads, controls, strict=True):
            thread.start()
            control.recv(100)  # it says that it is ready
        try:
            yield
        finally:
            for control in controls:
                control.sendall(frame([Drain()]))
            for thread in self._threads:
                thread.join(PATIENCE_S)
            for ends in (self.authority, self.reader, self.node, self._to_authority, self._to_reader):
                for end in ends:
                    end.close()

    @contextlib.asynccontextmanager
    async def front(self, keys: KeySource | None = None) -> AsyncIterator[tuple[Front, str]]:
        """A front on this event loop, and where it listens."""
        listening = socket.create_server(("127.0.0.1", 0))
        verifier = Verifier(keys or SharedSecret(SECRET))
        front = Front(0, self.settings, verifier, Access(None, "allow"))
        await front.start(
            authority=self.authority[0], reader=self.reader[0], node=self.node[0], listening=[listening]
        )
        self.node[1].setblocking(False)
        await asyncio.get_running_loop().sock_recv(self.node[1], 100)  # the front says that it is ready
        yield front, "ws://{}:{}/sync".format(*listening.getsockname())
        self.node[1].sendall(frame([Drain()]))
        await front.exit_code
        await front.close()


def connections_in_memory() -> int:
    """With their parts, and with cyclic garbage that nobody has looked for."""
    parts = (ClientConnection, FrameReader, ClientSocket, PendingUpgrade)
    return sum(type(thing) in parts for thing in gc.get_objects())


@contextlib.contextmanager
def nothing_collected() -> Iterator[None]:
    """What is gone within the block went by itself."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
