"""The asynchronous end of a channel: a front's or the node's side."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from unisono.authority.channel import Message, Unframer, frame


class Link(asyncio.Protocol):
    """Hands over what arrives, and sends what was said during one pass of the event loop as one frame.

    Its buffer is bounded by what may be asked: items waiting for judgement and syncs per connection.
    """

    def __init__(self, receive: Callable[[Message], None], lost: Callable[[], None]) -> None:
        self._receive = receive
        self._lost = lost
        self._unframer = Unframer()
        self._outbox: list[Message] = []
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(
        cls, sock: socket.socket, receive: Callable[[Message], None], lost: Callable[[], None]
    ) -> Link:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: cls(receive, lost), sock=sock)
        return link

    def send(self, message: Message) -> None:
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(message)

    def close(self) -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for message in self._unframer.feed(data):
            self._receive(message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._lost()

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if outbox and self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(outbox))
