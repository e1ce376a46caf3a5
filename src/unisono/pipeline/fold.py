"""Folding histories into states, on executors and wherever else; imports no PySpark.

Partitions come one after the other, each with its events in committed_id order from the merged files of
`by_partition`. Of a partition only its state is in memory, and of its events a batch per file, so a partition that
holds half of all events is folded like any other. The reducers are the server's own (`Model.apply_committed`), and
so are the bytes of a state (`packing.pack`): what comes out depends on the events and the model alone, not on how
the work was cut, where it started or how often it was tried.
"""

from __future__ import annotations

import gc
import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final

import msgspec
import orjson
import pyarrow as pa

from unisono.lake.columns import bucket_of
from unisono.lake.digests import Digest
from unisono.lake.errors import LakeUnusable
from unisono.lake.merge import (
    Piece,
    Share,
    batch_rows_for,
    in_file_order,
    in_order,
    pieces,
    scan_share,
)
from unisono.lake.scan import RowRange
from unisono.lake.snapshots import Snapshots, SnapshotWriter, StateRow
from unisono.lake.storage import Storage
from unisono.lake.write import DataFile, release_arrow_memory
from unisono.model.model import Model
from unisono.model.pack import pack, unpack
from unisono.model.partition import PartitionState
from unisono.pipeline.errors import NoSuchPartition
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.open_log import no_collection
from unisono.protocol.partitions import PartitionError, normalise

SETTLE_EVENTS: Final = 1_000
"""Events between two settles of a state, so that what it could undo stays small."""

COLLECT_EVENTS: Final = 1 << 18
"""Events between two looks for reference cycles. States have none; an operator's reducers may leave some."""

COLUMNS: Final = ("partition", "committed_id", "event")


class PartitionFold(msgspec.Struct, frozen=True):
    """What came of one partition: its state, the events in it, and those of them that the model could not apply.

    `new` and `new_skipped` tell how many came this time, on top of the snapshot at `base` (0: there was none).
    """

    partition: str
    state: bytes
    events: int
    skipped: int
    new: int
    new_skipped: int
    base: int = 0


class FoldTask(msgspec.Struct, frozen=True):
    """One executor's part: fold a share of the partitions up to an id, from the snapshots that there are.

    `since`: no partition of the share has events up to there that are not in its newest snapshot.
    """

    storage: Storage
    model: ShippedModel
    share: Share
    since: int
    upto: int
    events: tuple[DataFile, ...]
    snapshots: tuple[DataFile, ...]
    rows: int = 0
    bucket: int = 0
    created_at: int = 0
    names: tuple[str, ...] = ()


class FoldResult(msgspec.Struct, frozen=True):
    """What a task wrote: files that no table names yet, and what is in them. `unknown` have no events at all."""

    files: list[DataFile]
    digest: Digest
    partitions: int
    events: int
    skipped: int
    unknown: list[str]


@release_arrow_memory()
def make_snapshots(work: FoldTask) -> FoldResult:
    """On an executor: fold, and write the states that changed. Names are new each time: a retry disturbs nothing."""
    version, digest = work.model.version, work.model.digest
    writer = SnapshotWriter(work.storage, work.bucket, version, digest)
    partitions = events = skipped = 0
    unknown: list[str] = []
    for folded in fold_names(work) if work.names else fold_share(work):
        if not folded.new:
            if not folded.events:
                unknown.append(folded.partition)
            continue
        sealed = hashlib.sha256(folded.state).digest()
        writer.add(
            StateRow(
                folded.partition,
                work.upto,
                folded.state,
                folded.events,
                folded.skipped,
                digest,
                work.created_at,
                sealed,
            )
        )
        partitions += 1
        events += folded.new
        skipped += folded.new_skipped
    return FoldResult(writer.close(), writer.digest, partitions, events, skipped, unknown)


def fold_share(work: FoldTask, *, unchanged: bool = False) -> Iterator[PartitionFold]:
    """The partitions of a share that have new events, in order of their names; or all of them (`unchanged`)."""
    with no_collection(), Snapshots.opened(work.storage, work.snapshots, work.upto) as before:
        folder = Folder(work.model.load())
        histories = _histories(work)
        if unchanged:
            histories = _beside(histories, (name for name, _ in before.found(work.share)))
        for name, history in histories:
            folded = folder.fold(name, before.latest(name), history)
            if folded.new or unchanged:
                yield folded


def fold_names(work: FoldTask) -> Iterator[PartitionFold]:
    """The named partitions, in order of their names, each from its own snapshot on."""
    with no_collection(), Snapshots.opened(work.storage, work.snapshots, work.upto) as before:
        folder = Folder(work.model.load())
        for name in sorted({name.encode() for name in work.names}):
            base = before.latest(name)
            since = 0 if base is None else base.committed_id
            share = of_one(name.decode(), work.share.buckets_in_all)
            history = chain.from_iterable(_sources(work, share, since))
            yield folder.fold(name, base, history)


def named(partitions: Sequence[str]) -> tuple[str, ...]:
    """Partitions that a person named, as the log spells them (PART-02), each once."""
    try:
        return normalise(partitions, entries_max=len(partitions))
    except PartitionError as error:
        raise NoSuchPartition(f"no such partition can be: {error}") from error


def of_one(name: str, buckets: int) -> Share:
    """The share that is one partition."""
    low = name.encode()
    return Share(buckets, (bucket_of(name, buckets),), low, low + b"\0")


class Folder:
    """Applies histories to states by one model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._uncollected = 0

    def fold(self, name: bytes, base: StateRow | None, history: Iterable[Piece]) -> PartitionFold:
        """The state of a partition: its snapshot (None: nothing), then those events that come after it."""
        since = 0 if base is None else base.committed_id
        state, new = self._advance(base, since, history)
        events, skipped = (0, 0) if base is None else (base.events, base.skipped)
        if state is not None:
            packed = pack(state.dump())
        elif base is not None:
            base.require_sound()
            packed = base.state
        else:
            packed = pack(PartitionState().dump())
        left_out = 0 if state is None else state.skipped
        return PartitionFold(name.decode(), packed, events + new, skipped + left_out, new, left_out, since)

    def _advance(
        self, base: StateRow | None, since: int, history: Iterable[Piece]
    ) -> tuple[PartitionState | None, int]:
        """The state after the events that come after `since`, and how many these are; None when there are none."""
        apply, loads = self._model.apply_committed, orjson.loads
        state: PartitionState | None = None
        count, reached = 0, since
        for name, _, (ids, events), start, end in history:
            first = start if ids[start] > since else bisect_right(ids, since, start, end)
            if first == end:
                continue
            if ids[first] <= reached and count:
                raise LakeUnusable(
                    f"event {ids[first]} of partition {name.decode()!r} comes after {reached} in the lake: "
                    "`unisono lake audit` tells more"
                )
            reached = ids[end - 1]
            if state is None:
                state = PartitionState() if base is None else restored(base)
            for begin in range(first, end, SETTLE_EVENTS):
                for text in events[begin : min(begin + SETTLE_EVENTS, end)]:
                    event = loads(text)
                    apply(state, event if isinstance(event, dict) else {})
                state.settle()
            count += end - first
            self._collect(end - first)
        return state, count

    def _collect(self, events: int) -> None:
        self._uncollected += events
        if self._uncollected >= COLLECT_EVENTS:
            self._uncollected = 0
            gc.collect()


def restored(base: StateRow) -> PartitionState:
    """The state that a snapshot holds."""
    base.require_sound()
    try:
        return PartitionState.load(unpack(base.state))
    except ValueError as error:
        raise LakeUnusable(
            f"the snapshot of partition {base.partition!r} at event {base.committed_id} cannot be used ({error}): "
            "`unisono lake snapshot --rebuild` makes all snapshots anew"
        ) from error


def _histories(work: FoldTask) -> Iterator[tuple[bytes, Iterable[Piece]]]:
    """Each partition of the share with the pieces of its history, to be taken before the next one."""
    return groupby(in_order(_sources(work, work.share, work.since)), itemgetter(0))


def _sources(work: FoldTask, share: Share, since: int) -> list[Iterator[Piece]]:
    """The files that may have events of the share, opened when the first piece is taken; of one partition the
    pieces come file after file.
    """
    span = RowRange(since, work.upto)
    files = [
        file
        for file in in_file_order(work.events)
        if file.last_id > since and file.first_id <= work.upto and share.may_be_in(file)
    ]
    batch_rows = batch_rows_for(len(files))
    return [
        pieces(number, scan_share(work.storage, file, share, span, COLUMNS, batch_rows), _lists)
        for number, file in enumerate(files)
    ]


def _lists(batch: pa.RecordBatch) -> tuple[list[int], list[bytes]]:
    events: Any = batch.column("event").cast(pa.binary())
    return batch.column("committed_id").to_pylist(), events.to_pylist()


def _beside(
    histories: Iterator[tuple[bytes, Iterable[Piece]]], names: Iterator[bytes]
) -> Iterator[tuple[bytes, Iterable[Piece]]]:
    """Also the names that have no history, in order with the others."""
    quiet = next(names, None)
    for name, history in histories:
        while quiet is not None and quiet < name:
            yield quiet, ()
            quiet = next(names, None)
        if quiet == name:
            quiet = next(names, None)
        yield name, history
    while quiet is not None:
        yield quiet, ()
        quiet = next(names, None)
