"""The messages that node, fronts, authority and reader exchange over their channels."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from unisono.ipc.channel_struct import ChannelStruct
from unisono.ipc.page_messages import AskNewest, AskPage, CancelPage, PageFailed, PageResult
from unisono.vocabulary import FieldError, LogIdentity

MAINTENANCE_COMMANDS: Final = ("archive", "prune", "snapshots", "erase", "reclaim")
"""Admin commands by which the pipeline maintains an embedded log while its server runs."""


# -- front → authority ---------------------------------------------------------------------------------------


class Claim(ChannelStruct, frozen=True):
    """Connection `conn` becomes the one connection of `client_id` (CONN-05).

    Answered by Claimed, unless the Offer says that this front settles its claims itself.
    """

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
    sole_front: bool = False
    """All clients of the log connect to this front: it settles their claims and only tells the authority of them."""


class RevokedName(msgspec.Struct, frozen=True, array_like=True):
    """Somebody who is refused until a time: a token (`jti`), a `client` or a `user`."""

    kind: str
    name: str
    until_ms: int = 0


class AccessChanged(ChannelStruct, frozen=True):
    """Who is refused from now on. `reload_acl`: read the ACL file again. `ended`: end its connections now. `number`
    counts what the authority of a node tells its fronts."""

    revoked: tuple[RevokedName, ...]
    reload_acl: bool = False
    ended: RevokedName | None = None
    number: int = 0


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


class AskAccess(ChannelStruct, frozen=True):
    """Ask a front for an answer, by CommandResult, when it has applied the AccessChanged of this number."""

    ticket: int
    number: int


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
    | AskAccess
    | AskEventTimes
    | Stats
    | Ready
    | PeerFailed
    | Drain
    | AdminCommand
    | CommandResult
)
