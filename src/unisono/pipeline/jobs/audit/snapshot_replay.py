"""Compares snapshots with a replay: each must equal, byte for byte, the fold of its partition's events from nothing.

A task takes a subset of the partitions, or some that are named, and folds each once up to its last snapshot
(`fold.replay`). It stops at every snapshot on the way: those of the lake's table, and the one in the server's store.

Of a sample, `survey` looks at all snapshots first, without their states: it checks which events they go up to, and
proposes partitions. What it holds is bounded by the rows of a subset; the store's watermarks are read once, as a
stream.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from unisono.lake.errors import LakeUnusable
from unisono.lake.merge import NamedPartitions, PartitionSubset, Piece, scan_subset
from unisono.lake.scan import RowRange
from unisono.lake.snapshots import Snapshots
from unisono.lake.storage import BY_PARTITION, SNAPSHOTS, Storage
from unisono.lake.write import DataFile
from unisono.model.pack import pack, unpack
from unisono.pipeline.errors import NoSuchRange
from unisono.pipeline.fold import History, histories, history_of, replay, single_partition, with_names
from unisono.pipeline.job_model import OPEN, ShippedModel
from unisono.pipeline.jobs.audit.findings import FindingTally
from unisono.pipeline.jobs.audit.read_file import UNREADABLE, require_given
from unisono.pipeline.jobs.audit.tree_invariants import fault, stored_fault
from unisono.pipeline.open_log import gc_paused, open_reader, read_partitions
from unisono.store.cluster import StoreLost
from unisono.store.port import LogReader, StorageError
from unisono.vocabulary import Json

_UNREADABLE: Final = (*UNREADABLE, LakeUnusable, AttributeError, KeyError)
"""Also the errors of readers that need statistics or columns which a damaged file lacks."""


class StateTask(msgspec.Struct, frozen=True):
    """One task: snapshots of one model version, of a subset of the partitions.

    `model` is None where that model is not available: then states are checked and not replayed. `folded`: according
    to the table, every event up to there is in a snapshot of each of its partitions. `digest` is that of the model in
    force at the store, whose snapshots are checked.
    """

    storage: Storage
    version: int
    model: ShippedModel | None
    subset: PartitionSubset
    head: int
    events: tuple[DataFile, ...]
    snapshots: tuple[DataFile, ...]
    store: str | None = None
    folded: int = 0
    digest: str = ""


class SurveyTask(msgspec.Struct, frozen=True):
    """One task: the snapshots that `of` has, in the lake; those of all partitions in its store if `subset` is None.

    `sample` partitions are proposed at most.
    """

    of: StateTask
    subset: PartitionSubset | None
    sample: int


class ReplayResult(msgspec.Struct):
    """The result of a task.

    `unread`: partitions that were not compared since a file of this table cannot be read as the lake's own are, with
    a whole task as one. The driver makes sure that there is a finding. `moved`: partitions with a snapshot of the log
    whose last events have left it since the audit began.
    """

    tally: FindingTally
    partitions: int = 0
    snapshots: int = 0
    events: int = 0
    unread: Counter[str] = msgspec.field(default_factory=Counter)
    moved: int = 0


class _StoredState(msgspec.Struct, frozen=True):
    """A snapshot of the lake or the store; `events` and `skipped` if it has them."""

    where: str
    committed_id: int
    state: bytes
    stored_hash: bytes | None = None
    events: int | None = None
    skipped: int | None = None
    model_digest: str | None = None


def replay_subset(task: StateTask) -> ReplayResult:
    """On an executor."""
    result = ReplayResult(FindingTally(task.head))
    _replay(task, result)
    if result.unread:
        require_given(task.storage, (*task.snapshots, *task.events))
    return result


def survey(task: SurveyTask) -> tuple[ReplayResult, list[bytes]]:
    """On an executor: check how far snapshots go, and propose partitions to replay."""
    result = ReplayResult(FindingTally(task.of.head))
    with gc_paused():
        of_store = task.subset is None
        names = _survey_store(task.of, result.tally) if of_store else _survey_subset(task.of, result)
        proposed = sample_of(names, task.sample, task.of.head)
    if result.unread:
        require_given(task.of.storage, task.of.snapshots)
    return result, proposed


def sample_of(names: Iterable[bytes], count: int, head: int) -> list[bytes]:
    """A random sample that changes as the history grows; of samples of parts, one of the whole. All names are read,
    also for none."""
    seed = b"%d/" % head
    return heapq.nsmallest(max(count, 1), names, key=lambda name: hashlib.sha256(seed + name).digest())[
        :count
    ]


def _survey_subset(task: StateTask, result: ReplayResult) -> Iterator[bytes]:
    try:
        with Snapshots.opened(task.storage, task.snapshots) as snapshots:
            names = dict(snapshots.found(task.subset))
    except _UNREADABLE:
        result.unread[SNAPSHOTS] += 1
        return
    _check_folded(task, names, result)
    yield from names


def _survey_store(task: StateTask, tally: FindingTally) -> Iterator[bytes]:
    assert task.store is not None
    with _Opened(task.store) as reader:
        for name, _ in _store_watermarks(reader, task, tally):
            yield name


def _replay(task: StateTask, result: ReplayResult) -> None:
    with gc_paused(), ExitStack() as stack:
        try:
            snapshots = stack.enter_context(Snapshots.opened(task.storage, task.snapshots))
            names = dict(snapshots.found(task.subset))
        except _UNREADABLE:
            result.unread[SNAPSHOTS] += 1
            return
        reader: Any = None if task.store is None else stack.enter_context(_Opened(task.store))
        if isinstance(task.subset, NamedPartitions):
            chosen = list(task.subset.names)
            in_store = frozenset(chosen if reader is not None else ())
        else:
            _check_folded(task, names, result)
            in_store = frozenset(
                name for name, _ in (() if reader is None else _store_watermarks(reader, task, result.tally))
            )
            chosen = sorted({*names, *in_store})
        try:
            for name, history in _histories(task, chosen):
                stored = [
                    *_lake_snapshots(snapshots, name, names.get(name, ()), result),
                    *(_store_snapshots(reader, name, task, result.tally) if name in in_store else ()),
                ]
                _check_partition(task, name.decode(), history, stored, reader, result)
        except _UNREADABLE:
            result.unread[BY_PARTITION] += max(1, len(chosen) - result.partitions)


def _check_folded(task: StateTask, names: Mapping[bytes, Sequence[int]], result: ReplayResult) -> None:
    """A run folds only events after `folded`: an earlier event that no snapshot has would be in no state."""
    span, lost = RowRange(0, min(task.folded, task.head)), dict[bytes, int]()
    for file in task.events:
        try:
            for batch in scan_subset(task.storage, file, task.subset, span, ("partition", "committed_id")):
                encoded = batch.column("partition").cast(pa.binary()).dictionary_encode()
                values = encoded.dictionary.to_pylist()
                newest = np.array([names[name][-1] if name in names else 0 for name in values], np.int64)
                ids, places = np.asarray(batch.column("committed_id")), np.asarray(encoded.indices)
                for row in np.flatnonzero(ids > newest[places]):
                    name, id = values[places[row]], int(ids[row])
                    lost[name] = min(id, lost.get(name, id))
        except _UNREADABLE:
            require_given(task.storage, [file])
            result.unread[BY_PARTITION] += 1
    for name, id in lost.items():
        message = (
            f"no snapshot of model version {task.version} has it, and the table says that all events up to "
        )
        message += f"{task.folded} are folded"
        result.tally.add("snapshot", message, id, name.decode(errors="replace"))


def _check_partition(
    task: StateTask,
    name: str,
    history: Iterable[Piece],
    stored: Sequence[_StoredState],
    reader: Any,
    result: ReplayResult,
) -> None:
    result.partitions += 1
    sound = [one for one in stored if _check_state(one, name, result)]
    if reader is None:
        sound = [one for one in sound if one.committed_id <= task.head]
    if task.model is None or not sound:
        return
    stops = sorted({one.committed_id for one in sound})
    beyond = _events_after(reader, name, task.head, stops[-1]) if reader is not None else ()
    try:
        for stop, state, events in replay(task.model.load(), chain(history, beyond), stops):
            result.events = result.events + events if stop == stops[-1] else result.events
            if (problem := fault(state)) is not None:
                result.tally.add(
                    "tree", f"a replay up to it gives a tree that is not well formed: {problem}", stop, name
                )
            packed = pack(state.dump())
            for one in sound:
                if one.committed_id == stop:
                    _compare(one, packed, events, state.skipped, task.model, name, result.tally)
    except StoreLost:
        raise
    except NoSuchRange:
        result.moved += 1
    except StorageError as error:
        message = f"the log's snapshot: events after {task.head} cannot be read: {error}"
        result.tally.add("snapshot", message, None, name)
    except _UNREADABLE:
        result.unread[BY_PARTITION] += 1


def _check_state(one: _StoredState, name: str, result: ReplayResult) -> bool:
    """Check a snapshot by itself; whether it can be replayed."""
    result.snapshots += 1
    if one.stored_hash is not None and hashlib.sha256(one.state).digest() != one.stored_hash:
        return False  # a finding already, of the row
    if (problem := stored_fault(one.state)) is not None:
        result.tally.add("tree", f"{one.where}: {problem}", one.committed_id, name)
        return False
    return True


def _compare(
    one: _StoredState,
    packed: bytes,
    events: int,
    skipped: int,
    model: ShippedModel,
    name: str,
    tally: FindingTally,
) -> None:
    if one.model_digest is not None and one.model_digest != model.digest:
        message = f"{one.where}: it was folded by another content of model version {model.version}"
        tally.add("snapshot", message, one.committed_id, name)
        return
    if one.state != packed:
        place = _first_difference(unpack(one.state), unpack(packed))
        tally.add("snapshot", f"{one.where}: a replay gives another state{place}", one.committed_id, name)
    for what, stated, found in (("events", one.events, events), ("skipped", one.skipped, skipped)):
        if stated is not None and stated != found:
            message = f"{one.where}: it counts {stated} {what}, a replay {found}"
            tally.add("snapshot", message, one.committed_id, name)


def _histories(task: StateTask, chosen: list[bytes]) -> Iterator[History]:
    """Each chosen partition with its history, sorted by name; a whole subset takes one pass over its files."""
    if isinstance(task.subset, NamedPartitions):
        for name in chosen:
            subset = single_partition(name.decode(), task.subset.buckets_in_all)
            yield name, history_of(task.storage, task.events, subset, 0, task.head)
        return
    found = histories(task.storage, task.events, task.subset, 0, task.head)
    names = frozenset(chosen)
    yield from (one for one in with_names(found, iter(chosen)) if one[0] in names)


def _events_after(reader: LogReader, name: str, head: int, upto: int) -> Iterator[Piece]:
    """The log's events of a partition after the lake's head: the store's snapshots may be ahead of the lake."""
    for records in read_partitions(reader, (name,), head, upto) if upto > head else ():
        ids = [record.committed_id for record in records]
        authors = [(record.client_id, record.author, record.status_updated_at) for record in records]
        yield name.encode(), (ids, [record.event for record in records], authors), 0, len(ids)


def _lake_snapshots(
    snapshots: Snapshots, name: bytes, ids: Iterable[int], result: ReplayResult
) -> Iterator[_StoredState]:
    for committed_id in ids:
        try:
            row = snapshots.at(name, committed_id)
        except _UNREADABLE:
            result.unread[SNAPSHOTS] += 1
            return
        yield _StoredState(
            "the lake's snapshot",
            committed_id,
            row.state,
            row.hash,
            row.events,
            row.skipped,
            row.model_digest,
        )


def _store_snapshots(
    reader: Any, name: bytes, task: StateTask, tally: FindingTally
) -> Iterator[_StoredState]:
    """The log's snapshot of a partition; one past the log's head is a finding already."""
    partition = name.decode()
    try:
        found = reader.snapshot(partition, task.version, task.digest)
        if found is not None and found.committed_id > task.head and found.committed_id > reader.head():
            return
    except StoreLost:
        raise
    except StorageError as error:
        tally.add("snapshot", f"the log's snapshot: it cannot be read: {error}", None, partition)
        return
    if found is not None:
        digest = found.model_digest or OPEN
        yield _StoredState("the log's snapshot", found.committed_id, found.state, model_digest=digest)


def _store_watermarks(reader: Any, task: StateTask, tally: FindingTally) -> Iterator[tuple[bytes, int]]:
    """The partitions of the subset that have a snapshot in the store, which does not go past its head."""
    try:
        head = reader.head()
        for name, committed_id in reader.watermarks(task.version, task.digest):
            if not task.subset.holds(name):
                continue
            if committed_id > head and committed_id > (head := reader.head()):
                message = f"the log's snapshot: it goes past the log's head {head}"
                tally.add("snapshot", message, committed_id, name)
                continue
            yield name.encode(), committed_id
    except StoreLost:
        raise
    except StorageError as error:
        tally.add("snapshot", f"the log's snapshots cannot be read: {error}")


class _Opened:
    def __init__(self, store: str) -> None:
        self._reader = open_reader(store)

    def __enter__(self) -> LogReader:
        return self._reader

    def __exit__(self, *_: object) -> None:
        self._reader.close()


def _first_difference(one: Json, other: Json) -> str:
    """The path of the first difference between two states."""
    path: list[str] = []
    while isinstance(one, dict) and isinstance(other, dict):
        differing = [key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]
        if not differing:
            return ", though only in the order of keys"
        path.append(differing[0])
        one, other = one.get(differing[0]), other.get(differing[0])
    return f" (at {'.'.join(path)[:80]})"
