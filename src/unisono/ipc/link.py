"""The asynchronous end of a channel: a front's or the node's side."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, cast

from unisono.ipc.channel import ChannelClosed, Message, Unframer, frames

log = logging.getLogger("unisono.node")

UNSENT_BYTES_MAX: Final = 512 * 1024 * 1024
"""Above everything that the bounds of a front let it ask at once, and any order an operator can give."""


class Link(asyncio.Protocol):
    """Hands over what arrives, and sends what was said during one pass of the event loop as one frame.

    What may be asked bounds its buffer: items waiting for judgement, and syncs. A `peer` that takes nothing while
    still more comes together is given up, and so is one that sends what is not a frame: the channel is closed, and
    `lost` is called.
    """

    def __init__(self, peer: str, receive: Callable[[Message], None], lost: Callable[[], None]) -> None:
        self._peer = peer
        self._receive = receive
        self._lost = lost
        self._unframer = Unframer()
        self._outbox: list[Message] = []
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(
        cls, sock: socket.socket, peer: str, receive: Callable[[Message], None], lost: Callable[[], None]
    ) -> Link:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: cls(peer, receive, lost), sock=sock)
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
        try:
            for message in self._unframer.feed(data):
                self._receive(message)
        except ChannelClosed as error:
            self._give_up(str(error))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._lost()

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        transport = self._transport
        if not outbox or transport is None or transport.is_closing():
            return
        try:
            for whole in frames(outbox):
                transport.write(whole)
        except ChannelClosed as error:
            self._give_up(str(error))
            return
        unsent = transport.get_write_buffer_size()
        if unsent > UNSENT_BYTES_MAX:
            self._give_up(f"it takes nothing: {unsent} bytes wait for it")

    def _give_up(self, why: str) -> None:
        log.error("the %s is given up: %s", self._peer, why)
        if self._transport is not None:
            self._transport.abort()
