"""One WebSocket: frames in become whole messages, frames out are joined into one write, and it closes in order.

The core API of the WebSocket library leaves to its user: joining fragments under the size limit, refusing reserved
bits and stray continuations, answering pings and a close, and a bound on unsent bytes.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Self, cast

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from unisono.front.frame_reader import FIN, OPCODE, FrameReader
from unisono.protocol.errors import CloseCode

MAX_REASON_BYTES = 123
"""Bytes of text that a close frame has room for (RFC 6455)."""

MAX_FRAGMENTS = 512
"""Fragments of a message that are kept apart; more are joined: fragments of one byte cost many times their size."""

CODES_OF_NO_FRAME = frozenset({0, 1005, 1006, 1015})
"""Close codes by which an endpoint names what it saw; they are never sent (RFC 6455, 7.4.1)."""

CLOSE, PING, PONG = WSMsgType.CLOSE, WSMsgType.PING, WSMsgType.PONG
CONTINUATION, TEXT = 0, 1
RESERVED = 0x70
WHOLE_TEXT = FIN | TEXT
"""The first byte of a text message in one frame."""

NO_EXTENSION = "no extension was negotiated"


class WebSocket(WSListener):
    """A client's socket. A subclass handles its messages.

    Invariants: nothing is sent after the close frame; no message is passed on after it, or once messages are ignored.
    Once the socket is gone this object is in no reference cycle, so it is freed with its last reference (LIM-05).
    """

    __slots__ = (
        "_flush_later",
        "_fragment_bytes",
        "_fragment_text",
        "_fragments",
        "_frames",
        "_ignores_messages",
        "_leaving",
        "_max_unsent_bytes",
        "_pong",
        "_read_buffer",
        "_transport",
        "_unsent",
        "max_message_bytes",
    )

    def __init__(
        self,
        *,
        max_message_bytes: int,
        max_unsent_bytes: int,
        flush_later: Callable[[Self], None],
        read_buffer: memoryview,
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self._max_unsent_bytes = max_unsent_bytes
        self._flush_later = flush_later
        self._read_buffer = read_buffer
        self._transport: WSTransport | None = None
        self._frames: FrameReader | None = None
        self._fragments: list[bytes] | None = None
        self._fragment_bytes = 0
        self._pong: bytes | None = None
        self._fragment_text = False
        self._unsent: list[bytes] = []
        self._leaving = False
        self._ignores_messages = False

    @property
    def transport(self) -> asyncio.Transport | None:
        """The socket's; None before it is open and once it is gone."""
        return None if self._transport is None else self._transport.underlying_transport

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the client has not taken yet, as far as they are written."""
        transport = self.transport
        return 0 if transport is None else transport.get_write_buffer_size()

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
        """The client closes, or is gone; may be called twice."""

    @abstractmethod
    def on_gone(self, code: int | None) -> None:
        """The socket is gone. `code`: the library itself closed it with this code, because a frame was too big or was
        no WebSocket frame at all."""

    # -- callbacks of the library --------------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        socket = transport.underlying_transport
        library = cast(asyncio.BufferedProtocol, socket.get_protocol())
        self._frames = FrameReader(library, self, self._read_buffer)
        socket.set_protocol(self._frames)
        socket.set_write_buffer_limits(high=self._max_unsent_bytes)
        for head in (transport.request, transport.response):
            if head is not None:
                head.headers.clear()  # the library keeps them as long as the connection
        self.on_open()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        handshake = transport.close_handshake
        code = None
        if not self._leaving and handshake is not None and handshake.sent is not None:
            code = int(handshake.sent.code)  # type: ignore[call-overload]
        self.on_peer_closed()
        self.on_gone(code)
        self._leaving = True
        self._transport = self._frames = self._fragments = None
        self._unsent.clear()

    def pause_writing(self) -> None:
        if not self._leaving:
            self._leaving = True  # nothing more is added to the buffer
            self.on_send_buffer_full()

    def resume_writing(self) -> None:
        pass

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """A control frame; or any other that came before the frames of this socket were read here."""
        kind = frame.msg_type  # read once: each access makes a new object
        if kind == CLOSE:
            if not self._leaving and not transport.is_close_frame_sent and not _sound_close(frame):
                self.leave(CloseCode.PROTOCOL_ERROR, "the close frame is not valid")
            self._peer_closed(transport, frame)
        elif self._leaving or transport.is_close_frame_sent:
            return  # frames from the same read are still passed on
        elif self._frames is None or not self._frames.feeding_library:
            self.on_early_frames()
        elif frame.rsv1 or frame.rsv2 or frame.rsv3:
            self.leave(CloseCode.PROTOCOL_ERROR, NO_EXTENSION)
        elif kind == PING:
            self._answer_ping(frame.get_payload_as_bytes())
            self.on_ping_or_pong()
        elif kind == PONG:
            self.on_ping_or_pong()

    def on_data_frame(self, first: int, payload: bytes) -> None:
        transport = self._transport
        if self._leaving or transport is None or transport.is_close_frame_sent:
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
        self.leave(CloseCode.PROTOCOL_ERROR, "frames came before the upgrade was answered")

    def _answer_ping(self: Self, payload: bytes) -> None:
        """Pings from one pass of the event loop get one pong, for the last of them (RFC 6455)."""
        if self._pong is None and not self._unsent:
            self._flush_later(self)
        self._pong = payload

    def _peer_closed(self, transport: WSTransport, frame: WSFrame) -> None:
        self.on_peer_closed()
        self._leaving = True
        if not transport.is_close_frame_sent:
            self.flush()
            transport.send_close(frame.get_close_code() if frame.payload_size else WSCloseCode.OK)
        transport.disconnect()

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
        if unsent and self._transport is not None and not self._transport.is_close_frame_sent:
            self._transport.underlying_transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    def close(self, code: int, reason: str) -> bool:
        """Flush, then send the close frame; False when the socket is gone."""
        self._leaving = True
        self._fragments = None
        transport = self._transport
        if transport is None or transport.is_disconnected:
            return False
        self.flush()
        text = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        transport.send_close(code, text)  # type: ignore[arg-type]
        return True

    def cut(self) -> None:
        """End the socket at once, whether the client has answered the close or not."""
        if self._transport is not None and not self._transport.is_disconnected:
            self._transport.disconnect(graceful=False)


def _sound_close(frame: WSFrame) -> bool:
    """Whether a close has no reserved bit, and no code that a frame must not have (RFC 6455, 7.4).

    The library has refused the other codes below 3000, and a reason that is not UTF-8.
    """
    if frame.rsv1 or frame.rsv2 or frame.rsv3:
        return False
    code = int(frame.get_close_code())  # type: ignore[call-overload]
    return not frame.payload_size or (code not in CODES_OF_NO_FRAME and code < 5000)
