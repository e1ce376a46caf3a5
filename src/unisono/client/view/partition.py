"""The state of one partition as this client sees it: committed events, then drafts (CLIENT-03).

A view is a settled base, the fold of committed events up to some point, and above it entries in view order:
first committed events by committed_id, then drafts by (draft_clock, id). Each entry remembers the mark of the
state before it, so a change at one place undoes and re-applies only what comes after that place. A live event
costs as much as the drafts above it, an own draft as much as itself, and history is never replayed.

Committed entries that can no longer be preceded by anything (at or below `known`) are settled into the base by
the hundred, because settling forgets every mark and the entries above must be applied again.

A draft that does not fit the state it meets is left out of the view and stays pending: the server decides. The drafts
of one transaction are shown together: where one does not fit, in this partition or in another, none is shown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec
import orjson

from unisono.model.authorship import UNKNOWN, Authorship
from unisono.model.model import CANONICAL, COMPATIBILITY, Model
from unisono.model.partition import PartitionState
from unisono.model.rules import RuleFailed
from unisono.model.schema import EVENT_TYPE
from unisono.model.undo import (
    Compensation,
    Fingerprint,
    Place,
    fingerprints,
    fitting,
    unchanged,
    watch,
)
from unisono.vocabulary import FieldError, Json, JsonObject

SETTLE_EVERY: Final = 256
"""Committed entries that can be undone: some hundred kilobytes, and one in so many pays for the drafts above."""

FOLD_SLICE: Final = 1000
"""Events between two settles while a history is folded, so that its journal stays small."""

SNAPSHOT_WEIGHT_PER_EVENT: Final = 500
"""A snapshot is due after one event for each so many bytes of the state, so that writing them stays a small part of
folding the events: writing costs about as much as folding one event for each 5,000 bytes."""

Key: TypeAlias = tuple[int, int, str]
"""Where an entry stands: committed events before drafts, then by number, then by id."""


def committed_key(committed_id: int) -> Key:
    return (0, committed_id, "")


def draft_key(draft_clock: int, id: str) -> Key:
    return (1, draft_clock, id)


class Entry(msgspec.Struct):
    """One event above the base, the mark of the state before it, and whether it changed that state.

    `batch`: of the drafts of one transaction, which stand next to each other.
    """

    key: Key
    event: JsonObject
    by: Authorship = UNKNOWN
    batch: int | None = None
    mark: int = 0
    shown: bool = False


class UndoRecord:
    """How an event of this client is taken back, as of when the view applied it last."""

    __slots__ = ("compensation", "shown")

    def __init__(self) -> None:
        self.shown = False
        self.compensation: Compensation | None = None

    @property
    def events(self) -> tuple[JsonObject, ...]:
        return () if self.compensation is None else self.compensation.events

    @property
    def left(self) -> tuple[tuple[Place, Fingerprint], ...]:
        return () if self.compensation is None else self.compensation.left

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(place for place, _ in self.left)


def _key(entry: Entry) -> Key:
    return entry.key


def parse(event: bytes) -> JsonObject:
    """The event as the model reads it; {} for what is no object, which has no meaning."""
    try:
        value = orjson.loads(event)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class PartitionView:
    """The state of one partition, kept up to date by amendments.

    Invariants: `_entries` is sorted by key and all of it is applied, on top of a base that holds exactly the
    committed events up to `folded`; `known` is the id up to which nothing is missing. No draft is shown of the
    transactions in `unfit`, which have one that does not fit here, and in `hidden`, which do not fit elsewhere.
    """

    def __init__(self, model: Model, state: PartitionState | None = None, folded: int = 0) -> None:
        self._model = model
        self._state = state or PartitionState()
        self.folded = folded
        self.since_snapshot = 0
        self._entries: list[Entry] = []
        self.unfit: set[int] = set()
        self.hidden: frozenset[int] = frozenset()
        self.tracked: dict[Key, UndoRecord] = {}
        """Those of this client's events that it may want to take back."""

    def fold(self, events: Iterable[tuple[int, bytes, Authorship]]) -> None:
        """Put a history into the base; only before anything was amended."""
        for count, (committed_id, event, by) in enumerate(events, 1):
            self._model.apply_committed(self._state, parse(event), by)
            self.folded = committed_id
            self.since_snapshot += 1
            if count % FOLD_SLICE == 0:
                self._state.settle()
        self._state.settle()

    def amend(
        self,
        known: int,
        added: list[Entry],
        removed: Collection[Key] = (),
        became: Mapping[Key, Key] = {},
    ) -> bool:
        """Add and remove entries; False, and no change, when one belongs below the base: rebuild the view.

        `became` says which of the removed drafts are which of the added events.
        """
        self.rename(became)
        if any(entry.key <= committed_key(self.folded) for entry in added):
            return False
        promoted = self._promote(became, {entry.key: entry.by for entry in added}) if became else {}
        if promoted:
            added = [entry for entry in added if entry.key not in promoted.values()]
            removed = [place for place in removed if place not in promoted]
        entries = self._entries
        places = [entry.key for entry in added] + list(removed)
        start = min((bisect_left(entries, place, key=_key) for place in places), default=len(entries))
        start = self._whole(start)
        above = [entry for entry in entries[start:] if entry.key not in removed] + added
        above.sort(key=_key)
        self._undo(start)
        self._apply(above)
        self._settle(known)
        return True

    def hide(self, batches: frozenset[int]) -> None:
        """Show the drafts of these transactions no more, and those that were hidden before again."""
        changed = batches ^ self.hidden
        self.hidden = batches
        start = next((n for n, entry in enumerate(self._entries) if entry.batch in changed), None)
        if start is not None:
            above = self._entries[start:]
            self._undo(start)
            self._apply(above)

    def _whole(self, start: int) -> int:
        """The place of the first draft of the transaction that the entry at `start` belongs to."""
        entries = self._entries
        if start < len(entries) and (batch := entries[start].batch) is not None:
            while start and entries[start - 1].batch == batch:
                start -= 1
        return start

    def rename(self, became: Mapping[Key, Key]) -> None:
        """Drafts have become events: their records go with them."""
        for place, becomes in became.items() if self.tracked else ():
            if (record := self.tracked.pop(place, None)) is not None:
                self.tracked[becomes] = record

    def _promote(self, became: Mapping[Key, Key], authors: Mapping[Key, Authorship]) -> dict[Key, Key]:
        """Turn the oldest drafts into the events they became, where no order changes: the state stays the same.

        So many drafts sent in batches cost themselves, and not each time all that are still waiting.
        """
        entries, promoted = self._entries, {}
        first = bisect_left(entries, draft_key(0, ""), key=_key)
        last = entries[first - 1].key if first else committed_key(self.folded)
        for entry, (place, becomes) in zip(entries[first:], sorted(became.items()), strict=False):
            by = authors.get(becomes, UNKNOWN)
            if entry.key != place or not entry.shown or becomes <= last or not self._same(entry.by, by):
                break
            entry.key = last = promoted[place] = becomes
            entry.by = by
            entry.batch = None
        return promoted

    def _same(self, drafted: Authorship, committed: Authorship) -> bool:
        """Whether a draft and its event mean the same to the model's rules."""
        if self._model.reads_commit_time:
            return False
        return (drafted.user_id, drafted.claims) == (committed.user_id, committed.claims)

    def _settle(self, known: int) -> None:
        """Move into the base what is certain, once it is worth applying again what is above it."""
        settled = bisect_right(self._entries, committed_key(known), key=_key)
        above = self._entries[settled:]
        if settled < max(SETTLE_EVERY, len(above)):
            return
        self._undo(settled)
        self.folded = self._entries[-1].key[1]
        self.since_snapshot += settled
        self._entries.clear()
        self._state.settle()
        self._apply(above)

    def _undo(self, start: int) -> None:
        """Roll back to the state before the entry at `start`."""
        if start < len(self._entries):
            self._state.rollback(self._entries[start].mark)
            self.unfit.difference_update(
                entry.batch for entry in self._entries[start:] if entry.batch is not None
            )
            del self._entries[start:]

    def _apply(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            entry.mark = self._state.mark()
            record = self.tracked.get(entry.key) if self.tracked else None
            if entry.batch in self.unfit or entry.batch in self.hidden:
                entry.shown = False
            elif record is None:
                entry.shown = self._change(entry)
            else:
                change = partial(self._change, entry)
                entry.shown, record.compensation = watch(
                    self._model, self._state, entry.event, entry.by, change
                )
            if record is not None:
                record.shown = entry.shown
            self._entries.append(entry)
            if entry.batch is not None and not entry.shown and entry.batch not in self.hidden:
                self._leave_out(entry.batch)

    def _leave_out(self, batch: int) -> None:
        """The last entry does not fit: undo the others of its transaction."""
        self.unfit.add(batch)
        first = self._whole(len(self._entries) - 1)
        self._state.rollback(self._entries[first].mark)
        for entry in self._entries[first:]:
            entry.shown = False
            entry.mark = self._state.mark()
            if (record := self.tracked.get(entry.key)) is not None:
                record.shown = False

    def _change(self, entry: Entry) -> bool:
        event = entry.event
        if entry.key[0] == 0:
            return self._model.apply_committed(self._state, event, entry.by)
        profile = CANONICAL if event.get("type") == EVENT_TYPE else COMPATIBILITY
        if self.refusals(profile, event, entry.by):
            return False
        try:
            self._model.apply(profile, self._state, event, entry.by)
        except RuleFailed:
            return False  # the reducer left the state as it was
        return True

    def refusals(self, profile: str, event: JsonObject, by: Authorship = UNKNOWN) -> list[FieldError]:
        """The refusals of an event on this state, as the server would judge it."""
        return self._model.shape(profile, event) or self._model.refusals(profile, self._state, event, by)

    def misfits(self, profile: str, events: Sequence[JsonObject], by: Authorship) -> list[FieldError]:
        """The refusals of the first of these events that is refused, each on the state that the others left."""
        mark = self._state.mark()
        try:
            for event in events:
                if errors := self.refusals(profile, event, by):
                    return errors
                self._model.apply(profile, self._state, event, by)
        except RuleFailed as failed:
            return [failed.error]
        finally:
            self._state.rollback(mark)
        return []

    def fitting(self, events: Sequence[JsonObject]) -> list[JsonObject]:
        return fitting(self._state, events)

    def fingerprints(self, places: Sequence[Place]) -> tuple[tuple[Place, Fingerprint], ...]:
        return fingerprints(self._state, places)

    def unchanged(self, left: Sequence[tuple[Place, Fingerprint]]) -> bool:
        return unchanged(self._state, left)

    def dump(self, profile: str) -> Json:
        """The half of the state that this profile's events make, as plain JSON that shares nothing with it."""
        return self._state.tree.dump() if profile == COMPATIBILITY else self._state.data.dump()

    def snapshot_due(self, every: int) -> bool:
        return self.since_snapshot >= max(every, self._state.weight() // SNAPSHOT_WEIGHT_PER_EVENT)

    def worth_storing(self, known: int) -> bool:
        """Whether folding what came since the last snapshot would take about as long as writing one."""
        unsaved = self.since_snapshot + bisect_right(self._entries, committed_key(known), key=_key)
        return unsaved > self._state.weight() // SNAPSHOT_WEIGHT_PER_EVENT // 10

    def base(self, known: int) -> tuple[int, bytes] | None:
        """The committed state up to `known`, encoded, with its committed_id; None when it cannot be encoded."""
        first = bisect_right(self._entries, committed_key(known), key=_key)
        above = self._entries[first:]
        upto = self._entries[first - 1].key[1] if first else self.folded
        self._undo(first)
        try:
            encoded = msgspec.json.encode(self._state.dump())
        except RecursionError:
            encoded = None  # deeper than any encoder goes; such a partition is folded at each start
        self._apply(above)
        if encoded is None:
            return None
        self.since_snapshot = -first  # those still entries are counted again when they are settled
        return upto, encoded
