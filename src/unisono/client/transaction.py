"""Transactions: what a program submits in a `with` block is kept back, and stored as a whole at its end (CLIENT-17).

A block belongs to the thread or task that opened it, and to the tasks that are started in it: `asyncio.gather` of
several submits is part of it. Whoever submits after the block has ended gets an error, and not an event of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

from unisono.client.errors import ClientError
from unisono.client.submit import SubmitRequest, Ticket
from unisono.client.validation import CheckedEvent
from unisono.client.view.partition import parse
from unisono.vocabulary import JsonObject


class DraftReference:
    """An event on its way to the server: stored on this machine, and part of the views, from the moment it exists.

    One that was submitted in a transaction exists when the transaction's block has ended.
    """

    def __init__(self, draft: Ticket | CheckedEvent) -> None:
        if isinstance(draft, Ticket):
            self._ticket: Ticket | None = draft
            self.id, self.partitions, self._text = draft.draft.id, draft.draft.partitions, draft.draft.event
        else:
            self._ticket = None
            self.id, self.partitions, self._text = draft.id, draft.partitions, draft.text

    @property
    def event(self) -> JsonObject:
        return parse(self._text)

    @property
    def draft_clock(self) -> int:
        return self._stored.draft.draft_clock

    @property
    def _stored(self) -> Ticket:
        if self._ticket is None:
            raise ClientError(f"the draft {self.id!r} is not stored: its transaction is open, or was dropped")
        return self._ticket

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, partitions={self.partitions!r})"


class OpenTransaction:
    """What was submitted in a block so far; `requests` and `drafts` are in the same order."""

    def __init__(self, client: object) -> None:
        self._client = client
        self._ended = False
        self.requests: list[SubmitRequest] = []
        self.drafts: list[DraftReference] = []

    def begin(self) -> None:
        if open_transaction(self._client) is not None or self._ended:
            raise ClientError("a transaction is used once, and not inside another one of the same client")
        _open.set((*_open.get(), self))

    def add(self, event: CheckedEvent, draft: DraftReference) -> None:
        """Keep what was checked: what the program passed may change until the block ends."""
        if self._ended:
            raise ClientError("the transaction has ended: start tasks that outlast it outside of its block")
        self.requests.append(SubmitRequest(event.id, event.partitions, event.event))
        self.drafts.append(draft)

    def end(self) -> None:
        self._ended = True
        _open.set(tuple(each for each in _open.get() if each is not self))

    def store(self, tickets: Sequence[Ticket]) -> None:
        """The drafts exist now."""
        for draft, ticket in zip(self.drafts, tickets, strict=True):
            draft._ticket = ticket

    def belongs_to(self, client: object) -> bool:
        return self._client is client


_open: ContextVar[tuple[OpenTransaction, ...]] = ContextVar("open_transactions", default=())


def open_transaction(client: object) -> OpenTransaction | None:
    """The transaction of this client that the caller is in."""
    return next((each for each in reversed(_open.get()) if each.belongs_to(client)), None)
