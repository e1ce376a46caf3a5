"""The client for asyncio programs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
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


class Draft(DraftReference):
    """An event on its way to the server: stored on this machine, and part of the views, from the moment it exists.

    One that was submitted in a transaction exists when the transaction's block has ended.
    """

    def __init__(self, client: SyncClient, draft: Ticket | CheckedEvent) -> None:
        super().__init__(draft)
        self._client = client

    @property
    def set_aside(self) -> str | None:
        """Why the draft is not sent at present, though it is pending; None when it is."""
        return self._client.status.drafts_set_aside.get(self.id)

    async def settled(self, timeout: float | None = None) -> Committed | Rejected:  # noqa: ASYNC109
        """What the server made of it, however long that takes; TimeoutError after `timeout` seconds.

        ClientClosed when the client is closed first: the draft stays in the store and goes out next time.
        ClientStopped when the client does not try to connect any more.
        """
        return await self._client._settled(self._stored, timeout)


class Stream(Generic[T]):
    """What happens from the moment this was made, one item at a time; a slow reader gets several as one."""

    def __init__(self, feed: Feed[T]) -> None:
        self._feed = feed
        self._news = asyncio.Event()
        feed.wake_by(_waking(self._news, asyncio.get_running_loop()))

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        while True:
            self._news.clear()
            item = self._feed.take()
            if item is not None:
                return item
            if self._feed.closed:
                raise StopAsyncIteration
            await self._news.wait()


def _waking(news: asyncio.Event, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the reader's loop is closed: nobody reads any more
            loop.call_soon_threadsafe(news.set)

    return wake


class PartitionPresence:
    """Presence in one partition: ephemeral, seen by whoever follows it at the moment."""

    def __init__(self, client: SyncClient, partition: str) -> None:
        self._client = client
        self.partition = partition

    @property
    def others(self) -> tuple[Present, ...]:
        """Who else is there now; nobody while the client is offline."""
        return self._client._running.presence.roster(self.partition).others

    async def set(self, value: Json) -> None:
        """Say something of this client to the others, such as a name and a cursor, until it is set again or cleared.

        InvalidEvent when it is no JSON, or too large.
        """
        await self._client._call(lambda _: self._client._running.presence.set(self.partition, value))

    async def clear(self) -> None:
        """Say nothing any more."""
        await self.set(None)

    def changes(self) -> Stream[Roster]:
        """Everybody who is there, whenever somebody comes, goes or says something else, from now on."""
        return Stream(self._client._running.presence.feed(self.partition))


class Transaction:
    """Events that belong together, as in `async with client.transaction():`.

    What is submitted in the block is stored and shown at its end, all at once, and is committed or rejected as a
    whole; an exception that leaves the block drops it. The end raises InvalidEvent where the view refuses an event,
    with its place (`events.1.…`), and TransactionRefused where the server cannot take it; nothing is stored then.
    """

    def __init__(self, client: SyncClient) -> None:
        self._client = client
        self._open = OpenTransaction(client)

    @property
    def drafts(self) -> tuple[Draft, ...]:
        return tuple(draft for draft in self._open.drafts if isinstance(draft, Draft))

    async def __aenter__(self) -> Self:
        self._open.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._open.end()
        if kind is None and self._open.requests:
            requests = self._open.requests
            self._open.store(await self._client._call(lambda core: core.submit_together(requests)))

    async def settled(self, timeout: float | None = None) -> list[Committed | Rejected]:  # noqa: ASYNC109
        """What the server made of each draft: all of them are committed, or all are rejected."""
        now = asyncio.get_running_loop().time
        end = None if timeout is None else now() + timeout
        return [await draft.settled(None if end is None else max(0.0, end - now())) for draft in self.drafts]


class SyncClient(Client[Coroutine[Any, Any, Draft]]):
    """An offline-first client of one server, for asyncio. What it is made from: see `Client`.

    async with SyncClient(url, token=token, client_id="ann", store="ann.db", partitions=["team"]) as client:
        draft = await client.event("note.added", {"id": "n1", "text": "milk"})
        print(client.view("team"), await draft.settled())
    """

    async def __aenter__(self) -> Self:
        self._check_not_open()
        engine = Engine(self._config, asyncio.get_running_loop())
        await asyncio.wrap_future(engine.start())
        self._engine = engine
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect, store a snapshot and close the store. Pending drafts stay in it."""
        if self._engine is not None:
            await asyncio.wrap_future(self._engine.close())

    # -- saying --------------------------------------------------------------------------------------------

    async def submit(
        self,
        partitions: Sequence[str] | None = None,
        event: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        partition: str | None = None,
    ) -> Draft:
        """Check an event, store it as a draft and show it in the views; it goes out as soon as it can.

        InvalidEvent, with nothing stored, when its form is wrong or the current view refuses it.
        """
        request = SubmitRequest(new_id() if id is None else id, named(partitions, partition), event)
        transaction = open_transaction(self)
        if transaction is None:
            ticket = await asyncio.wrap_future(self._running.submit(request))
            return Draft(self, ticket)
        checked = await self._call(lambda core: core.check(request))
        draft = Draft(self, checked)
        transaction.add(checked, draft)
        return draft

    async def act(self, event: JsonObject, partition: str | None) -> Draft:
        return await self.submit([self._meant(partition)], event)

    def transaction(self) -> Transaction:
        """What is submitted in its block commits as a whole or not at all: `async with client.transaction():`."""
        return Transaction(self)

    async def undo(self, partition: str | None = None) -> list[Draft]:
        """Take back the newest event that this client submitted in this run, in one partition or in any.

        What takes it back are ordinary events, drafts like any other; `redo` does it again. UndoRefused, with the
        reason, when that cannot be; the next call then goes to the event before.
        """
        return [
            Draft(self, ticket) for ticket in await self._call(lambda core: core.undo_stack.undo(partition))
        ]

    async def redo(self, partition: str | None = None) -> list[Draft]:
        """Do again what was taken back last; see `undo`."""
        return [
            Draft(self, ticket) for ticket in await self._call(lambda core: core.undo_stack.redo(partition))
        ]

    async def undoable(self, partition: str | None = None) -> JsonObject | None:
        """The event that `undo` would take back; None when there is none."""
        return await self._call(lambda core: core.undo_stack.newest(partition, undone=False))

    async def redoable(self, partition: str | None = None) -> JsonObject | None:
        """The event that `redo` would do again; None when there is none."""
        return await self._call(lambda core: core.undo_stack.newest(partition, undone=True))

    async def pending(self) -> list[Draft]:
        """The drafts the server has not answered yet, also those of earlier runs, oldest first."""
        return [Draft(self, ticket) for ticket in await self._call(lambda core: core.pending())]

    async def discard(self, id: str) -> None:
        """Forget a rejected draft, with those of its transaction."""
        await self._call(lambda core: core.discard(id))

    async def retry(self, id: str) -> Draft:
        """Try a rejected draft again, behind everything that is pending now, or one that is set aside at once.

        Those of its transaction go with it.
        """
        return Draft(self, await self._call(lambda core: core.retry(id)))

    # -- seeing --------------------------------------------------------------------------------------------

    def changes(self, partition: str | None = None) -> Stream[Change]:
        """Changes of a partition's view, or of all, from now on."""
        return Stream(self._core.publisher.changes(partition))

    def statuses(self) -> Stream[Status]:
        """The status whenever it is another, from now on."""
        return Stream(self._core.publisher.statuses())

    def presence(self, partition: str | None = None) -> PartitionPresence:
        """Who is in a partition now, and what this client says of itself there."""
        return PartitionPresence(self, partition_name(self._meant(partition)))

    async def history(
        self,
        partition: str | None = None,
        *,
        before: int | None = None,
        limit: int = LIMIT_DEFAULT,
        timeout: float | None = TIMEOUT_S,  # noqa: ASYNC109
    ) -> HistoryPage:
        """What happened in a partition, newest first: who, what and when, of the events below `before`.

        From this client's store, and from the server what the store does not have; of a partition that the client
        does not follow, all of it. Offline, a page can be shorter; HistoryUnavailable when there is nothing to show.
        """
        name = checked_request(self._meant(partition), before, limit)
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(self._running.history(name, before, limit))
        except TimeoutError:
            raise self._late("the server did not answer with history", timeout) from None

    async def caught_up(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait until the client is live and has no pending draft.

        TimeoutError, with the reason, after `timeout` seconds. NotCaughtUp when all is done that can be, and a
        partition is refused or left out, or a draft set aside. ClientStopped when no connection is tried any more.
        """
        waiter = await self._call(lambda core: core.publisher.caught_up())
        if waiter.done():
            return waiter.result()
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wrap_future(waiter)
        except TimeoutError:
            raise self._late("the client has not caught up", timeout) from None

    # -- following -----------------------------------------------------------------------------------------

    async def add_partition(self, partition: str) -> None:
        """Follow a partition: its history is fetched without disturbing the others."""
        name = partition_name(partition)
        await self._call(lambda core: core.add_partition(name))

    async def remove_partition(self, partition: str) -> None:
        """Leave a partition and forget its events; drafts in it are still sent."""
        name = partition_name(partition)
        await self._call(lambda core: core.remove_partition(name))

    async def pause(self) -> None:
        """Go offline until `resume`."""
        await asyncio.wrap_future(self._running.pause())

    async def resume(self) -> None:
        """Go online now; also after the client stopped because another one took its place."""
        await asyncio.wrap_future(self._running.resume())

    async def _settled(self, ticket: Ticket, timeout: float | None) -> Committed | Rejected:  # noqa: ASYNC109
        news = asyncio.Event()
        wake = _waking(news, asyncio.get_running_loop())
        stops = self._core.publisher.stops()
        stops.wake_by(wake)
        ticket.outcome.add_done_callback(lambda _: wake())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not ticket.outcome.done() and self.status.stopped is None:
                    await news.wait()
                    news.clear()
        return self._outcome(ticket, timeout)

    async def _call(self, function: Callable[[Core], T]) -> T:
        future: Future[T] = self._running.call(function)
        return await asyncio.wrap_future(future)
