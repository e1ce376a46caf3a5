"""The past of one partition: its state after any event, and which events made a value what it is.

Bounded: a history with more events or bytes than are kept starts at the newest snapshot, or is refused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
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
CHECKPOINT_BYTES_MAX: Final = 64 << 20
"""States kept so that another moment is near one of them; beyond this, every second one is dropped."""

CHANGES_SHOWN: Final = 20
SETTLE_EVENTS: Final = 500


class HistoryTooLarge(Exception):
    """The history is longer than is replayed here; the text says what to do."""


class ValueChange(msgspec.Struct, frozen=True):
    """An event that changed a value, with the value before and after it; None where there was nothing."""

    event: JsonObject
    before: str | None
    after: str | None


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
        self._spacing = CHECKPOINT_EVENTS

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
        count = self.events_upto(committed_id)
        begin = max(at for at in self._checkpoints if at <= count)
        state = self._load(begin)
        for _ in self._fold(state, begin, count):
            pass
        return state.dump(), state.skipped

    def changes(
        self, committed_id: int, path: Sequence[str], item: str | None = None
    ) -> tuple[Json, list[ValueChange], int]:
        """Why a value is what it is: the value, its newest changes (newest first), and how many there were.

        `item`: asks for the item above this one in the tree at `path`, instead of a value.
        """
        count = self.events_upto(committed_id)
        state = self._load(0)
        found: deque[ValueChange] = deque(maxlen=CHANGES_SHOWN)
        changed = 0
        half = path[0] if path else ""
        before = _value(state, path, item)
        before_print = _fingerprint(before, half)
        shown = shown_value(_plain(before, half))
        for record in self._fold(state, 0, count):
            value = _value(state, path, item)
            now_print = _fingerprint(value, half)
            if now_print != before_print:
                changed += 1
                after = shown_value(_plain(value, half))
                found.appendleft(ValueChange(event_row(record), shown, after))
                before_print, shown = now_print, after
        value = _plain(_value(state, path, item), half)
        return (None if value is MISSING else value), list(found), changed

    def _load(self, count: int) -> PartitionState:
        return PartitionState.load(unpack(self._checkpoints[count]), replayed=True)

    def _fold(self, state: PartitionState, begin: int, end: int) -> Iterator[Record]:
        """Apply the events from place `begin` on; yields each after it was applied."""
        for place in range(begin, end):
            record = self.records[place]
            if not is_tombstone(record.event):
                by = authorship_of(record.client_id, record.author, record.status_updated_at)
                self._model.apply_committed(state, orjson.loads(record.event), by)
            yield record
            done = place + 1
            if done % SETTLE_EVENTS == 0:
                state.settle()
            if done % self._spacing == 0 and done not in self._checkpoints:
                self._keep(done, pack(state.dump()))
        state.settle()

    def _keep(self, count: int, packed: bytes) -> None:
        self._checkpoints[count] = packed
        while sum(map(len, self._checkpoints.values())) > CHECKPOINT_BYTES_MAX and len(self._checkpoints) > 1:
            self._spacing *= 2
            self._checkpoints = {
                at: state for at, state in self._checkpoints.items() if at % self._spacing == 0
            }


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


def _plain(value: Any, half: str) -> Any:
    """A copy that later events do not change."""
    if isinstance(value, Forest):
        return value.plain()
    return plain(value) if half == "tree" else copied(value)


def _fingerprint(value: Any, half: str) -> object:
    """Equal where the values are equal; the order of keys counts in `data` alone, as in the state itself."""
    if not isinstance(value, dict | list | Forest):
        return type(value), repr(value)
    try:
        return orjson.dumps(value, _forest, orjson.OPT_SORT_KEYS if half == "tree" else 0)
    except (TypeError, ValueError, RecursionError):
        return pack({"value": _plain(value, half)})


def _forest(value: object) -> list[Json]:
    if isinstance(value, Forest):
        return value.plain()
    raise TypeError
