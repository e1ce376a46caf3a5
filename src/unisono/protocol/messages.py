"""Every message a client may send, as typed values; names are those of the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

if TYPE_CHECKING:
    Whole = int
else:
    Whole = int | float  # as it is written; `_whole` makes an int of it
"""JSON knows one kind of number: `5`, `5.0` and `5e0` are the same, and some languages write only the second."""


def _whole(message: msgspec.Struct, *names: str) -> None:
    """Make ints of numbers that are whole; ValueError names one that is not."""
    for name in names:
        value = getattr(message, name)
        if isinstance(value, float):
            if not value.is_integer():
                raise ValueError(f"`{name}` must be a whole number")
            msgspec.structs.force_setattr(message, name, int(value))


class Connect(msgspec.Struct, frozen=True):
    """Open the session: who speaks, with which proof, in which profiles.

    `snapshots`: let histories start from a snapshot where there is one (SYNC-12). `extensions`: what the client can
    use beyond the protocol (EXT-01).
    """

    token: str
    client_id: str
    last_committed_id: Whole | None = None
    supported_profiles: list[str] | UnsetType = UNSET
    required_profile: str | UnsetType = UNSET
    required_tree_policy: str | UnsetType = UNSET
    snapshots: bool | None = None
    extensions: list[str] | None = None

    def __post_init__(self) -> None:
        _whole(self, "last_committed_id")


class Heartbeat(msgspec.Struct, frozen=True):
    """Still here."""

    client_id: str | None = None


class Disconnect(msgspec.Struct, frozen=True):
    """Leaving on purpose."""

    client_id: str | None = None
    reason: str | None = None


class Item(msgspec.Struct, frozen=True, gc=False):
    """One submitted event. `partition` is the legacy field of PART-05."""

    id: str
    event: Raw
    partitions: list[str] | UnsetType = UNSET
    partition: str | UnsetType = UNSET
    client_id: str | None = None


class SubmitEvent(Item, frozen=True, gc=False):
    """One event, answered `event_committed` or `event_rejected` (SUBMIT-06)."""


class SubmitEvents(msgspec.Struct, frozen=True):
    """A batch, answered by one `submit_events_result` (SUBMIT-04)."""

    events: list[Item]
    client_id: str | None = None


class SubmitMaybeAtomic(SubmitEvents, frozen=True):
    """A batch of a connection with the extension `atomic`: as a whole or not at all, if it says so (EXT-10)."""

    atomic: bool | None = None


class Sync(msgspec.Struct, frozen=True):
    """Ask for history, and optionally subscribe to partitions.

    `snapshots`: false asks for the whole history although `connect` asked for snapshots.
    """

    since_committed_id: Whole
    partitions: list[str] | UnsetType = UNSET
    partition: str | UnsetType = UNSET
    subscription_partitions: list[str] | UnsetType = UNSET
    limit: Whole | None = None
    client_id: str | None = None
    snapshots: bool | None = None

    def __post_init__(self) -> None:
        _whole(self, "since_committed_id", "limit")


class SetPresence(msgspec.Struct, frozen=True):
    """Say something of oneself to whoever is in a partition (EXT-05); null, or nothing, takes it back."""

    partition: str
    value: Raw | UnsetType = UNSET
    ttl_ms: Whole | None = None
    client_id: str | None = None

    def __post_init__(self) -> None:
        _whole(self, "ttl_ms")


class AskHistory(msgspec.Struct, frozen=True):
    """Ask for the newest events of one partition, those below `before` (EXT-20); without it, from the head on."""

    request_id: str
    partition: str
    before: Whole | None = None
    limit: Whole | None = None
    client_id: str | None = None

    def __post_init__(self) -> None:
        _whole(self, "before", "limit")


Message: TypeAlias = (
    Connect | Heartbeat | Disconnect | SubmitEvent | SubmitEvents | Sync | SetPresence | AskHistory
)

MESSAGE_TYPES: dict[str, type[Message]] = {
    "connect": Connect,
    "heartbeat": Heartbeat,
    "disconnect": Disconnect,
    "submit_event": SubmitEvent,
    "submit_events": SubmitEvents,
    "sync": Sync,
}

EXTENSION_TYPES: dict[tuple[str, str], type[Message]] = {
    ("presence", "presence"): SetPresence,
    ("atomic", "submit_events"): SubmitMaybeAtomic,
    ("history", "history"): AskHistory,
}
"""(extension, type of message): what it is for connections with that extension, and for no others (EXT-02)."""
