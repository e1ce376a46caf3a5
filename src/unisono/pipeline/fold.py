"""Folds events into partition states, on executors and anywhere else. Imports no PySpark.

Input: the merged files of `by_partition`, which give one partition after the other with its events in committed_id
order. Only one state and two batches per open file are in memory, so a partition with half of all events costs no
more than another. Reducers (`Model.apply_committed`) and state bytes (`pack`) are the server's own: the result
depends on the events and the model alone, not on how work is split, where it starts or how often it is retried.

`Folder` continues from a snapshot and refuses a history that is out of order: its result is stored. `replay` starts
from nothing, stops at given ids, and applies whatever it reads: an audit compares its result with stored snapshots,
and reports damaged events by other checks.
"""

from __future__ import annotations

import gc
import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice, pairwise
from operator import itemgetter, lt
from typing import Any, Final

import msgspec
import orjson
import pyarrow as pa

from unisono.lake.columns import bucket_of
from unisono.lake.digests import Digest
from unisono.lake.errors import LakeUnusable
from unisono.lake.merge import (
    NamedPartitions,
    PartitionSubset,
    Piece,
    batch_rows_for,
    pieces,
    scan_chain,
)
from unisono.lake.merge_rows import merge_rows
from unisono.lake.scan import RowRange, chains
from unisono.lake.snapshots import Snapshots, SnapshotWriter, StateRow
from unisono.lake.storage import Storage
from unisono.lake.write import DataFile, release_arrow_memory
from unisono.model.authorship import authorship_of
from unisono.model.model import Model
from unisono.model.pack import pack, unpack
from unisono.model.partition import PartitionState
from unisono.pipeline.errors import NoSuchPartition
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.open_log import gc_paused
from unisono.protocol.partitions import PartitionError, normalise
from unisono.vocabulary import Json

SETTLE_EVENTS: Final = 1_000
"""Events between two settles of a state, which keep its undo log small."""

COLLECT_EVENTS: Final = 1 << 18
"""Events between two garbage collections. States have no reference cycles; an operator's reducers may leave some."""

DECODED_ROWS: Final = 2_048
"""Rows whose columns are Python objects at the same time."""

COLUMNS: Final = ("partition", "committed_id", "event", "client_id", "author", "status_updated_at")

Authored = tuple[str, str | None, int]
"""Who submitted an event, in the form of `authorship_of`."""

Decode = Callable[[pa.RecordBatch], Any]

History = tuple[bytes, Iterable[Piece]]
"""A partition's name and the pieces of its events, which must be consumed before the next history is taken."""


class PartitionFold(msgspec.Struct, frozen=True):
    """One partition's packed state, the events in it, and how many of them the model could not apply.

    `new` and `new_skipped` count the events after the snapshot at `base` (0: no snapshot).
    """

    partition: str
    state: bytes
    events: int
    skipped: int
    new: int
    new_skipped: int
    base: int = 0


class FoldTask(msgspec.Struct, frozen=True):
    """One task: fold a subset of the partitions up to an id, starting from existing snapshots.

    `since`: every event up to there is in its partition's newest snapshot.
    """

    storage: Storage
    model: ShippedModel
    subset: PartitionSubset
    since: int
    upto: int
    events: tuple[DataFile, ...]
    snapshots: tuple[DataFile, ...]
    rows: int = 0
    bucket: int = 0
    created_at: int = 0
    names: tuple[str, ...] = ()


class FoldResult(msgspec.Struct, frozen=True):
    """The files a task wrote, which no table names yet, and their content. `unknown` partitions have no events."""

    files: list[DataFile]
    digest: Digest
    partitions: int
    events: int
    skipped: int
    unknown: list[str]


@release_arrow_memory()
def make_snapshots(task: FoldTask) -> FoldResult:
    """On an executor: fold, and write the states that changed. File names are unique, so a retry is harmless."""
    version, digest = task.model.version, task.model.digest
    writer = SnapshotWriter(task.storage, task.bucket, version, digest)
    partitions = events = skipped = 0
    unknown: list[str] = []
    for folded in fold_names(task) if task.names else fold_subset(task):
        if not folded.new:
            if not folded.events:
                unknown.append(folded.partition)
            continue
        state_hash = hashlib.sha256(folded.state).digest()
        writer.add(
            StateRow(
                folded.partition,
                task.upto,
                folded.state,
                folded.events,
                folded.skipped,
                digest,
                task.created_at,
                state_hash,
            )
        )
        partitions += 1
        events += folded.new
        skipped += folded.new_skipped
    return FoldResult(writer.close(), writer.digest, partitions, events, skipped, unknown)


def fold_subset(task: FoldTask, *, unchanged: bool = False) -> Iterator[PartitionFold]:
    """The partitions of a subset that have new events, sorted by name; or all of them (`unchanged`)."""
    with gc_paused(), Snapshots.opened(task.storage, task.snapshots, task.upto) as snapshots:
        folder = Folder(task.model.load())
        found = histories(task.storage, task.events, task.subset, task.since, task.upto)
        if unchanged:
            found = with_names(found, (name for name, _ in snapshots.found(task.subset)))
        for name, history in found:
            folded = folder.fold(name, snapshots.latest(name), history)
            if folded.new or unchanged:
                yield folded


def fold_names(task: FoldTask) -> Iterator[PartitionFold]:
    """The named partitions, sorted by name, each from its own snapshot on; from one pass over the files."""
    names = tuple(sorted({name.encode() for name in task.names}))
    subset = NamedPartitions(task.subset.buckets_in_all, names=names)
    with gc_paused(), Snapshots.opened(task.storage, task.snapshots, task.upto) as snapshots:
        folder = Folder(task.model.load())
        since = _all_folded_to(snapshots, subset)
        found: Iterator[History]
        if len(names) == 1:  # file after file: one open file, however many there are
            found = iter([(names[0], history_of(task.storage, task.events, subset, since, task.upto))])
        else:
            found = with_names(histories(task.storage, task.events, subset, since, task.upto), iter(names))
        for name, history in found:
            yield folder.fold(name, snapshots.latest(name), history)


def _all_folded_to(snapshots: Snapshots, subset: NamedPartitions) -> int:
    """The id up to which every one of these partitions has a snapshot."""
    reached = [ids[-1] for _, ids in snapshots.found(subset)]
    return min(reached) if len(reached) == len(subset.names) else 0


def normalise_names(partitions: Sequence[str]) -> tuple[str, ...]:
    """Partition names given by a person, as the log spells them (PART-02), each once."""
    try:
        return normalise(partitions, entries_max=len(partitions))
    except PartitionError as error:
        raise NoSuchPartition(f"invalid partition name: {error}") from error


def single_partition(name: str, buckets: int) -> PartitionSubset:
    """The subset that consists of one partition."""
    low = name.encode()
    return PartitionSubset(buckets, (bucket_of(name, buckets),), low, low + b"\0")


class Folder:
    """Folds histories into states by one model, continuing from snapshots."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._uncollected = 0

    def fold(self, name: bytes, base: StateRow | None, history: Iterable[Piece]) -> PartitionFold:
        """The state of a partition: its snapshot (None: empty), then the events after it."""
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
        new_skipped = 0 if state is None else state.skipped
        return PartitionFold(
            name.decode(), packed, events + new, skipped + new_skipped, new, new_skipped, since
        )

    def _advance(
        self, base: StateRow | None, since: int, history: Iterable[Piece]
    ) -> tuple[PartitionState | None, int]:
        """The state after the events past `since`, and their number; None without such events."""
        state: PartitionState | None = None
        count, reached = 0, since
        for name, (ids, events, authors), start, end in history:
            first = start if ids[start] > since else bisect_right(ids, since, start, end)
            if first == end:
                continue
            reached = _require_ascending(name, ids[first:end], reached if count else -1)
            if state is None:
                state = PartitionState(replayed=True) if base is None else restore(base)
            apply_events(self._model, state, map(orjson.loads, events[first:end]), authors[first:end])
            count += end - first
            self._collect(end - first)
        return state, count

    def _collect(self, events: int) -> None:
        self._uncollected += events
        if self._uncollected >= COLLECT_EVENTS:
            self._uncollected = 0
            gc.collect()


def _require_ascending(name: bytes, ids: list[int], reached: int) -> int:
    """Refuse rows of a partition, of one file or several, that do not ascend after `reached`; returns the last id."""
    if ids[0] <= reached or not all(map(lt, ids, islice(ids, 1, None))):
        before, after = next(pair for pair in pairwise([reached, *ids]) if pair[0] >= pair[1])
        raise LakeUnusable(
            f"event {after} of partition {name.decode()!r} comes after {before} in the lake: "
            "run `unisono lake audit` for details"
        )
    return ids[-1]


def replay(
    model: Model, history: Iterable[Piece], stops: Sequence[int]
) -> Iterator[tuple[int, PartitionState, int]]:
    """Fold from nothing: at each of the ascending `stops`, the state after all events up to it, and their number.

    Events that are not JSON count as events that the model skips.
    """
    state, count, remaining = PartitionState(replayed=True), 0, list(reversed(stops))
    for _, (ids, events, authors), start, end in history:
        begin = start
        while remaining and ids[end - 1] > remaining[-1]:
            until = bisect_right(ids, remaining[-1], begin, end)
            apply_events(model, state, map(_parse_or_none, events[begin:until]), authors[begin:until])
            count += until - begin
            begin = until
            yield remaining.pop(), state, count
        if not remaining:
            return
        apply_events(model, state, map(_parse_or_none, events[begin:end]), authors[begin:end])
        count += end - begin
    while remaining:
        yield remaining.pop(), state, count


def apply_events(
    model: Model, state: PartitionState, events: Iterator[Json], authors: Sequence[Authored]
) -> None:
    """Apply parsed events, and settle the state every SETTLE_EVENTS and at the end."""
    apply = model.apply_committed
    authored = zip(events, authors, strict=True)
    while some := list(islice(authored, SETTLE_EVENTS)):
        for event, by in some:
            apply(state, event if isinstance(event, dict) else {}, authorship_of(*by))
        state.settle()


def _parse_or_none(text: bytes) -> Json:
    try:
        value: Json = orjson.loads(text)
    except ValueError:
        return None
    return value


def restore(base: StateRow) -> PartitionState:
    """The state in a snapshot."""
    base.require_sound()
    try:
        return PartitionState.load(unpack(base.state), replayed=True)
    except ValueError as error:
        raise LakeUnusable(
            f"cannot load the snapshot of partition {base.partition!r} at event {base.committed_id} ({error}): "
            "run `unisono lake snapshot --rebuild` to make all snapshots again"
        ) from error


def histories(
    storage: Storage,
    files: Sequence[DataFile],
    subset: PartitionSubset,
    since: int,
    upto: int,
    columns: Sequence[str] = COLUMNS,
    decode: Decode | None = None,
) -> Iterator[History]:
    """The partitions of a subset that have events in `(since, upto]`, sorted by name, from one pass over its files.

    `decode` makes the content of a piece from a batch of `columns`; by default lists of ids, events and authors.
    """
    sources = _sources(storage, files, subset, since, upto, columns)
    return groupby(pieces(_in_slices(merge_rows(sources)), decode or _lists), itemgetter(0))


def history_of(
    storage: Storage, files: Sequence[DataFile], subset: PartitionSubset, since: int, upto: int
) -> Iterator[Piece]:
    """The events in `(since, upto]` of a subset that is one partition, file after file."""
    sources = _sources(storage, files, subset, since, upto, COLUMNS)
    return pieces(chain.from_iterable(sources), _lists)


def with_names(found: Iterator[History], names: Iterator[bytes]) -> Iterator[History]:
    """Adds the sorted `names` that have no history, each with an empty one, in order."""
    name = next(names, None)
    for found_name, history in found:
        while name is not None and name < found_name:
            yield name, ()
            name = next(names, None)
        if name == found_name:
            name = next(names, None)
        yield found_name, history
    while name is not None:
        yield name, ()
        name = next(names, None)


def _sources(
    storage: Storage,
    files: Sequence[DataFile],
    subset: PartitionSubset,
    since: int,
    upto: int,
    columns: Sequence[str],
) -> list[Iterator[pa.RecordBatch]]:
    """The rows of all files that may have such events, in as many streams as files must be open at once."""
    span = RowRange(since, upto)
    found = chains(
        file for file in files if file.last_id > since and file.first_id <= upto and subset.may_be_in(file)
    )
    batch_rows = batch_rows_for(len(found))
    return [scan_chain(storage, chain, subset, span, columns, batch_rows) for chain in found]


def _in_slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, DECODED_ROWS):
            yield batch.slice(start, DECODED_ROWS)


def _lists(batch: pa.RecordBatch) -> tuple[list[int], list[bytes], list[Authored]]:
    events: Any = batch.column("event").cast(pa.binary())
    return batch.column("committed_id").to_pylist(), events.to_pylist(), authors_of(batch)


def authors_of(batch: pa.RecordBatch) -> list[Authored]:
    """Who submitted each event of a batch."""
    names = ("client_id", "author", "status_updated_at")
    return list(zip(*(batch.column(name).to_pylist() for name in names), strict=True))
