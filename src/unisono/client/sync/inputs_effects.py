"""The inputs of a client's sync (what happened) and its effects (what to do about it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from unisono.protocol.client_codec import Broadcast, CommittedEvent, ServerMessage
from unisono.vocabulary import FieldError, LogIdentity

# -- inputs ------------------------------------------------------------------------------------------------


class Dialing(msgspec.Struct, frozen=True):
    """The client is trying to connect."""


class Opened(msgspec.Struct, frozen=True):
    """The socket is open; no message has been sent yet."""


class StartState(msgspec.Struct, frozen=True):
    """A checked state to start a partition from. It replaces the partition's events up to `committed_id`."""

    committed_id: int
    state: bytes


class Received(msgspec.Struct, frozen=True):
    """The server sent a message.

    Of a page with snapshots: `start_states` are those this client can start from, by partition; `unusable` names the
    partitions of the others, whose earlier events the page leaves out.
    `more`: other broadcasts follow this one at once, so the cursors can wait for the last of them.
    """

    message: ServerMessage
    start_states: Mapping[str, StartState] = {}
    unusable: tuple[str, ...] = ()
    more: bool = False


class Lost(msgspec.Struct, frozen=True):
    """The socket is closed, or could not be opened; `code` is the WebSocket close code where there was one."""

    code: int | None = None


class DraftsWaiting(msgspec.Struct, frozen=True):
    """There are pending drafts in the store."""


class PartitionAdded(msgspec.Struct, frozen=True):
    """Follow a partition from the cursor the store has for it.

    `highest_cursor`: the highest it ever was with this server. `snapshot_based`: its stored history begins with a
    snapshot.
    """

    partition: str
    cursor: int
    highest_cursor: int = 0
    snapshot_based: bool = False


class PartitionRemoved(msgspec.Struct, frozen=True):
    """Stop following a partition."""

    partition: str


class Stored(msgspec.Struct, frozen=True):
    """The last Apply is in the store."""


class Contradicted(msgspec.Struct, frozen=True):
    """The last Apply contradicts the store, which is unchanged; `message` says how."""

    message: str


class Submitted(msgspec.Struct, frozen=True):
    """The outcome of SubmitNext: the ids of the drafts that are sent; none when no draft was left.

    `too_large` names a draft that no message to this server can carry, `gone` the requested draft that is no longer
    pending. `atomic`: they are the drafts of one transaction, sent as one atomic batch. `unfit` are the drafts of a
    transaction that this server cannot take, for a `reason` of `drafts.UNFIT`.
    """

    ids: tuple[str, ...] = ()
    too_large: str | None = None
    gone: str | None = None
    atomic: bool = False
    unfit: tuple[str, ...] = ()
    reason: str = ""


class DraftRetried(msgspec.Struct, frozen=True):
    """The program wants a set-aside draft sent now."""

    id: str


class TimerFired(msgspec.Struct, frozen=True):
    """A time set by WakeAt may have come."""


Input: TypeAlias = (
    Dialing
    | Opened
    | Received
    | Lost
    | DraftsWaiting
    | PartitionAdded
    | PartitionRemoved
    | Stored
    | Contradicted
    | Submitted
    | DraftRetried
    | TimerFired
)


def mark_consecutive(happened: Sequence[Input]) -> Sequence[Input]:
    """The same inputs, with every broadcast but the last marked as followed by another."""
    at = [
        place
        for place, each in enumerate(happened)
        if isinstance(each, Received) and isinstance(each.message, Broadcast)
    ]
    if len(at) < 2:
        return happened
    marked = list(happened)
    for place in at[:-1]:
        marked[place] = msgspec.structs.replace(happened[place], more=True)
    return marked


# -- effects -----------------------------------------------------------------------------------------------


class Accepted(msgspec.Struct, frozen=True):
    """A draft is committed under this id."""

    id: str
    committed_id: int
    status_updated_at: int


class DraftRejected(msgspec.Struct, frozen=True):
    """A draft is rejected. It stays in the store with its reason and leaves the view (CLIENT-03).

    `status_updated_at` is the server's time of the rejection, where the server gives one.
    """

    id: str
    reason: str
    errors: tuple[FieldError, ...]
    status_updated_at: int | None = None


class SendConnect(msgspec.Struct, frozen=True):
    last_committed_id: int
    snapshots: bool


class SendSync(msgspec.Struct, frozen=True):
    """Request a page. `subscription` is the whole set to subscribe to from now on, None to leave it as it is.

    `snapshots`: a first page that may contain snapshots, if the client's model can continue from them.
    """

    partitions: tuple[str, ...]
    since: int
    limit: int
    subscription: tuple[str, ...] | None
    snapshots: bool = False


class SubmitNext(msgspec.Struct, frozen=True):
    """Send the oldest pending drafts, at most `items_max` in at most `bytes_max` bytes; answer `Submitted`.

    `only` is one draft to send alone; drafts in `without` are left out. A transaction is sent alone and whole,
    whatever `items_max`, as one atomic batch of at most `atomic_max` drafts; 0 where the server takes none.
    """

    items_max: int
    bytes_max: int | None
    only: str | None = None
    without: frozenset[str] = frozenset()
    atomic_max: int = 0


class Apply(msgspec.Struct, frozen=True):
    """Store all of this in one transaction (CLIENT-05); answer `Stored` or `Contradicted`.

    `starts` are partitions whose history begins with this page: from a start state, or from nothing.
    """

    events: tuple[CommittedEvent, ...] = ()
    accepted: tuple[Accepted, ...] = ()
    refused: tuple[DraftRejected, ...] = ()
    cursors: Mapping[str, int] = {}
    starts: Mapping[str, StartState | None] = {}


class NoteModel(msgspec.Struct, frozen=True):
    """The server's model, known for the first time or unchanged; `digest` is None where the server gives none."""

    version: int | None
    digest: str | None = None


class Rewind(msgspec.Struct, frozen=True):
    """Another model: drop snapshots, set all cursors to 0, keep drafts and events (CLIENT-10)."""

    version: int | None
    digest: str | None = None


class NoteLog(msgspec.Struct, frozen=True):
    """The server's log, known for the first time."""

    log: LogIdentity


class NoteAuthor(msgspec.Struct, frozen=True):
    """Who this client submits as, in the form of `CommittedEvent.author`."""

    author: str


class Reset(msgspec.Struct, frozen=True):
    """The committed data is not this server's: drop it with all cursors and snapshots, keep drafts.

    `log`: the log the server has now, if it is another.
    """

    log: LogIdentity | None = None


class ReportProblem(msgspec.Struct, frozen=True):
    """Show a problem to the program, in the client's status."""

    code: str
    message: str


class WakeAt(msgspec.Struct, frozen=True):
    """Feed a TimerFired at this time."""

    at: float


class DropConnection(msgspec.Struct, frozen=True):
    """Close this connection; `Lost` follows."""


class Retry(msgspec.Struct, frozen=True):
    """Connect again after the backoff; with a new token where the server refused the old one."""

    new_token: bool = False


class Stop(msgspec.Struct, frozen=True):
    """Do not connect again until the program asks for it."""

    reason: str


Effect: TypeAlias = (
    SendConnect
    | SendSync
    | SubmitNext
    | Apply
    | NoteModel
    | Rewind
    | NoteLog
    | NoteAuthor
    | Reset
    | ReportProblem
    | WakeAt
    | DropConnection
    | Retry
    | Stop
)
