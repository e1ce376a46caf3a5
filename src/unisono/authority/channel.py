"""What fronts, authority, reader and node say to each other, and how it is framed.

A channel is a stream socket. A frame is a four-byte length and a msgpack list of messages; both sides send
what they have in one frame, so under load one system call carries many messages. Order on a channel is the
order of sending, and the seam of SYNC-06 rests on that.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from unisono.vocabulary import FieldError

FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
"""A frame is a group's worth at most: far below this; more means the stream is out of step."""

RECEIVE_BYTES: Final = 1024 * 1024
"""Read at once from a channel; bounds what one busy front can queue before the others get their turn."""

STALLED_S: Final = 30.0
"""A process that takes nothing from its channel for so long counts as dead."""

KEEPING: Final = ("archive", "prune", "snapshots", "erase", "reclaim")
"""Orders by which the pipeline keeps an embedded log, beside its server."""

_LENGTH = struct.Struct("!I")


class ChannelClosed(Exception):
    """The other side is gone, or stalled for too long, or sent what is not a frame."""


class Value(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of everything that travels on a channel."""


# -- front → authority ---------------------------------------------------------------------------------------


class Claim(Value, frozen=True):
    """Connection `conn` is now the one of `client_id` (CONN-05)."""

    conn: int
    client_id: str


class Release(Value, frozen=True):
    """Connection `conn` is gone."""

    conn: int


class Candidate(Value, frozen=True):
    """A submitted item that the front could admit: normalised, authorised, canonical, hashed."""

    id: str
    partitions: tuple[str, ...]
    event: bytes
    hash: bytes


class Refused(Value, frozen=True):
    """A submitted item that can never be committed as it stands; it keeps its place in the answer."""

    id: str
    partitions: tuple[str, ...]
    reason: Literal["forbidden", "validation_failed"]
    errors: tuple[FieldError, ...]


class Submit(Value, frozen=True):
    """One request's items, in order."""

    conn: int
    client_id: str
    profile: str
    single: bool
    items: tuple[Candidate | Refused, ...]


class AskHead(Value, frozen=True):
    """Where is the log now? The answer keeps its place among the groups."""

    ticket: int


# -- authority → front ---------------------------------------------------------------------------------------


class Offer(Value, frozen=True):
    """What the authority judges by: first message on the channel, and again whenever the model changes."""

    head: int
    model_version: int | None
    profiles: dict[str, tuple[str, ...]]


class Claimed(Value, frozen=True):
    """The claim stands; `head` is the log's head at that moment."""

    conn: int
    head: int


class Replaced(Value, frozen=True):
    """A newer connection has the client_id of `conn` now."""

    conn: int


class Committed(Value, frozen=True):
    """One event became durable. `payload` is its wire form, encoded once for everybody."""

    committed_id: int
    origin: int
    partitions: tuple[str, ...]
    payload: bytes


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a `submit_events_result`, in the words of the wire (SUBMIT-04)."""

    id: str
    status: Literal["committed", "rejected"]
    status_updated_at: int
    committed_id: int | None = None
    reason: str | None = None
    errors: tuple[FieldError, ...] | None = None


class Outcome(Value, frozen=True):
    """The answer to one batch; sent after every event of it is durable."""

    conn: int
    results: tuple[Result, ...]


class SingleOutcome(Value, frozen=True):
    """The answer to one `submit_event`: `payload` is that of `event_committed` or `event_rejected`."""

    conn: int
    committed: bool
    payload: bytes
    reason: str | None = None


class Head(Value, frozen=True):
    """The answer to AskHead."""

    ticket: int
    committed_id: int


class ModelChanged(Value, frozen=True):
    """Another model is in force from here on (MODEL-02)."""

    old_model_version: int | None
    offer: Offer


class Failed(Value, frozen=True):
    """The log failed; nothing that was not answered is known to be committed (DUR-04).

    `recovering`: it may be reached again; an Offer says when.
    """

    message: str
    recovering: bool = False


# -- front ⇄ reader ------------------------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True, array_like=True):
    """Let a history start from snapshots of this model: so many bytes of them, so many with the page's events."""

    model_version: int | None
    snapshot_bytes_max: int
    bytes_max: int


class AskPage(Value, frozen=True):
    """One page of history; of a partition in `floors`, only what is above its floor.

    With `start` it is a first page, and the reader chooses the floors.
    """

    ticket: int
    partitions: tuple[str, ...]
    since: int
    upto: int
    limit: int
    bytes_max: int
    floors: dict[str, int] = {}
    start: Start | None = None


class PageOf(Value, frozen=True):
    """Events in wire form, ascending; `last` is the last one's committed_id, or `since` when empty.

    `snapshots`, in wire form too, are what the history starts from, and `floors` what they mean for the next pages.
    """

    ticket: int
    events: tuple[bytes, ...]
    last: int
    has_more: bool
    snapshots: tuple[bytes, ...] = ()
    floors: dict[str, int] = {}


class PageFailed(Value, frozen=True):
    """This page cannot be read now: the log is out of reach."""

    ticket: int


# -- node ⇄ everybody ----------------------------------------------------------------------------------------


class AskStats(Value, frozen=True):
    """Send your counters."""

    ticket: int


class Stats(Value, frozen=True):
    """Counters by name and labels, as JSON."""

    ticket: int
    body: bytes


class Ready(Value, frozen=True):
    """The process works."""


class Drain(Value, frozen=True):
    """Take no new work, finish what is queued, end."""


class Order(Value, frozen=True):
    """An operator's command to the authority: `reload` a model, write `snapshot`s, or keep the log (see orders).

    `body` is MessagePack, for orders that carry more than a word.
    """

    ticket: int
    command: str
    argument: str = ""
    body: bytes = b""


class Report(Value, frozen=True):
    """What came of an Order, as JSON."""

    ticket: int
    ok: bool
    body: bytes


Message: TypeAlias = (
    Claim
    | Release
    | Submit
    | AskHead
    | Offer
    | Claimed
    | Replaced
    | Committed
    | Outcome
    | SingleOutcome
    | Head
    | ModelChanged
    | Failed
    | AskPage
    | PageOf
    | PageFailed
    | AskStats
    | Stats
    | Ready
    | Drain
    | Order
    | Report
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Message]).decode


def frame(messages: Sequence[Message]) -> bytes:
    """One frame that carries `messages` in order."""
    body = _encode(messages)
    return _LENGTH.pack(len(body)) + body


class Unframer:
    """Bytes as they come → messages; keeps what is incomplete."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= 4:
            (size,) = _LENGTH.unpack_from(buffer, start)
            if size > FRAME_BYTES_MAX:
                raise ChannelClosed("a frame is out of bounds")
            if len(buffer) - start - 4 < size:
                break
            try:
                messages = _decode(memoryview(buffer)[start + 4 : start + 4 + size].tobytes())
            except msgspec.MsgspecError as error:
                raise ChannelClosed(f"a frame holds no messages: {error}") from error
            yield from messages
            start += 4 + size
        if start:
            del buffer[:start]


class Channel:
    """The synchronous end of a channel, for processes without an event loop."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._unframer = Unframer()

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive(self) -> list[Message]:
        """What has arrived; empty when a frame is still on its way. ChannelClosed at the end."""
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            raise ChannelClosed("the other side ended")
        return list(self._unframer.feed(data))

    def send(self, messages: Sequence[Message]) -> None:
        """Hand over one frame; waits for a slow reader, gives up on a stalled one."""
        rest = memoryview(frame(messages))
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except BlockingIOError:
                if not select.select([], [self._sock], [], STALLED_S)[1]:
                    raise ChannelClosed("the other side takes nothing") from None
            except OSError as error:
                raise ChannelClosed(str(error)) from error

    def close(self) -> None:
        self._sock.close()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a channel, with buffers large enough for a group of ordinary size."""
    ends = socket.socketpair()
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, RECEIVE_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    return ends
