"""The past of one partition: its state after any event, and which events made a value what it is.

Bounded: a history with more events or bytes than are kept starts at the newest snapshot, or is refused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any, Final

import msgspec
import orjson

from unisono.console.state_view import shown_value
from unisono.model.authorship import authorship_of
from unisono.model.diff import MISSING
from unisono.model.forest import Forest
from unisono.model.model import Model
from unisono.model.pack import pack, unpack
from unisono.model.partition import PartitionState
from unisono.model.tree_state import plain
from unisono.model.values import copied
from unisono.protocol.tombstones import is_tombstone
from unisono.store.port import LogReader, Record, Snapshot
from unisono.vocabulary import Json, JsonObject

EVENTS_MAX: Final = 20_000
BYTES_MAX: Final = 32 << 20
PAGE_EVENTS: Final = 1_000
PAGE_BYTES: Final = 4 << 20

CHECKPOINT_EVENTS: Final = 250
"""Events between two states that are kept, so that another moment is near one of them. There are more between states
that take longer to copy than the events to fold."""

CHECKPOINT_BYTES_MAX: Final = 64 << 20
"""Of all states that are kept; beyond this, every second one is dropped."""

CHANGES_SHOWN: Final = 20
CHANGES_S: Final = 10.0
"""For the changes of a value; a large one is compared slowly, and older changes are left out then."""

BLOCK_EVENTS: Final = 64
"""Newest events that are searched first for changes of a value; each block before them is four times as long."""

SETTLE_EVENTS: Final = 500


class HistoryTooLarge(Exception):
    """The history is longer than is replayed here; the text says what to do."""


class ValueChange(msgspec.Struct, frozen=True):
    """An event that changed a value, with the value before and after it; None where there was nothing."""

    committed_id: int
    event: JsonObject
    before: str | None
    after: str | None


class ValueHistory(msgspec.Struct, frozen=True):
    """A value, its newest changes (newest first), and the id after which all events were looked at."""

    value: Json
    changes: list[ValueChange]
    looked_after: int


class PartitionHistory:
    """One partition's events under one model, with states on the way.

    Invariant: `_checkpoints` maps a number of events to the packed state after them; it always has 0, the start.
    """

    def __init__(self, partition: str, model: Model, snapshot: Snapshot | None) -> None:
        self.partition = partition
        self.start = 0 if snapshot is None else snapshot.committed_id
        self.records: list[Record] = []
        self._model = model
        self._bytes = 0
        self._read_to = self.start
        empty = pack(PartitionState().dump())
        self._checkpoints: dict[int, bytes] = {0: empty if snapshot is None else snapshot.state}
        self._copy_s = 0.0  # what keeping a state took last

    def read(self, log: LogReader) -> None:
        """Take over what was committed since the last call; raises HistoryTooLarge."""
        head = log.head()
        more = True
        while more and self._read_to < head:
            page = log.page((self.partition,), self._read_to, head, limit=PAGE_EVENTS, bytes_max=PAGE_BYTES)
            self.records += page.records
            self._bytes += sum(len(record.event) for record in page.records)
            if len(self.records) > EVENTS_MAX or self._bytes > BYTES_MAX:
                raise HistoryTooLarge(
                    f"more than {EVENTS_MAX:,} events or {BYTES_MAX >> 20} MB of them have to be replayed"
                )
            if page.records:
                self._read_to = page.records[-1].committed_id
            more = page.has_more
        self._read_to = head

    def events_upto(self, committed_id: int) -> int:
        """How many of the events are not after this id."""
        return bisect_right(self.records, committed_id, key=lambda record: record.committed_id)

    def state(self, committed_id: int) -> tuple[Json, int]:
        """The state after all events up to this id, and how many events could not be applied on the last steps."""
        state = self._state(self.events_upto(committed_id))
        return state.dump(), state.skipped

    def changes(self, committed_id: int, path: Sequence[str], item: str | None = None) -> ValueHistory:
        """The events that made a value what it is, searched from the newest until CHANGES_SHOWN are found.

        `item`: asks for the item above this one in the tree at `path`, instead of a value.
        """
        end = count = self.events_upto(committed_id)
        until = monotonic() + CHANGES_S
        value = _plain(_value(self._state(count), path, item), path)
        found: list[ValueChange] = []
        size = BLOCK_EVENTS
        while end > 0 and len(found) < CHANGES_SHOWN:
            begin = max(0, end - size)
            some = self._changes_between(begin, end, path, item, until)
            if some is None:
                break
            found += some
            end = begin
            size *= 4
        looked_after = self.records[end - 1].committed_id if end else self.start
        if len(found) > CHANGES_SHOWN:
            found = found[:CHANGES_SHOWN]
            looked_after = found[-1].committed_id - 1
        return ValueHistory(None if value is MISSING else value, found, looked_after)

    def _changes_between(
        self, begin: int, end: int, path: Sequence[str], item: str | None, until: float
    ) -> list[ValueChange] | None:
        """The changes by the events at these places, newest first; None when there was no time for all of them."""
        found: list[ValueChange] = []
        state = self._state(begin)
        value = _value(state, path, item)
        before, shown = _fingerprint(value, path), shown_value(_plain(value, path))
        for record in self._fold(state, begin, end):
            if monotonic() > until:
                return None
            value = _value(state, path, item)
            after = _fingerprint(value, path)
            if after != before:
                after_shown = shown_value(_plain(value, path))
                found.append(ValueChange(record.committed_id, event_row(record), shown, after_shown))
                before, shown = after, after_shown
        return found[::-1]

    def _state(self, count: int) -> PartitionState:
        """The state after so many events, from the nearest state that is kept."""
        begin = max(at for at in self._checkpoints if at <= count)
        state = self._load(begin)
        for _ in self._fold(state, begin, count):
            pass
        return state

    def _load(self, count: int) -> PartitionState:
        return PartitionState.load(unpack(self._checkpoints[count]), replayed=True)

    def _fold(self, state: PartitionState, begin: int, end: int) -> Iterator[Record]:
        """Apply the events from place `begin` on; yields each after it was applied."""
        since = monotonic()
        for place in range(begin, end):
            record = self.records[place]
            if not is_tombstone(record.event):
                by = authorship_of(record.client_id, record.author, record.status_updated_at)
                self._model.apply_committed(state, orjson.loads(record.event), by)
            yield record
            done = place + 1
            if done % SETTLE_EVENTS == 0:
                state.settle()
            if done % CHECKPOINT_EVENTS == 0 and done not in self._checkpoints:
                now = monotonic()
                if now - since >= self._copy_s:
                    self._keep(done, pack(state.dump()))
                    since = monotonic()
                    self._copy_s = since - now
        state.settle()

    def _keep(self, count: int, packed: bytes) -> None:
        self._checkpoints[count] = packed
        while sum(map(len, self._checkpoints.values())) > CHECKPOINT_BYTES_MAX and len(self._checkpoints) > 1:
            kept = sorted(self._checkpoints)
            self._checkpoints = {at: self._checkpoints[at] for at in kept[::2]}


def event_row(record: Record) -> JsonObject:
    """An event as one row of a list: who, when, where, and what kind."""
    by = authorship_of(record.client_id, record.author, record.status_updated_at)
    return {
        "committed_id": record.committed_id,
        "id": record.id,
        "client_id": record.client_id,
        "user_id": by.user_id,
        "time": record.status_updated_at,
        "partitions": list(record.partitions),
        "bytes": len(record.event),
        **event_kind(record.event),
    }


KIND_BYTES_MAX: Final = 256 << 10
"""Larger events are not parsed for a list."""


def event_kind(event: bytes) -> JsonObject:
    """`type`, and what the event is about: the schema of a canonical event, the target of a tree action."""
    if len(event) > KIND_BYTES_MAX:
        return {"type": "(large)", "about": None, "item": None}
    parsed = orjson.loads(event)
    payload = parsed.get("payload")
    if not isinstance(payload, dict):
        return {"type": parsed.get("type"), "about": None, "item": None}
    about = payload.get("schema", payload.get("target"))
    value = payload.get("value")
    options = payload.get("options")
    item = None
    for holder in (value, options, payload):
        if item is None and isinstance(holder, dict):
            item = holder.get("id")
    return {
        "type": parsed.get("type"),
        "about": about if isinstance(about, str) else None,
        "item": item if isinstance(item, str) else None,
    }


def _value(state: PartitionState, path: Sequence[str], item: str | None) -> Any:
    """The value at a path whose first step is `tree` or `data`; MISSING where there is none."""
    if not path:
        return MISSING
    roots: dict[str, Any] = {"tree": lambda: state.tree.root, "data": lambda: state.data.value}
    if path[0] not in roots:
        return MISSING
    value: Any = roots[path[0]]()
    for step in path[1:]:
        if isinstance(value, Forest):
            value = value.plain()
        if isinstance(value, dict):
            value = value.get(step, MISSING)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and len(step) < 10:
            value = value[int(step)] if int(step) < len(value) else MISSING
        else:
            return MISSING
    if item is None:
        return value
    forest = value.get("tree") if isinstance(value, dict) else None
    node = forest.nodes.get(item) if isinstance(forest, Forest) else None
    return MISSING if node is None else node.parent


def _in_trees(path: Sequence[str]) -> bool:
    return bool(path) and path[0] == "tree"


def _plain(value: Any, path: Sequence[str]) -> Any:
    """A copy that later events do not change."""
    if isinstance(value, Forest):
        return value.plain()
    return plain(value) if _in_trees(path) else copied(value)


def _fingerprint(value: Any, path: Sequence[str]) -> object:
    """Equal where the values are equal; the order of keys counts in `data` alone, as in the state itself."""
    if not isinstance(value, dict | list | Forest):
        return type(value), repr(value)
    try:
        return orjson.dumps(value, _forest, orjson.OPT_SORT_KEYS if _in_trees(path) else 0)
    except (TypeError, ValueError, RecursionError):
        return pack({"value": _plain(value, path)})


def _forest(value: object) -> list[Json]:
    if isinstance(value, Forest):
        return value.plain()
    raise TypeError
