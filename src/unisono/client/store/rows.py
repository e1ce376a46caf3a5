"""What a store gives to its readers: events, partitions, snapshots, and what a transaction changed."""

from __future__ import annotations

import msgspec

from unisono.client.store.outbox import DraftRecord
from unisono.model.authorship import Authorship


class StoredEvent(msgspec.Struct, frozen=True):
    """A committed event of one partition, as a view needs it."""

    committed_id: int
    event: bytes
    by: Authorship


class Settled(msgspec.Struct, frozen=True):
    """A draft that has become an event."""

    draft: DraftRecord
    committed_id: int
    status_updated_at: int


class Applied(msgspec.Struct):
    """What one transaction changed; the views of the partitions in `started` are rebuilt."""

    events: dict[str, list[StoredEvent]] = msgspec.field(default_factory=dict)
    settled: list[Settled] = msgspec.field(default_factory=list)
    rejected: list[DraftRecord] = msgspec.field(default_factory=list)
    started: list[str] = msgspec.field(default_factory=list)


class PartitionRow(msgspec.Struct):
    """A partition's row."""

    number: int
    cursor: int
    known: int
    floor: int = 0


class ViewSnapshot(msgspec.Struct, frozen=True):
    """The state of a partition after `committed_id`, folded by one model."""

    committed_id: int
    model_version: str
    state: bytes
