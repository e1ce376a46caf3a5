"""What fronts, authority, reader and node say to each other, and how it is framed.

A channel is a stream socket. A frame is a four-byte length and a msgpack list of messages; both sides send
what they have in one frame, so under load one system call carries many messages. Order on a channel is the
order of sending, and the seam of SYNC-06 rests on that.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from unisono.vocabulary import FieldError, LogIdentity

FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
"""A frame is a group's worth at most: far below this; more means the stream is out of step."""

RECEIVE_BYTES: Final = 1024 * 1024
"""Read at once from a channel; bounds what one busy front can queue before the others get their turn."""

STALLED_S: Final = 30.0
"""A process that has not taken a frame after so long counts as dead, where no setting says otherwise."""

KEEPING: Final = ("archive", "prune", "snapshots", "erase", "reclaim")
"""Admin commands by which the pipeline maintains an embedded log, beside its server."""

_LENGTH = struct.Struct("!I")


class ChannelClosed(Exception):
    """The channel has ended; this side of it is closed."""


class ChannelGivenUp(ChannelClosed):
    """This side ended it: the other one is stalled, or sends what is not a frame, or a message is out of bounds."""


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


class RefusedItem(Value, frozen=True):
    """A submitted item that can never be committed as it stands; it keeps its place in the answer."""

    id: str
    partitions: tuple[str, ...]
    reason: Literal["forbidden", "validation_failed"]
    errors: tuple[FieldError, ...]


class Submit(Value, frozen=True):
    """One request's items, in order.

    Each is answered once, by BatchOutcome, SingleOutcome or Dropped, unless Failed makes all that was asked void.
    """

    conn: int
    client_id: str
    profile: str
    single: bool
    items: tuple[Candidate | RefusedItem, ...]


class AskHead(Value, frozen=True):
    """Where is the log now? The answer keeps its place among the groups."""

    ticket: int


# -- authority → front ---------------------------------------------------------------------------------------


class Offer(Value, frozen=True):
    """What the authority judges by, and on which log: first message on the channel, and again whenever the model
    changes or the log is another."""

    head: int
    model_version: int | None
    profiles: dict[str, tuple[str, ...]]
    model_digest: str = ""
    log: LogIdentity | None = None


class Claimed(Value, frozen=True):
    """The claim stands; `head` is the log's head at that moment."""

    conn: int
    head: int


class Replaced(Value, frozen=True):
    """A newer connection has the client_id of `conn` now."""

    conn: int


class EventCommitted(Value, frozen=True):
    """One event became durable. `payload` is its wire form, encoded once for everybody."""

    committed_id: int
    origin: int
    partitions: tuple[str, ...]
    payload: bytes


class ItemResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a `submit_events_result`, in the words of the wire (SUBMIT-04)."""

    id: str
    status: Literal["committed", "rejected"]
    status_updated_at: int
    committed_id: int | None = None
    reason: str | None = None
    errors: tuple[FieldError, ...] | None = None


class BatchOutcome(Value, frozen=True):
    """The answer to one batch; sent after every event of it is durable."""

    conn: int
    results: tuple[ItemResult, ...]


class SingleOutcome(Value, frozen=True):
    """The answer to one `submit_event`: `payload` is that of `event_committed` or `event_rejected`."""

    conn: int
    committed: bool
    payload: bytes
    reason: str | None = None


class Dropped(Value, frozen=True):
    """The answer to a request whose connection no longer speaks for its client: nothing of it was judged."""

    conn: int


class HeadAnswer(Value, frozen=True):
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
    model_digest: str = ""


class AskPage(Value, frozen=True):
    """One page of history; of a partition in `floors`, only what is above its floor.

    With `start` it is a first page, and the reader chooses the floors. `log` is the one the client was told of: a
    page of another is no answer.
    """

    ticket: int
    partitions: tuple[str, ...]
    since: int
    upto: int
    limit: int
    bytes_max: int
    floors: dict[str, int] = {}
    start: Start | None = None
    log: LogIdentity | None = None


class CancelPage(Value, frozen=True):
    """Nobody waits for this page any more. It is answered all the same, as every AskPage is, once."""

    ticket: int


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
    """This page cannot be read now, the log being out of reach, or it was cancelled before it was read."""

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


class GaveUp(Value, frozen=True):
    """The process `role` counts as dead: its channel to whoever says so was given up, and is closed."""

    role: str
    why: str


class Drain(Value, frozen=True):
    """Take no new work, finish what is queued, end."""


class AdminCommand(Value, frozen=True):
    """An operator's command to the authority: `reload` a model, write `snapshot`s, or keep the log (see orders).

    `body` is MessagePack, for orders that carry more than a word.
    """

    ticket: int
    command: str
    argument: str = ""
    body: bytes = b""


class CommandResult(Value, frozen=True):
    """What came of an AdminCommand, as JSON."""

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
    | EventCommitted
    | BatchOutcome
    | SingleOutcome
    | Dropped
    | HeadAnswer
    | ModelChanged
    | Failed
    | AskPage
    | CancelPage
    | PageOf
    | PageFailed
    | AskStats
    | Stats
    | Ready
    | GaveUp
    | Drain
    | AdminCommand
    | CommandResult
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Message]).decode


def frame(messages: Sequence[Message]) -> bytes:
    """One frame that carries `messages` in order."""
    body = _encode(messages)
    return _LENGTH.pack(len(body)) + body


def frames(messages: Sequence[Message]) -> Iterator[bytes]:
    """As few frames as carry `messages` in order, none of them out of bounds.

    ChannelGivenUp for a single message that is out of bounds.
    """
    whole = frame(messages)
    if len(whole) - _LENGTH.size <= FRAME_BYTES_MAX:
        yield whole
        return
    if len(messages) == 1:
        raise ChannelGivenUp(f"a {type(messages[0]).__name__} of {len(whole)} bytes is out of bounds")
    del whole
    half = len(messages) // 2
    yield from frames(messages[:half])
    yield from frames(messages[half:])


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
                raise ChannelGivenUp("a frame is out of bounds")
            if len(buffer) - start - 4 < size:
                break
            try:
                messages = _decode(memoryview(buffer)[start + 4 : start + 4 + size].tobytes())
            except msgspec.MsgspecError as error:
                raise ChannelGivenUp(f"a frame holds no messages: {error}") from error
            yield from messages
            start += 4 + size
        if start:
            del buffer[:start]


class Channel:
    """The synchronous end of a channel, for processes without an event loop.

    What raises ChannelClosed has closed the socket before, so that the other side learns of it too: a frame may be
    half sent, and nothing can follow it. `peer` is the role of the process at the other end.
    """

    def __init__(self, sock: socket.socket, peer: str = "", stalled_s: float | None = None) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._unframer = Unframer()
        self._stalled_s = STALLED_S if stalled_s is None else stalled_s
        self.peer = peer

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive(self) -> list[Message]:
        """What has arrived; empty when a frame is still on its way. ChannelClosed at the end."""
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            self.close()
            raise ChannelClosed(str(error)) from error
        if not data:
            self.close()
            raise ChannelClosed("the other side ended")
        try:
            return list(self._unframer.feed(data))
        except ChannelGivenUp:
            self.close()
            raise

    def send(self, messages: Sequence[Message]) -> None:
        """Hand over the messages; waits for a slow reader, gives up on a stalled one."""
        try:
            for whole in frames(messages):
                self._send_frame(memoryview(whole))
        except OSError as error:
            self.close()
            raise ChannelClosed(str(error)) from error
        except ChannelGivenUp:
            self.close()
            raise

    def _send_frame(self, rest: memoryview) -> None:
        deadline = time.monotonic() + self._stalled_s
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except BlockingIOError:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not select.select([], [self._sock], [], left_s)[1]:
                    raise ChannelGivenUp(
                        f"it takes nothing: {len(rest)} bytes of a frame were not taken within "
                        f"{self._stalled_s:g} s"
                    ) from None

    def close(self) -> None:
        with contextlib.suppress(
            OSError
        ):  # it may have ended; no copy of the socket keeps it open after this
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a channel, with buffers large enough for a group of ordinary size."""
    ends = socket.socketpair()
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, RECEIVE_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    return ends
