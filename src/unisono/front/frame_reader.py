"""Between a socket and the WebSocket library: feeds the library small, whole frames.

The library has a buffer for each connection that doubles with every full read and never shrinks, and one bound on
frames for all connections. This reader uses one buffer for all connections of a front, and splits a long frame into
fragments that fit the library's initial buffer. So an idle connection costs the same memory whatever it sent before,
and each connection can have its own bound on messages.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Final, Protocol

LIBRARY_BUFFER_BYTES: Final = 4096
"""The library's buffer for one connection: an ordinary message fits; ten thousand idle connections cost 40 MiB."""

FEED_BYTES: Final = (LIBRARY_BUFFER_BYTES - 256) * 9 // 10
"""Bytes fed at once: the library reserves 256 and doubles a buffer that is more than nine tenths full."""

MAX_HEADER_BYTES: Final = 14
FRAGMENT_BYTES: Final = (FEED_BYTES - MAX_HEADER_BYTES) // 4 * 4
"""Payload of a fragment: a multiple of the four bytes of a mask, so that all fragments of a frame share one mask."""

READ_BYTES: Final = 64 * 1024
"""Read at once from a socket."""

FIN: Final = 0x80
MASKED: Final = 0x80
CONTROL: Final = 0x08


def read_buffer() -> memoryview:
    """A buffer for all connections of one event loop: each read is consumed before the next one."""
    return memoryview(bytearray(READ_BYTES))


class FrameReceiver(Protocol):
    """The WebSocket whose frames are read."""

    max_message_bytes: int

    @abstractmethod
    def on_oversized(self) -> None:
        """A frame announces more bytes than a message may have."""

    @abstractmethod
    def on_early_frames(self) -> None:
        """Frames arrived before the upgrade was answered."""


class FrameReader(asyncio.BufferedProtocol):
    """The protocol of a connection's socket, in front of the library's own.

    Invariants: the library gets whole frames only, so nothing stays in its buffer; `_rest`, the start of an
    unfinished frame, is at most a fragment and its header.
    """

    def __init__(
        self, library: asyncio.BufferedProtocol, receiver: FrameReceiver, buffer: memoryview
    ) -> None:
        self._library: asyncio.BufferedProtocol | None = library
        self._receiver: FrameReceiver | None = receiver
        self._buffer = buffer
        self._library_room = len(memoryview(library.get_buffer(-1)))
        self._rest = b""
        self._skip_bytes = 0
        self._frame_bytes_left = 0
        self._fin = 0
        self._mask = self._fragment_header = b""
        self._ended = False
        self.feeding_library = False

    # -- callbacks of the socket ---------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return
        data = self._buffer[:nbytes].tobytes()
        if self._rest:
            data = self._rest + data
        used = self._parse(data)
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

    def _parse(self, data: bytes) -> int:
        """Feed the whole frames of `data` to the library; the number of bytes consumed."""
        start = at = 0
        end = len(data)
        max_bytes = self._max_bytes()
        while at < end and not self._ended:
            if self._skip_bytes or self._frame_bytes_left:
                taken = self._continue_frame(data, at, end)
                if not taken:
                    break
                at += taken
                start = at
                continue
            if (found := _header(data, at, end)) is None:
                break
            head, size, sound = found
            if not sound:
                self._feed(data[start:at])
                self._feed(data[at : at + head])  # the library reports what is wrong with it
                self._ended = True
            elif size > FRAGMENT_BYTES or size > max_bytes:
                self._feed(data[start:at])
                max_bytes = self._max_bytes()
                self._start_fragments(data[at : at + head], size)
                at += head
                start = at
            elif end - at < head + size:
                break
            else:
                if at + head + size - start > FEED_BYTES:
                    self._feed(data[start:at])
                    max_bytes = self._max_bytes()
                    start = at
                at += head + size
        self._feed(data[start:at])
        return end if self._ended else at

    def _continue_frame(self, data: bytes, at: int, end: int) -> int:
        """Within a long frame: skip bytes, or feed its next fragment; the number of bytes consumed."""
        if self._skip_bytes:
            size = min(self._skip_bytes, end - at)
            self._skip_bytes -= size
            return size
        size = min(self._frame_bytes_left, FRAGMENT_BYTES)
        if end - at < size:
            return 0
        self._feed_fragment(data[at : at + size])
        return size

    def _start_fragments(self, header: bytes, size: int) -> None:
        """Start a long frame: an empty fragment with its first byte; the payload follows in further fragments."""
        if self._receiver is not None and size > self._max_bytes():
            self._skip_bytes = size
            self._receiver.on_oversized()
            return
        self._fin = header[0] & FIN
        self._mask = header[-4:]
        self._fragment_header = bytes((0, MASKED | 126)) + FRAGMENT_BYTES.to_bytes(2, "big") + self._mask
        self._frame_bytes_left = size
        self._feed(bytes((header[0] & ~FIN, MASKED)) + self._mask)

    def _max_bytes(self) -> int:
        return 0 if self._receiver is None else self._receiver.max_message_bytes

    def _feed_fragment(self, payload: bytes) -> None:
        size = len(payload)
        self._frame_bytes_left -= size
        if self._frame_bytes_left:
            self._feed(self._fragment_header + payload)
            return
        length = bytes((MASKED | size,)) if size < 126 else bytes((MASKED | 126,)) + size.to_bytes(2, "big")
        self._feed(bytes((self._fin,)) + length + self._mask + payload)

    def _feed(self, frames: bytes) -> None:
        library, receiver = self._library, self._receiver
        if self._ended or library is None or receiver is None or not frames:
            return
        memoryview(library.get_buffer(-1))[: len(frames)] = frames
        self.feeding_library = True
        library.buffer_updated(len(frames))
        self.feeding_library = False
        if len(memoryview(library.get_buffer(-1))) != self._library_room and not self._ended:
            self._ended = True
            receiver.on_early_frames()


def _header(data: bytes, at: int, end: int) -> tuple[int, int, bool] | None:
    """Length of the header, length of the payload, and whether it is valid; None when more bytes are needed."""
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
