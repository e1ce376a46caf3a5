"""The sockets of all clients of a front behind one poll, and what one of them has not taken yet.

A transport of the event loop costs several system calls and objects for each socket. Here a socket is one object, its
reads share one buffer, and those that are ready in one pass of the event loop are served in one callback.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import time
from abc import abstractmethod
from collections import deque
from typing import Final, Protocol

log = logging.getLogger("unisono.front")

READ_BYTES: Final = 64 * 1024
"""Read at once from a socket."""

EVENTS_PER_PASS: Final = 256
PASS_S: Final = 0.02
"""Sockets served before the event loop does something else, and for how long; the others are first in its next
pass. So answers of the authority and timers do not wait for all who have something to read."""

JOINED_BYTES: Final = 4 * 1024
"""What is unsent and shorter is joined with what follows: as an object of its own, a pong takes forty times its two
bytes, and the bound on what is unsent counts bytes."""

READABLE: Final = 1
WRITABLE: Final = 4
"""EPOLLIN and EPOLLOUT."""

WITHOUT_WAITING: Final = socket.MSG_DONTWAIT
"""Spares the system call that makes a socket non-blocking."""


class PolledSocket(Protocol):
    """What is called when something can be done with a socket."""

    @abstractmethod
    def on_ready(self, events: int) -> None:
        """Something can be read or written, or the socket has failed; it may also be nothing of all this."""

    @abstractmethod
    def abort(self) -> None:
        """`on_ready` has raised."""


class Poll:
    """The sockets that are watched, by their descriptors.

    Linux has a poll that is itself watched by the event loop. Elsewhere the event loop watches each socket.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, of_the_loop: bool = False) -> None:
        self.loop = loop
        self.buffer = memoryview(bytearray(READ_BYTES))
        """For all sockets: each read is consumed before the next one."""
        self._sockets: dict[int, PolledSocket] = {}
        self._unserved: list[tuple[int, int]] = []
        """Descriptors and events that the last pass had no time for."""
        self._epoll: select.epoll | None = None
        if hasattr(select, "epoll") and not of_the_loop:
            self._epoll = select.epoll()
            loop.add_reader(self._epoll.fileno(), self._serve)

    def add(self, descriptor: int, polled: PolledSocket) -> None:
        if self._epoll is not None:
            self._epoll.register(descriptor, READABLE)
        else:
            self.loop.add_reader(descriptor, self._serve_one, descriptor, READABLE)
        self._sockets[descriptor] = polled

    def watch(self, descriptor: int, events: int) -> None:
        """Watch for these events from now on."""
        if self._epoll is not None:
            self._epoll.modify(descriptor, events)
            return
        for event, add, remove in (
            (READABLE, self.loop.add_reader, self.loop.remove_reader),
            (WRITABLE, self.loop.add_writer, self.loop.remove_writer),
        ):
            if events & event:
                add(descriptor, self._serve_one, descriptor, event)
            else:
                remove(descriptor)

    def remove(self, descriptor: int) -> None:
        """Before it is closed."""
        del self._sockets[descriptor]
        if self._epoll is not None:
            self._epoll.unregister(descriptor)
        else:
            self.loop.remove_reader(descriptor)
            self.loop.remove_writer(descriptor)

    def close(self) -> None:
        """With all sockets that are still there."""
        for polled in list(self._sockets.values()):
            polled.abort()
        if self._epoll is not None:
            self.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _serve(self) -> None:
        assert self._epoll is not None
        sockets, now = self._sockets, time.monotonic
        ready, self._unserved = self._unserved or self._epoll.poll(0, EVENTS_PER_PASS), []
        until = now() + PASS_S
        for place, (descriptor, events) in enumerate(ready, 1):
            polled = sockets.get(descriptor)
            # None: closed since. Another socket may have its descriptor by now; that one finds nothing to do.
            if polled is not None:
                try:
                    polled.on_ready(events)
                except Exception:  # one socket's error must not end the others (ERR-03)
                    log.exception("socket failed")
                    polled.abort()
            if now() > until:
                self._unserved = ready[place:]
                return

    def _serve_one(self, descriptor: int, events: int) -> None:
        polled = self._sockets.get(descriptor)
        if polled is not None:
            try:
                polled.on_ready(events)
            except Exception:
                log.exception("socket failed")
                polled.abort()


class SocketProtocol(Protocol):
    """Who reads from a socket."""

    @abstractmethod
    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come, and are in the buffer of the poll."""

    @abstractmethod
    def pause_writing(self) -> None:
        """The unsent bytes have passed their bound."""

    @abstractmethod
    def eof_received(self) -> None:
        """The client sends nothing more; it may still take what is unsent."""

    @abstractmethod
    def connection_lost(self) -> None:
        """The socket is closed. Called once, as the last."""


class ClientSocket:
    """One socket of a client.

    Invariants: `_unsent` is None, or has something that the client has not taken; while it has, the poll watches for
    room. Once `_closing`, nothing is read and nothing more is to be sent. `_socket` is None once it is closed.
    `read_bytes` are read at once, at most what the buffer has.
    """

    __slots__ = (
        "_closing",
        "_poll",
        "_socket",
        "_unsent",
        "buffer",
        "descriptor",
        "max_unsent_bytes",
        "protocol",
        "read_bytes",
        "unsent_bytes",
    )

    protocol: SocketProtocol

    def __init__(self, sock: socket.SocketType, descriptor: int, poll: Poll) -> None:
        self._socket: socket.SocketType | None = sock
        self._poll = poll
        self.buffer = poll.buffer
        self._unsent: deque[bytes | memoryview] | None = None
        self._closing = False
        self.descriptor = descriptor
        self.unsent_bytes = 0
        self.max_unsent_bytes = self.read_bytes = READ_BYTES

    def on_ready(self, events: int) -> None:
        if events != WRITABLE:
            self.read()
        if events & WRITABLE and self._unsent is not None:
            self._send_more(self._unsent)

    def read(self) -> None:
        """What has come, if anything has."""
        sock = self._socket
        if sock is None:
            return
        try:
            size = sock.recv_into(self.buffer, self.read_bytes, WITHOUT_WAITING)
        except BlockingIOError:
            return
        except OSError:
            self._end()
            return
        if size:
            if not self._closing:
                self.protocol.buffer_updated(size)
        elif self._unsent is None:
            self._end()
        elif not self._closing:
            self._close_when_sent()
            self.protocol.eof_received()

    def write(self, data: bytes) -> None:
        """Send at once what the client takes; the rest waits."""
        sock = self._socket
        if sock is None or self._closing:
            return
        unsent = self._unsent
        if unsent is not None:
            if len(unsent[-1]) + len(data) <= JOINED_BYTES:
                unsent[-1] = bytes(unsent[-1]) + data
            else:
                unsent.append(data)
            self.unsent_bytes += len(data)
        else:
            try:
                sent = sock.send(data, WITHOUT_WAITING)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.abort()
                return
            if sent == len(data):
                return
            self._unsent = deque((memoryview(data)[sent:],))
            self.unsent_bytes = len(data) - sent
            self._poll.watch(self.descriptor, READABLE | WRITABLE)
        if self.unsent_bytes > self.max_unsent_bytes:
            self.protocol.pause_writing()

    def close(self) -> None:
        """Close the socket once everything is sent; nothing more is read."""
        if self._unsent is None:
            self.abort()
        elif not self._closing:
            self._close_when_sent()

    def abort(self) -> None:
        """Close the socket now; its protocol hears of it in the next pass of the event loop.

        That is the protocol which it has then: a connection whose answer to the upgrade could not be written any more
        takes over after this.
        """
        if self._socket is not None:
            self._release()
            self._poll.loop.call_soon(self._tell_lost)

    def _close_when_sent(self) -> None:
        self._closing = True
        self._poll.watch(self.descriptor, WRITABLE)

    def _send_more(self, unsent: deque[bytes | memoryview]) -> None:
        sock = self._socket
        while sock is not None and unsent:
            first = unsent[0]
            try:
                sent = sock.send(first, WITHOUT_WAITING)
            except BlockingIOError:
                return
            except OSError:
                self._end()
                return
            self.unsent_bytes -= sent
            if sent < len(first):
                unsent[0] = memoryview(first)[sent:]
                return
            unsent.popleft()
        self._unsent = None
        if self._closing:
            self._end()
        else:
            self._poll.watch(self.descriptor, READABLE)

    def _end(self) -> None:
        if self._socket is not None:
            self._release()
            self.protocol.connection_lost()

    def _tell_lost(self) -> None:
        self.protocol.connection_lost()

    def _release(self) -> None:
        sock, self._socket = self._socket, None
        assert sock is not None
        self._poll.remove(self.descriptor)
        sock.close()
        self._closing = True
        self._unsent = None
        self.unsent_bytes = 0
