"""One WebSocket: frames come in and are whole messages, frames go out in one write, and it ends in order.

The WebSocket library leaves to us what its core API does not do: putting fragments together under the size
limit, refusing reserved bits and stray continuations, answering pings and a close, and a bound on unsent bytes.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Self, cast

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from unisono.front.frame_reader import Frames
from unisono.protocol.errors import CloseCode

MAX_REASON_BYTES = 123
"""Room for text in a close frame (RFC 6455)."""


MAX_FRAGMENTS = 512
"""Fragments of a message that are kept apart; a message of single bytes would cost many times its size."""

CONTINUATION, TEXT, CLOSE, PING, PONG = (
    WSMsgType.CONTINUATION,
    WSMsgType.TEXT,
    WSMsgType.CLOSE,
    WSMsgType.PING,
    WSMsgType.PONG,
)


class WebSocket(WSListener):
    """A client's socket. What its messages mean is for whoever derives from it.

    Invariants: nothing is sent after the close frame; nothing is heard once it leaves, or is deaf. Once the socket is
    gone this holds nothing that holds it, so it goes as soon as nobody else does (LIM-05).
    """

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
        self._frames: Frames | None = None
        self._fragments: list[bytes] | None = None
        self._fragment_bytes = 0
        self._pong: bytes | None = None
        self._fragment_text = False
        self._unsent: list[bytes] = []
        self._leaving = False
        self._deaf = False

    # -- what is to be done about it -----------------------------------------------------------------------

    @abstractmethod
    def opened(self) -> None: ...

    @abstractmethod
    def heard(self, data: bytes) -> None:
        """One whole text message; a binary one stands here as empty, which is no message either (ENV-02)."""

    @abstractmethod
    def alive(self) -> None:
        """The other side sent a ping, or answered one."""

    @abstractmethod
    def leave(self, code: CloseCode, reason: str) -> None:
        """Close for a reason that has no error message."""

    @abstractmethod
    def fell_behind(self) -> None:
        """The unsent bytes passed their bound: this consumer is too slow (BCAST-04). Nothing more was added."""

    @abstractmethod
    def left(self) -> None:
        """The other side closes, or is gone; may come twice."""

    @abstractmethod
    def ended(self, code: int | None) -> None:
        """There is no socket any more. `code`: the library closed it by itself, with this: for a frame too big, or
        for what is no WebSocket frame at all."""

    # -- what the library tells ----------------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        socket = transport.underlying_transport
        library = cast(asyncio.BufferedProtocol, socket.get_protocol())
        self._frames = Frames(library, self, self._read_buffer)
        socket.set_protocol(self._frames)
        socket.set_write_buffer_limits(high=self._max_unsent_bytes)
        self.opened()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        handshake = transport.close_handshake
        code = None
        if not self._leaving and handshake is not None and handshake.sent is not None:
            code = int(handshake.sent.code)  # type: ignore[call-overload]
        self.left()
        self.ended(code)
        self._leaving = True
        self._transport = self._frames = self._fragments = None
        self._unsent.clear()

    def pause_writing(self) -> None:
        if not self._leaving:
            self._leaving = True  # from here on nothing more is added to the buffer
            self.fell_behind()

    def resume_writing(self) -> None:
        pass

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type  # made anew each time it is asked for
        if kind == CLOSE:
            self._peer_closed(transport, frame)
        elif self._leaving or transport.is_close_frame_sent:
            return  # the library still hands over what was in the same read
        elif self._frames is None or not self._frames.handing_over:
            self.out_of_step()
        elif frame.rsv1 or frame.rsv2 or frame.rsv3:
            self.leave(CloseCode.PROTOCOL_ERROR, "no extension was negotiated")
        elif kind == PING:
            self._answer_ping(frame.get_payload_as_bytes())
            self.alive()
        elif kind == PONG:
            self.alive()
        elif not self._deaf:
            self._data_frame(kind, frame)

    def _data_frame(self, kind: WSMsgType, frame: WSFrame) -> None:
        fragments = self._fragments
        if (kind == CONTINUATION) == (fragments is None):
            self.leave(CloseCode.PROTOCOL_ERROR, "fragments out of order")
        elif fragments is not None:
            self._add(fragments, frame)
        elif frame.fin:
            self._whole(frame.get_payload_as_bytes(), kind == TEXT)
        else:
            self._fragments = [frame.get_payload_as_bytes()]
            self._fragment_bytes = frame.payload_size
            self._fragment_text = kind == TEXT

    def _add(self, fragments: list[bytes], frame: WSFrame) -> None:
        self._fragment_bytes += frame.payload_size
        if self._fragment_bytes > self.max_message_bytes:
            self.too_big()
            return
        fragments.append(frame.get_payload_as_bytes())
        if frame.fin:
            self._fragments = None
            self._whole(b"".join(fragments), self._fragment_text)
        elif len(fragments) > MAX_FRAGMENTS:
            fragments[:] = [b"".join(fragments)]

    def _whole(self, data: bytes, text: bool) -> None:
        if text and not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError:
                self.leave(CloseCode.INVALID_TEXT, "text is not UTF-8")
                return
        self.heard(data if text else b"")

    def too_big(self) -> None:
        self.leave(CloseCode.TOO_BIG, f"a message has at most {self.max_message_bytes} bytes here")

    def out_of_step(self) -> None:
        self.leave(CloseCode.PROTOCOL_ERROR, "frames came before the upgrade was answered")

    def _answer_ping(self: Self, payload: bytes) -> None:
        """Pings that came together are answered by one pong, for the last of them (RFC 6455)."""
        if self._pong is None and not self._unsent:
            self._flush_later(self)
        self._pong = payload

    def _peer_closed(self, transport: WSTransport, frame: WSFrame) -> None:
        self.left()
        self._leaving = True
        if not transport.is_close_frame_sent:
            transport.send_close(frame.get_close_code() if frame.payload_size else WSCloseCode.OK)
        transport.disconnect()

    # -- sending and ending --------------------------------------------------------------------------------

    def send(self: Self, frame: bytes) -> None:
        """Hand over a whole WebSocket frame; what is said after the close frame goes nowhere."""
        if not self._leaving:
            if self._pong is None and not self._unsent:
                self._flush_later(self)
            self._unsent.append(frame)

    def flush(self) -> None:
        """Give the socket all that was said since the last time, in one write."""
        unsent, self._unsent = self._unsent, []
        if self._pong is not None:
            unsent.append(b"\x8a%c%b" % (len(self._pong), self._pong))
            self._pong = None
        if unsent and self._transport is not None and not self._transport.is_close_frame_sent:
            self._transport.underlying_transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    def close(self, code: int, reason: str) -> bool:
        """Say what was said so far, then the close frame; False when nobody is there to hear it."""
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
        """At once, whether the other side has answered the close or not."""
        if self._transport is not None and not self._transport.is_disconnected:
            self._transport.disconnect(graceful=False)
