"""Proves an erasure: searches every file and, in PostgreSQL, the log's states, reads every erased event in the log,
and explains each hit.

A piece that is found may also occur in an event that stays; then it is not a trace. Nor is a piece in a state that
was folded from remaining events only: the text of a state continues differently after a value than that of an event.
Such states are searched last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from unisono.display import megabytes
from unisono.lake.columns import to_batch
from unisono.lake.lake import Lake, View
from unisono.lake.scan import scan_log
from unisono.lake.storage import SNAPSHOTS, Storage
from unisono.lake.write import DataFile
from unisono.pipeline.jobs.erase.all_files import directory_files, lake_files
from unisono.pipeline.jobs.erase.fragments import FragmentSearch, Pieces
from unisono.pipeline.jobs.erase.rewrite import TombstoneTimes
from unisono.pipeline.jobs.erase.search import Trace, search, text_buffers
from unisono.pipeline.jobs.erase.select import texts_of
from unisono.pipeline.jobs.export.job import ranges
from unisono.pipeline.open_log import extent, open_reader, read_range, readers_at_once, sqlite_directory
from unisono.pipeline.spark.executors import parallelism, run_on_executors
from unisono.protocol.tombstones import is_tombstone
from unisono.store.port import Snapshot
from unisono.store.sqlite.copy import SqliteSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS_PER_TASK: Final = 100_000

IDS_PER_TASK: Final = 20_000

NAMES_PER_TASK: Final = 2_000

STATES_AT_ONCE: Final = 64

TRACES_SHOWN: Final = 10

_KEPT_TEXT: Final = ("id", "client_id", "partitions", "event")
"""Text columns that remain of an erased event, and that other events have."""


class Proof(msgspec.Struct, frozen=True):
    """What was searched, for how many pieces, `common` of which also occur in events that stay; and the traces.

    `log_events`: events of the log that are not erased. `log_states`: states with traces in a log in PostgreSQL; an
    embedded log is among the files.
    """

    files: int
    bytes: int
    pieces: int
    common: int
    traces: list[Trace]
    log_events: int
    log_states: int = 0

    @property
    def holds(self) -> bool:
        return not self.places and not self.log_events

    @property
    def places(self) -> list[str]:
        """Where there are traces."""
        return ["the log's snapshots"][: self.log_states] + [trace.place.location for trace in self.traces]

    @property
    def in_log(self) -> bool:
        """Whether the files of an embedded log have traces."""
        return any(trace.place.is_of_log for trace in self.traces)

    def text(self) -> str:
        searched = f"{self.files} files ({megabytes(self.bytes)}) searched"
        if self.holds:
            return f"{searched}, none holds erased content"
        lines = [f"{searched}, erased content is still there:"]
        if self.log_events:
            lines.append(f"  the log: {self.log_events} events")
        if self.log_states:
            lines.append(f"  the log: {self.log_states} snapshots")
        for trace in self.traces[:TRACES_SHOWN]:
            what = f"{trace.events} events" if trace.events else f"{len(trace.pieces)} pieces"
            what = "it cannot be read, so it was not searched" if trace.unreadable else what
            lines.append(f"  {trace.place.location}: {what}")
        if len(self.traces) > TRACES_SHOWN:
            lines.append(f"  and {len(self.traces) - TRACES_SHOWN} more files")
        return "\n".join(lines)


class CleanStates(msgspec.Struct, frozen=True):
    """Which states have no erased content: those of other partitions, and those folded since."""

    partitions: frozenset[str]
    since_ms: int

    def of(self, state: Snapshot) -> bool:
        return state.partition not in self.partitions or state.created_at >= self.since_ms

    def mask(self, rows: pa.RecordBatch) -> Any:
        names = pa.array(sorted(self.partitions), pa.string())
        others = pc.invert(pc.is_in(rows.column("partition"), value_set=names))
        return pc.or_(others, pc.greater_equal(rows.column("created_at"), self.since_ms))


def prove_erased(
    spark: SparkSession,
    store: str,
    lake: Lake,
    erased: TombstoneTimes,
    pieces: Pieces,
    trust: CleanStates,
    also: Sequence[Path],
) -> Proof:
    """Search the lake, an embedded log's directory and `also`, and old states of a log in PostgreSQL; read every
    erased event in the log."""
    places = lake_files(lake.storage)
    directory = sqlite_directory(store)
    for other in (*also, *([] if directory is None else [directory])):
        places += directory_files(other, lake.storage)
    found = search(spark, places, erased, pieces)
    states = pieces_in_old_states(spark, store, trust, pieces)
    doubtful = set().union(*(trace.pieces for trace in found.traces if not trace.events), *states)
    view, log_extent = lake.view(), extent(store)
    common = (
        pieces_in_events(spark, store, view, log_extent.head, Pieces(doubtful, pieces.salt))
        if doubtful
        else set()
    )
    if doubtful - common:
        common |= pieces_in_states(spark, store, lake, trust, Pieces(doubtful - common, pieces.salt))
    traces = [trace for trace in found.traces if trace.events or trace.unreadable or trace.pieces - common]
    left = count_unerased(spark, store, erased, log_extent.pruned_to)
    old = sum(bool(tokens - common) for tokens in states)
    return Proof(found.files, found.bytes, len(pieces), len(common), traces, left, old)


class _EventsTask(msgspec.Struct, frozen=True):
    """Events that stay: those of one file of the lake, or of a stretch of the log."""

    store: str
    storage: Storage
    file: DataFile | None
    since: int
    upto: int


def pieces_in_events(spark: SparkSession, store: str, view: View, head: int, pieces: Pieces) -> set[bytes]:
    """The pieces that occur in remaining text of events, in the lake and in the log after it up to `head`."""
    tasks = [_EventsTask(store, view.storage, file, 0, view.head) for file in view.log_files]
    if head > view.head:
        beyond = ranges(view.head, head, EVENTS_PER_TASK, parallelism(spark))
        tasks += [_EventsTask(store, view.storage, None, since, upto) for since, upto in beyond]
    at_once = readers_at_once(store)
    return set().union(*run_on_executors(spark, tasks, partial(_find_in_events, pieces), at_once=at_once))


def _find_in_events(pieces: Pieces, task: _EventsTask) -> set[bytes]:
    """On an executor."""
    finder = FragmentSearch(pieces)
    for batch in _rows(task):
        for name in _KEPT_TEXT:
            for buffer in text_buffers(batch.column(name)):
                finder.look(buffer)
    return finder.found


def _rows(task: _EventsTask) -> Iterator[pa.RecordBatch]:
    if task.file is not None:
        yield from scan_log(task.storage, [task.file], task.since, task.upto, _KEPT_TEXT)
        return
    with closing(open_reader(task.store)) as reader:
        yield from map(to_batch, read_range(reader, task.since, task.upto))


class _StatesTask(msgspec.Struct, frozen=True):
    """The states in one file of the lake, or in an embedded log."""

    directory: Path | None
    storage: Storage
    file: DataFile | None


def pieces_in_states(
    spark: SparkSession, store: str, lake: Lake, trust: CleanStates, pieces: Pieces
) -> set[bytes]:
    """The pieces that occur in clean states, of the lake and of an embedded log."""
    table, directory = lake.find(SNAPSHOTS), sqlite_directory(store)
    files: list[DataFile | None] = [] if table is None else [*table.files()]
    if directory is not None:
        files.append(None)
    tasks = [_StatesTask(directory, lake.storage, file) for file in files]
    return set().union(*run_on_executors(spark, tasks, partial(_find_in_states, trust, pieces)))


def _find_in_states(trust: CleanStates, pieces: Pieces, task: _StatesTask) -> set[bytes]:
    """On an executor."""
    finder = FragmentSearch(pieces)
    if task.file is None:
        assert task.directory is not None
        with closing(SqliteSource(task.directory)) as source:
            for snapshot in filter(trust.of, source.snapshots()):
                finder.look(snapshot.state)
        return finder.found
    with task.storage.read(SNAPSHOTS, task.file.path) as source, task.storage.open_parquet(source) as parquet:
        for batch in parquet.iter_batches(STATES_AT_ONCE, columns=["partition", "created_at", "state"]):
            for buffer in text_buffers(batch.filter(trust.mask(batch)).column("state")):
                finder.look(buffer)
    return finder.found


class _OldStatesTask(msgspec.Struct, frozen=True):
    """Partitions whose states in a log in PostgreSQL are searched."""

    store: str
    names: tuple[str, ...]


def pieces_in_old_states(
    spark: SparkSession, store: str, trust: CleanStates, pieces: Pieces
) -> list[frozenset[bytes]]:
    """The pieces in each state, of a log in PostgreSQL, that is not clean and has some."""
    names = sorted(trust.partitions) if sqlite_directory(store) is None else []
    tasks = [
        _OldStatesTask(store, tuple(names[start : start + NAMES_PER_TASK]))
        for start in range(0, len(names), NAMES_PER_TASK)
    ]
    work = partial(_find_in_old_states, trust, pieces)
    return [*chain.from_iterable(run_on_executors(spark, tasks, work, at_once=readers_at_once(store)))]


def _find_in_old_states(trust: CleanStates, pieces: Pieces, task: _OldStatesTask) -> list[frozenset[bytes]]:
    """On an executor."""
    reader: Any = open_reader(task.store)
    with closing(reader):
        found = (pieces.find(old.state) for old in reader.snapshots_in(task.names) if not trust.of(old))
        return [frozenset(tokens) for tokens in found if tokens]


class _CountTask(msgspec.Struct, frozen=True):
    store: str
    ids: list[int]


def count_unerased(spark: SparkSession, store: str, erased: TombstoneTimes, pruned_to: int) -> int:
    """The number of these events that the log still has unerased."""
    ids = erased.ids[erased.ids > pruned_to].tolist()
    tasks = [
        _CountTask(store, ids[start : start + IDS_PER_TASK]) for start in range(0, len(ids), IDS_PER_TASK)
    ]
    return sum(run_on_executors(spark, tasks, _count_intact, at_once=readers_at_once(store)))


def _count_intact(task: _CountTask) -> int:
    """On an executor."""
    with closing(open_reader(task.store)) as reader:
        return sum(not is_tombstone(text) for text in texts_of(reader, task.ids).values())
