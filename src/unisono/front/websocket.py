"""One WebSocket: frames in become whole messages, frames out are joined into one write, and it closes in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Self

from unisono.front.client_sockets import ClientSocket
from unisono.front.frame_reader import CONTROL_BYTES, FIN, MASKED, OPCODE, FrameReader
from unisono.front.unmasking import unmask
from unisono.protocol.errors import CloseCode

MAX_REASON_BYTES = 123
"""Bytes of text that a close frame has room for (RFC 6455)."""

MAX_FRAGMENTS = 512
"""Fragments of a message that are kept apart; more are joined: fragments of one byte cost many times their size."""

WHOLE_CLOSE: Final = 0x88
WHOLE_PING: Final = 0x89
WHOLE_PONG: Final = 0x8A
"""The first bytes of control frames, which have no fragments."""

CONTINUATION, TEXT = 0, 1
RESERVED = 0x70
WHOLE_TEXT = FIN | TEXT
"""The first byte of a text message in one frame."""

NO_EXTENSION = "no extension was negotiated"


class WebSocket(ABC):
    """A client's socket. A subclass handles its messages.

    Invariants: nothing is sent after the close frame; no message is passed on after it, or once messages are ignored.
    Once the socket is gone this object is in no reference cycle, so it is freed with its last reference (LIM-05).
    """

    __slots__ = (
        "_close_sent",
        "_flush_later",
        "_fragment_bytes",
        "_fragment_text",
        "_fragments",
        "_ignores_messages",
        "_leaving",
        "_pong",
        "_socket",
        "_unsent",
        "max_message_bytes",
    )

    def __init__(self, max_message_bytes: int, flush_later: Callable[[Self], None]) -> None:
        self.max_message_bytes = max_message_bytes
        self._flush_later = flush_later
        self._socket: ClientSocket | None = None
        self._fragments: list[bytes] | None = None
        self._fragment_bytes = 0
        self._pong: bytes | None = None
        self._fragment_text = False
        self._unsent: list[bytes] = []
        self._leaving = False
        self._close_sent = False
        self._ignores_messages = False

    def open(self, upgraded: ClientSocket) -> None:
        """The upgrade is answered: from now on the frames of the socket are read."""
        self._socket = upgraded
        upgraded.protocol = FrameReader(self, upgraded.buffer)
        self.on_open()

    def lend(self, read_bytes: int, max_unsent_bytes: int) -> None:
        """From now on so much is read at once, and so much may be unsent."""
        if self._socket is not None:
            self._socket.read_bytes = read_bytes
            self._socket.max_unsent_bytes = max_unsent_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the client has not taken yet, as far as they are written."""
        return 0 if self._socket is None else self._socket.unsent_bytes

    # -- for the subclass ----------------------------------------------------------------------------------

    @abstractmethod
    def on_open(self) -> None: ...

    @abstractmethod
    def on_message(self, data: bytes) -> None:
        """One whole text message. Binary messages arrive as `b""`, to be rejected (ENV-02)."""

    @abstractmethod
    def on_ping_or_pong(self) -> None:
        """The client sent a ping, or answered one."""

    @abstractmethod
    def leave(self, code: CloseCode, reason: str) -> None:
        """Close without an error message."""

    @abstractmethod
    def on_send_buffer_full(self) -> None:
        """The unsent bytes passed their bound: this consumer is too slow (BCAST-04). Nothing more is added."""

    @abstractmethod
    def on_peer_closed(self) -> None:
        """The client closes, or has ended its half of the socket; what is unsent is still sent."""

    @abstractmethod
    def on_gone(self) -> None:
        """The socket is gone."""

    # -- what comes from the socket ------------------------------------------------------------------------

    def on_lost(self) -> None:
        self.on_gone()
        self._leaving = True
        self._socket = self._fragments = None
        self._unsent.clear()

    def pause_writing(self) -> None:
        if not self._leaving:
            self._leaving = True  # nothing more is added to the buffer
            self.on_send_buffer_full()

    def on_control_frames(self, frames: bytes) -> None:
        at = 0
        while at < len(frames):
            first, flag = frames[at], frames[at + 1]
            end = at + 6 + (flag & ~MASKED)
            if flag < MASKED or flag & ~MASKED > CONTROL_BYTES or not WHOLE_CLOSE <= first <= WHOLE_PONG:
                self._break_off()
                return
            payload = bytearray(frames[at + 6 : end])
            unmask(frames[at + 2 : at + 6], payload)
            at = end
            if first == WHOLE_CLOSE:
                self._closed_by_peer(bytes(payload), frames[at:])
                return
            if self._leaving:
                continue  # frames from the same read are still passed on
            if first == WHOLE_PING:
                self._answer_ping(bytes(payload))
            self.on_ping_or_pong()

    def on_data_frame(self, first: int, payload: bytes) -> None:
        if self._leaving:
            return  # frames from the same read are still passed on
        if first == WHOLE_TEXT and self._fragments is None:
            if not self._ignores_messages:
                if payload.isascii():
                    self.on_message(payload)
                else:
                    self._message(payload, True)
        elif first & RESERVED:
            self.leave(CloseCode.PROTOCOL_ERROR, NO_EXTENSION)
        elif not self._ignores_messages:
            self._fragment_or_binary(first, payload)

    def _fragment_or_binary(self, first: int, payload: bytes) -> None:
        fragments = self._fragments
        opcode = first & OPCODE
        if (opcode == CONTINUATION) == (fragments is None):
            self.leave(CloseCode.PROTOCOL_ERROR, "fragments out of order")
        elif fragments is not None:
            self._add_fragment(fragments, payload, bool(first & FIN))
        elif first & FIN:
            self._message(payload, opcode == TEXT)
        else:
            self._fragments = [payload]
            self._fragment_bytes = len(payload)
            self._fragment_text = opcode == TEXT

    def _add_fragment(self, fragments: list[bytes], payload: bytes, last: bool) -> None:
        self._fragment_bytes += len(payload)
        if self._fragment_bytes > self.max_message_bytes:
            self.on_oversized()
            return
        fragments.append(payload)
        if last:
            self._fragments = None
            self._message(b"".join(fragments), self._fragment_text)
        elif len(fragments) > MAX_FRAGMENTS:
            fragments[:] = [b"".join(fragments)]

    def _message(self, data: bytes, text: bool) -> None:
        if text and not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError:
                self.leave(CloseCode.INVALID_TEXT, "text is not UTF-8")
                return
        self.on_message(data if text else b"")

    def on_oversized(self) -> None:
        self.leave(CloseCode.TOO_BIG, f"a message has at most {self.max_message_bytes} bytes here")

    def on_early_frames(self) -> None:
        """Frames came behind the request for the upgrade."""
        self.leave(CloseCode.PROTOCOL_ERROR, "frames came before the upgrade was answered")

    def _answer_ping(self: Self, payload: bytes) -> None:
        """Pings from one pass of the event loop get one pong, for the last of them (RFC 6455)."""
        if self._pong is None and not self._unsent:
            self._flush_later(self)
        self._pong = payload

    def _break_off(self) -> None:
        """What came is no frame (RFC 6455, 7.1.7). What was to be sent is not sent any more."""
        if not self._leaving:
            self._unsent.clear()
            self._pong = None
            self.leave(CloseCode.PROTOCOL_ERROR, "not a valid frame")

    def _closed_by_peer(self, payload: bytes, rest: bytes) -> None:
        """A close, and the control frames behind it."""
        fault = _fault_of_close(payload)
        if rest[:1] == b"%c" % WHOLE_CLOSE:
            fault = CloseCode.PROTOCOL_ERROR
        if fault is not None and not self._leaving:
            self.leave(fault, "the close frame is not valid")
        if not self._close_sent:
            self.flush()
            self._send_close(payload[:2] or b"\x03\xe8")
        self.on_peer_closed()  # behind all that is written: whatever is unsent now has a time limit
        if self._socket is not None:
            self._socket.close()

    # -- sending and ending --------------------------------------------------------------------------------

    def send(self: Self, frame: bytes) -> None:
        """Queue a whole WebSocket frame for the next flush; nothing is sent after the close frame."""
        if not self._leaving:
            if self._pong is None and not self._unsent:
                self._flush_later(self)
            self._unsent.append(frame)

    def flush(self) -> None:
        """Write everything queued since the last flush, in one write."""
        unsent, self._unsent = self._unsent, []
        if self._pong is not None:
            unsent.append(b"\x8a%c%b" % (len(self._pong), self._pong))
            self._pong = None
        if unsent and self._socket is not None and not self._close_sent:
            self._socket.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    def close(self, code: int, reason: str) -> bool:
        """Flush, then send the close frame; False when the socket is gone."""
        self._leaving = True
        self._fragments = None
        if self._socket is None:
            return False
        self.flush()
        text = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        self._send_close(code.to_bytes(2, "big") + text.encode())
        return True

    def _send_close(self, payload: bytes) -> None:
        self._leaving = True
        if self._socket is not None and not self._close_sent:
            self._close_sent = True
            self._socket.write(b"\x88%c%b" % (len(payload), payload))

    def cut(self) -> None:
        """End the socket at once, whether the client has answered the close or not."""
        if self._socket is not None:
            self._socket.abort()


def _fault_of_close(payload: bytes) -> CloseCode | None:
    """What is wrong with the payload of a close (RFC 6455, 5.5.1 and 7.4)."""
    if not payload:
        return None
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
        return CloseCode.PROTOCOL_ERROR
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        return CloseCode.INVALID_TEXT
    return None
