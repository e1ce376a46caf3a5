"""The messages that node, fronts, authority and reader exchange over their channels."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from unisono.vocabulary import FieldError, LogIdentity

MAINTENANCE_COMMANDS: Final = ("archive", "prune", "snapshots", "erase", "reclaim")
"""Admin commands by which the pipeline maintains an embedded log while its server runs."""


class ChannelStruct(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all values sent over a channel: a MessagePack array that starts with the class name."""


# -- front → authority ---------------------------------------------------------------------------------------


class Claim(ChannelStruct, frozen=True):
    """Connection `conn` becomes the one connection of `client_id` (CONN-05)."""

    conn: int
    client_id: str


class Release(ChannelStruct, frozen=True):
    """Connection `conn` has ended."""

    conn: int


class Candidate(ChannelStruct, frozen=True):
    """A submitted item that passed the front: normalised, authorised, canonical, hashed."""

    id: str
    partitions: tuple[str, ...]
    event: bytes
    hash: bytes


class RefusedItem(ChannelStruct, frozen=True):
    """A submitted item that the front refused; it keeps its place in the answer."""

    id: str
    partitions: tuple[str, ...]
    reason: Literal["forbidden", "validation_failed"]
    errors: tuple[FieldError, ...]


class Submit(ChannelStruct, frozen=True):
    """One request's items, in order.

    `author`: the submitter's `user_id` and the claims that the model asks for, as canonical JSON, or empty. `atomic`:
    commit all of them or none (EXT-10). Answered once, by BatchOutcome, SingleOutcome or Dropped, unless LogFailed
    cancels everything unanswered.
    """

    conn: int
    client_id: str
    profile: str
    single: bool
    items: tuple[Candidate | RefusedItem, ...]
    event_bytes: int
    author: str = ""
    atomic: bool = False


class AskHead(ChannelStruct, frozen=True):
    """Ask for the head of the log; the answer comes in commit order."""

    ticket: int


class PresenceChange(ChannelStruct, frozen=True):
    """What a client says of itself in a partition; `value` is JSON, None when it says nothing any more.

    `owner` is the connection that says it, unique in the cluster: only its own end takes it back.
    """

    partition: str
    client_id: str
    owner: str
    user_id: str | None = None
    value: bytes | None = None
    ttl_s: float = 0.0


class PresenceChanges(ChannelStruct, frozen=True):
    """Presence that changed at a front, on its way to the other fronts and nodes. Nobody answers it."""

    changes: tuple[PresenceChange, ...]


# -- authority → front ---------------------------------------------------------------------------------------


class Offer(ChannelStruct, frozen=True):
    """The model in force and the identity of the log.

    The first message on the channel, sent again after a change of the log's identity or after LogFailed.
    """

    head: int
    model_version: int | None
    profiles: dict[str, tuple[str, ...]]
    model_digest: str = ""
    log: LogIdentity | None = None
    claims: tuple[str, ...] = ()
    """Claims of tokens that the model asks for: they are stored with events."""


class RevokedName(msgspec.Struct, frozen=True, array_like=True):
    """Somebody who is refused until a time: a token (`jti`), a `client` or a `user`."""

    kind: str
    name: str
    until_ms: int = 0


class AccessChanged(ChannelStruct, frozen=True):
    """Who is refused from now on. `reload_acl`: read the ACL file again. `ended`: end its connections now."""

    revoked: tuple[RevokedName, ...]
    reload_acl: bool = False
    ended: RevokedName | None = None


class Claimed(ChannelStruct, frozen=True):
    """The claim succeeded; `head` is the log's head at that moment."""

    conn: int
    head: int


class Replaced(ChannelStruct, frozen=True):
    """A newer connection has claimed the client_id of `conn`."""

    conn: int


class EventCommitted(ChannelStruct, frozen=True):
    """One durable event. `payload` is its wire form, encoded once for all listeners.

    `origin` is the connection that submitted it, 0 for one of another node. `answers`: it is also the answer to that
    connection's `submit_event`. `author`: for listeners that asked for it (EXT-03).
    """

    committed_id: int
    origin: int
    partitions: tuple[str, ...]
    payload: bytes
    answers: bool = False
    author: str = ""


class BatchOutcome(ChannelStruct, frozen=True):
    """The answer to one batch, sent after all its events are durable: the payload of `submit_events_result`."""

    conn: int
    payload: bytes


class SingleOutcome(ChannelStruct, frozen=True):
    """The answer to a `submit_event` that is no new event: the payload of `event_committed` or `event_rejected`."""

    conn: int
    committed: bool
    payload: bytes


class Dropped(ChannelStruct, frozen=True):
    """The answer to a request of a replaced connection: none of its items was judged."""

    conn: int


class HeadAnswer(ChannelStruct, frozen=True):
    """The answer to AskHead."""

    ticket: int
    committed_id: int


class ModelChanged(ChannelStruct, frozen=True):
    """The following answers are judged by another model (MODEL-02)."""

    old_model_version: int | None
    offer: Offer


class LogFailed(ChannelStruct, frozen=True):
    """The log failed; it is unknown whether unanswered requests were committed (DUR-04).

    `recovering`: the authority reconnects, and sends an Offer when it has.
    """

    message: str
    recovering: bool = False


# -- front ⇄ reader ------------------------------------------------------------------------------------------


class SnapshotStart(msgspec.Struct, frozen=True, array_like=True):
    """Start a history from snapshots of this model.

    The snapshots have at most `snapshot_bytes_max`; with the page's events it is at most `bytes_max`.
    """

    model_version: int | None
    snapshot_bytes_max: int
    bytes_max: int
    model_digest: str = ""


class AskPage(ChannelStruct, frozen=True):
    """Ask for one page of history; of a partition in `snapshot_starts`, only events after its snapshot.

    With `start` it is a first page, and the reader chooses the snapshots. `log` is the identity that the client
    knows: a page of another log is refused. `authors`: the client has asked for them (EXT-03). `whole_batches`: end
    the page between two atomic batches where that leaves at least half of it (EXT-13).
    """

    ticket: int
    partitions: tuple[str, ...]
    since: int
    upto: int
    limit: int
    bytes_max: int
    snapshot_starts: dict[str, int] = {}
    start: SnapshotStart | None = None
    log: LogIdentity | None = None
    authors: bool = False
    whole_batches: bool = False


class AskNewest(ChannelStruct, frozen=True):
    """Ask for the newest events of one partition up to `upto`, newest first (EXT-20); answered as AskPage is."""

    ticket: int
    partition: str
    upto: int
    limit: int
    bytes_max: int
    log: LogIdentity | None = None
    authors: bool = False


class CancelPage(ChannelStruct, frozen=True):
    """The page is no longer needed. What asked for it is still answered, exactly once."""

    ticket: int


class PageResult(ChannelStruct, frozen=True):
    """`count` events in wire form, in the order asked for, with commas between them; `last` is the last one's
    committed_id, or `since` when empty.

    `snapshots`, in wire form too, are where the history starts; the next AskPage repeats `snapshot_starts`.
    """

    ticket: int
    events: bytes
    count: int
    last: int
    has_more: bool
    snapshots: tuple[bytes, ...] = ()
    snapshot_starts: dict[str, int] = {}


class PageFailed(ChannelStruct, frozen=True):
    """The page was not read: the log or the archive is unavailable, or the page was cancelled."""

    ticket: int


# -- node ⇄ all processes -------------------------------------------------------------------------------------


class AskStats(ChannelStruct, frozen=True):
    """Ask a process for its counters."""

    ticket: int


class AskConnections(ChannelStruct, frozen=True):
    """Ask a front for its connections, at most `limit`; answered by CommandResult."""

    ticket: int
    limit: int


class ListConnections(ChannelStruct, frozen=True):
    """A node asks the others for their connections, at most `limit` of each; answered by ListedConnections."""

    ticket: str
    limit: int


class ListedConnections(ChannelStruct, frozen=True):
    """Connections of the node `node`, as JSON. `more`: the next part of them follows."""

    ticket: str
    node: str
    body: bytes
    more: bool


class AskSubscribers(ChannelStruct, frozen=True):
    """Ask a front how many of its connections subscribe to each partition; answered by CommandResult."""

    ticket: int
    partitions: tuple[str, ...]


class AskEventTimes(ChannelStruct, frozen=True):
    """Ask a front when events after an id were submitted and delivered; answered by CommandResult."""

    ticket: int
    after: int


class Stats(ChannelStruct, frozen=True):
    """The counters of a process, as JSON (`unisono.ipc.stats`)."""

    ticket: int
    body: bytes


class Ready(ChannelStruct, frozen=True):
    """The process has started and serves requests."""


class PeerFailed(ChannelStruct, frozen=True):
    """The sender has aborted its channel to the process `role`, which is stalled or sends malformed frames."""

    role: str
    reason: str


class Drain(ChannelStruct, frozen=True):
    """Finish what is queued, then end."""


class AdminCommand(ChannelStruct, frozen=True):
    """An operator's command to the authority: `reload`, `snapshot`, or one of MAINTENANCE_COMMANDS.

    `body` is JSON for `reload` and MessagePack for maintenance.
    """

    ticket: int
    command: str
    argument: str = ""
    body: bytes = b""


class CommandResult(ChannelStruct, frozen=True):
    """The result of an AdminCommand, as JSON."""

    ticket: int
    ok: bool
    body: bytes


Message: TypeAlias = (
    Claim
    | Release
    | Submit
    | AskHead
    | PresenceChanges
    | Offer
    | AccessChanged
    | Claimed
    | Replaced
    | EventCommitted
    | BatchOutcome
    | SingleOutcome
    | Dropped
    | HeadAnswer
    | ModelChanged
    | LogFailed
    | AskPage
    | AskNewest
    | CancelPage
    | PageResult
    | PageFailed
    | AskStats
    | AskConnections
    | ListConnections
    | ListedConnections
    | AskSubscribers
    | AskEventTimes
    | Stats
    | Ready
    | PeerFailed
    | Drain
    | AdminCommand
    | CommandResult
)
