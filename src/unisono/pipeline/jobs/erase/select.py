"""Selects the events to erase, in the lake and the log: of clients or users, in partitions, by ids or committed ids.

The lake has every event up to its head, the log has the rest. Executors read both; of the lake only the column that
decides, and whole rows of the row groups with a match.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from sys import intern
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.file_checks import open_checked
from unisono.lake.lake import View
from unisono.lake.row_groups import Footer
from unisono.lake.scan import files_with
from unisono.lake.storage import Storage
from unisono.lake.write import DataFile
from unisono.model.authorship import authorship_of
from unisono.pipeline.jobs.erase.fragments import PIECES_MAX, Sample
from unisono.pipeline.jobs.export.job import ranges
from unisono.pipeline.open_log import open_reader, read_partitions, read_range, readers_at_once
from unisono.pipeline.spark.executors import parallelism, run_on_executors
from unisono.protocol.tombstones import is_tombstone
from unisono.store.port import LogReader, Pruned, Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS_PER_TASK: Final = 100_000

STRETCH_EVENTS: Final = 250
"""Consecutive events per read of the log."""

Kind = Literal["client", "user", "id", "partition"]

_COLUMNS: Final[dict[Kind, str]] = {
    "client": "client_id",
    "user": "author",
    "id": "id",
    "partition": "partition",
}
_READ: Final = ("committed_id", "id", "partitions", "event")


class Selector(msgspec.Struct, frozen=True):
    """Selects events of any of these clients or users, with any of these ids, or in any of these partitions."""

    kind: Kind
    names: tuple[str, ...]

    def text(self) -> str:
        return f"{self.kind} {', '.join(map(repr, self.names))}"


class SelectedEvent(msgspec.Struct, frozen=True, array_like=True):
    """One event. `intact`: the lake or the log still has its content.

    `erased_at`: the time in its tombstone, if the log or the lake has one.
    """

    committed_id: int
    id: str
    partitions: tuple[str, ...]
    erased_at: int | None
    intact: bool


class Selection(msgspec.Struct, frozen=True):
    """The selected events, each once, by committed_id.

    `partitions`: the first selected event of each partition. `pieces`: tokens of the content of each that is intact,
    made with `salt`. `cut`: there would have been more.
    """

    events: list[SelectedEvent]
    partitions: dict[str, int]
    pieces: frozenset[bytes]
    salt: bytes
    cut: bool = False


class ByCommittedId(msgspec.Struct, frozen=True):
    """Selects events of an earlier erasure by their committed ids, which ascend."""

    ids: tuple[int, ...]

    def within(self, first: int, last: int) -> ByCommittedId:
        return ByCommittedId(self.ids[bisect_left(self.ids, first) : bisect_right(self.ids, last)])


class _SelectTask(msgspec.Struct, frozen=True):
    store: str
    selector: Selector | ByCommittedId
    since: int
    upto: int
    pruned_to: int
    pieces_max: int
    salt: bytes
    storage: Storage
    file: DataFile | None = None


def select(
    spark: SparkSession,
    store: str,
    view: View,
    selector: Selector | ByCommittedId,
    pruned_to: int,
    head: int,
    salt: bytes,
) -> Selection:
    """The selected events up to `head` of the log, whose events up to `pruned_to` are pruned."""
    files = _files(view, selector)
    cores = parallelism(spark)
    hot = ranges(view.head, head, EVENTS_PER_TASK, cores) if head > view.head else []
    share = PIECES_MAX // max(1, len(files) + len(hot))
    spans = [(0, view.head, file) for file in files] + [(since, upto, None) for since, upto in hot]
    tasks = [
        _SelectTask(
            store, _part(selector, since, upto, file), since, upto, pruned_to, share, salt, view.storage, file
        )
        for since, upto, file in spans
    ]
    at_once = readers_at_once(store)
    parts = run_on_executors(spark, tasks, select_part, at_once=at_once)
    cut = [place for place, part in enumerate(parts) if part.cut]
    rest = PIECES_MAX - sum(len(part.pieces) for part in parts if not part.cut)
    if (
        cut and rest // len(cut) > share
    ):  # few of the tasks have found events: these share what the others left
        again = [msgspec.structs.replace(tasks[place], pieces_max=rest // len(cut)) for place in cut]
        more = run_on_executors(spark, again, select_part, at_once=at_once)
        for place, part in zip(cut, more, strict=True):
            parts[place] = part
    return merge_selections(parts, salt)


def _part(
    selector: Selector | ByCommittedId, since: int, upto: int, file: DataFile | None
) -> Selector | ByCommittedId:
    """The part of the selector for one task."""
    if isinstance(selector, Selector):
        return selector
    return selector.within(since + 1, upto) if file is None else selector.within(file.first_id, file.last_id)


def _files(view: View, selector: Selector | ByCommittedId) -> list[DataFile]:
    if isinstance(selector, ByCommittedId):
        return [file for file in view.log_files if selector.within(file.first_id, file.last_id).ids]
    if selector.kind == "partition":
        return files_with(view.partition_files, view.buckets, selector.names, 0, view.head)
    return view.log_files


def merge_selections(parts: Iterable[Selection], salt: bytes) -> Selection:
    """Merge selections; an event in two selected partitions was found twice."""
    events: dict[int, SelectedEvent] = {}
    partitions: dict[str, int] = {}
    pieces: set[bytes] = set()
    for part in parts:
        events.update((event.committed_id, event) for event in part.events)
        for name, first in part.partitions.items():
            partitions[name] = min(first, partitions.get(name, first))
        pieces |= part.pieces
    return Selection([events[number] for number in sorted(events)], partitions, frozenset(pieces), salt)


def select_part(task: _SelectTask) -> Selection:
    """On an executor: one file of the lake, or one range of the log."""
    found = _Found(Sample(task.pieces_max, task.salt))
    reader = open_reader(task.store)
    try:
        if task.file is None:
            for record in _in_log(reader, task):
                found.add(record.committed_id, record.id, record.partitions, record.event, record.event)
        else:
            for rows in _in_file(task):
                ids = sorted(rows.column("committed_id").to_pylist())
                hot = texts_of(reader, (number for number in ids if number > task.pruned_to))
                for row in rows.to_pylist():
                    number, event = row["committed_id"], row["event"].encode()
                    found.add(number, row["id"], row["partitions"], event, hot.get(number, b""))
    finally:
        reader.close()
    pieces = found.sample.tokens()
    return Selection(found.events, found.partitions, pieces, task.salt, cut=not found.sample.whole)


class _Found:
    """Collects what a task finds; of texts it keeps tokens only."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.events: list[SelectedEvent] = []
        self.partitions: dict[str, int] = {}

    def add(self, committed_id: int, id: str, partitions: Iterable[str], event: bytes, hot: bytes) -> None:
        """Add an event: `event` as in the lake (or in the log, after the lake's head), `hot` as in the log."""
        text = hot if is_tombstone(event) else event
        intact = bool(text) and not is_tombstone(text)
        erased_at = erased_at_of(event) if erased_at_of(hot) is None else erased_at_of(hot)
        names = tuple(map(intern, partitions))
        self.events.append(SelectedEvent(committed_id, id, names, erased_at, intact))
        for name in names:
            self.partitions[name] = min(committed_id, self.partitions.get(name, committed_id))
        if intact:
            self.sample.add(text)


def erased_at_of(event: bytes) -> int | None:
    """The time in a tombstone; None for any other event."""
    if not is_tombstone(event):
        return None
    return int(msgspec.json.decode(event)["payload"]["erased_at"])


def _in_file(task: _SelectTask) -> Iterator[pa.Table]:
    """The selected rows, by row group."""
    assert task.file is not None
    names: tuple[str, ...] = ()
    if isinstance(task.selector, ByCommittedId):
        column, values = "committed_id", pa.array(task.selector.ids, pa.int64())
    else:
        names = task.selector.names
        column, values = _COLUMNS[task.selector.kind], pa.array(names, pa.string())
    with open_checked(task.storage, task.file) as parquet:
        for number in _groups(Footer(parquet.metadata), column, task.selector):
            deciding = parquet.read_row_group(number, columns=[column]).column(column)
            if column == "author":
                values = _authors(deciding, frozenset(names))
            mine = pc.is_in(deciding, value_set=values, skip_nulls=True)
            if pc.any(mine).as_py():
                rows = parquet.read_row_group(number, columns=list(_READ)).filter(mine)
                yield rows.filter(pc.less_equal(rows.column("committed_id"), task.upto))


def _authors(column: pa.ChunkedArray, users: frozenset[str]) -> pa.Array:
    """Those of the authors in a column that are one of these users; a few users make up a row group."""
    known = [author for author in pc.unique(column).to_pylist() if author]
    return pa.array(
        [author for author in known if authorship_of("", author, 0).user_id in users], pa.string()
    )


def _groups(footer: Footer, column: str, selector: Selector | ByCommittedId) -> Iterator[int]:
    """Row groups that may have a match, by their statistics if they have some."""
    encoded = [] if isinstance(selector, ByCommittedId) else [name.encode() for name in selector.names]
    if column == "author":  # the statistics are of whole authors; files made before there were any have none
        yield from range(len(footer)) if column in footer else ()
        return
    for number in range(len(footer)):
        bounds = footer.bounds(number, column)
        if bounds is None:
            yield number
        elif isinstance(selector, ByCommittedId):
            if selector.within(*bounds).ids:
                yield number
        elif any(bounds[0].encode() <= name <= bounds[1].encode() for name in encoded):
            yield number


def _in_log(reader: LogReader, task: _SelectTask) -> Iterator[Record]:
    if isinstance(task.selector, ByCommittedId):
        yield from _read_ids(reader, task.selector.ids)
        return
    names = frozenset(task.selector.names)
    if task.selector.kind == "partition":
        for records in read_partitions(reader, task.selector.names, task.since, task.upto):
            yield from records
        return
    deciding = _DECIDING[task.selector.kind]
    for records in read_range(reader, task.since, task.upto):
        yield from (record for record in records if deciding(record) in names)


_DECIDING: Final[dict[Kind, Callable[[Record], str | None]]] = {
    "client": lambda record: record.client_id,
    "user": lambda record: authorship_of("", record.author, 0).user_id,
    "id": lambda record: record.id,
}


def texts_of(reader: LogReader, ids: Iterable[int]) -> dict[int, bytes]:
    """The text of these events in the log; ids ascend, and pruned events are left out."""
    return {record.committed_id: record.event for record in _read_ids(reader, ids)}


def _read_ids(reader: LogReader, ids: Iterable[int]) -> Iterator[Record]:
    for first, last in _runs_of_ids(ids):
        since = first - 1
        while since < last:
            try:
                records = reader.scan(since, last, limit=last - since)
            except Pruned as pruned:
                since = pruned.upto
            else:
                yield from records
                break


def _runs_of_ids(ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Consecutive ids as ranges of bounded length."""
    first = last = None
    for number in ids:
        if first is not None and last is not None:
            if number == last + 1 and number - first < STRETCH_EVENTS:
                last = number
                continue
            yield first, last
        first = last = number
    if first is not None and last is not None:
        yield first, last
