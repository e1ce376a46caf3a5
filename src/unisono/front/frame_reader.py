"""Reads the frames of one socket: data frames are taken here, all others by the WebSocket library.

The library keeps one buffer for each connection, in which a whole frame has to fit, and which never shrinks. Here all
connections share one buffer, and only what is left of an unfinished frame is kept: an idle connection costs the same
whatever it sent before, and each connection can have its own bound on messages.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Final, Protocol

from unisono.front.unmasking import unmask

LIBRARY_BUFFER_BYTES: Final = 2048
"""The library's buffer for one connection, the smallest that it can have."""

LIBRARY_ROOM_BYTES: Final = LIBRARY_BUFFER_BYTES - 256
"""Bytes for the request for the upgrade. The buffer doubles for a longer one."""

FEED_BYTES: Final = (LIBRARY_ROOM_BYTES - 256) * 9 // 10
"""Bytes fed at once: the library doubles a buffer that is more than nine tenths full, or has 256 left."""

LIBRARY_FRAME_BYTES: Final = LIBRARY_ROOM_BYTES - 16
"""Payload of a frame that the library takes: with its header it is shorter than the smallest buffer."""

CONTROL_BYTES: Final = 125
"""Payload of a control frame, at most (RFC 6455)."""

READ_BYTES: Final = 64 * 1024
"""Read at once from a socket."""

FIN: Final = 0x80
MASKED: Final = 0x80
CONTROL: Final = 0x08
OPCODE: Final = 0x0F
BINARY: Final = 2


def read_buffer() -> memoryview:
    """A buffer for all connections of one event loop: each read is consumed before the next one."""
    return memoryview(bytearray(READ_BYTES))


class FrameReceiver(Protocol):
    """The WebSocket whose frames are read."""

    max_message_bytes: int

    @abstractmethod
    def on_data_frame(self, first: int, payload: bytes) -> None:
        """A data frame; `first` is its first byte: FIN, the reserved bits and the opcode."""

    @abstractmethod
    def on_oversized(self) -> None:
        """A frame announces more bytes than a message may have."""

    @abstractmethod
    def on_early_frames(self) -> None:
        """Frames arrived before the upgrade was answered."""


class FrameReader(asyncio.BufferedProtocol):
    """The protocol of a connection's socket, in front of the library's own.

    Invariants: the library gets whole frames only, so nothing stays in its buffer. Of an unfinished frame, `_header`
    has what came of its header, or `_payload` what came of its payload, still masked; `_skip_bytes` are to come of
    one that is too long. `_between_frames`: there is none of this, and the first bytes have come.
    """

    __slots__ = (
        "_between_frames",
        "_buffer",
        "_ended",
        "_first",
        "_header",
        "_library",
        "_mask",
        "_missing",
        "_payload",
        "_receiver",
        "_skip_bytes",
        "feeding_library",
    )

    def __init__(
        self, library: asyncio.BufferedProtocol, receiver: FrameReceiver, buffer: memoryview
    ) -> None:
        self._library: asyncio.BufferedProtocol | None = library
        self._receiver: FrameReceiver | None = receiver
        self._buffer = buffer
        self._between_frames = False
        self._header = b""
        self._payload: bytearray | None = None
        self._missing = 0
        self._first = 0
        self._mask = b""
        self._skip_bytes = 0
        self._ended = False
        self.feeding_library = False

    # -- callbacks of the socket ---------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = self._buffer[:nbytes].tobytes()
        if not self._between_frames:
            self._between_frames = True
            data = self._continue(data)
            if not data:
                return
        receiver = self._receiver
        if receiver is None or self._ended:
            return
        # One whole text frame of ordinary length, as most reads are; `_read` takes anything.
        size = len(data) - 8
        if (
            126 <= size <= receiver.max_message_bytes
            and data.startswith(b"\x81\xfe")
            and data[2] << 8 | data[3] == size
        ):
            payload = bytearray(data[8:])
            unmask(data[4:8], payload)
            receiver.on_data_frame(0x81, bytes(payload))
        else:
            self._read(data)

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
        self._header, self._payload = b"", None
        self._ended = True
        if library is not None:
            library.connection_lost(exc)

    # -- frames --------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        """Take the frames that start in `data`; keep what is left of an unfinished one."""
        at = fed = 0
        end = len(data)
        while end - at >= 2:
            receiver = self._receiver
            if receiver is None or self._ended:
                return
            first, flag = data[at], data[at + 1]
            head = 8 if flag == 0xFE else 14 if flag == 0xFF else 6
            if end - at < head and flag >= MASKED:
                break
            size = flag & 0x7F if head == 6 else int.from_bytes(data[at + 2 : at + head - 4], "big")
            if first & OPCODE > BINARY or flag < MASKED or not _fits(head, size):
                if flag < MASKED or not first & CONTROL or size > CONTROL_BYTES or not _fits(head, size):
                    self._feed(data[fed:at])
                    self._feed(data[at : at + head])  # the library reports what is wrong with it
                    self._ended = True
                    return
                if end - at < head + size:
                    break
                if at + head + size - fed > FEED_BYTES:
                    self._feed(data[fed:at])
                    fed = at
                at += head + size
                continue
            if fed < at:
                self._feed(data[fed:at])
            at += head
            fed = at + size
            if size > receiver.max_message_bytes:
                self._skip_bytes = max(0, fed - end)
                self._between_frames = not self._skip_bytes
                receiver.on_oversized()
            elif fed > end:
                self._first, self._mask, self._missing = first, data[at - 4 : at], fed - end
                self._payload = bytearray(data[at:])
                self._between_frames = False
                return
            else:
                payload = bytearray(data[at:fed])
                unmask(data[at - 4 : at], payload)
                receiver.on_data_frame(first, bytes(payload))
            at = fed
        if fed < at:
            self._feed(data[fed:at])
        if at < end:
            self._header = data[at:]
            self._between_frames = False

    def _continue(self, data: bytes) -> bytes:
        """Take what belongs to the unfinished frame; what is left of `data`, with the start of its header."""
        payload = self._payload
        if payload is not None:
            return self._continue_payload(payload, data)
        if self._skip_bytes:
            skipped = min(self._skip_bytes, len(data))
            self._skip_bytes -= skipped
            self._between_frames = not self._skip_bytes
            return data[skipped:]
        if self._header:
            data, self._header = self._header + data, b""
        elif self._library_has_bytes() and self._receiver is not None:
            self._ended = True
            self._receiver.on_early_frames()
        return data

    def _continue_payload(self, payload: bytearray, data: bytes) -> bytes:
        missing = self._missing
        if len(data) < missing:
            payload += data
            self._missing = missing - len(data)
            self._between_frames = False
            return b""
        payload += data[:missing]
        self._payload = None
        unmask(self._mask, payload)
        if self._receiver is not None and not self._ended:
            self._receiver.on_data_frame(self._first, bytes(payload))
        return data[missing:]

    def _library_has_bytes(self) -> bool:
        """Whether the start of a frame came behind the request for the upgrade.

        The library's buffer has doubled some times, and a frame that it takes is shorter than it was at first.
        """
        library = self._library
        return library is not None and len(memoryview(library.get_buffer(-1))) % LIBRARY_ROOM_BYTES != 0

    def _feed(self, frames: bytes) -> None:
        library = self._library
        if self._ended or library is None or not frames:
            return
        memoryview(library.get_buffer(-1))[: len(frames)] = frames
        self.feeding_library = True
        library.buffer_updated(len(frames))
        self.feeding_library = False


def _fits(head: int, size: int) -> bool:
    """Whether a length is written in the form that its size asks for (RFC 6455, 5.2)."""
    return head == 6 or 126 <= size < 65536 if head != 14 else 65536 <= size < 2**63
