"""Undo and redo of this client's own events, as compensating events (CLIENT-20 to CLIENT-23).

Each event that the program submits is a step. How it is taken back is worked out when the view applies it, and again
whenever the view applies it again, so that it counts from the state that the event has met in the end. The newest
steps of one run are kept, in memory alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from unisono.client.errors import ClientError, InvalidEvent, UndoRefused
from unisono.client.ids import new_id
from unisono.client.store.outbox import DraftRecord
from unisono.client.store.store import Store
from unisono.client.submit import SubmitRequest, Ticket
from unisono.client.validation import partition_name
from unisono.client.view.partition import UndoRecord, draft_key, parse
from unisono.client.view.views import Views
from unisono.model.undo import Fingerprint, Place
from unisono.vocabulary import JsonObject

Submit: TypeAlias = Callable[[Sequence[SubmitRequest]], "list[Ticket | ClientError]"]

STEPS_MAX: Final = 100
"""Steps that can be taken back: as many as a person remembers. Each has its compensating events, 1 MB at most."""


class UndoStep:
    """One submitted event. `ids` are those of the drafts that did it, or took it back, last."""

    def __init__(self, draft: DraftRecord) -> None:
        self.partitions = draft.partitions
        self.event = parse(draft.event)
        self.ids: tuple[str, ...] = (draft.id,)
        self.records: dict[str, UndoRecord] = {}
        self.left: dict[str, tuple[tuple[Place, Fingerprint], ...]] = {}
        """For a step that was taken back: what that left in each partition."""


class UndoStack:
    """The steps of one client; used in its thread. Steps of events that changed nothing are passed over."""

    def __init__(self, store: Store, views: Views, submit: Submit, wall_ms: Callable[[], int]) -> None:
        self._store = store
        self._views = views
        self._submit = submit
        self._wall_ms = wall_ms
        self._done: deque[UndoStep] = deque()
        self._undone: deque[UndoStep] = deque()
        self._playing = False

    # -- what the program does -------------------------------------------------------------------------------

    def drafting(self, draft: DraftRecord) -> None:
        """A draft is about to be shown."""
        if not self._playing:
            for step in [step for step in self._undone if set(step.partitions) & set(draft.partitions)]:
                self._undone.remove(step)
            self._push(draft)

    def _push(self, draft: DraftRecord) -> None:
        step = UndoStep(draft)
        for partition in draft.partitions:
            record = self._views.track(partition, draft_key(draft.draft_clock, draft.id))
            if record is not None:
                step.records[partition] = record
        self._done.append(step)
        if len(self._done) > STEPS_MAX:
            self._drop(self._done.popleft())

    def forget(self, drafts: Sequence[DraftRecord]) -> None:
        """These drafts could not be stored."""
        ids = {draft.id for draft in drafts}
        for step in [step for step in self._done if ids & set(step.ids)]:
            self._done.remove(step)
            self._drop(step)

    def _drop(self, step: UndoStep) -> None:
        for partition, record in step.records.items():
            self._views.untrack(partition, record)

    # -- undo and redo ---------------------------------------------------------------------------------------

    def newest(self, partition: str | None, *, undone: bool) -> JsonObject | None:
        """The event that `undo`, or `redo`, is about."""
        step = self._find(partition, self._undone if undone else self._done)
        return None if step is None else step.event

    def undo(self, partition: str | None) -> list[Ticket]:
        """Take the newest step back; UndoRefused says why that cannot be, and the step is forgotten."""
        step = self._take(partition, self._done, "there is nothing to undo")
        try:
            requests = self._compensation(step)
        finally:
            self._drop(step)
        tickets = self._play(requests)
        step.ids = tuple(ticket.draft.id for ticket in tickets)
        step.left = {
            name: self._views.fingerprints(name, record.places) for name, record in step.records.items()
        }
        self._undone.append(step)
        if len(self._undone) > STEPS_MAX:
            self._undone.popleft()
        return tickets

    def redo(self, partition: str | None) -> list[Ticket]:
        """Do again what was taken back last; UndoRefused says why that cannot be, and the step is forgotten."""
        step = self._take(partition, self._undone, "there is nothing to redo")
        self._check_alive(step)
        self._check_unchanged(step, step.left)
        return self._play([SubmitRequest(new_id(), step.partitions, step.event)], again=True)

    def _play(self, requests: Sequence[SubmitRequest], *, again: bool = False) -> list[Ticket]:
        """Submit all of them, or none and UndoRefused. What is done `again` is a step of its own."""
        events = [request.event for request in requests if isinstance(request.event, dict)]
        errors = self._views.misfits(requests[0].partitions, events, self._wall_ms())
        if errors:
            raise UndoRefused("refused", str(InvalidEvent(errors)), errors)
        undone = list(self._undone)
        self._playing = not again
        try:
            answers = self._submit(requests)
        finally:
            self._playing = False
            self._undone = deque(undone)
        for answer in answers:
            if isinstance(answer, InvalidEvent):
                raise UndoRefused("refused", str(answer), answer.errors)
            if isinstance(answer, ClientError):
                raise answer
        return [answer for answer in answers if isinstance(answer, Ticket)]

    def _compensation(self, step: UndoStep) -> list[SubmitRequest]:
        self._check_alive(step)
        found = [step.records.get(name) for name in step.partitions]
        records = [record for record in found if record is not None and record.compensation is not None]
        if len(records) < len(found) or not records:
            raise UndoRefused("no_inverse", "nothing is known that takes this event back")
        if not all(record.shown for record in records):
            raise UndoRefused("changed", "the event does not fit what others have done")
        self._check_unchanged(step, {name: record.left for name, record in step.records.items()})
        plans = [self._views.fitting(name, record.events) for name, record in step.records.items()]
        if any(plan != plans[0] for plan in plans):
            raise UndoRefused("no_inverse", "taking it back is another thing in each of its partitions")
        return [SubmitRequest(new_id(), step.partitions, event) for event in plans[0]]

    def _check_alive(self, step: UndoStep) -> None:
        outbox = self._store.outbox
        for id in step.ids:
            if id in outbox.rejected:
                raise UndoRefused("rejected", "the server has rejected it")
            if id not in outbox.pending and not self._store.committed(id):
                raise UndoRefused("gone", "it is no longer in this client's store")
        for name in step.partitions:
            if name not in self._store.followed:
                raise UndoRefused("gone", f"{name!r} is no longer followed")

    def _check_unchanged(
        self, step: UndoStep, left: dict[str, tuple[tuple[Place, Fingerprint], ...]]
    ) -> None:
        if not all(self._views.unchanged(name, left.get(name, ())) for name in step.partitions):
            raise UndoRefused("changed", "somebody has changed it since")

    def _find(self, partition: str | None, steps: deque[UndoStep]) -> UndoStep | None:
        name = None if partition is None else partition_name(partition)
        for step in reversed(steps):
            if (name is None or name in step.partitions) and not _changed_nothing(step):
                return step
        return None

    def _take(self, partition: str | None, steps: deque[UndoStep], nothing: str) -> UndoStep:
        step = self._find(partition, steps)
        if step is None:
            raise UndoRefused("nothing", nothing)
        steps.remove(step)
        return step


def _changed_nothing(step: UndoStep) -> bool:
    return bool(step.records) and all(
        record.compensation is not None and not record.events for record in step.records.values()
    )
