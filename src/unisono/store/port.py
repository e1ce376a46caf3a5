"""The contract of the durable log, and the records that pass through it.

Two roles share one log. The authority alone has a `CommitLog`: it opens a group, appends records and makes them
durable. A `LogReader` reads pages of what is durable; any number may be open beside the writer, and none delays it.

Every implementation guarantees:

- committed ids are gap-free within a log, strictly increasing, never reused, also across restarts and
  pruning: the head is stored, not derived from the rows that remain (ORD-01);
- a reader that has seen id N never later sees a smaller id appear (ORD-02);
- when `commit` returns, its records survive power loss (DUR-02);
- when `commit` raises, no reader sees its records and the log refuses further work: a storage error is
  fail-stop (DUR-04). Opening it again finds all of the group or none of it (all, if only the answer to the
  last write was lost); what it finds is durable before anything depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from unisono.vocabulary import LogIdentity

CLOCK_SKEW_MAX_MS: Final = 60_000
"""Event times never go back by this much or less. They go back further when a wrong clock is corrected, so that it
does not determine the times of all later events. Events are ordered by committed_id, never by time."""

SCAN_BYTES_MAX: Final = 1 << 40
"""More than any scan reads: its rows are the bound."""

NO_SNAPSHOT_STARTS: Final[Mapping[str, int]] = MappingProxyType({})
"""Every history is read from its first event."""


class StorageError(Exception):
    """The log failed and guarantees nothing any more; the process that uses it must stop."""


class StoreUnusable(Exception):
    """The log cannot be opened: in use, missing, of a newer schema, or not a log. The text says what to do."""


class LogInUse(StoreUnusable):
    """Another process writes this log."""


class Pruned(Exception):
    """Some of the requested records were pruned and are in the archive; `upto` is the last pruned id."""

    def __init__(self, upto: int) -> None:
        super().__init__(f"events up to {upto} have left the log")
        self.upto = upto


class Behind(Exception):
    """Other writers committed more than one group can take over, so no group was opened.

    `records`, in order, are the next part of it: apply them, then begin again.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        super().__init__(f"{len(records)} events of other writers, and more after them")
        self.records = records


class LogExtent(msgspec.Struct, frozen=True):
    """The events in a log: every committed id in `pruned_to < id <= head`.

    `archive`: the lake with the pruned events, as named when they were pruned; None while nothing was.
    """

    pruned_to: int
    head: int
    archive: str | None = None


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One committed event: `event` is canonical JSON, `hash` SHA-256 over event and partitions (ORD-06).

    `author`: canonical JSON with the `user_id` and the `claims` of whoever submitted it; empty where there are none.
    """

    committed_id: int
    id: str
    client_id: str
    partitions: tuple[str, ...]
    event: bytes
    hash: bytes
    status_updated_at: int
    author: str = ""


class RememberedId(msgspec.Struct, frozen=True):
    """What deduplication remembers about an event id, permanently."""

    committed_id: int
    hash: bytes
    client_id: str
    status_updated_at: int


class Opening(msgspec.Struct, frozen=True):
    """What a group starts from: the head, and which of its ids are known.

    The other fields are for a log shared by several nodes (see `cluster`): `foreign` are the records of other writers
    since the last read, in order; `replaced` are connections that another node has taken over; `model_version` is the
    model in force in the cluster.
    """

    head: int
    known: Mapping[str, RememberedId]
    foreign: Sequence[Record] = ()
    replaced: Sequence[int] = ()
    model_version: int | None = None


class Page(msgspec.Struct, frozen=True):
    """A stretch of history in the order asked for. `has_more`: the range holds further records after the last one."""

    records: Sequence[Record]
    has_more: bool


class WirePage(msgspec.Struct, frozen=True):
    """A page as it is sent to clients: `count` records, each in the wire's form (BCAST-05), with commas between them.

    `last`: the committed_id of the last one; of an empty page, the id after which it was asked for.
    """

    events: bytes
    count: int
    last: int
    has_more: bool


class Snapshot(msgspec.Struct, frozen=True):
    """Committed state of one partition up to and including `committed_id` (DUR-07).

    `model_digest`: of the model that folded it; empty without a configured model.
    """

    partition: str
    committed_id: int
    model_version: int
    state: bytes
    created_at: int
    model_digest: str = ""


class LogReader(Protocol):
    """Reads durable records; safe to use beside the writer."""

    def head(self) -> int: ...

    def identity(self) -> LogIdentity:
        """Which log this is, as of its opening; `reopen` reads a shared log's epoch again."""
        ...

    def extent(self) -> LogExtent:
        """The range of events in the log, read at one moment."""
        ...

    def page(
        self,
        partitions: Sequence[str],
        since: int,
        upto: int,
        *,
        limit: int,
        bytes_max: int,
        snapshot_starts: Mapping[str, int] = NO_SNAPSHOT_STARTS,
    ) -> Page:
        """Records with `since < committed_id <= upto` in any of `partitions`, each once, ascending (SYNC-01).

        `snapshot_starts` maps a partition to the committed_id of the snapshot that its history starts from: only its
        records after that one count (SYNC-12). At most `limit` records and about `bytes_max` bytes of event text, but
        at least one record if any is left. The cost is in proportion to the page, never to the log, plus one probe
        for each partition on the first page of a history (SYNC-10).

        Raises Pruned when `since < pruned_to` and a record that counts has left the log, however the read and the
        pruning race. A partition without such a record is read as usual.
        """
        ...

    def wire_page(
        self,
        partitions: Sequence[str],
        since: int,
        upto: int,
        *,
        limit: int,
        bytes_max: int,
        snapshot_starts: Mapping[str, int] = NO_SNAPSHOT_STARTS,
        authors: bool = False,
        whole_batches: bool = False,
    ) -> WirePage:
        """As `page`, in the form in which clients get it; with `authors`, as those get it who asked for them.

        `whole_batches`: a page after which others follow ends between two atomic batches where that leaves at least
        half of it (EXT-13).
        """
        ...

    def newest_page(self, partition: str, upto: int, *, limit: int, bytes_max: int) -> Page:
        """Records of one partition with `committed_id <= upto`, descending, within the bounds of `page` (EXT-20).

        `has_more`: there are older ones, in the log or in the archive. Raises Pruned where the log has none of them
        and the archive may. The cost is in proportion to the page.
        """
        ...

    def newest_wire_page(
        self, partition: str, upto: int, *, limit: int, bytes_max: int, authors: bool = False
    ) -> WirePage:
        """As `newest_page`, in the form in which clients get it."""
        ...

    def scan(self, since: int, upto: int, *, limit: int, bytes_max: int = SCAN_BYTES_MAX) -> Sequence[Record]:
        """Records with `since < committed_id <= upto` of all partitions, ascending, at most `limit`, and none after
        the one whose event brings all events to `bytes_max`.

        Pruned when `since < pruned_to`.
        """
        ...

    def last_status_updated_at(self) -> int:
        """The time of the newest event ever committed, 0 before the first (see CLOCK_SKEW_MAX_MS)."""
        ...

    def last_before(self, time_ms: int, now_ms: int, upto: int) -> int:
        """The last event, `upto` at most, up to which all events in the log are older than `time_ms`.

        The next event is of `[time_ms, now_ms]`, or events after `now_ms` (a wrong clock) follow, or nothing. Reads
        every event up to there.
        """
        ...

    def snapshot(self, partition: str, model_version: int, model_digest: str = "") -> Snapshot | None:
        """The newest snapshot of that model; one of another version or digest is never returned (DUR-07)."""
        ...

    def snapshot_sizes(
        self, partitions: Sequence[str], model_version: int, model_digest: str = ""
    ) -> Mapping[str, tuple[int, int]]:
        """partition → committed_id and bytes of its snapshot of that model, for partitions that have one."""
        ...

    def snapshots_of(
        self, partitions: Sequence[str], model_version: int, model_digest: str = ""
    ) -> Sequence[Snapshot]:
        """The newest snapshots of that model, for partitions that have one."""
        ...

    def reopen(self) -> None:
        """After StoreLost (see `cluster`): connect again. An embedded log is never unavailable, only failed."""
        ...

    def close(self) -> None: ...


class CommitLog(LogReader, Protocol):
    """The only writer of a process."""

    def begin(self, ids: Sequence[str]) -> Opening:
        """Open a group: nobody else can append until it ends. `Opening.known` covers exactly `ids`.

        Raises Behind when other writers committed more than fits into `foreign`; an embedded log has no others.
        """
        ...

    def commit(self, records: Sequence[Record]) -> None:
        """Append `records` (ids head+1, head+2, …) and end the group; durable when it returns."""
        ...

    def abandon(self) -> None:
        """End the group without appending anything."""
        ...

    def put_snapshots(self, snapshots: Sequence[Snapshot]) -> None:
        """Store snapshots, outside any group, replacing older ones of the same partition."""
        ...

    def revoke(self, revocation: Revocation, now_ms: int) -> None:
        """Store it, outside any group, instead of an earlier one; those that are over are dropped."""
        ...

    def revocations(self) -> Sequence[Revocation]:
        """Everybody who is refused, and who was and is not dropped yet."""
        ...

    def maintain(self) -> None:
        """Checkpoints and heartbeats between groups; returns quickly when nothing is due."""
        ...


class Revocation(msgspec.Struct, frozen=True):
    """Somebody who is refused until a time in milliseconds: `kind` is `jti` (a token), `client` or `user`."""

    kind: str
    name: str
    until_ms: int


class LogFinding(msgspec.Struct, frozen=True):
    """One defect of a log, with its committed_id where it has one."""

    kind: str
    message: str
    committed_id: int | None = None
