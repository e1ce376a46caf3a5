"""From a submitted event to a stored draft, and from there to its outcome."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

import msgspec

from unisono.client.errors import ClientError, InvalidEvent, UnknownDraft
from unisono.client.status import Committed, Rejected
from unisono.client.store.outbox import DraftRecord
from unisono.client.store.store import Store
from unisono.client.validation import CheckedEvent, check_form
from unisono.client.view.partition import parse
from unisono.client.view.views import Views
from unisono.protocol.client_codec import ENVELOPE_BYTES, item_payload
from unisono.vocabulary import FieldError

TRANSACTION_BYTES_MAX: Final = 16 * 1024 * 1024
"""Events of one transaction while the server's bound of a message is unknown: no server takes more."""


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


class DraftWatcher(Protocol):
    """Hears of each draft before it is shown, and of those that could not be stored."""

    def drafting(self, draft: DraftRecord) -> None: ...

    def forget(self, drafts: Sequence[DraftRecord]) -> None: ...


class Drafting:
    """Stores drafts. Invariant: every open outcome belongs to a pending draft."""

    def __init__(self, store: Store, views: Views, profile: str, wall_ms: Callable[[], int]) -> None:
        self._store = store
        self._views = views
        self._profile = profile
        self._wall_ms = wall_ms
        self._outcomes: dict[str, Future[Committed | Rejected]] = {}
        self.watcher: DraftWatcher | None = None

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
                self._show(draft)
                answers.append(draft)
        if drafts:
            again = [request.id for request in requests if request.retrying and request.id in drafts]
            try:
                self._store.outbox.add(list(drafts.values()), again)
            except ClientError:
                self._hide(drafts)
                raise
        return [answer if isinstance(answer, ClientError) else self._ticket(answer) for answer in answers]

    def submit_together(self, requests: Sequence[SubmitRequest], bytes_max: int | None) -> list[Ticket]:
        """Check a transaction as `submit` does, and store all of it in one write, or nothing.

        InvalidEvent names the place of the event: `events.1.event.payload…`. Other threads see all of it at once.
        """
        drafts: dict[str, DraftRecord] = {}
        again = [request.id for request in requests if request.retrying]
        try:
            with self._views.unseen():
                try:
                    self._show_together(requests, drafts, bytes_max)
                except BaseException:
                    self._hide(drafts)
                    raise
            self._store.outbox.add(list(drafts.values()), again)
        except ClientError:
            self._hide(drafts)
            raise
        self._views.refresh()
        return [self._ticket(draft) for draft in drafts.values()]

    def _show_together(
        self, requests: Sequence[SubmitRequest], drafts: dict[str, DraftRecord], bytes_max: int | None
    ) -> None:
        for place, request in enumerate(requests):
            try:
                draft = self._draft(request, drafts, bytes_max)
            except InvalidEvent as error:
                raise InvalidEvent([_at(place, each) for each in error.errors]) from None
            batch = next(iter(drafts.values()), draft).draft_clock
            drafts[draft.id] = draft = msgspec.structs.replace(draft, batch=batch)
            self._show(draft)
        _check_size(drafts.values(), bytes_max)

    def _show(self, draft: DraftRecord) -> None:
        if self.watcher is not None:
            self.watcher.drafting(draft)
        self._views.draft(draft)

    def _hide(self, drafts: dict[str, DraftRecord]) -> None:
        """Take drafts that are not stored out of the views."""
        hidden = list(drafts.values())
        self._views.undraft(hidden)
        self._views.refresh()
        if self.watcher is not None:
            self.watcher.forget(hidden)
        drafts.clear()

    def check(
        self, request: SubmitRequest, bytes_max: int | None, others: Container[str] = ()
    ) -> CheckedEvent:
        """Refuse an event that no state could make right; `others` are ids that are taken already."""
        checked = check_form(request.id, request.partitions, request.event, bytes_max)
        known = self._store.outbox.find(checked.id) is not None and not request.retrying
        if known or checked.id in others or self._store.committed(checked.id):
            raise InvalidEvent([FieldError("id", f"{checked.id!r} was given to another event")])
        if errors := self._views.model.shape(self._profile, checked.event):
            raise InvalidEvent(errors)
        return checked

    def _draft(
        self, request: SubmitRequest, others: dict[str, DraftRecord], bytes_max: int | None
    ) -> DraftRecord:
        checked, outbox = self.check(request, bytes_max, others), self._store.outbox
        errors = self._views.refusals(self._profile, checked.partitions, checked.event, self._wall_ms())
        if errors:
            raise InvalidEvent(errors)
        return DraftRecord(outbox.next_clock(), checked.id, checked.partitions, checked.text, self._wall_ms())

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

    def again(self, id: str) -> tuple[list[SubmitRequest], bool]:
        """The requests that submit a rejected draft again, with those of its transaction; whether it has one."""
        draft = self._rejected(id)
        drafts = self._store.outbox.rejected_with(draft)
        requests = [
            SubmitRequest(each.id, each.partitions, parse(each.event), retrying=True) for each in drafts
        ]
        return requests, draft.batch is not None

    def discard(self, id: str) -> None:
        """Forget a rejected draft, with those of its transaction."""
        outbox = self._store.outbox
        outbox.discard([draft.id for draft in outbox.rejected_with(self._rejected(id))])

    def _rejected(self, id: str) -> DraftRecord:
        draft = self._store.outbox.rejected.get(id)
        if draft is None:
            raise UnknownDraft(id)
        return draft

    def close(self, error: ClientError) -> None:
        for outcome in self._outcomes.values():
            outcome.set_exception(error)
        self._outcomes.clear()


def _at(place: int, error: FieldError) -> FieldError:
    return FieldError(f"events.{place}.{error.field}" if error.field else f"events.{place}", error.message)


def _check_size(drafts: Iterable[DraftRecord], bytes_max: int | None) -> None:
    most = TRANSACTION_BYTES_MAX if bytes_max is None else bytes_max
    size = sum(len(item_payload(draft.id, draft.partitions, draft.event)) + 1 for draft in drafts)
    if size + ENVELOPE_BYTES > most:
        says = f"{size} bytes are more than one message to this server may have ({most})"
        raise InvalidEvent([FieldError("events", says)])
