"""Messages damaged by chance, sent over a real socket: every answer must be one that the protocol defines.

`python -m tests.behaviour.server.mutations SEED` plays the messages of one seed against a server of its own.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.behaviour.server.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    FrameSocket,
    close,
    frame,
)
from tests.behaviour.server.harness import Server, item, running, set_event
from unisono.protocol.errors import WIRE_ERRORS, CloseCode, ServerError

MESSAGES_PER_SEED: Final = 1000
BYSTANDER_EVERY: Final = 100

ANSWERS: Final = {
    "connected", "heartbeat_ack", "event_committed", "event_rejected", "submit_events_result", "sync_response",
    "event_broadcast", "error",
}  # fmt: skip
ERRORS: Final = {error.code for error in WIRE_ERRORS} - {ServerError.code}
CLOSES: Final = {int(code) for code in CloseCode} - {
    CloseCode.SERVER_ERROR,
    CloseCode.TIMEOUT,
    CloseCode.GOING_AWAY,
}
FIELDS: Final = {"type", "msg_id", "timestamp", "protocol_version", "payload"}

ODD_NUMBERS: Final = (
    "1e999", "-1e999", "1e-999", "9" * 400, "-" + "9" * 400, "0." + "0" * 400 + "1", "9007199254740993", "-0", "-0.0",
    "1E+2", "01", "+1", ".5", "5.", "0x10", "Infinity", "-Infinity", "NaN", "1e", "--1", "1_000",
    "18446744073709551616", "1.7976931348623157e308", "5e-324", "1" + "0" * 20_000,
)  # fmt: skip
ODD_STRINGS: Final = (
    r'"\ud800"', r'"\udc00\ud800"', r'"\ud83d"', r'"\u0000"', '"\x00"', '"\x1f"', '"\t"', r'"\x41"', r'"\u12"',
    '"', "''", '""', '"' + "é" * 300 + '"', '"' + "x" * 30_000 + '"', r'"\uFFFF"', '"\ufeff"', '"__proto__"',
    '"\u202e"', '"e\u0301"', '"../../etc/passwd"', '"%s%n"', "\"'; DROP TABLE events; --\"",
)  # fmt: skip
ODD_VALUES: Final = (
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "[[]]",
    "[null]",
    '{"":""}',
    '["a","a"]',
    "undefined",
    "",
)


def corpus(who: str, token: str) -> list[dict[str, Any]]:
    """A valid message of every kind, and of every profile."""
    compatible = item(["p"], set_event("x", {"deep": [1, 2.5, "é", None, True]}), client_id=who)
    pushed = item(["p", "q"], {"type": "treePush", "payload": {"target": "t", "value": {"id": "A"}}})
    canonical = item(["p"], {"type": "event", "payload": {"schema": "note.written", "data": {"text": "x"}}})
    payloads: list[tuple[str, Any]] = [
        ("heartbeat", {}),
        ("heartbeat", {"client_id": who}),
        ("submit_event", compatible),
        ("submit_event", canonical),
        ("submit_events", {"events": [compatible, pushed | {"id": "twin"}]}),
        ("sync", {"partitions": ["p"], "since_committed_id": 0, "limit": 50}),
        ("sync", {"partitions": ["p", "q"], "since_committed_id": 1, "subscription_partitions": ["p"]}),
        ("connect", {"token": token, "client_id": who, "supported_profiles": ["compatibility", "canonical"]}),
        ("disconnect", {"reason": "done"}),
    ]
    return [
        {"type": kind, "msg_id": f"m{n}", "timestamp": 1, "protocol_version": "1.0", "payload": payload}
        for n, (kind, payload) in enumerate(payloads)
    ]


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within a message."""
    within: list[tuple[Any, ...]] = [path] if path else []
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, below in entries:
        within += _places(below, (*path, key))
    return within


MARK: Final = "@here@"


def _replaced(message: dict[str, Any], chance: random.Random, text: str) -> str:
    """The message with a value of it written as this text."""
    copy = json.loads(json.dumps(message))
    *path, last = chance.choice(_places(copy))
    place = copy
    for key in path:
        place = place[key]
    place[last] = MARK
    return json.dumps(copy, ensure_ascii=chance.random() < 0.5).replace(f'"{MARK}"', text, 1)


def _nested(chance: random.Random) -> str:
    depth = chance.choice([8, 63, 64, 65, 66, 500, 5000])
    opening, closing = chance.choice([("[", "]"), ('{"a":', "}")])
    return opening * depth + "1" + closing * (depth - chance.choice([0, 0, 1]))


def _duplicate_key(message: dict[str, Any], chance: random.Random) -> str:
    text = json.dumps(message)
    at = chance.choice([n for n, char in enumerate(text) if char == "{"]) + 1
    key = chance.choice(
        ["type", "payload", "id", "events", "partitions", "since_committed_id", "token", "x", "value"]
    )
    return text[:at] + f'"{key}": {chance.choice([*ODD_VALUES[:8], "1"])}, ' + text[at:]


def _renamed(message: dict[str, Any], chance: random.Random) -> str:
    key = chance.choice(['"type"', '"msg_id"', '"payload"', '"partitions"', '"event"', '"id"', '"client_id"'])
    return json.dumps(message).replace(
        key, chance.choice(['"msgId"', '"TYPE"', '""', '"type"', '"\\u0074ype"']), 1
    )


def _many(message: dict[str, Any], chance: random.Random) -> str:
    names = [f"p{n}" for n in range(chance.choice([64, 65, 1000, 1001]))]
    events = [item(["p"], set_event("x", n)) for n in range(chance.choice([100, 101]))]
    payload = chance.choice([
        {"events": events}, {"partitions": names, "since_committed_id": 0}, item(names, set_event("x", 1)),
        {"partitions": ["p"], "since_committed_id": 0, "subscription_partitions": names},
    ])  # fmt: skip
    return json.dumps(message | {"payload": payload})


def _damaged_bytes(message: dict[str, Any], chance: random.Random) -> bytes:
    data = bytearray(json.dumps(message).encode())
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[at:at] = bytes([chance.randrange(256)])
            case 1:
                del data[at : at + chance.randint(1, 20)]
            case 2 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case _:
                data[at:at] = data[: chance.randint(0, 40)]
    return bytes(data)


def mutated(messages: Sequence[dict[str, Any]], chance: random.Random) -> bytes:
    """The bytes of one text, made from a valid message."""
    message = chance.choice(messages)
    whole = json.dumps(message).encode()
    other = json.dumps(chance.choice(messages)).encode()
    ways: list[Callable[[], str | bytes]] = [
        lambda: whole,
        lambda: _replaced(message, chance, chance.choice(ODD_NUMBERS)),
        lambda: _replaced(message, chance, chance.choice(ODD_STRINGS)),
        lambda: _replaced(message, chance, chance.choice(ODD_VALUES)),
        lambda: _replaced(message, chance, _nested(chance)),
        lambda: _replaced(message, chance, json.dumps(chance.choice(messages))),
        lambda: _duplicate_key(message, chance),
        lambda: _renamed(message, chance),
        lambda: _many(message, chance),
        lambda: _damaged_bytes(message, chance),
        lambda: whole[: chance.randrange(len(whole))],
        lambda: whole[: chance.randrange(len(whole))] + other[chance.randrange(len(other)) :],
        lambda: whole + chance.choice([b" ", b"\0", b"x", b"}", whole, b",", b"\n\n"]),
        lambda: chance.choice([b"\xef\xbb\xbf", b" \n", b"\0", b"[", b"//"]) + whole,
        lambda: chance.choice([b"", b"null", b"1", b'"x"', b"[]", b"{}", b"{", b"true", b"[" * 9000]),
        lambda: whole.decode().encode("utf-16"),
    ]  # fmt: skip
    made = chance.choice(ways)()
    return made if isinstance(made, bytes) else made.encode(errors="surrogatepass")


def framed(text: bytes, chance: random.Random) -> bytes:
    """One frame mostly; sometimes fragments, other kinds of frames, or bytes that are no frame."""
    cut = chance.randrange(len(text) + 1)
    if chance.random() < 0.8:
        return frame(TEXT, text)
    ways: list[Callable[[], bytes]] = [
        lambda: frame(BINARY, text),
        lambda: frame(TEXT, text[:cut], fin=False) + frame(CONTINUATION, text[cut:]),
        lambda: frame(TEXT, text[:cut], fin=False) + frame(PING) + frame(CONTINUATION, text[cut:]),
        lambda: frame(TEXT, text[:cut], fin=False) + frame(TEXT, text[cut:]),
        lambda: frame(CONTINUATION, text),
        lambda: frame(TEXT, text[:cut] + bytes([chance.randrange(0x80, 0x100)]) + text[cut:]),
        lambda: frame(TEXT, text, mask=None),
        lambda: frame(TEXT, text, bits=chance.choice([0x10, 0x20, 0x40])),
        lambda: frame(chance.randrange(16), text[:125], fin=chance.random() < 0.7),
        lambda: frame(TEXT, text[:cut], announced=chance.choice([len(text), 2**20, 2**20 + 1, 2**40, 2**63])),
        lambda: frame(TEXT, text, form=chance.choice([16, 64])),
        lambda: frame(TEXT, text)[: chance.randrange(len(text) + 2)],
        lambda: chance.randbytes(chance.randint(1, 400)),
        lambda: close(chance.choice([1000, 1001, 4000, 1005, 0, 70]), text[:100]),
    ]
    return chance.choice(ways)()


class Attacker:
    """A client that sends what it likes, and checks each answer. It connects again when the server has enough."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._seed = seed
        self._connections = 0
        self._socket: FrameSocket | None = None
        self.who = ""
        self.token = ""
        self.closes = 0

    def play(self, count: int) -> None:
        for number in range(count):
            chance = random.Random(f"{self._seed} {number}")
            if self._socket is None:
                self._open(connected=chance.random() < 0.8)
            sent = framed(mutated(corpus(self.who, self.token), chance), chance)
            try:
                self._send(sent, b"%d" % number)
            except Exception as error:
                raise AssertionError(
                    f"seed {self._seed}, message {number}: {sent[:300]!r}: {error!r};"
                    f" python -m tests.behaviour.server.mutations {self._seed}"
                ) from error
            if number % BYSTANDER_EVERY == 0:
                self._bystander(number)
        self._end()

    def _open(self, *, connected: bool) -> None:
        self._connections += 1
        self.who = f"attacker-{self._seed}-{self._connections}"
        self.token = self._server.token(self.who)
        self._socket = FrameSocket(self._server.url)
        if connected:
            message = next(each for each in corpus(self.who, self.token) if each["type"] == "connect")
            self._socket.send(frame(TEXT, json.dumps(message).encode()))
            check(*self._socket.receive())

    def _send(self, sent: bytes, mark: bytes) -> None:
        """What is sent, then a ping: until its pong, or the end, every frame is an answer that is defined.

        Behind half a frame a ping would be part of it: there the end of the socket follows.
        """
        assert self._socket is not None
        try:
            if _unfinished(sent):
                self._socket.send(sent)
                self._socket.socket.shutdown(socket.SHUT_WR)
            else:
                self._socket.send(sent + frame(PING, mark))
            while (got := self._socket.receive()) != (PONG, mark):
                check(*got)
                if got[0] == CLOSE:
                    raise EOFError
        except (EOFError, ConnectionError):
            self._end()

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.socket.close()
            self._socket = None
            self.closes += 1

    def _bystander(self, number: int) -> None:
        """Always of one partition: what the server keeps of it does not grow."""
        with self._server.client("bystander") as peer:
            committed_id = peer.commit(["bystander"], set_event("x", number))
            assert [event["committed_id"] for event in peer.history(["bystander"], committed_id - 1)] == [
                committed_id
            ]


def _unfinished(sent: bytes) -> bool:
    """Whether the server waits for more of a frame after these bytes."""
    at = 0
    while at + 2 <= len(sent):
        flag = sent[at + 1] & 0x7F
        if sent[at + 1] < 0x80:
            return False
        head = 6 + {126: 2, 127: 8}.get(flag, 0)
        size = flag if flag < 126 else int.from_bytes(sent[at + 2 : at + head - 4], "big")
        at += head + size
    return at != len(sent)


def check(opcode: int, payload: bytes) -> None:
    """An answer that the protocol defines."""
    if opcode == CLOSE:
        (code,) = struct.unpack("!H", payload[:2])
        payload[2:].decode()
        assert code in CLOSES or code in (1001, 4000), f"closed with {code}"
        return
    if opcode == PONG:
        return
    assert opcode == TEXT, f"opcode {opcode}"
    message = json.loads(payload)
    assert set(message) == FIELDS, message
    assert message["type"] in ANSWERS, message
    if message["type"] == "error":
        assert message["payload"]["code"] in ERRORS, message


def play(server: Server, seeds: Sequence[int]) -> int:
    """The messages of these seeds; how many connections they took."""
    closes = 0
    for seed in seeds:
        attacker = Attacker(server, seed)
        attacker.play(MESSAGES_PER_SEED)
        closes += attacker.closes
    log = server.log.read_text()
    assert "Traceback" not in log, log[-3000:]
    assert "unexpected" not in log, log[-3000:]
    return closes


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as place,
        running(Path(place) / "data", "--model", "open", "--access-default", "allow") as started,
    ):
        sys.stdout.write(f"{play(started, [int(word) for word in sys.argv[1:]])} connections\n")
