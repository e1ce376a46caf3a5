"""Keeping a log: what leaves it, what is erased in it, the snapshots others compute for it, the space it takes.

The rules of when an event may leave are the retention's (DUR-05). What the log itself sees to:

- nothing leaves while no archive is named;
- an event and its places in the index leave in one transaction, which also moves `pruned_to` and lets
  deduplication remember the event (ORD-05): killed anywhere, all of it happened or nothing;
- an event is never changed, except that a tombstone takes the place of its text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

from unisono.protocol.canonical import SAFE_INTEGER_MAX
from unisono.protocol.tombstones import is_tombstone
from unisono.store.batching import in_batches
from unisono.store.cluster import ModelBundle
from unisono.store.port import LogExtent, Snapshot

NO_MODEL_VERSION: Final = 0
"""The version under which snapshots are kept where no versioned model is in force."""

PRUNE_EVENTS_MAX: Final = 500
PRUNE_BYTES_MAX: Final = 1 << 20
"""What at most leaves in one transaction; beside a server it is less, so that groups hardly wait."""

ERASE_EVENTS_MAX: Final = 250
"""Events erased in one transaction."""

PUBLISH_SNAPSHOTS_MAX: Final = 64
PUBLISH_BYTES_MAX: Final = 1 << 20
"""Snapshots stored in one transaction, so many or so many bytes; one that is larger goes alone."""


class MaintenanceRefused(Exception):
    """This cannot be done to the log as asked; nothing has changed. The text says why."""


class Tombstone(msgspec.Struct, frozen=True, array_like=True):
    """What is to stand in the place of an event's text."""

    committed_id: int
    event: bytes


class EraseRequest(msgspec.Struct, frozen=True, array_like=True):
    """What to erase: these events, and the snapshots of their partitions and of `partitions`."""

    tombstones: list[Tombstone]
    partitions: list[str]


class Publication(msgspec.Struct, frozen=True, array_like=True):
    """Snapshots, and how many erasures there had been when they were begun."""

    erasures: int
    snapshots: list[Snapshot]


class EraseResult(msgspec.Struct, frozen=True):
    """How many events lost their text, the partitions concerned, for whoever holds their states, and how many
    erasures there have been with this one."""

    events: int
    partitions: tuple[str, ...]
    erasures: int


class ReclaimProgress(msgspec.Struct, frozen=True):
    """After one step: whether all is done, and how many pages are free inside the file.

    `unclean`: traces of erased text may be left in pages that are in use; see `reclaim`.
    """

    done: bool
    free_pages: int
    unclean: bool = False


class MaintainedLog(Protocol):
    """An embedded log in the hands of its one writer. Every call is one short transaction, outside any group."""

    def extent(self) -> LogExtent: ...

    def set_archive(self, location: str) -> None: ...

    def prune_batch(self, upto: int, *, limit: int = PRUNE_EVENTS_MAX) -> int:
        """Let go the oldest events up to `upto`, some of them; how many went, 0 when none is left to go."""
        ...

    def erase(self, tombstones: Sequence[Tombstone], partitions: Sequence[str] = ()) -> EraseResult:
        """Put tombstones in the place of events, and drop all snapshots of their partitions and of `partitions`.

        An event that has left the log, or is erased already, is passed over.
        """
        ...

    def erasures(self) -> int:
        """How many there have been. Snapshots that were begun before the last one may hold what it took away."""
        ...

    def put_snapshots(self, snapshots: Sequence[Snapshot]) -> None: ...

    def record_model(self, bundle: ModelBundle | None, *, replace: bool = False) -> str | None:
        """Note which model is in force; None: one without a version.

        ModelRefused when the log knows another content of that version, unless it is to be replaced: then the
        digest it had is returned.
        """
        ...

    def reclaim(self) -> ReclaimProgress:
        """One step of giving free space back to the file system, and of emptying the WAL."""
        ...


def require_archive(location: str) -> None:
    if not location.strip():
        raise MaintenanceRefused("an archive needs a location")


def require_tombstones(tombstones: Sequence[Tombstone], head: int) -> None:
    """Only events of the log, only by tombstones, and not too many at a time."""
    if len(tombstones) > ERASE_EVENTS_MAX:
        raise MaintenanceRefused(
            f"{len(tombstones)} events at once are too many, {ERASE_EVENTS_MAX} is the most"
        )
    for tombstone in tombstones:
        if not 0 < tombstone.committed_id <= head:
            raise MaintenanceRefused(f"there is no event {tombstone.committed_id}, the log ends at {head}")
        if not is_tombstone(tombstone.event):
            raise MaintenanceRefused(f"what is to replace event {tombstone.committed_id} is no tombstone")


def require_unerased(begun: int, now: int) -> None:
    """Snapshots begun when there had been `begun` erasures, and there are `now`."""
    if begun != now:
        raise MaintenanceRefused(
            "text was erased from the log since these snapshots were begun: fold them anew"
        )


def require_publishable(
    snapshots: Sequence[Snapshot], head: int, model_version: int, model_digest: str = ""
) -> None:
    """A snapshot from outside is of events that are durable, and of the model in force or one still to come."""
    for snapshot in snapshots:
        if not 0 <= snapshot.committed_id <= head:
            raise MaintenanceRefused(
                f"the snapshot of {snapshot.partition!r} is at {snapshot.committed_id}, the log ends at {head}"
            )
        if snapshot.model_version < model_version:
            raise MaintenanceRefused(
                f"the snapshot of {snapshot.partition!r} is of model version {snapshot.model_version}, "
                f"{model_version} is in force"
            )
        if snapshot.model_version == model_version and snapshot.model_digest != model_digest:
            raise MaintenanceRefused(
                f"the snapshot of {snapshot.partition!r} is of another content of model version {model_version} "
                f"(digest {snapshot.model_digest[:12] or 'none'}, {model_digest[:12] or 'none'} is in force)"
            )
        if max(snapshot.model_version, abs(snapshot.created_at)) > SAFE_INTEGER_MAX:
            raise MaintenanceRefused(
                f"the snapshot of {snapshot.partition!r} has numbers that no snapshot can have"
            )


def snapshot_batches(snapshots: Sequence[Snapshot]) -> Iterator[list[Snapshot]]:
    """`snapshots` in stretches that are stored in one transaction each."""
    return in_batches(
        snapshots,
        lambda snapshot: len(snapshot.state),
        count_max=PUBLISH_SNAPSHOTS_MAX,
        bytes_max=PUBLISH_BYTES_MAX,
    )
