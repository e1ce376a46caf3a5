"""What can happen to a client's sync, and what is then to be done: the inputs and effects of `syncstate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from unisono.client.net.wire import CommittedEvent, ServerMessage
from unisono.vocabulary import FieldError, LogIdentity

# -- inputs ------------------------------------------------------------------------------------------------


class Dialing(msgspec.Struct, frozen=True):
    """A connection is being tried."""


class Opened(msgspec.Struct, frozen=True):
    """The socket is open; nothing was said yet."""


class StartState(msgspec.Struct, frozen=True):
    """A state to start a partition from, checked: it stands for the partition's events up to `committed_id`."""

    committed_id: int
    state: bytes


class Received(msgspec.Struct, frozen=True):
    """The server said something.

    Of a page that comes with snapshots: `bases` are those this client can start from, by partition, and
    `unusable` names the partitions of the others; what the page leaves out because of them is lost to it.
    `more`: a broadcast that others follow at once, so that the cursors may wait for the last of them.
    """

    message: ServerMessage
    bases: Mapping[str, StartState] = {}
    unusable: tuple[str, ...] = ()
    more: bool = False


class Lost(msgspec.Struct, frozen=True):
    """The socket is gone, or could not be had; `code` is the WebSocket close code where there was one."""

    code: int | None = None


class DraftsWaiting(msgspec.Struct, frozen=True):
    """There are pending drafts in the store."""


class PartitionAdded(msgspec.Struct, frozen=True):
    """Follow a partition from the cursor the store has for it; `known` is how far it ever got with this server.

    `based`: the store has it from a base on.
    """

    partition: str
    cursor: int
    known: int = 0
    based: bool = False


class PartitionRemoved(msgspec.Struct, frozen=True):
    """Follow a partition no longer."""

    partition: str


class Stored(msgspec.Struct, frozen=True):
    """The last Apply is in the store."""


class Contradicted(msgspec.Struct, frozen=True):
    """The last Apply contradicts the store, which is unchanged; the text says how."""

    message: str


class Submitted(msgspec.Struct, frozen=True):
    """What SubmitNext came to: these drafts are sent; none when none were left.

    `too_large` names a draft that no message to this server can hold, `gone` the one that was asked for and is not
    pending any more.
    """

    ids: tuple[str, ...] = ()
    too_large: str | None = None
    gone: str | None = None


class DraftRetried(msgspec.Struct, frozen=True):
    """The program wants a draft that is set aside tried now."""

    id: str


class TimerFired(msgspec.Struct, frozen=True):
    """A time asked for by WakeAt may have come."""


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

# -- effects -----------------------------------------------------------------------------------------------


class Accepted(msgspec.Struct, frozen=True):
    """A draft is committed under this id."""

    id: str
    committed_id: int
    status_updated_at: int


class DraftRejected(msgspec.Struct, frozen=True):
    """A draft is rejected; it stays, with its reason, out of the view (CLIENT-03).

    `status_updated_at` is the server's time of it, where the server told one.
    """

    id: str
    reason: str
    errors: tuple[FieldError, ...]
    status_updated_at: int | None = None


class SendConnect(msgspec.Struct, frozen=True):
    last_committed_id: int
    snapshots: bool


class SendSync(msgspec.Struct, frozen=True):
    """Ask for a page. `subscription` is the whole set to be told of from now on, None to leave it.

    `snapshots`: a first page that may come with snapshots, if the model in force is one to go on with.
    """

    partitions: tuple[str, ...]
    since: int
    limit: int
    subscription: tuple[str, ...] | None
    snapshots: bool = False


class SubmitNext(msgspec.Struct, frozen=True):
    """Send the oldest pending drafts, so many and no more bytes than the server takes; answer `Submitted`.

    `only` is one draft to send alone; drafts in `without` are left out.
    """

    items_max: int
    bytes_max: int | None
    only: str | None = None
    without: frozenset[str] = frozenset()


class Apply(msgspec.Struct, frozen=True):
    """Put all of this into the store in one transaction (CLIENT-05); answer `Stored` or `Contradicted`.

    `starts` are partitions whose history begins with this page: from a base, or from nothing.
    """

    events: tuple[CommittedEvent, ...] = ()
    accepted: tuple[Accepted, ...] = ()
    refused: tuple[DraftRejected, ...] = ()
    cursors: Mapping[str, int] = {}
    starts: Mapping[str, StartState | None] = {}


class NoteModel(msgspec.Struct, frozen=True):
    """The server's model, known for the first time or unchanged; `digest` is None where the server tells none."""

    version: int | None
    digest: str | None = None


class Rewind(msgspec.Struct, frozen=True):
    """Another model: drop snapshots, take all cursors to 0, keep drafts and events (CLIENT-10)."""

    version: int | None
    digest: str | None = None


class NoteLog(msgspec.Struct, frozen=True):
    """The server's log, known for the first time."""

    log: LogIdentity


class Reset(msgspec.Struct, frozen=True):
    """The committed data is not this server's: drop it with all cursors and snapshots, keep drafts.

    `log`: the server has this log now.
    """

    log: LogIdentity | None = None


class ReportProblem(msgspec.Struct, frozen=True):
    """Tell the program that uses the client."""

    code: str
    message: str


class WakeAt(msgspec.Struct, frozen=True):
    """Feed a TimerFired at this time."""

    at: float


class DropConnection(msgspec.Struct, frozen=True):
    """Give this connection up; `Lost` follows."""


class Retry(msgspec.Struct, frozen=True):
    """Connect again after the usual wait, with a token newly asked for where the old one was refused."""

    new_token: bool = False


class Stop(msgspec.Struct, frozen=True):
    """Do not connect again by yourself."""

    reason: str


Effect: TypeAlias = (
    SendConnect
    | SendSync
    | SubmitNext
    | Apply
    | NoteModel
    | Rewind
    | NoteLog
    | Reset
    | ReportProblem
    | WakeAt
    | DropConnection
    | Retry
    | Stop
)
