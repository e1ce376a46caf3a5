"""All views of a client: opened from the store, brought up to date after each step, read by any thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from unisono.client.errors import UnknownPartition
from unisono.client.store.outbox import DraftRecord
from unisono.client.store.rows import Applied, ViewSnapshot
from unisono.client.store.store import Store
from unisono.client.sync.bootstrap import model_label
from unisono.client.view.partition import (
    Entry,
    Key,
    PartitionView,
    UndoRecord,
    committed_key,
    draft_key,
    parse,
)
from unisono.model.authorship import Authorship, authorship_of
from unisono.model.forest import Malformed
from unisono.model.model import Model
from unisono.model.pack import unpack
from unisono.model.partition import PartitionState
from unisono.model.undo import Fingerprint, Place
from unisono.vocabulary import FieldError, Json, JsonObject

log = logging.getLogger("unisono.client")


class PendingChange(msgspec.Struct):
    """Changes a view has not applied yet."""

    added: list[Entry] = msgspec.field(default_factory=list)
    removed: set[Key] = msgspec.field(default_factory=set)
    became: dict[Key, Key] = msgspec.field(default_factory=dict)
    rebuild: bool = False


class Views:
    """The views of the partitions the store follows.

    The engine's thread alone changes them; `dump` may be called from any thread and sees a view between two
    changes.
    """

    def __init__(self, store: Store, model: Model, snapshot_every: int, profile: str) -> None:
        self._store = store
        self._profile = profile
        self._snapshot_every = snapshot_every
        self._lock = threading.RLock()
        self._views: dict[str, PartitionView] = {}
        self._waiting: dict[str, PendingChange] = {}
        self.model = model
        self.revisions: dict[str, int] = {}

    @property
    def fingerprint(self) -> str:
        """Which model folds snapshots now."""
        return model_label(self._profile, self.model)

    # -- opening and closing -----------------------------------------------------------------------------------

    def open(self, partition: str) -> None:
        """From the newest snapshot or the partition's base, the events after it, and the pending drafts."""
        store, known = self._store, self._store.followed[partition].known
        view = self._from_snapshot(partition) or self._from_base(partition) or PartitionView(self.model)
        view.fold(
            (event.committed_id, event.event, event.by)
            for event in store.events(partition, view.folded, known)
        )
        above = [
            Entry(committed_key(event.committed_id), parse(event.event), event.by)
            for event in store.events(partition, max(known, view.folded))
        ]
        drafts = [self._draft_entry(draft) for draft in store.outbox.in_partition(partition)]
        if (before := self._views.get(partition)) is not None:
            view.tracked = before.tracked
        view.amend(known, above + drafts)
        with self._lock:
            self._views[partition] = view
            self.revisions[partition] = self.revisions.get(partition, 0) + 1
            self._show_transactions_whole()

    def _from_snapshot(self, partition: str) -> PartitionView | None:
        snapshot = self._store.snapshot(partition, self.fingerprint)
        if snapshot is None:
            return None
        try:
            state = PartitionState.load(msgspec.json.decode(snapshot.state))
        except (ValueError, Malformed):
            log.warning(
                "the snapshot of %r cannot be read; folding its events instead", partition, exc_info=True
            )
            return None
        return PartitionView(self.model, state, snapshot.committed_id)

    def _from_base(self, partition: str) -> PartitionView | None:
        """Start from the base, which replaces the events that are not stored.

        One of another model is being fetched again. Until that has come, its tree half is shown, which means the
        same in every model.
        """
        base = self._store.base(partition)
        if base is None:
            return None
        try:
            value = unpack(base.state)
            if base.model_version != self.fingerprint:
                value["data"] = {}
            state = PartitionState.load(value)
        except (ValueError, TypeError):
            log.warning("the base of %r cannot be read; fetching it again", partition, exc_info=True)
            self._store.fetch_again(partition)
            return None
        return PartitionView(self.model, state, base.committed_id)

    def drop(self, partition: str) -> None:
        with self._lock:
            del self._views[partition]
            self._waiting.pop(partition, None)
            self._show_transactions_whole()

    def reopen_all(self, model: Model | None = None) -> None:
        """Rebuild all views: the committed data, or the model, has changed."""
        if model is not None:
            self.model = model
        self._waiting.clear()
        for partition in list(self._views):
            self.open(partition)

    def reopen_with_drafts(self) -> None:
        """This client's identity has changed: rebuild the views that show drafts of it."""
        named = {name for draft in self._store.outbox.pending.values() for name in draft.partitions}
        for partition in named & self._views.keys():
            self._waiting.pop(partition, None)
            self.open(partition)

    def drafted_by(self, at_ms: int) -> Authorship:
        """Who made a draft of this client: what the server said last, and the time of the draft."""
        return authorship_of(self._store.client_id, self._store.author, at_ms)

    def _draft_entry(self, draft: DraftRecord) -> Entry:
        by = self.drafted_by(draft.created_at)
        return Entry(draft_key(draft.draft_clock, draft.id), parse(draft.event), by, draft.batch)

    # -- what changes --------------------------------------------------------------------------------------

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """No other thread reads a view while this is open: it sees all changes at once."""
        with self._lock:
            yield

    def draft(self, draft: DraftRecord) -> None:
        """Show a new draft at once."""
        for partition in draft.partitions:
            if partition in self._views:
                self._amendment(partition).added.append(self._draft_entry(draft))
        self.refresh()

    def undraft(self, drafts: Sequence[DraftRecord]) -> None:
        for draft in drafts:
            for partition in draft.partitions:
                if partition in self._views:
                    self._amendment(partition).removed.add(draft_key(draft.draft_clock, draft.id))

    def note(self, applied: Applied) -> None:
        """Note what a transaction changed; `refresh` applies it."""
        for partition in applied.started:
            self._amendment(partition).rebuild = True
        for partition, events in applied.events.items():
            amendment = self._amendment(partition)
            amendment.added += [
                Entry(committed_key(event.committed_id), parse(event.event), event.by) for event in events
            ]
        self.undraft([settled.draft for settled in applied.settled])
        self.undraft(applied.rejected)
        for settled in applied.settled:
            place = draft_key(settled.draft.draft_clock, settled.draft.id)
            for partition in settled.draft.partitions:
                if partition in applied.events:
                    self._amendment(partition).became[place] = committed_key(settled.committed_id)

    def _amendment(self, partition: str) -> PendingChange:
        return self._waiting.setdefault(partition, PendingChange())

    def refresh(self) -> None:
        """Bring every view up to date with the store."""
        waiting, self._waiting = self._waiting, {}
        reopened = [partition for partition, amendment in waiting.items() if amendment.rebuild]
        amended: list[str] = []
        with self._lock:
            for partition, amendment in waiting.items():
                if amendment.rebuild:
                    self._views[partition].rename(amendment.became)
                    continue
                view, known = self._views[partition], self._store.followed[partition].known
                if view.amend(known, amendment.added, amendment.removed, amendment.became):
                    self.revisions[partition] += 1
                    amended.append(partition)
                else:
                    reopened.append(partition)
            self._show_transactions_whole()
        for partition in reopened:
            self.open(partition)
        for partition in amended:
            view = self._views[partition]
            if view.snapshot_due(self._snapshot_every):
                self._write(partition, view)

    def _show_transactions_whole(self) -> None:
        """Hide the transactions that do not fit in one of their partitions in all of them.

        In the order of their drafts: whether one fits depends on those before it alone.
        """
        for partition, view in self._views.items():
            if view.hidden:
                view.hide(frozenset())
                self.revisions[partition] += 1
        for batch, partitions in self._spanning_transactions().items():
            views = {name: self._views[name] for name in partitions}
            if any(batch in view.unfit for view in views.values()):
                for name, view in views.items():
                    if batch not in view.unfit:
                        view.hide(view.hidden | {batch})
                        self.revisions[name] += 1

    def _spanning_transactions(self) -> dict[int, set[str]]:
        """The transactions in more than one view, oldest first."""
        pending, spanning = self._store.outbox.pending, {}
        for batch, ids in sorted(self._store.outbox.transactions.items()):
            named = {name for id in ids for name in pending[id].partitions} & self._views.keys()
            if len(named) > 1:
                spanning[batch] = named
        return spanning

    # -- reading -------------------------------------------------------------------------------------

    def dump(self, partition: str, profile: str) -> Json:
        with self._lock:
            view = self._views.get(partition)
            if view is None:
                raise UnknownPartition(partition)
            return view.dump(profile)

    def refusals(
        self, profile: str, partitions: Sequence[str], event: JsonObject, now_ms: int
    ) -> list[FieldError]:
        """The refusals of an event of this client in the first of its partitions that has any."""
        by = self.drafted_by(now_ms)
        for partition in partitions:
            view = self._views.get(partition)
            if view is not None and (errors := view.refusals(profile, event, by)):
                return errors
        return []

    # -- undo ----------------------------------------------------------------------------------------------

    def track(self, partition: str, place: Key) -> UndoRecord | None:
        """Work out from now on how the draft at this place is taken back; None when there is no such view."""
        view = self._views.get(partition)
        if view is None:
            return None
        record = view.tracked[place] = UndoRecord()
        return record

    def untrack(self, partition: str, record: UndoRecord) -> None:
        view = self._views.get(partition)
        if view is not None:
            view.tracked = {place: each for place, each in view.tracked.items() if each is not record}

    def misfits(
        self, partitions: Sequence[str], events: Sequence[JsonObject], now_ms: int
    ) -> list[FieldError]:
        """What is wrong with events of this client, one after the other, in the first partition that has anything."""
        by = self.drafted_by(now_ms)
        for view in (self._views[name] for name in partitions if name in self._views):
            with self._lock:
                if errors := view.misfits(self._profile, events, by):
                    return errors
        return []

    def fitting(self, partition: str, events: Sequence[JsonObject]) -> list[JsonObject]:
        return self._views[partition].fitting(events)

    def fingerprints(self, partition: str, places: Sequence[Place]) -> tuple[tuple[Place, Fingerprint], ...]:
        return self._views[partition].fingerprints(places)

    def unchanged(self, partition: str, left: Sequence[tuple[Place, Fingerprint]]) -> bool:
        return self._views[partition].unchanged(left)

    # -- snapshots -----------------------------------------------------------------------------------------

    def _write(self, partition: str, view: PartitionView) -> None:
        with self._lock:
            base = view.base(self._store.followed[partition].known)
        if base is not None:
            committed_id, state = base
            self._store.put_snapshot(partition, ViewSnapshot(committed_id, self.fingerprint, state))

    def close(self) -> None:
        """Store what would take longer to fold at the next start than it takes to write now."""
        for partition, view in self._views.items():
            if view.worth_storing(self._store.followed[partition].known):
                self._write(partition, view)
