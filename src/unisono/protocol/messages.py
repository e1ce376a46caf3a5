"""Every message a client may send, as typed values; names are those of the wire."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType


class Connect(msgspec.Struct, frozen=True):
    """Open the session: who speaks, with which proof, in which profiles.

    `snapshots`: let histories start from a snapshot where there is one (SYNC-12).
    """

    token: str
    client_id: str
    last_committed_id: int | None = None
    supported_profiles: list[str] | UnsetType = UNSET
    required_profile: str | UnsetType = UNSET
    required_tree_policy: str | UnsetType = UNSET
    snapshots: bool | None = None


class Heartbeat(msgspec.Struct, frozen=True):
    """Still here."""

    client_id: str | None = None


class Disconnect(msgspec.Struct, frozen=True):
    """Leaving on purpose."""

    client_id: str | None = None
    reason: str | None = None


class Item(msgspec.Struct, frozen=True):
    """One submitted event. `partition` is the legacy field of PART-05."""

    id: str
    event: Raw
    partitions: list[str] | UnsetType = UNSET
    partition: str | UnsetType = UNSET
    client_id: str | None = None


class SubmitEvent(Item, frozen=True):
    """One event, answered `event_committed` or `event_rejected` (SUBMIT-06)."""


class SubmitEvents(msgspec.Struct, frozen=True):
    """A batch, answered by one `submit_events_result` (SUBMIT-04)."""

    events: list[Item]
    client_id: str | None = None


class Sync(msgspec.Struct, frozen=True):
    """Ask for history, and optionally say what to be told of from now on.

    `snapshots`: false asks for the whole history although `connect` asked for snapshots.
    """

    since_committed_id: int
    partitions: list[str] | UnsetType = UNSET
    partition: str | UnsetType = UNSET
    subscription_partitions: list[str] | UnsetType = UNSET
    limit: int | None = None
    client_id: str | None = None
    snapshots: bool | None = None


Message: TypeAlias = Connect | Heartbeat | Disconnect | SubmitEvent | SubmitEvents | Sync

MESSAGE_TYPES: dict[str, type[Message]] = {
    "connect": Connect,
    "heartbeat": Heartbeat,
    "disconnect": Disconnect,
    "submit_event": SubmitEvent,
    "submit_events": SubmitEvents,
    "sync": Sync,
}
