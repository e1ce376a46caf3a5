"""Sockets that were accepted and have not upgraded yet, within the bounds on connections and on time (LIM-05)."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from unisono.front.client_sockets import ClientSocket, Poll
from unisono.ipc.stats import Counters

BACKLOG: Final = 1024

ACCEPTS_PER_PASS: Final = 16
"""Sockets accepted in one pass of the event loop."""

MIN_OPENINGS: Final = 128
"""Sockets that may wait for their upgrade although there is no room for a connection: after it they are told so."""

ACCEPT_AGAIN_S: Final = 0.2
"""Time until the next accept after one found no descriptor or no memory."""

MAX_HEAD_BYTES: Final = 16 * 1024
"""A request for an upgrade, with its headers. A socket that sends more before their end is closed."""

HEAD_END: Final = b"\r\n\r\n"

OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger("unisono.front")

Answer = Callable[[ClientSocket, bytes, bool], None]
"""Answers a request for an upgrade, given without the empty line at its end; whether more came behind it."""


class Openings:
    """The sockets without an upgrade, oldest first.

    Invariant: they are at most as many as connections have room for, or `MIN_OPENINGS`. One more cuts the oldest: a
    client upgrades within a round trip, so who has waited longest is the least likely to be one. None is older than
    `timeout_s`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeout_s: float,
        counters: Counters,
        room: Callable[[], int],
        on_left: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._room = room
        self._counters = counters
        self._on_left = on_left
        self._sockets: OrderedDict[ClientSocket, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._sockets)

    def add(self, accepted: ClientSocket) -> None:
        until = self._loop.time() + self._timeout_s
        self._sockets[accepted] = until
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._cut_late)
        if len(self._sockets) > MIN_OPENINGS:
            while len(self._sockets) > max(MIN_OPENINGS, self._room()):
                self._counters.add("openings_cut")
                self._cut(next(iter(self._sockets)))

    def upgraded(self, opened: ClientSocket) -> None:
        """It is a connection now."""
        self._sockets.pop(opened, None)

    def refuse(self, refused: ClientSocket, answer: bytes) -> None:
        refused.write(answer)
        refused.close()
        self.gone(refused)

    def gone(self, closed: ClientSocket) -> None:
        if self._sockets.pop(closed, None) is not None:
            self._on_left()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _cut(self, late: ClientSocket) -> None:
        late.abort()
        self.gone(late)

    def _cut_late(self) -> None:
        """Whoever has not upgraded in time is closed without an answer."""
        self._timer = None
        while self._sockets:
            late, until = next(iter(self._sockets.items()))
            if until > self._loop.time():
                self._timer = self._loop.call_at(until, self._cut_late)
                break
            self._cut(late)


class PendingUpgrade:
    """The protocol of one socket until its upgrade: it collects the request."""

    __slots__ = ("_answer", "_head", "_openings", "_socket")

    def __init__(self, opened: ClientSocket, answer: Answer, openings: Openings) -> None:
        self._socket: ClientSocket | None = opened
        self._answer = answer
        self._openings = openings
        self._head: bytearray | None = None

    def buffer_updated(self, nbytes: int) -> None:
        opened = self._socket
        if opened is None:
            return
        head = opened.buffer[:nbytes].tobytes()
        if self._head is None:
            end = head.find(HEAD_END)
        else:  # in pieces: what was looked at before is not looked at again
            searched = max(0, len(self._head) - len(HEAD_END) + 1)
            self._head += head
            end = self._head.find(HEAD_END, searched)
            head = bytes(self._head) if end >= 0 else b""
        if 0 <= end <= MAX_HEAD_BYTES:
            self._socket = self._head = None
            self._answer(opened, head[:end], len(head) > end + len(HEAD_END))
            return
        if self._head is None:
            self._head = bytearray(head)
        if end >= 0 or len(self._head) > MAX_HEAD_BYTES:
            self._openings.gone(opened)
            self._socket = None
            opened.abort()

    @property
    def waits(self) -> bool:
        """Whether the request is still to come, and the socket is there."""
        return self._socket is not None

    def pause_writing(self) -> None:
        """Its answer is shorter than any bound."""

    def eof_received(self) -> None:
        """It gets its answer nevertheless."""

    def connection_lost(self) -> None:
        opened, self._socket = self._socket, None
        if opened is not None:
            self._openings.gone(opened)


class Listener:
    """Accepts sockets, a few in each pass of the event loop; `answer` is called with each request for an upgrade."""

    def __init__(self, sock: socket.socket, poll: Poll, answer: Answer, openings: Openings) -> None:
        self._poll = poll
        self._socket = sock
        self._answer = answer
        self._openings = openings
        self._closed = self._waits = False
        self._next = _acceptor(sock)
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets have it too
        sock.listen(BACKLOG)
        poll.add(sock.fileno(), self)

    def close(self) -> None:
        """Accept nothing more."""
        if not self._closed:
            self._closed = True
            if not self._waits:
                self._poll.remove(self._socket.fileno())
            self._socket.close()

    abort = close

    def on_ready(self, events: int) -> None:  # noqa: ARG002
        poll, openings = self._poll, self._openings
        for _ in range(ACCEPTS_PER_PASS):
            if self._closed:
                return
            try:
                accepted, descriptor = self._next()
            except ConnectionAbortedError:
                continue
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    log.exception("socket not accepted")
                    return
                self._pause(error)
                return
            opened = ClientSocket(accepted, descriptor, poll)
            opening = opened.protocol = PendingUpgrade(opened, self._answer, openings)
            try:
                poll.add(descriptor, opened)
            except OSError as error:  # too many sockets are watched by this user, or there is no memory
                accepted.close()
                self._pause(error)
                return
            try:
                opened.read()  # most requests come with the connection
            except Exception:
                log.exception("socket failed")
                opened.abort()
            if opening.waits:
                openings.add(opened)

    def _pause(self, error: OSError) -> None:
        log.error("socket not accepted: %s", error.strerror, extra={"errno": error.errno})
        self._waits = True
        self._poll.remove(self._socket.fileno())
        self._poll.loop.call_later(ACCEPT_AGAIN_S, self._go_on)

    def _go_on(self) -> None:
        if self._closed:
            return
        try:
            self._poll.add(self._socket.fileno(), self)
        except OSError:  # still; it is said with the next socket
            self._poll.loop.call_later(ACCEPT_AGAIN_S, self._go_on)
        else:
            self._waits = False


def _acceptor(sock: socket.socket) -> Callable[[], tuple[socket.SocketType, int]]:
    """How the next socket is accepted.

    `socket.accept` makes an object of Python and of C for each; where its own first step is there, the C object is
    enough.
    """
    family, kind, protocol = sock.family, sock.type, sock.proto
    first_step: Callable[[], tuple[int, object]] | None = getattr(sock, "_accept", None)

    def accept() -> tuple[socket.SocketType, int]:
        if first_step is None:
            accepted, _ = sock.accept()
            return accepted, accepted.fileno()
        descriptor, _ = first_step()
        return socket.SocketType(family, kind, protocol, descriptor), descriptor

    return accept
