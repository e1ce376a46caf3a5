"""What other threads see of a core: its status, its changes, and whether it has caught up."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec import UNSET

from unisono.client.errors import ClientError, ClientStopped, NotCaughtUp, UnknownPartition
from unisono.client.reasons import not_followed, not_sent
from unisono.client.status import PASSING, REFUSALS, Problem, Rejected, Status, rejection
from unisono.client.sync.failing_drafts import SET_ASIDE
from unisono.client.sync.state import Phase
from unisono.client.validation import partition_name
from unisono.client.view.feeds import Change, Feed, merge_changes, newest

if TYPE_CHECKING:
    from unisono.client.core import Core

STATUS: Final = "status"

T = TypeVar("T")


class Publisher:
    """What the engine's thread publishes and any thread may read.

    `status` and `rejected` are replaced as a whole. Feeds belong to their readers: the publisher has weak references.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._changes: weakref.WeakSet[Feed[Change]] = weakref.WeakSet()
        self._statuses: weakref.WeakSet[Feed[Status]] = weakref.WeakSet()
        self._stops: weakref.WeakSet[Feed[Status]] = weakref.WeakSet()
        self._joining = threading.Lock()
        self._closed: ClientError | None = None
        self._waiters: list[Future[None]] = []
        self._revisions: dict[str, int] = dict(core.views.revisions)
        self.problem: Problem | None = None
        self.stopped: str | None = None
        self.rejected: tuple[Rejected, ...] = ()
        self.status = self._status()
        self._list_rejected()

    def publish(self) -> None:
        """Publish what has changed since the last call."""
        self._publish_changes()
        status = self._status()
        if self._over(status):
            self.problem = None
            status = msgspec.structs.replace(status, last_error=None)
        if status == self.status:
            return
        if status.rejected or self.rejected:
            self._list_rejected()
        stops = status.stopped is not None and self.status.stopped is None
        self.status = status
        for feed in self._readers(self._statuses):
            feed.put(STATUS, status)
        if stops:
            for feed in self._readers(self._stops):
                feed.put(STATUS, status)
        self._wake_waiters()

    def _status(self) -> Status:
        core, state = self._core, self._core.state
        return Status(
            phase=state.phase,
            cursor=min(state.cursors.values(), default=0),
            cursors=dict(state.cursors),
            pending=len(core.store.outbox.pending),
            rejected=len(core.store.outbox.rejected),
            set_aside=state.refused_partitions | state.left_out,
            model_version=None if state.model_version is UNSET else state.model_version,
            last_error=self.problem,
            stopped=self.stopped,
            drafts_set_aside=self._drafts_set_aside(),
        )

    def _drafts_set_aside(self) -> dict[str, str]:
        pending = self._core.store.outbox.pending
        return {id: draft.reason for id, draft in self._core.state.set_aside_drafts.items() if id in pending}

    def _over(self, status: Status) -> bool:
        """Whether the last problem is one no more."""
        if self.problem is None or status.phase is not Phase.LIVE:
            return False
        if self.status.phase is Phase.LIVE and status.pending:
            return False
        passing = PASSING if status.set_aside else PASSING | REFUSALS
        passing = passing if status.drafts_set_aside else passing | {SET_ASIDE}
        return self.problem.code in passing

    def _publish_changes(self) -> None:
        revisions, known = self._core.views.revisions, self._revisions
        if revisions == known:
            return
        pending = len(self._core.store.outbox.pending)
        for partition, revision in revisions.items():
            place = self._core.store.followed.get(partition)
            if known.get(partition) != revision and place is not None:
                change = Change(partition, revision, place.cursor, pending)
                for feed in self._readers(self._changes):
                    feed.put(partition, change)
        self._revisions = dict(revisions)

    def _list_rejected(self) -> None:
        drafts = self._core.store.outbox.rejected.values()
        if [draft.id for draft in drafts] != [each.id for each in self.rejected]:
            self.rejected = tuple(rejection(draft) for draft in drafts)

    # -- readers -------------------------------------------------------------------------------------------

    def changes(self, partition: str | None) -> Feed[Change]:
        name = None if partition is None else partition_name(partition)
        if name is not None and name not in self.status.cursors:
            raise UnknownPartition(name)
        return self._joined(Feed[Change](name, merge_changes), self._changes)

    def statuses(self) -> Feed[Status]:
        return self._joined(Feed[Status](None, newest), self._statuses)

    def _joined(self, feed: Feed[T], feeds: weakref.WeakSet[Feed[T]]) -> Feed[T]:
        with self._joining:
            if self._closed is not None:
                raise self._closed
            feeds.add(feed)
        return feed

    def stops(self) -> Feed[Status]:
        """The status whenever the client stops, for those who wait for something only a connection brings."""
        feed = Feed[Status](None, newest)
        with self._joining:
            self._stops.add(feed)
        return feed

    def caught_up(self) -> Future[None]:
        """Done when the client is live and no draft is pending; fails when waiting gets it no further."""
        waiter: Future[None] = Future()
        self._waiters = [other for other in self._waiters if not other.done()]
        self._waiters.append(waiter)
        self._wake_waiters()
        return waiter

    def _wake_waiters(self) -> None:
        status = self.status
        if status.stopped is not None:
            self.release(ClientStopped(status.stopped))
        elif status.phase is Phase.LIVE and status.pending <= len(status.drafts_set_aside):
            self.release(_missing(status))

    def release(self, error: ClientError | None) -> None:
        """Answer everybody who waits for the client to catch up."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.set_running_or_notify_cancel():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    def close(self, error: ClientError) -> None:
        with self._joining:
            self._closed = error
        self.release(error)
        for changes in self._readers(self._changes):
            changes.close()
        for statuses in self._readers(self._statuses):
            statuses.close()

    def _readers(self, feeds: weakref.WeakSet[Feed[T]]) -> list[Feed[T]]:
        with self._joining:
            return list(feeds)


def _missing(status: Status) -> NotCaughtUp | None:
    """What a live client does not have and does not get by waiting."""
    partitions, drafts = status.set_aside, status.drafts_set_aside
    reasons = [not_followed(partitions)] if partitions else []
    reasons += [not_sent(drafts)] if drafts else []
    return NotCaughtUp("; ".join(reasons), partitions, drafts) if reasons else None
