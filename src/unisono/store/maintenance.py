"""Maintenance of a log: pruning archived events, erasing text, storing snapshots of the pipeline, reclaiming space.

The retention job decides which events may be pruned (DUR-05). The log itself guarantees:

- nothing is pruned while no archive is set;
- one transaction deletes events, advances `pruned_to` and remembers the ids for deduplication (ORD-05), so a crash
  leaves all of it or nothing;
- an event never changes, except that a tombstone replaces its text.
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
"""The model version of snapshots where no versioned model is in force."""

PRUNE_EVENTS_MAX: Final = 500
PRUNE_BYTES_MAX: Final = 1 << 20
"""Upper bounds of one pruning transaction; a running server uses smaller ones, so that groups hardly wait."""

PRUNE_EVENT_BYTES: Final = 2 << 10
"""Event text for each event of a larger transaction."""

PRUNE_EVENTS_ALONE: Final = 20_000
"""Events of one pruning transaction where nobody else has the log: a fraction of a second."""

ERASE_EVENTS_MAX: Final = 250
"""Events erased in one transaction."""

PUBLISH_SNAPSHOTS_MAX: Final = 2_000
PUBLISH_BYTES_MAX: Final = 4 << 20
"""Upper bounds of one publication, which a server decodes between two groups and stores in several steps. A larger
snapshot is published alone."""

PUBLISH_SNAPSHOTS_ALONE: Final = 5_000
"""Snapshots of one transaction where nobody else has the log: a fraction of a second."""

NO_ARCHIVE: Final = "no archive is set: events cannot be pruned before the log names the lake that has them"


class MaintenanceRefused(Exception):
    """The log refused a change; nothing has changed. The text says why."""


class Tombstone(msgspec.Struct, frozen=True, array_like=True):
    """The replacement of an event's text."""

    committed_id: int
    event: bytes


class EraseRequest(msgspec.Struct, frozen=True, array_like=True):
    """Events to erase; the snapshots of their partitions and of `partitions` are dropped."""

    tombstones: list[Tombstone]
    partitions: list[str]


class Publication(msgspec.Struct, frozen=True, array_like=True):
    """Snapshots, and the count of erasures when their folding began."""

    erasures: int
    snapshots: list[Snapshot]


class EraseResult(msgspec.Struct, frozen=True):
    """How many events were erased, the partitions whose cached states are stale, and the count of erasures."""

    events: int
    partitions: tuple[str, ...]
    erasures: int


class ReclaimProgress(msgspec.Struct, frozen=True):
    """After one step: whether all is done, and how many pages are free inside the file.

    `unclean`: pages in use may have traces of erased text; see `sqlite/maintenance.py`. `sweeping`: the step removed
    index rows of pruned events.
    """

    done: bool
    free_pages: int
    unclean: bool = False
    sweeping: bool = False


class MaintainedLog(Protocol):
    """An embedded log, as its only writer changes it. Every call takes short transactions outside any group."""

    def extent(self) -> LogExtent: ...

    def set_archive(self, location: str) -> None: ...

    def prune_batch(self, upto: int, *, limit: int = PRUNE_EVENTS_MAX) -> int:
        """Remove some of the oldest events up to `upto`; how many, 0 when none is left.

        Where much space is free, some of it is returned to the file system first.
        """
        ...

    def erase(self, tombstones: Sequence[Tombstone], partitions: Sequence[str] = ()) -> EraseResult:
        """Replace events by tombstones, and drop all snapshots of their partitions and of `partitions`.

        Events that are pruned or erased already are skipped.
        """
        ...

    def erasures(self) -> int:
        """How many erasures there were. Snapshots begun before the last one may contain erased text."""
        ...

    def put_snapshots(self, snapshots: Sequence[Snapshot], *, per_transaction: int = ...) -> None:
        """Store snapshots, so many in one transaction at most."""
        ...

    def record_model(self, bundle: ModelBundle | None, *, replace: bool = False) -> str | None:
        """Record which model is in force; None: one without a version.

        ModelRefused when the log has another content of that version, unless `replace`: then the former digest is
        returned.
        """
        ...

    def reclaim(self, *, alone: bool = False) -> ReclaimProgress:
        """One step of removing index rows of pruned events, returning free space to the file system and truncating
        the WAL; a larger one where nobody waits (`alone`)."""
        ...


def missing_event(committed_id: int) -> str:
    return f"event {committed_id} is missing from the log: run `unisono check`"


def require_archive(location: str) -> None:
    if not location.strip():
        raise MaintenanceRefused("an archive needs a location")


def require_tombstones(tombstones: Sequence[Tombstone], head: int) -> None:
    """Refuse replacements that are no tombstones, unknown events, and too many at once."""
    if len(tombstones) > ERASE_EVENTS_MAX:
        raise MaintenanceRefused(
            f"{len(tombstones)} events at once are too many, {ERASE_EVENTS_MAX} is the most"
        )
    for tombstone in tombstones:
        if not 0 < tombstone.committed_id <= head:
            raise MaintenanceRefused(f"there is no event {tombstone.committed_id}, the log ends at {head}")
        if not is_tombstone(tombstone.event):
            raise MaintenanceRefused(f"the replacement of event {tombstone.committed_id} is no tombstone")


def require_unerased(begun: int, now: int) -> None:
    """Refuse snapshots whose folding began before the last erasure."""
    if begun != now:
        raise MaintenanceRefused(
            "text was erased from the log since these snapshots were begun: fold them again"
        )


def require_publishable(
    snapshots: Sequence[Snapshot], head: int, model_version: int, model_digest: str = ""
) -> None:
    """Refuse snapshots beyond the head, and of a model older than or different from the one in force."""
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


def publications(snapshots: Sequence[Snapshot]) -> Iterator[list[Snapshot]]:
    """`snapshots` in batches of one publication each."""
    return in_batches(
        snapshots,
        lambda snapshot: len(snapshot.state),
        count_max=PUBLISH_SNAPSHOTS_MAX,
        bytes_max=PUBLISH_BYTES_MAX,
    )
