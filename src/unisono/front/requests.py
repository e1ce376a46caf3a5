"""Requests of a front to the authority and the reader, and the callbacks that wait for their answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import count

from unisono.config import Settings
from unisono.front.answer_wait import AnswerWait
from unisono.front.backpressure import RETRY_MS, Queued
from unisono.front.claims import Claims
from unisono.front.event_times import WATCH_S, EventTimes, EventWatch
from unisono.front.rates import RateLimiter
from unisono.front.submit_traces import SubmitTraces
from unisono.ipc.cores import usable_cores
from unisono.ipc.link import Link
from unisono.ipc.messages import (
    AskHead,
    EventCommitted,
    HeadAnswer,
    PresenceChange,
    PresenceChanges,
    Submit,
)
from unisono.ipc.page_messages import AskNewest, AskPage, CancelPage, PageFailed, PageResult
from unisono.protocol.errors import RateLimited


class FrontRequests:
    """Sends requests and calls back with their answers, each callback at most once.

    Invariants: `queued` counts a submit and `sync_bytes` counts a page until it is answered, also when its connection
    is gone (LIM-05). No callback of a connection stays here once its socket is gone.
    """

    authority: Link
    reader: Link

    def __init__(
        self, settings: Settings, loop: asyncio.AbstractEventLoop, traces: SubmitTraces | None = None
    ) -> None:
        self.traces = traces
        self.watch: EventWatch | None = None
        self._watch_end: asyncio.TimerHandle | None = None
        self.messages_in = 0
        """Messages of clients that could be read."""
        self.queued = Queued(settings.max_queue_events, settings.max_queue_bytes)
        self._answer_wait: AnswerWait | None = None
        if usable_cores() > settings.fronts:  # one for the authority, one for each front
            self._answer_wait = AnswerWait(loop, self.queued)
        self.sync_bytes = 0
        self._max_sync_bytes = settings.max_sync_queue_bytes
        self._rates = RateLimiter(settings.rate_events_per_s, settings.rate_burst_events)
        self._now = loop.time
        self._tickets = count(1)
        self.claims = Claims()
        self._heads: dict[int, Callable[[int], None]] = {}
        self._pages: dict[int, Callable[[PageResult | None], None]] = {}

    def connect(self, authority: Link, reader: Link) -> None:
        self.authority = self.claims.authority = authority
        self.reader = reader

    def release(self, conn: int, client_id: str) -> None:
        """A connection gives up its client_id, and nobody waits for its answers any more."""
        self.claims.release(conn, client_id)
        if self.traces is not None:
            self.traces.forget(conn)

    # -- submit --------------------------------------------------------------------------------------------

    def check_submit(self, client_id: str, items: int, size: int) -> None:
        """Refuse what would overfill the queue to the authority (LIM-05) or exceeds the client's rate (LIM-04)."""
        self.queued.check(items, size)
        if self._rates.on and (wait_s := self._rates.take(client_id, items, self._now())) > 0:
            raise RateLimited("too many events per second", int(wait_s * 1000) + 1)

    def submit(self, submission: Submit, size: int) -> None:
        queued, items = self.queued, len(submission.items)
        queued.add(submission.conn, items, size)
        if self.traces is not None:
            self.traces.begin(submission)
        if self.watch is not None:
            self.watch.begin(submission.conn)
        self.authority.send(submission)
        if (wait := self._answer_wait) is not None:
            if queued.items == items:
                wait.begin(items)
            else:
                wait.lone = 0

    def answered(self, conn: int) -> int:
        """The oldest submit of a connection is answered, also when the connection is gone; the items it had."""
        if self.traces is not None:
            self.traces.answered(conn)
        if self.watch is not None:
            self.watch.answered(conn)
        return self.queued.answered(conn)

    # -- sync ----------------------------------------------------------------------------------------------

    def admit_sync(self, size: int) -> None:
        """Count a sync among those in progress; refuse what would overfill their memory (LIM-05)."""
        if self.sync_bytes + size > self._max_sync_bytes:
            raise RateLimited("too many syncs at once", RETRY_MS)
        self.sync_bytes += size

    def settle_sync(self, size: int) -> None:
        self.sync_bytes -= size

    def ask_head(self, on_head: Callable[[int], None]) -> int:
        ticket = next(self._tickets)
        self._heads[ticket] = on_head
        self.authority.send(AskHead(ticket))
        return ticket

    def ask_page(
        self, ask: Callable[[int], AskPage | AskNewest], on_page: Callable[[PageResult | None], None]
    ) -> int:
        """`ask` makes the request from its ticket; `on_page` gets None when the page cannot be read."""
        ticket = next(self._tickets)
        self._pages[ticket] = on_page
        self.reader.send(ask(ticket))
        return ticket

    def cancel_sync(self, ticket: int, size: int) -> None:
        """Cancel a head or a page. A page counts until the reader has answered (LIM-05)."""
        if ticket in self._pages:
            self._pages[ticket] = lambda _: self.settle_sync(size)
            self.reader.send(CancelPage(ticket))
        else:
            self._heads.pop(ticket, None)
            self.settle_sync(size)

    def head_answered(self, message: HeadAnswer) -> None:
        if (on_head := self._heads.pop(message.ticket, None)) is not None:
            on_head(message.committed_id)

    def page_answered(self, message: PageResult | PageFailed) -> None:
        self._pages.pop(message.ticket)(message if isinstance(message, PageResult) else None)

    # -- times of events, for operators ---------------------------------------------------------------------

    def event_times(self, after: int, loop: asyncio.AbstractEventLoop) -> list[EventTimes]:
        """Times of events are noted from the first question on, until nobody has asked for WATCH_S."""
        if self.watch is None:
            self.watch = EventWatch(time.monotonic, self.queued.unanswered())
        if self._watch_end is not None:
            self._watch_end.cancel()
        self._watch_end = loop.call_later(WATCH_S, setattr, self, "watch", None)
        return self.watch.since(after)

    def publish_observed(self, committed: EventCommitted, publish: Callable[[EventCommitted], int]) -> int:
        """Publish an event as any other, and note its times; returns how often it was sent."""
        began_ns = 0 if self.traces is None else self.traces.now_ns()
        sent = publish(committed)
        if self.traces is not None:
            self.traces.delivered(committed, began_ns, sent)
        if self.watch is not None:
            self.watch.published(committed, sent)
        return sent

    # -- presence ------------------------------------------------------------------------------------------

    def share_presence(self, changes: Sequence[PresenceChange]) -> None:
        """Tell the other fronts and nodes."""
        self.authority.send(PresenceChanges(tuple(changes)))

    # -- recovery ------------------------------------------------------------------------------------------

    def drop_authority_requests(self) -> None:
        """The authority has dropped every request it had not answered. The reader still answers its pages."""
        self.queued.void()
        if self.watch is not None:
            self.watch.forget_all()
        self._heads.clear()
        self.claims.drop_requests()
