"""Reads the frames of one socket, cut as it may be.

All connections share one buffer, and only what is left of an unfinished frame is kept: an idle connection costs the
same whatever it sent before, and each connection can have its own bound on messages.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final, Protocol

from unisono.front.unmasking import unmask

FEED_BYTES: Final = 1024
"""Control frames that are handed over together have at most so many bytes."""

CONTROL_BYTES: Final = 125
"""Payload of a control frame, at most (RFC 6455)."""

FIN: Final = 0x80
MASKED: Final = 0x80
CONTROL: Final = 0x08
OPCODE: Final = 0x0F
BINARY: Final = 2


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
    def on_control_frames(self, frames: bytes) -> None:
        """Whole control frames, still masked; or the header of a frame that is not valid, and nothing is read any
        more."""

    @abstractmethod
    def pause_writing(self) -> None: ...

    @abstractmethod
    def on_peer_closed(self) -> None: ...

    @abstractmethod
    def on_lost(self) -> None:
        """The socket is gone."""


class FrameReader:
    """The protocol of a connection's socket.

    Invariants: of an unfinished frame, `_header` has what came of its header, or `_payload` what came of its payload,
    still masked; `_skip_bytes` are to come of one that is too long. `_between_frames`: there is none of this.
    """

    __slots__ = (
        "_between_frames",
        "_buffer",
        "_ended",
        "_first",
        "_header",
        "_mask",
        "_missing",
        "_payload",
        "_receiver",
        "_skip_bytes",
    )

    def __init__(self, receiver: FrameReceiver, buffer: memoryview) -> None:
        self._receiver: FrameReceiver | None = receiver
        self._buffer = buffer
        self._between_frames = True
        self._header = b""
        self._payload: bytearray | None = None
        self._missing = 0
        self._first = 0
        self._mask = b""
        self._skip_bytes = 0
        self._ended = False

    # -- callbacks of the socket ---------------------------------------------------------------------------

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

    def eof_received(self) -> None:
        if self._receiver is not None:
            self._receiver.on_peer_closed()

    def pause_writing(self) -> None:
        if self._receiver is not None:
            self._receiver.pause_writing()

    def connection_lost(self) -> None:
        receiver, self._receiver = self._receiver, None
        self._header, self._payload = b"", None
        self._ended = True
        if receiver is not None:
            receiver.on_lost()

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
                    self._feed(data[at : at + head])
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
        data, self._header = self._header + data, b""
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

    def _feed(self, frames: bytes) -> None:
        if self._receiver is not None and frames and not self._ended:
            self._receiver.on_control_frames(frames)


def _fits(head: int, size: int) -> bool:
    """Whether a length is written in the form that its size asks for (RFC 6455, 5.2)."""
    return head == 6 or 126 <= size < 65536 if head != 14 else 65536 <= size < 2**63
