"""Sockets that were accepted and have not upgraded yet, within the bound on connections (LIM-05).

The library's own server does not tell of a socket before its upgrade, so the library's protocol is made here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from aiofastnet import create_server
from picows import WSAutoPingStrategy, WSUpgradeRequest, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from unisono.front.frame_reader import LIBRARY_BUFFER_BYTES, LIBRARY_FRAME_BYTES
from unisono.front.websocket import WebSocket

BACKLOG: Final = 1024

ACCEPTS_PER_PASS: Final = 16
"""Sockets accepted in one pass of the event loop. They count as openings one pass later, and one that is cut is
closed a pass after that: three passes' worth of sockets are open beyond the bound."""

MIN_OPENINGS: Final = 128
"""Sockets that may wait for their upgrade although there is no room for a connection: after it they are told so."""

LIBRARY_LOG: Final = logging.LoggerAdapter(logging.getLogger("picows.front"), {})
"""An adapter, because the library makes a logger for each connection out of a logger."""

Answer = Callable[[WSUpgradeRequest], WebSocket | WSUpgradeResponseWithListener]


class Openings:
    """The sockets without an upgrade, oldest first.

    Invariant: they are at most as many as connections have room for, or `MIN_OPENINGS`. One more cuts the oldest: a
    client upgrades within a round trip, so who has waited longest is the least likely to be one.
    """

    def __init__(
        self, room: Callable[[], int], on_cut: Callable[[], None], on_change: Callable[[], None]
    ) -> None:
        self._room = room
        self._on_cut = on_cut
        self._on_change = on_change
        self._sockets: dict[asyncio.Transport, None] = {}

    def __len__(self) -> int:
        return len(self._sockets)

    def add(self, transport: asyncio.Transport) -> None:
        self._sockets[transport] = None
        while len(self._sockets) > max(MIN_OPENINGS, self._room()):
            oldest = next(iter(self._sockets))
            del self._sockets[oldest]
            self._on_cut()
            oldest.abort()
        self._on_change()

    def discard(self, transport: asyncio.BaseTransport) -> None:
        """It has upgraded, or is gone."""
        self._sockets.pop(transport, None)  # type: ignore[call-overload]
        self._on_change()


class OpeningProtocol(WSProtocol):  # type: ignore[misc]
    """The library's protocol of one socket, which is among the openings until it upgrades or ends."""

    __slots__ = ("_openings", "_socket")

    def __init__(self, answer: Answer, handshake_timeout_s: float, openings: Openings) -> None:
        super().__init__(
            None,  # host_port, of clients
            None,  # ws_path, of clients
            False,  # is_client_side
            answer,
            LIBRARY_LOG,
            True,  # disconnect_on_exception
            handshake_timeout_s,
            False,  # enable_auto_ping
            0,  # auto_ping_idle_timeout
            0,  # auto_ping_reply_timeout
            WSAutoPingStrategy.PING_WHEN_IDLE,
            False,  # enable_auto_pong
            LIBRARY_FRAME_BYTES,  # max_frame_size
            None,  # extra_headers, of clients
            LIBRARY_BUFFER_BYTES,  # read_buffer_init_size
        )
        self._openings = openings
        self._socket: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._socket = transport
        self._openings.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._socket is not None:
            self._openings.discard(self._socket)
            self._socket = None
        super().connection_lost(exc)


async def listen(
    sock: socket.socket, answer: Answer, handshake_timeout_s: float, openings: Openings
) -> asyncio.Server:
    """Accept sockets; `answer` is called with each request for an upgrade."""
    server: asyncio.Server = await create_server(  # whose transports the library writes to without a detour
        asyncio.get_running_loop(),
        lambda: OpeningProtocol(answer, handshake_timeout_s, openings),
        sock=sock,
        backlog=ACCEPTS_PER_PASS,  # the library takes one number for both
    )
    sock.listen(BACKLOG)
    return server
