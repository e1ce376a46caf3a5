"""Between a socket and the WebSocket library: what is read is handed over in small, whole frames.

The library keeps for each connection a buffer that doubles with every full read and never shrinks, and its bound on a
frame is one for all connections. Here one buffer serves every connection of a front, and a long frame is split into
fragments, which leave the library's own buffer as small as it began. So an idle connection costs the same whatever it
sent before, and a message may be bounded by who sends it.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Final, Protocol

LIBRARY_BUFFER_BYTES: Final = 4096
"""The library's buffer for one connection: an ordinary message fits, and ten thousand idle ones cost 40 MiB."""

ROOM: Final = (LIBRARY_BUFFER_BYTES - 256) * 9 // 10
"""Bytes handed over at once: the library keeps 256 for itself and doubles a buffer more than nine tenths full."""

MAX_HEADER_BYTES: Final = 14
PORTION: Final = (ROOM - MAX_HEADER_BYTES) // 4 * 4
"""Payload of a fragment; masks go by four bytes, so each fragment of a frame has the same mask."""

READ_BYTES: Final = 64 * 1024
"""Read at once from a socket."""

FIN: Final = 0x80
MASKED: Final = 0x80
CONTROL: Final = 0x08


def read_buffer() -> memoryview:
    """A buffer for all connections of one event loop: each read is used up before the next one."""
    return memoryview(bytearray(READ_BYTES))


class Receiver(Protocol):
    """Who gets the frames."""

    max_message_bytes: int

    @abstractmethod
    def too_big(self) -> None:
        """A frame announces more than a message may have."""

    @abstractmethod
    def out_of_step(self) -> None:
        """The stream began before its upgrade was answered."""


class Frames(asyncio.BufferedProtocol):
    """The protocol of a connection's socket, in front of the library's own.

    Invariants: the library is handed whole frames only, so nothing stays in its buffer; what is held here of an
    unfinished frame is at most a portion and its header.
    """

    def __init__(self, library: asyncio.BufferedProtocol, receiver: Receiver, buffer: memoryview) -> None:
        self._library: asyncio.BufferedProtocol | None = library
        self._receiver: Receiver | None = receiver
        self._buffer = buffer
        self._room = len(memoryview(library.get_buffer(-1)))
        self._rest = b""
        self._skipped = 0
        self._left = 0
        self._fin = 0
        self._mask = self._full = b""
        self._ended = False
        self.handing_over = False

    # -- what the socket tells -----------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return
        data = self._buffer[:nbytes].tobytes()
        if self._rest:
            data = self._rest + data
        used = self._take(data)
        self._rest = data[used:] if used < len(data) else b""

    def eof_received(self) -> bool | None:
        return None if self._library is None else self._library.eof_received()

    def pause_writing(self) -> None:
        if self._library is not None:
            self._library.pause_writing()

    def resume_writing(self) -> None:
        if self._library is not None:
            self._library.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        library, self._library, self._receiver = self._library, None, None
        self._rest = b""
        self._ended = True
        if library is not None:
            library.connection_lost(exc)

    # -- frames --------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> int:
        """Hand over what is whole; how much of the data that was."""
        start = at = 0
        end = len(data)
        max_bytes = self._max_bytes()
        while at < end and not self._ended:
            if self._skipped or self._left:
                taken = self._go_on(data, at, end)
                if not taken:
                    break
                at += taken
                start = at
                continue
            if (found := _header(data, at, end)) is None:
                break
            head, size, sound = found
            if not sound:
                self._hand_over(data[start:at])
                self._hand_over(data[at : at + head])  # the library says what is wrong with it
                self._ended = True
            elif size > PORTION or size > max_bytes:
                self._hand_over(data[start:at])
                max_bytes = self._max_bytes()
                self._split(data[at : at + head], size)
                at += head
                start = at
            elif end - at < head + size:
                break
            else:
                if at + head + size - start > ROOM:
                    self._hand_over(data[start:at])
                    max_bytes = self._max_bytes()
                    start = at
                at += head + size
        self._hand_over(data[start:at])
        return end if self._ended else at

    def _go_on(self, data: bytes, at: int, end: int) -> int:
        """Within a long frame: pass over it, or hand over its next portion; how much that was."""
        if self._skipped:
            size = min(self._skipped, end - at)
            self._skipped -= size
            return size
        size = min(self._left, PORTION)
        if end - at < size:
            return 0
        self._continue(data[at : at + size])
        return size

    def _split(self, header: bytes, size: int) -> None:
        """Begin a long frame: an empty fragment with what its first byte says, and its payload in the next ones."""
        if self._receiver is not None and size > self._max_bytes():
            self._skipped = size
            self._receiver.too_big()
            return
        self._fin = header[0] & FIN
        self._mask = header[-4:]
        self._full = bytes((0, MASKED | 126)) + PORTION.to_bytes(2, "big") + self._mask
        self._left = size
        self._hand_over(bytes((header[0] & ~FIN, MASKED)) + self._mask)

    def _max_bytes(self) -> int:
        return 0 if self._receiver is None else self._receiver.max_message_bytes

    def _continue(self, payload: bytes) -> None:
        size = len(payload)
        self._left -= size
        if self._left:
            self._hand_over(self._full + payload)
            return
        length = bytes((MASKED | size,)) if size < 126 else bytes((MASKED | 126,)) + size.to_bytes(2, "big")
        self._hand_over(bytes((self._fin,)) + length + self._mask + payload)

    def _hand_over(self, frames: bytes) -> None:
        library, receiver = self._library, self._receiver
        if self._ended or library is None or receiver is None or not frames:
            return
        memoryview(library.get_buffer(-1))[: len(frames)] = frames
        self.handing_over = True
        library.buffer_updated(len(frames))
        self.handing_over = False
        if len(memoryview(library.get_buffer(-1))) != self._room and not self._ended:
            self._ended = True
            receiver.out_of_step()


def _header(data: bytes, at: int, end: int) -> tuple[int, int, bool] | None:
    """Length of the header, length of the payload, and whether it can be handed on; None when more has to come."""
    if end - at < 2:
        return None
    second = data[at + 1]
    flag = second & 0x7F
    if second < MASKED or (flag > 125 and data[at] & CONTROL):
        return 2, 0, False
    if flag < 126:
        return 6, flag, True
    head = 8 if flag == 126 else 14
    if end - at < head:
        return None
    size = int.from_bytes(data[at + 2 : at + head - 4], "big")
    return head, size, size < 2**63 and size >= (126 if flag == 126 else 65536)
