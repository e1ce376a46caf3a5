"""What executors count for a report: sums of one file of `log`, and of a subset of the partitions.

Both are partial: Spark adds them up by name, or the driver where they are few. A partition is in one subset, so
partitions and their items are counted without an exchange.
"""

from __future__ import annotations

import heapq
import pickle
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.merge import PartitionSubset
from unisono.lake.scan import RowRange, scan_file
from unisono.lake.storage import Storage
from unisono.lake.write import DataFile, release_arrow_memory
from unisono.pipeline.fold import histories
from unisono.pipeline.jobs.report.steps import step_start
from unisono.pipeline.jobs.report.tables import BusyPartition
from unisono.pipeline.open_log import gc_paused

CLIENT, KIND, SIZE, DELAY, TOTAL, OLDER, BEFORE = (
    "client",
    "kind",
    "size",
    "delay",
    "total",
    "older",
    "before",
)

SUMS: Final = pa.schema(
    [
        ("of", pa.string()),
        ("step", pa.int64()),
        ("name", pa.string()),
        ("more", pa.string()),
        ("events", pa.int64()),
        ("bytes", pa.int64()),
        ("low", pa.int64()),
        ("high", pa.int64()),
    ]
)
SUMS_DDL: Final = (
    "of STRING, step BIGINT, name STRING, more STRING, events BIGINT, bytes BIGINT, low BIGINT, high BIGINT"
)
"""Sums of some events. `of` says what `step` and `name` are, and `low` and `high` the extremes of."""

PLACES: Final = pa.schema([("client_id", pa.string()), ("partitions", pa.int64()), ("summary", pa.binary())])
PLACES_DDL: Final = "client_id STRING, partitions BIGINT, summary BINARY"

EVER_MS: Final = 1 << 62
_POWERS: Final = 10 ** np.arange(3, 19, dtype=np.int64)
_UUID7: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
_TARGETED: Final = frozenset(("set", "unset", "treePush", "treeUpdate", "treeDelete", "treeMove"))
_BY_OPTION: Final = frozenset(("treeUpdate", "treeDelete", "treeMove"))
_LAST_PART: Final = re.compile(r"\.[^.]*\Z")

Item: TypeAlias = tuple[str, str, str]
"""Family, place and node; see `queries.py`."""


class ReportScope(msgspec.Struct, frozen=True):
    """What is counted: events committed within `[from_ms, to_ms)`, by steps of `step_ms`.

    `since` and `ages`: of the events after that committed id, how many are before each of these times.
    """

    storage: Storage
    head: int
    from_ms: int
    to_ms: int
    step_ms: int = 1
    within_ms: int = 0
    top: int = 0
    since: int = 0
    ages: tuple[int, ...] = ()


class PlaceTask(msgspec.Struct, frozen=True):
    """The files of `by_partition` with a subset of the partitions."""

    subset: PartitionSubset
    files: tuple[DataFile, ...]


class ItemContest(msgspec.Struct, frozen=True):
    """One contested item; sorts as in the report."""

    contested: int
    partition: str
    item: Item
    clients: int
    closest_ms: int

    def order(self) -> tuple[int, str, Item]:
        return -self.contested, self.partition, self.item


class PlaceSummary(msgspec.Struct):
    """What one subset has: by step partitions, edits of named items, other edits and contested edits; number of
    clients → in how many partitions; the busiest partitions and the most contested items.
    """

    steps: dict[int, list[int]] = {}
    sharing: Counter[int] = msgspec.field(default_factory=Counter)
    busiest: list[BusyPartition] = []
    contests: list[ItemContest] = []
    contested_items: int = 0


@release_arrow_memory()
def time_span(scope: ReportScope, file: DataFile) -> tuple[int, int] | None:
    """On an executor: the first and last time of a file's events within the range."""
    low, high = EVER_MS, -EVER_MS
    for batch in scan_file(
        scope.storage, file, RowRange(0, scope.head), ["committed_id", "status_updated_at"]
    ):
        times = np.asarray(batch.column("status_updated_at"))
        times = times[(times >= scope.from_ms) & (times < scope.to_ms)]
        if len(times):
            low, high = min(low, int(times.min())), max(high, int(times.max()))
    return (low, high) if low <= high else None


def sum_log_file(scope: ReportScope, file: DataFile) -> Iterator[pa.RecordBatch]:
    """On an executor: the sums of one file of `log`."""
    columns = ["committed_id", "id", "client_id", "event", "type", "schema", "status_updated_at"]
    parts = [
        part
        for batch in scan_file(scope.storage, file, RowRange(0, scope.head), columns)
        for part in _sums(scope, pa.Table.from_batches([batch]))
    ]
    if parts:
        whole = pa.concat_tables(parts).group_by(["of", "step", "name", "more"])
        found = whole.aggregate([("events", "sum"), ("bytes", "sum"), ("low", "min"), ("high", "max")])
        yield from found.rename_columns(SUMS.names).combine_chunks().to_batches()


def _sums(scope: ReportScope, rows: pa.Table) -> Iterator[pa.Table]:
    size = pc.cast(pc.binary_length(rows.column("event")), pa.int64())
    rows = rows.append_column("bytes", size).rename_columns(
        ["at" if name == "status_updated_at" else name for name in rows.column_names] + ["bytes"]
    )
    at = rows.column("at")
    if scope.from_ms > -EVER_MS:
        yield _whole(BEFORE, 0, rows.filter(pc.less(at, scope.from_ms)))
    hot = rows.filter(pc.greater(rows.column("committed_id"), scope.since))
    yield _whole(OLDER, -1, hot)
    for number, before in enumerate(scope.ages):
        yield _whole(OLDER, number, hot.filter(pc.less(hot.column("at"), before)))
    rows = rows.filter(pc.and_(pc.greater_equal(at, scope.from_ms), pc.less(at, scope.to_ms)))
    if not rows.num_rows:
        return
    yield _whole(TOTAL, 0, rows)
    steps = step_start(np.asarray(rows.column("at")), scope.step_ms)
    rows = rows.append_column("step", pa.array(steps, pa.int64()))
    yield _grouped(CLIENT, rows, ["step", "client_id"], "at")
    yield _grouped(KIND, rows, ["step", "type", "schema"], "bytes")
    yield _distribution(SIZE, np.asarray(rows.column("bytes")))
    delays = _delays(rows)
    if len(delays):
        yield _distribution(DELAY, delays)


def _whole(of: str, step: int, rows: pa.Table) -> pa.Table:
    ids = pc.min_max(rows.column("committed_id"))
    size = pc.sum(rows.column("bytes")).as_py() or 0
    values = [of, step, None, None, rows.num_rows, size, ids["min"].as_py(), ids["max"].as_py()]
    return pa.table(
        [pa.array([value], field.type) for value, field in zip(values, SUMS, strict=True)], schema=SUMS
    )


def _grouped(of: str, rows: pa.Table, keys: Sequence[str], extremes: str) -> pa.Table:
    found = rows.group_by(list(keys)).aggregate(
        [("bytes", "count"), ("bytes", "sum"), (extremes, "min"), (extremes, "max")]
    )
    columns = [found.column(key) for key in keys]
    if len(columns) < 3:
        columns.append(pa.nulls(found.num_rows, pa.string()))
    values = ["bytes_count", "bytes_sum", f"{extremes}_min", f"{extremes}_max"]
    columns = [
        pa.array([of] * found.num_rows, pa.string()),
        *columns,
        *(found.column(name) for name in values),
    ]
    return pa.table(columns, schema=SUMS)


def _distribution(of: str, values: Any) -> pa.Table:
    """Counts of values rounded down to their first three digits."""
    power = 10 ** np.searchsorted(_POWERS, values, side="right").astype(np.int64)
    digits, places, counts = np.unique(values // power * power, return_inverse=True, return_counts=True)
    largest = np.full(len(digits), -EVER_MS)
    np.maximum.at(largest, places, values)
    nothing = pa.nulls(len(digits), pa.string())
    columns = [pa.array([of] * len(digits), pa.string()), pa.array(digits, pa.int64()), nothing, nothing]
    numbers = [
        pa.array(each, pa.int64()) for each in (counts, np.zeros(len(digits), np.int64), largest, largest)
    ]
    return pa.table([*columns, *numbers], schema=SUMS)


def _delays(rows: pa.Table) -> Any:
    """Milliseconds from draft to commit, -1 where the draft is dated after it, of ids that are UUIDs of version 7."""
    lower = pc.utf8_lower(rows.column("id"))
    rows = rows.set_column(rows.column_names.index("id"), "id", lower).filter(
        pc.match_substring_regex(lower, _UUID7)
    )
    ids = rows.column("id").to_pylist()
    drafted = np.array([int(id[:8] + id[9:13], 16) for id in ids], np.int64)
    return np.maximum(np.asarray(rows.column("at")) - drafted, -1)


@release_arrow_memory()
def sum_places(scope: ReportScope, task: PlaceTask) -> list[pa.RecordBatch]:
    """On an executor: what a subset of the partitions has, and in how many of them each client wrote."""
    summary, written = PlaceSummary({}), Counter[str]()
    busiest, contests = _Top(scope.top), _Top(scope.top)
    columns = ("partition", "committed_id", "client_id", "status_updated_at", "event", "type", "schema")
    found = histories(scope.storage, task.files, task.subset, 0, scope.head, columns, _lists)
    with gc_paused():
        for name, history in found:
            counted = _Partition(scope, name.decode(), summary.steps)
            for _, _, content, start, end in history:
                counted.take(content, start, end)
            if not counted.events:
                continue
            written.update(counted.clients)
            summary.sharing[len(counted.clients)] += 1
            busiest.add((-counted.events, counted.name), counted.busy())
            for contest in counted.contested():
                summary.contested_items += 1
                contests.add(contest.order(), contest)
    summary.busiest, summary.contests = busiest.best(), contests.best()
    names = [None, *written]
    counts = [None, *written.values()]
    summaries = [pickle.dumps(summary), *[None] * len(written)]
    columns_made = [
        pa.array(names, pa.string()),
        pa.array(counts, pa.int64()),
        pa.array(summaries, pa.binary()),
    ]
    return [pa.RecordBatch.from_arrays(columns_made, schema=PLACES)]


class _Top:
    """The first of what is added, by their keys, which differ."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[Any, Any]] = []

    def add(self, key: Any, value: Any) -> None:
        self._kept.append((key, value))
        if len(self._kept) > 4 * self._most + 1_000:
            self._kept = heapq.nsmallest(self._most, self._kept, key=lambda each: each[0])

    def best(self) -> list[Any]:
        return [value for _, value in heapq.nsmallest(self._most, self._kept, key=lambda each: each[0])]


class _Partition:
    """Counts the events of one partition, in their order."""

    def __init__(self, scope: ReportScope, name: str, steps: dict[int, list[int]]) -> None:
        self.name = name
        self.events = self._bytes = 0
        self.clients: set[str] = set()
        self._scope = scope
        self._steps = steps
        self._seen: set[int] = set()
        self._first, self._last = EVER_MS, -EVER_MS
        self._edits: dict[Item, tuple[str, int]] = {}
        self._contests: dict[Item, tuple[int, set[str], int]] = {}

    def take(self, content: Mapping[str, list[Any]], start: int, end: int) -> None:
        scope, steps, edits = self._scope, self._steps, self._edits
        low, high, within_ms, step_ms = scope.from_ms, scope.to_ms, scope.within_ms, scope.step_ms
        first, last, begun, over = self._first, self._last, 0, 0
        step = [0, 0, 0, 0]
        for client, at, event, kind, schema in zip(
            *(values[start:end] for values in content.values()), strict=True
        ):
            if not low <= at < high:
                continue
            self.events += 1
            self._bytes += len(event)
            self.clients.add(client)
            first, last = (at if at < first else first), (at if at > last else last)
            if not begun <= at < over:
                begun = step_start(at, step_ms)
                over = begun + step_ms
                step = steps.setdefault(begun, [0, 0, 0, 0])
                if begun not in self._seen:
                    self._seen.add(begun)
                    step[0] += 1
            item = item_of(kind, schema, event)
            if item is None:
                step[2] += 1
                continue
            step[1] += 1
            before = edits.get(item)
            if before is not None and before[0] != client and 0 <= at - before[1] <= within_ms:
                step[3] += 1
                self._contest(item, client, before[0], at - before[1])
            edits[item] = client, at
        self._first, self._last = first, last

    def _contest(self, item: Item, client: str, other: str, gap: int) -> None:
        count, clients, closest = self._contests.get(item, (0, set(), gap))
        clients |= {client, other}
        self._contests[item] = count + 1, clients, min(closest, gap)

    def busy(self) -> BusyPartition:
        return BusyPartition(self.name, self.events, self._bytes, len(self.clients), self._first, self._last)

    def contested(self) -> Iterator[ItemContest]:
        for item, (count, clients, closest) in self._contests.items():
            yield ItemContest(count, self.name, item, len(clients), closest)


def item_of(kind: str | None, schema: str | None, event: bytes) -> Item | None:
    """What an event edits; None where it names no item."""
    if kind == "init":
        return "path", "", ""
    if kind is None or (kind != "event" and kind not in _TARGETED):
        return None
    try:
        payload = orjson.loads(event)["payload"]
        if kind == "event":
            place, node = _text(schema), _text(payload["data"]["id"])
            return None if place is None or node is None else ("event", _LAST_PART.sub("", place), node)
        place = _text(payload["target"])
        if not kind.startswith("tree"):
            return None if place is None else ("path", place, "")
        node = _text(payload["options" if kind in _BY_OPTION else "value"]["id"])
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return None  # damaged, or without one of these
    return None if place is None or node is None else ("tree", place, node)


def _text(value: Any) -> str | None:
    """A JSON value as a name: a string as it is, anything else by its JSON."""
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value).decode()


def _lists(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    events: Any = batch.column("event").cast(pa.binary())
    columns: Iterable[Any] = (
        batch.column("client_id"), batch.column("status_updated_at"), events, batch.column("type"),
        batch.column("schema"),
    )  # fmt: skip
    names = ("client", "at", "event", "type", "schema")
    return {name: column.to_pylist() for name, column in zip(names, columns, strict=True)}
