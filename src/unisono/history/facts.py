"""The facts of a history: what was sent, answered and delivered, and on which connection."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any, Literal

import msgspec

from unisono.history.records import ConnectionOpened
from unisono.protocol.messages import SubmitEvents, Sync


class SentItem(msgspec.Struct, frozen=True):
    """One submission of an event; `hash` and `partitions` are None where the server has to refuse it."""

    at: float
    where: str
    connection: str
    id: str
    hash: str | None
    partitions: tuple[str, ...] | None


class SentBatch(SubmitEvents, frozen=True):
    """A `submit_events`; `atomic` is what a connection without that extension makes of it: anything."""

    atomic: Any = None


class SentRequest(msgspec.Struct):
    """A submission of several items, with the outcome of each once it is answered."""

    at: float
    where: str
    connection: str
    items: list[SentItem]
    atomic: bool = False
    committed: list[int | None] | None = None
    doubtful: bool = False
    """An error came that may have been its answer; a result then belongs to a later request of the same ids."""


class SeenEvent(msgspec.Struct, frozen=True):
    """A committed event that a client received; a result names neither partitions nor content."""

    at: float
    where: str
    connection: str
    how: Literal["result", "page", "broadcast"]
    committed_id: int
    id: str
    hash: str | None = None
    partitions: tuple[str, ...] | None = None


class ReceivedPage(msgspec.Struct, frozen=True):
    """A sync and its answer."""

    at: float
    where: str
    connection: str
    requested_at: float
    since: int
    partitions: tuple[str, ...]
    first_of_cycle: bool
    snapshot_starts: dict[str, int]
    committed_ids: list[int]
    next_since: int
    sync_to: int
    has_more: bool


class RejectedEvent(msgspec.Struct, frozen=True):
    """An `event_rejected`, as far as it is looked at."""

    id: str


class ReceivedError(msgspec.Struct, frozen=True):
    """An `error`, as far as it is looked at."""

    code: str = ""
    details: Any = None


class SubscriptionChange(msgspec.Struct, frozen=True):
    """From which id on a connection is subscribed to what.

    Not `certain` where no answer names that id: the set changed in the middle of a cycle, or the sync is in doubt.
    """

    since: int
    partitions: frozenset[str]
    certain: bool


class TimelineConnection(msgspec.Struct):
    """One connection, from its opening to its end."""

    opened: ConnectionOpened
    connect_sent_at: float | None = None
    connected_at: float | None = None
    closed_at: float | None = None
    head: int = 0
    atomic: bool = False
    """It was granted the extension, so that `atomic` in a submission means something (EXT-10)."""

    answered_at: list[tuple[float, float, str]] = []
    """Successful answers: when the request was sent, when the answer came, and where it stands."""

    pages: list[ReceivedPage] = []
    subscribed: list[SubscriptionChange] = []
    broadcasts: list[SeenEvent] = []
    sent_ids: set[str] = msgspec.field(default_factory=set)
    requests: deque[SentRequest] = msgspec.field(default_factory=deque)
    singles: dict[str, deque[SentRequest]] = msgspec.field(default_factory=lambda: defaultdict(deque))
    """By the id of their event."""

    syncs: deque[tuple[float, Sync]] = msgspec.field(default_factory=deque)
    cycle_starts: dict[str, int] = {}
