"""Copying a log between stores, embedded or shared, with every id, hash, time and the head.

The copy keeps the identity of the log (DUR-08), so clients continue with it. A copy of a backup is another log,
because its source went on after the backup: a restore gives it an identity of its own.

The copy uses bounded transactions and can be interrupted anywhere: the next run continues. The source is only read
and may be in use; what it commits after the start is left for the next run. A target that holds anything but the
beginning of the source is refused and left as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, Protocol
from uuid import uuid4

import msgspec

from unisono.store import copy_pruned as pruning
from unisono.store.copy_pruned import PrunedSource, PrunedTarget
from unisono.store.port import Behind, CommitLog, Pruned, Record, Revocation, Snapshot
from unisono.vocabulary import LogIdentity

READ_RECORDS: Final = 200
"""Records read at once: at most 200 MiB, when every event has the maximum size of a message."""

BATCH_RECORDS_MAX: Final = 2_000
BATCH_BYTES_MAX: Final = 8 << 20
"""Upper bounds of one transaction of the target: about ten milliseconds."""

Place = Path | str
"""A data directory of the embedded log (a path, or sqlite:DIR), or a DSN (postgresql://…)."""

Progress = Callable[[str, int, int], None]
"""Called with the phase (compare, copy, snapshots, verify), done and total."""


class CopyRefused(Exception):
    """The copy cannot be made, or differs from its source; the text says why. The source is unchanged."""


class CopyResult(msgspec.Struct, frozen=True):
    """`events` were copied by this run, `present` were there before, `behind` were committed during the copy."""

    events: int
    present: int
    snapshots: int
    head: int
    digest: str
    behind: int
    identity: LogIdentity


def copy_log(
    source: Place, target: Place, progress: Progress | None = None, *, restoring: bool = False
) -> CopyResult:
    """Copy the log at `source` to `target` and verify it. Raises CopyRefused, StoreUnusable or StorageError.

    `restoring`: the source is a backup, so the copy becomes a log of its own.
    """
    tell = progress or (lambda _what, _done, _total: None)
    if describe_place(source) == describe_place(target):
        raise CopyRefused(f"source and target are the same: {describe_place(source)}")
    with ExitStack() as stack:
        reading = stack.enter_context(closing(open_source(source)))
        writing = stack.enter_context(closing(open_target(target)))
        copy = _Copy(reading, writing, describe_place(target), tell)
        present = copy.compare()
        events = copy.append()
        snapshots = copy.snapshots()
        copy.revocations()
        copy.verify()
        identity = copy.identify(restoring=restoring)
        behind = reading.extent().head - copy.upto
        return CopyResult(events, present, snapshots, copy.upto, copy.digest, behind, identity)


class HeadRow(msgspec.Struct, frozen=True):
    """The head row of a log: it has events pruned_to + 1 … head, the last one at `time`."""

    head: int
    pruned_to: int
    time: int


class CopySource(PrunedSource, Protocol):
    """The log that is copied."""

    def identity(self) -> LogIdentity: ...

    def extent(self) -> HeadRow: ...

    def scan(self, since: int, upto: int, *, limit: int) -> Sequence[Record]: ...

    def count_snapshots(self) -> int: ...

    def snapshots(self) -> Iterator[Snapshot]: ...

    def revocations(self) -> Sequence[Revocation]: ...

    def close(self) -> None: ...


class Target(PrunedTarget, Protocol):
    """The copy, written through `log`."""

    @property
    def log(self) -> CommitLog: ...

    def extent(self) -> HeadRow: ...

    def start_pruned(self, pruned_to: int, time: int) -> None:
        """Make an empty log begin after `pruned_to`; its pruned ids are already copied."""
        ...

    def count_event_partitions(self, since: int) -> int:
        """How many rows the index of partitions has for events after `since`."""
        ...

    def set_identity(self, identity: LogIdentity) -> None: ...

    def close(self) -> None: ...


class _Sum:
    """A running hash over records, and the number of their index rows."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._encoder = msgspec.msgpack.Encoder()
        self.count = 0
        self.places = 0

    def add(self, record: Record) -> None:
        self._hash.update(self._encoder.encode(record))
        self.count += 1
        self.places += len(record.partitions)

    def digest(self) -> str:
        return self._hash.hexdigest()


class _Copy:
    """One run. Invariant: `_sum` covers the records of the source from `_base` to the end of the target."""

    def __init__(self, source: CopySource, target: Target, name: str, tell: Progress) -> None:
        self._source = source
        self._target = target
        self._name = name
        self._tell = tell
        self._from: HeadRow = source.extent()
        self.upto = self._from.head
        self._begin_pruned()
        self._base = self._from.pruned_to
        self._reached = self._target.extent().head
        self._sum = _Sum()

    @property
    def digest(self) -> str:
        return self._sum.digest()

    def _begin_pruned(self) -> None:
        there = self._target.extent()
        if there.head == 0 and self._from.pruned_to > 0:
            pruning.copy_pruned(self._source, self._target, self._from.pruned_to, self._tell)
            self._target.start_pruned(self._from.pruned_to, self._from.time)
            there = self._target.extent()
        if there.head > self.upto:
            raise CopyRefused(
                f"{self._name} holds {there.head} events and the source only {self.upto}: it is no copy of it"
            )
        if not there.pruned_to <= self._from.pruned_to <= there.head:
            raise CopyRefused(
                f"{self._name} holds events {there.pruned_to + 1} to {there.head} and the source begins at "
                f"{self._from.pruned_to + 1}: there would be a gap"
            )

    def compare(self) -> int:
        """Check that what the target has already equals the source; how many events."""
        theirs = _stream(self._target.log, self._base, self._reached)
        for mine in _stream(self._source, self._base, self._reached):
            if next(theirs, None) != mine:
                raise CopyRefused(
                    f"event {mine.committed_id} in {self._name} is not the one of the source: it is another log. "
                    "Copy into an empty one"
                )
            self._sum.add(mine)
            self._tell("compare", self._sum.count, self._reached - self._base)
        return self._sum.count

    def append(self) -> int:
        """Copy what is missing."""
        batch: list[Record] = []
        size = 0
        for record in _stream(self._source, self._reached, self.upto):
            batch.append(record)
            size += len(record.event)
            if len(batch) == BATCH_RECORDS_MAX or size >= BATCH_BYTES_MAX:
                self._commit(batch)
                batch, size = [], 0
        if batch:
            self._commit(batch)
        if self._sum.count != self.upto - self._base:
            raise CopyRefused(f"the source has a gap: {self._sum.count} events up to {self.upto}. Check it")
        return self.upto - self._reached

    def _commit(self, batch: list[Record]) -> None:
        others = CopyRefused(f"another process wrote to {self._name} during the copy: stop its servers first")
        try:
            opening = self._target.log.begin([])
        except Behind:
            raise others from None
        if opening.head + 1 != batch[0].committed_id:
            self._target.log.abandon()
            raise others
        self._target.log.commit(batch)
        self._target.log.maintain()
        for record in batch:
            self._sum.add(record)
        self._tell("copy", batch[-1].committed_id - self._reached, self.upto - self._reached)

    def snapshots(self) -> int:
        """Snapshots are copied by every run; a newer one in the target stays."""
        total = self._source.count_snapshots()
        done = 0
        for snapshot in self._source.snapshots():
            if snapshot.committed_id <= self.upto:
                self._target.log.put_snapshots([snapshot])
                self._check_snapshot(snapshot)
                done += 1
            self._tell("snapshots", done, total)
        return done

    def revocations(self) -> None:
        """Who is refused is refused by the copy too: those that are over go with it, and are dropped in time."""
        sent = self._source.revocations()
        for revocation in sent:
            self._target.log.revoke(revocation, 0)
        missing = set(sent) - set(self._target.log.revocations())
        if missing:
            raise CopyRefused(f"{len(missing)} revocations did not arrive as they were sent")

    def _check_snapshot(self, snapshot: Snapshot) -> None:
        stored = self._target.log.snapshot(snapshot.partition, snapshot.model_version, snapshot.model_digest)
        if stored != snapshot and (stored is None or stored.committed_id <= snapshot.committed_id):
            raise CopyRefused(f"the snapshot of {snapshot.partition!r} did not arrive as it was sent")

    def verify(self) -> None:
        """Read everything back: count, order, every byte, the index and the head."""
        back = _Sum()
        for record in _stream(self._target.log, self._base, self.upto):
            back.add(record)
            if back.count % READ_RECORDS == 0 or back.count == self._sum.count:
                self._tell("verify", back.count, self._sum.count)
        there = self._target.extent()
        remembered = [pruning.digest_pruned(log, there.pruned_to) for log in (self._source, self._target)]
        if remembered[0] != remembered[1]:
            raise CopyRefused(
                f"the copy remembers {remembered[1][0]} of the events that left and the source {remembered[0][0]}, "
                "or they are not the same. Do not use it; empty the target and copy again"
            )
        found = (back.count, back.digest(), self._target.count_event_partitions(self._base), there.head)
        wanted = (self._sum.count, self._sum.digest(), self._sum.places, self.upto)
        if found != wanted:
            raise CopyRefused(
                f"the copy is not the source: (events, hash, index rows, head) are {found}, should be {wanted}. "
                "Do not use it; empty the target and copy again"
            )
        if self._from.head == self.upto and there.time != self._from.time:
            raise CopyRefused(f"the head of the copy has time {there.time}, the source {self._from.time}")

    def identify(self, *, restoring: bool) -> LogIdentity:
        """Set the copy's identity last: an interrupted copy is a log that no client knows."""
        known, own = self._source.identity(), self._target.log.identity()
        wanted = known
        if restoring:
            wanted = own if own.log_id != known.log_id else LogIdentity(uuid4().hex, 1)
        if wanted != own:
            self._target.set_identity(wanted)
        return wanted


def _stream(log: CopySource | CommitLog, since: int, upto: int) -> Iterator[Record]:
    while since < upto:
        try:
            records = log.scan(since, upto, limit=READ_RECORDS)
        except Pruned as pruned:
            raise CopyRefused(f"{pruned} while it was copied: stop retention, and copy again") from pruned
        if not records:
            return
        yield from records
        since = records[-1].committed_id


# -- opening a store by its place ------------------------------------------------------------------------------


def open_source(place: Place) -> CopySource:
    if is_dsn(place):
        from unisono.store.postgres.copy import PostgresSource

        return PostgresSource(str(place))
    from unisono.store.sqlite.copy import SqliteSource

    return SqliteSource(directory_of(place))


def open_target(place: Place) -> Target:
    if is_dsn(place):
        from unisono.store.postgres.copy import PostgresTarget

        return PostgresTarget(str(place))
    from unisono.store.sqlite.copy import SqliteTarget

    return SqliteTarget(directory_of(place))


def is_dsn(place: Place) -> bool:
    return isinstance(place, str) and place.startswith(("postgresql://", "postgres://"))


def directory_of(place: Place) -> Path:
    return Path(place.removeprefix("sqlite:")) if isinstance(place, str) else place


def describe_place(place: Place) -> str:
    """The place for messages, without secrets."""
    if is_dsn(place):
        from unisono.store.postgres.connect import describe_dsn

        return describe_dsn(str(place))
    return f"sqlite:{directory_of(place).absolute()}"
