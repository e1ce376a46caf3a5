"""Records a WebSocket connection from the bytes that pass on their way, for clients whose code is not a test's."""

from __future__ import annotations

from typing import Literal

import msgspec

from tests.history.recorder import Recorder

Direction = Literal["sent", "received"]


class _Stream:
    """One direction: first the request or answer of the upgrade, then frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._upgraded = False
        self._fragments: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that these bytes complete."""
        self._bytes += data
        messages = []
        if not self._upgraded:
            end = self._bytes.find(b"\r\n\r\n")
            if end < 0:
                return []
            del self._bytes[: end + 4]
            self._upgraded = True
        while (frame := self._frame()) is not None:
            opcode, final, payload = frame
            if opcode >= 8:  # ping, pong, close
                continue
            self._fragments.append(payload)
            if final:
                messages.append(b"".join(self._fragments))
                self._fragments.clear()
        return messages

    def _frame(self) -> tuple[int, bool, bytes] | None:
        data = self._bytes
        if len(data) < 2:
            return None
        length, start = data[1] & 127, 2
        if length > 125:
            start = 4 if length == 126 else 10
            length = int.from_bytes(data[2:start], "big") if len(data) >= start else 1 << 62
        masked = bool(data[1] & 128)
        body = start + 4 * masked
        if len(data) < body + length:
            return None
        payload = bytes(data[body : body + length])
        if masked and length:
            mask = bytes(data[start:body]) * (length // 4 + 1)
            payload = (int.from_bytes(payload, "big") ^ int.from_bytes(mask[:length], "big")).to_bytes(
                length, "big"
            )
        opcode, final = data[0] & 15, bool(data[0] & 128)
        del data[: body + length]
        return opcode, final, payload


class Wiretap:
    """Both directions of one connection. What a client sent counts before it is passed on, what it gets as well:
    the server has said it, whether it arrives or not.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._name = recorder.name()
        self._streams = {"sent": _Stream(), "received": _Stream()}

    def feed(self, direction: Direction, data: bytes) -> None:
        for message in self._streams[direction].feed(data):
            if direction == "sent" and b'"connect"' in message:
                envelope = msgspec.json.decode(message)
                if envelope["type"] == "connect":
                    self._recorder.opened(self._name, envelope["payload"]["client_id"])
            self._recorder.frame(self._name, direction, message)

    def closed(self) -> None:
        self._recorder.closed(self._name)
