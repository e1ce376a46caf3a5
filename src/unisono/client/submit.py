"""From a submitted event to a stored draft, and from there to its outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

import msgspec

from unisono.client.errors import ClientError, InvalidEvent, UnknownDraft
from unisono.client.status import Committed, Rejected
from unisono.client.store.outbox import DraftRecord
from unisono.client.store.store import Store
from unisono.client.validation import check_form
from unisono.client.view.partition import parse
from unisono.client.view.views import Views
from unisono.vocabulary import FieldError


class SubmitRequest(msgspec.Struct, frozen=True):
    """A draft to store. `retrying`: a rejected one, submitted again with its id."""

    id: str
    partitions: Sequence[str]
    event: object
    retrying: bool = False


class Ticket(msgspec.Struct, frozen=True):
    """A stored draft, and the future of its outcome."""

    draft: DraftRecord
    outcome: Future[Committed | Rejected]


class Drafting:
    """Stores drafts. Invariant: every open outcome belongs to a pending draft."""

    def __init__(self, store: Store, views: Views, profile: str, wall_ms: Callable[[], int]) -> None:
        self._store = store
        self._views = views
        self._profile = profile
        self._wall_ms = wall_ms
        self._outcomes: dict[str, Future[Committed | Rejected]] = {}

    def submit(self, requests: Sequence[SubmitRequest], bytes_max: int | None) -> list[Ticket | ClientError]:
        """Check each against the view that the ones before it left, then store all of them in one write.

        The answers stand in the order of the requests. When the write fails nothing is stored or shown.
        """
        answers: list[DraftRecord | ClientError] = []
        drafts: dict[str, DraftRecord] = {}
        for request in requests:
            try:
                draft = self._draft(request, drafts, bytes_max)
            except ClientError as error:
                answers.append(error)
            else:
                drafts[draft.id] = draft
                self._views.draft(draft)
                answers.append(draft)
        if drafts:
            again = [request.id for request in requests if request.retrying and request.id in drafts]
            try:
                self._store.outbox.add(list(drafts.values()), again)
            except ClientError:
                self._views.undraft(list(drafts.values()))
                self._views.refresh()
                raise
        return [answer if isinstance(answer, ClientError) else self._ticket(answer) for answer in answers]

    def _draft(
        self, request: SubmitRequest, others: dict[str, DraftRecord], bytes_max: int | None
    ) -> DraftRecord:
        id, outbox = request.id, self._store.outbox
        checked = check_form(id, request.partitions, request.event, bytes_max)
        known = outbox.find(id) is not None and not request.retrying
        if known or id in others or self._store.committed(id):
            raise InvalidEvent([FieldError("id", f"{id!r} was given to another event")])
        errors = self._views.model.shape(self._profile, checked.event)
        errors = errors or self._views.refusals(
            self._profile, checked.partitions, checked.event, self._wall_ms()
        )
        if errors:
            raise InvalidEvent(errors)
        return DraftRecord(outbox.next_clock(), id, checked.partitions, checked.text, self._wall_ms())

    def _ticket(self, draft: DraftRecord) -> Ticket:
        outcome = self._outcomes.get(draft.id)
        if outcome is None:
            outcome = self._outcomes[draft.id] = Future()
            outcome.set_running_or_notify_cancel()  # so that no single reader can cancel it for all
        return Ticket(draft, outcome)

    def ticket(self, id: str) -> Ticket | None:
        """The ticket of a pending draft."""
        draft = self._store.outbox.pending.get(id)
        return None if draft is None else self._ticket(draft)

    def pending(self) -> list[Ticket]:
        return [self._ticket(draft) for draft in self._store.outbox.pending.values()]

    def settle(self, id: str, outcome: Committed | Rejected) -> None:
        future = self._outcomes.pop(id, None)
        if future is not None:
            future.set_result(outcome)

    def again(self, id: str) -> SubmitRequest:
        """The request that submits a rejected draft again."""
        draft = self._rejected(id)
        return SubmitRequest(id, draft.partitions, parse(draft.event), retrying=True)

    def discard(self, id: str) -> None:
        self._store.outbox.discard(self._rejected(id).id)

    def _rejected(self, id: str) -> DraftRecord:
        draft = self._store.outbox.rejected.get(id)
        if draft is None:
            raise UnknownDraft(id)
        return draft

    def close(self, error: ClientError) -> None:
        for outcome in self._outcomes.values():
            outcome.set_exception(error)
        self._outcomes.clear()
