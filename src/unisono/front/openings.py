"""Sockets that were accepted and have not upgraded yet, within the bound on connections (LIM-05).

The library's own server does not tell of a socket before its upgrade, and starts a task for each one, so sockets are
accepted and the library's protocol is made here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

from aiofastnet.selector_transport import SelectorSocketTransport  # type: ignore[import-not-found]
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

ACCEPT_AGAIN_S: Final = 0.2
"""Time until the next accept after one found no descriptor or no memory."""

OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger("unisono.front")

library_log = logging.LoggerAdapter(logging.getLogger("picows.front"), {})
"""No logger itself: the library would make another one for each socket."""

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
            library_log,
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


class Listener:
    """Accepts sockets, a few in each pass of the event loop; `answer` is called with each request for an upgrade."""

    def __init__(
        self, sock: socket.socket, answer: Answer, handshake_timeout_s: float, openings: Openings
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._answer = answer
        self._handshake_timeout_s = handshake_timeout_s
        self._openings = openings
        self._closed = False
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._start()

    def close(self) -> None:
        """Accept nothing more."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _start(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_PASS):
            try:
                accepted, _ = self._socket.accept()
            except ConnectionAbortedError:
                continue
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    raise
                log.error("socket not accepted: %s", error.strerror, extra={"errno": error.errno})
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(ACCEPT_AGAIN_S, self._start)
                return
            # The transport to which the library writes without a detour.
            SelectorSocketTransport(
                self._loop, accepted, OpeningProtocol(self._answer, self._handshake_timeout_s, self._openings)
            )
