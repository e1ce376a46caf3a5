"""The asynchronous end of a channel, used by fronts and the node."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, cast

from unisono.ipc.channel import ChannelClosed, Unframer, frames
from unisono.ipc.messages import Message

logger = logging.getLogger("unisono.node")

UNSENT_BYTES_MAX: Final = 512 * 1024 * 1024
"""More than the limits of a front let it ask at once, and more than any admin command carries."""

LATER_S: Final = 0.05
LATER_MESSAGES_MAX: Final = 256
"""How long messages that nobody waits for are kept back, and how many."""


class Link(asyncio.Protocol):
    """Calls `receive` for each message that arrives, and sends the messages of one event loop pass as one frame.

    Limits on queued items and syncs bound the write buffer. When a `peer` stops reading and the buffer passes
    UNSENT_BYTES_MAX, or when it sends a malformed frame, the channel is aborted. `lost` is called at the end.
    """

    def __init__(self, peer: str, receive: Callable[[Message], None], lost: Callable[[], None]) -> None:
        self._peer = peer
        self._receive = receive
        self._lost = lost
        self._unframer = Unframer()
        self._outbox: list[Message] = []
        self._flushing = False
        """Whether the outbox is sent at the end of this pass."""
        self._later: asyncio.TimerHandle | None = None
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
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        self._outbox.append(message)

    def send_later(self, message: Message) -> None:
        """Send a message that nobody waits for, and that is not worth waking the peer for.

        It goes with the next message, in the order of sending, or after LATER_S.
        """
        if self._later is None and not self._flushing:
            self._later = self._loop.call_later(LATER_S, self._flush)
        self._outbox.append(message)
        if len(self._outbox) >= LATER_MESSAGES_MAX:
            self._flush()

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
            self._abort(str(error))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._lost()

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        self._flushing = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        transport = self._transport
        if not outbox or transport is None or transport.is_closing():
            return
        try:
            for whole in frames(outbox):
                transport.write(whole)
        except ChannelClosed as error:
            self._abort(str(error))
            return
        unsent = transport.get_write_buffer_size()
        if unsent > UNSENT_BYTES_MAX:
            self._abort(f"stalled: {unsent} bytes unread")

    def _abort(self, reason: str) -> None:
        logger.error("channel to %s aborted: %s", self._peer, reason, extra={"peer": self._peer})
        if self._transport is not None:
            self._transport.abort()
