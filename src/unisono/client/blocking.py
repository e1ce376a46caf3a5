"""The same client for scripts and notebooks: every call waits for its answer, nothing needs an event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Self, TypeVar

from unisono.client.base import Client
from unisono.client.core import Core
from unisono.client.engine import Engine
from unisono.client.history import LIMIT_DEFAULT, TIMEOUT_S, HistoryPage, checked_request
from unisono.client.ids import new_id
from unisono.client.presence import Present, Roster
from unisono.client.status import Committed, Rejected, Status
from unisono.client.submit import SubmitRequest, Ticket
from unisono.client.transaction import DraftReference, OpenTransaction, open_transaction
from unisono.client.validation import CheckedEvent, named, partition_name
from unisono.client.view.feeds import Change, Feed
from unisono.vocabulary import Json, JsonObject

T = TypeVar("T")


class BlockingDraft(DraftReference):
    """An event on its way to the server: stored on this machine, and part of the views, from the moment it exists.

    One that was submitted in a transaction exists when the transaction's block has ended.
    """

    def __init__(self, client: BlockingClient, draft: Ticket | CheckedEvent) -> None:
        super().__init__(draft)
        self._client = client

    @property
    def set_aside(self) -> str | None:
        """Why the draft is not sent at present, though it is pending; None when it is."""
        return self._client.status.drafts_set_aside.get(self.id)

    def settled(self, timeout: float | None = None) -> Committed | Rejected:
        """Wait for what the server makes of it; TimeoutError, with the reason, after `timeout` seconds.

        ClientClosed when the client is closed first: the draft stays in the store and goes out next time.
        ClientStopped when the client does not try to connect any more.
        """
        return self._client._settled(self._stored, timeout)


class BlockingStream(Generic[T]):
    """What happens from the moment this was made; ends when nothing has come for `timeout` seconds."""

    def __init__(self, feed: Feed[T], timeout: float | None) -> None:
        self._feed = feed
        self._timeout = timeout
        self._news = threading.Event()
        feed.wake_by(self._news.set)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        while True:
            self._news.clear()
            item = self._feed.take()
            if item is not None:
                return item
            if self._feed.closed or not self._news.wait(self._timeout):
                raise StopIteration


class BlockingPartitionPresence:
    """Presence in one partition: ephemeral, seen by whoever follows it at the moment."""

    def __init__(self, client: BlockingClient, partition: str) -> None:
        self._client = client
        self.partition = partition

    @property
    def others(self) -> tuple[Present, ...]:
        """Who else is there now; nobody while the client is offline."""
        return self._client._running.presence.roster(self.partition).others

    def set(self, value: Json) -> None:
        """Say something of this client to the others, such as a name and a cursor, until it is set again or cleared.

        InvalidEvent when it is no JSON, or too large.
        """
        self._client._call(lambda _: self._client._running.presence.set(self.partition, value))

    def clear(self) -> None:
        """Say nothing any more."""
        self.set(None)

    def changes(self, timeout: float | None = None) -> BlockingStream[Roster]:
        """Everybody who is there, whenever somebody comes, goes or says something else, from now on."""
        return BlockingStream(self._client._running.presence.feed(self.partition), timeout)


class BlockingTransaction:
    """Events that belong together, as in `with client.transaction():`.

    What is submitted in the block is stored and shown at its end, all at once, and is committed or rejected as a
    whole; an exception that leaves the block drops it. The end raises InvalidEvent where the view refuses an event,
    with its place (`events.1.…`), and TransactionRefused where the server cannot take it; nothing is stored then.
    """

    def __init__(self, client: BlockingClient) -> None:
        self._client = client
        self._open = OpenTransaction(client)

    @property
    def drafts(self) -> tuple[BlockingDraft, ...]:
        return tuple(draft for draft in self._open.drafts if isinstance(draft, BlockingDraft))

    def __enter__(self) -> Self:
        self._open.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._open.end()
        if kind is None and self._open.requests:
            requests = self._open.requests
            self._open.store(self._client._call(lambda core: core.submit_together(requests)))

    def settled(self, timeout: float | None = None) -> list[Committed | Rejected]:
        """What the server made of each draft: all of them are committed, or all are rejected."""
        end = None if timeout is None else time.monotonic() + timeout
        return [
            draft.settled(None if end is None else max(0.0, end - time.monotonic())) for draft in self.drafts
        ]


class BlockingClient(Client[BlockingDraft]):
    """An offline-first client of one server, for programs without an event loop; see `Client` and `connect`."""

    def __enter__(self) -> Self:
        self._check_not_open()
        engine = Engine(self._config)
        engine.start().result()
        self._engine = engine
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect, store a snapshot and close the store. Pending drafts stay in it."""
        if self._engine is not None:
            self._engine.close().result()

    def submit(
        self,
        partitions: Sequence[str] | None = None,
        event: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        partition: str | None = None,
    ) -> BlockingDraft:
        """Check an event, store it as a draft and show it in the views; it goes out as soon as it can.

        InvalidEvent, with nothing stored, when its form is wrong or the current view refuses it.
        """
        request = SubmitRequest(new_id() if id is None else id, named(partitions, partition), event)
        transaction = open_transaction(self)
        if transaction is None:
            return BlockingDraft(self, self._running.submit(request).result())
        checked = self._call(lambda core: core.check(request))
        draft = BlockingDraft(self, checked)
        transaction.add(checked, draft)
        return draft

    def act(self, event: JsonObject, partition: str | None) -> BlockingDraft:
        return self.submit([self._meant(partition)], event)

    def transaction(self) -> BlockingTransaction:
        """What is submitted in its block commits as a whole or not at all: `with client.transaction():`."""
        return BlockingTransaction(self)

    def undo(self, partition: str | None = None) -> list[BlockingDraft]:
        """Take back the newest event that this client submitted in this run, in one partition or in any.

        What takes it back are ordinary events, drafts like any other; `redo` does it again. UndoRefused, with the
        reason, when that cannot be; the next call then goes to the event before.
        """
        return [
            BlockingDraft(self, ticket) for ticket in self._call(lambda core: core.undo_stack.undo(partition))
        ]

    def redo(self, partition: str | None = None) -> list[BlockingDraft]:
        """Do again what was taken back last; see `undo`."""
        return [
            BlockingDraft(self, ticket) for ticket in self._call(lambda core: core.undo_stack.redo(partition))
        ]

    def undoable(self, partition: str | None = None) -> JsonObject | None:
        """The event that `undo` would take back; None when there is none."""
        return self._call(lambda core: core.undo_stack.newest(partition, undone=False))

    def redoable(self, partition: str | None = None) -> JsonObject | None:
        """The event that `redo` would do again; None when there is none."""
        return self._call(lambda core: core.undo_stack.newest(partition, undone=True))

    def pending(self) -> list[BlockingDraft]:
        """The drafts the server has not answered yet, also those of earlier runs, oldest first."""
        return [BlockingDraft(self, ticket) for ticket in self._call(lambda core: core.pending())]

    def discard(self, id: str) -> None:
        """Forget a rejected draft, with those of its transaction."""
        self._call(lambda core: core.discard(id))

    def retry(self, id: str) -> BlockingDraft:
        """Try a rejected draft again, behind everything that is pending now, or one that is set aside at once.

        Those of its transaction go with it.
        """
        return BlockingDraft(self, self._call(lambda core: core.retry(id)))

    def changes(self, partition: str | None = None, timeout: float | None = None) -> BlockingStream[Change]:
        """Changes of a partition's view, or of all, from now on."""
        return BlockingStream(self._core.publisher.changes(partition), timeout)

    def statuses(self, timeout: float | None = None) -> BlockingStream[Status]:
        """The status whenever it is another, from now on."""
        return BlockingStream(self._core.publisher.statuses(), timeout)

    def presence(self, partition: str | None = None) -> BlockingPartitionPresence:
        """Who is in a partition now, and what this client says of itself there."""
        return BlockingPartitionPresence(self, partition_name(self._meant(partition)))

    def history(
        self,
        partition: str | None = None,
        *,
        before: int | None = None,
        limit: int = LIMIT_DEFAULT,
        timeout: float | None = TIMEOUT_S,
    ) -> HistoryPage:
        """What happened in a partition, newest first: who, what and when, of the events below `before`.

        From this client's store, and from the server what the store does not have; of a partition that the client
        does not follow, all of it. Offline, a page can be shorter; HistoryUnavailable when there is nothing to show.
        """
        name = checked_request(self._meant(partition), before, limit)
        try:
            return self._running.history(name, before, limit).result(timeout)
        except TimeoutError:
            raise self._late("the server did not answer with history", timeout) from None

    def caught_up(self, timeout: float | None = None) -> None:
        """Wait until the client is live and has no pending draft.

        TimeoutError, with the reason, after `timeout` seconds. NotCaughtUp when all is done that can be, and a
        partition is refused or left out, or a draft set aside. ClientStopped when no connection is tried any more.
        """
        waiter = self._call(lambda core: core.publisher.caught_up())
        try:
            waiter.result(timeout)
        except TimeoutError:
            waiter.cancel()
            raise self._late("the client has not caught up", timeout) from None

    def add_partition(self, partition: str) -> None:
        """Follow a partition: its history is fetched without disturbing the others."""
        name = partition_name(partition)
        self._call(lambda core: core.add_partition(name))

    def remove_partition(self, partition: str) -> None:
        """Leave a partition and forget its events; drafts in it are still sent."""
        name = partition_name(partition)
        self._call(lambda core: core.remove_partition(name))

    def pause(self) -> None:
        """Go offline until `resume`."""
        self._running.pause().result()

    def resume(self) -> None:
        """Go online now; also after the client stopped because another one took its place."""
        self._running.resume().result()

    def _settled(self, ticket: Ticket, timeout: float | None) -> Committed | Rejected:
        news = threading.Event()
        stops = self._core.publisher.stops()
        stops.wake_by(news.set)
        ticket.outcome.add_done_callback(lambda _: news.set())
        if not ticket.outcome.done() and self.status.stopped is None:
            news.wait(timeout)
        return self._outcome(ticket, timeout)

    def _call(self, function: Callable[[Core], T]) -> T:
        future: Future[T] = self._running.call(function)
        return future.result()


connect = BlockingClient
"""`with unisono.client.connect(url, token=…, client_id=…, …) as client:`"""
