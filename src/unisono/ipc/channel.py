"""Framing, and the synchronous end of a channel between two processes.

A channel is a stream socket. A frame is a four-byte length and a msgpack list of messages; both sides send
all they have in one frame, so under load one system call carries many messages. Messages arrive in the order of
sending, which SYNC-06 relies on.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from unisono.ipc.messages import Message

FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
"""Frames hold at most one group and stay far below this; a larger length means a corrupt stream."""

RECEIVE_BYTES: Final = 1024 * 1024
"""Read at once from a channel; bounds what one busy front can queue before the others are read."""

STALLED_S: Final = 30.0
"""A process that has not read a frame after this time counts as dead; `stall_timeout_s` overrides it."""

_LENGTH = struct.Struct("!I")


class ChannelClosed(Exception):
    """The channel has ended; this end of it is closed."""


class ChannelAborted(ChannelClosed):
    """This end closed it: the peer is stalled or sent a malformed frame, or a message is too large."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Message]).decode


def frame(messages: Sequence[Message]) -> bytes:
    """One frame that carries `messages` in order."""
    body = _encode(messages)
    return _LENGTH.pack(len(body)) + body


def frames(messages: Sequence[Message]) -> Iterator[bytes]:
    """The fewest frames that carry `messages` in order, each at most FRAME_BYTES_MAX.

    Raises ChannelAborted for a single message above that.
    """
    whole = frame(messages)
    if len(whole) - _LENGTH.size <= FRAME_BYTES_MAX:
        yield whole
        return
    if len(messages) == 1:
        raise ChannelAborted(f"{type(messages[0]).__name__} of {len(whole)} bytes is too large")
    del whole
    half = len(messages) // 2
    yield from frames(messages[:half])
    yield from frames(messages[half:])


def _messages(body: bytes | memoryview) -> list[Message]:
    try:
        return _decode(body)
    except msgspec.MsgspecError as error:
        raise ChannelAborted(f"malformed frame: {error}") from error


class Unframer:
    """Turns received bytes into messages; keeps an incomplete frame for the next call."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterable[Message]:
        """The messages of all frames that are complete; ChannelAborted behind those before a malformed one."""
        if not self._buffer and len(data) > 4 and _LENGTH.unpack_from(data)[0] == len(data) - 4:
            return _messages(memoryview(data)[4:])  # one whole frame, as most reads are
        return self._feed(data)

    def _feed(self, data: bytes) -> Iterator[Message]:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= 4:
            (size,) = _LENGTH.unpack_from(buffer, start)
            if size > FRAME_BYTES_MAX:
                raise ChannelAborted(f"frame of {size} bytes is too large")
            if len(buffer) - start - 4 < size:
                break
            yield from _messages(memoryview(buffer)[start + 4 : start + 4 + size].tobytes())
            start += 4 + size
        if start:
            del buffer[:start]


class Channel:
    """The synchronous end of a channel, for processes without an event loop.

    Whatever raises ChannelClosed has closed the socket first, because a frame may be half sent and nothing can
    follow it; the peer sees the end too. `peer` is the role of the process at the other end.
    """

    def __init__(self, sock: socket.socket, peer: str = "", stalled_s: float | None = None) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._unframer = Unframer()
        self._stalled_s = STALLED_S if stalled_s is None else stalled_s
        self.peer = peer

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive(self) -> list[Message]:
        """The messages that have arrived; empty while a frame is incomplete. ChannelClosed at the end."""
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            self.close()
            raise ChannelClosed(str(error)) from error
        if not data:
            self.close()
            raise ChannelClosed("end of stream")
        try:
            return list(self._unframer.feed(data))
        except ChannelAborted:
            self.close()
            raise

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages; waits for a slow peer, aborts on a stalled one."""
        try:
            for whole in frames(messages):
                self._send_frame(memoryview(whole))
        except OSError as error:
            self.close()
            raise ChannelClosed(str(error)) from error
        except ChannelAborted:
            self.close()
            raise

    def _send_frame(self, rest: memoryview) -> None:
        deadline = time.monotonic() + self._stalled_s
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except BlockingIOError:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not select.select([], [self._sock], [], left_s)[1]:
                    raise ChannelAborted(
                        f"stalled: {len(rest)} bytes of a frame unread after {self._stalled_s:g} s"
                    ) from None

    def close(self) -> None:
        with contextlib.suppress(OSError):  # already closed by the peer
            # Unlike close() alone, this ends the stream even if another process has a copy of the socket.
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a channel, with buffers for a group of ordinary size."""
    ends = socket.socketpair()
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, RECEIVE_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    return ends
