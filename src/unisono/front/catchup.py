"""Sync cycles: paged history up to a fixed watermark, and the transition to live events (SYNC-*).

A cycle starts by asking the authority for the head, through its first-in-first-out channel. When the answer arrives,
this front has received every group up to the head. Subscriptions set at that moment give the connection each event up
to the head in pages and each later one as a broadcast: none twice, none lost (SYNC-06).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

import msgspec
from msgspec import UNSET

from unisono.config import Settings
from unisono.front.intake import named_partitions
from unisono.ipc.page_messages import PageResult
from unisono.protocol.codec import encode_sync_response
from unisono.protocol.errors import BadRequest, Forbidden, RateLimited, ValidationFailed
from unisono.protocol.messages import Sync
from unisono.protocol.partitions import PartitionError, normalise
from unisono.vocabulary import FieldError, LogIdentity

LIMIT_DEFAULT = 500
"""Events of a page when the client gives no limit (SYNC-02)."""

SYNC_BYTES = 512
NAME_BYTES = 64
"""Estimated memory of a waiting sync, and of each name in it beside its text."""

MAX_WAITING_SYNC_BYTES = 512 * 1024
"""Memory of the waiting syncs of one connection: several of ordinary size, or one of the largest."""

RETRY_MS = 200
"""Retry after: a page takes far less, so by then the queue of syncs has moved."""


class Ask(msgspec.Struct, frozen=True):
    """A sync that passed every check: normalised, authorised, clamped."""

    partitions: tuple[str, ...]
    subscriptions: tuple[str, ...] | None
    since: int
    limit: int
    size: int
    """Estimated memory until it is answered."""
    from_snapshots: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Every partition that it names."""
        return tuple(dict.fromkeys(self.partitions + (self.subscriptions or ())))


class OpenCycle(msgspec.Struct, frozen=True):
    """A cycle with more pages: what the next request must ask for to continue it (SYNC-04).

    `snapshot_starts`: where the histories of its partitions start after their snapshots (SYNC-12).
    """

    partitions: tuple[str, ...]
    sync_to: int
    next_since: int
    snapshot_starts: dict[str, int]


class CatchUpHost(Protocol):
    """What a catch-up needs from its connection."""

    @property
    def subscriptions(self) -> tuple[str, ...]: ...

    @property
    def wants_snapshots(self) -> bool: ...

    def denied(self, partitions: tuple[str, ...]) -> list[str]: ...

    def subscribe(self, partitions: tuple[str, ...]) -> None: ...

    def admit_sync(self, size: int) -> None:
        """Count a sync among those in progress; RateLimited when there are too many."""
        ...

    def settle_sync(self, size: int) -> None:
        """The sync is answered, or dropped before anything was requested for it."""
        ...

    def cancel_sync(self, size: int) -> None:
        """Cancel the last head or page that was asked for."""
        ...

    def ask_head(self, then: Callable[[int], None]) -> None: ...

    def ask_page(
        self, ask: Ask, upto: int, snapshot_starts: dict[str, int] | None, then: Callable[[PageResult], None]
    ) -> None:
        """`snapshot_starts` are those of the cycle; None where the reader chooses the snapshots."""
        ...

    def answer_sync(self, payload: bytes) -> None: ...

    def model(self) -> tuple[int | None, str]:
        """The version and the digest of the model in force."""
        ...

    def log(self) -> LogIdentity | None: ...


class CatchUp:
    """The syncs of one connection, answered one at a time, in order.

    Invariant: `_cycle` is set exactly when the last answer had `has_more`.
    """

    __slots__ = ("_current", "_cycle", "_host", "_settings", "_waiting")

    def __init__(self, host: CatchUpHost, settings: Settings) -> None:
        self._host = host
        self._settings = settings
        self._waiting: deque[Ask] = deque()
        self._current: Ask | None = None
        self._cycle: OpenCycle | None = None

    @property
    def busy(self) -> bool:
        return self._current is not None

    @property
    def lag(self) -> int:
        """How many ids of the log the cycle under way has still to go through."""
        return 0 if self._cycle is None else self._cycle.sync_to - self._cycle.next_since

    def start(self, sync: Sync) -> None:
        """Check the whole request before any of it takes effect (AUTHZ-04), then answer it in turn."""
        ask = self._checked(sync)
        if self._current is not None:
            waiting = sum(each.size for each in self._waiting)
            if (
                len(self._waiting) >= self._settings.max_queued_syncs
                or waiting + ask.size > MAX_WAITING_SYNC_BYTES
            ):
                raise RateLimited("too many syncs at once; wait for each sync_response", RETRY_MS)
        self._host.admit_sync(ask.size)
        if self._current is None:
            self._begin(ask)
        else:
            self._waiting.append(ask)

    def give_up(self) -> None:
        """The connection ends: drop the waiting syncs and cancel the current one."""
        for ask in self._waiting:
            self._host.settle_sync(ask.size)
        self._waiting.clear()
        self._cycle = None
        if self._current is not None:
            size, self._current = self._current.size, None
            self._host.cancel_sync(size)

    def unsubscribe(self, partitions: Collection[str]) -> None:
        """Take partitions out of the subscriptions."""
        self._host.subscribe(tuple(name for name in self._host.subscriptions if name not in partitions))

    def revoke(self, denied: Callable[[tuple[str, ...]], list[str]]) -> list[list[str]]:
        """Drop the syncs that name a partition which is denied by now; for each of them, what is denied."""
        if self._cycle is not None and denied(self._cycle.partitions):
            self._cycle = None
        refused: list[list[str]] = []
        current = self._current
        if current is not None and (names := denied(current.names)):
            self._current = None
            self._host.cancel_sync(current.size)
            refused.append(names)
        kept: deque[Ask] = deque()
        for ask in self._waiting:
            if names := denied(ask.names):
                self._host.settle_sync(ask.size)
                refused.append(names)
            else:
                kept.append(ask)
        self._waiting = kept
        if self._current is None and self._waiting:
            self._begin(self._waiting.popleft())
        return refused

    def _checked(self, sync: Sync) -> Ask:
        settings = self._settings
        partitions = self._normalised(
            "partitions",
            named_partitions(sync.partitions, sync.partition, settings),
            settings.max_subscriptions,
            False,
        )
        subscriptions: tuple[str, ...] | None = None
        if sync.subscription_partitions is not UNSET:
            subscriptions = self._normalised(
                "subscription_partitions", sync.subscription_partitions, settings.max_subscriptions, True
            )
        elif settings.sync_subscribes:
            self._check_room(partitions)
        if sync.since_committed_id < 0:
            raise BadRequest("since_committed_id must not be negative")
        denied = self._host.denied(tuple(dict.fromkeys(partitions + (subscriptions or ()))))
        if denied:
            raise Forbidden(denied)
        limit = LIMIT_DEFAULT if sync.limit is None else sync.limit
        limit = max(settings.sync_limit_min, min(settings.sync_limit_max, limit))
        from_snapshots = (
            self._host.wants_snapshots and sync.snapshots is not False and not sync.since_committed_id
        )
        size = SYNC_BYTES + sum(
            NAME_BYTES + len(name) for names in (partitions, subscriptions or ()) for name in names
        )
        return Ask(partitions, subscriptions, sync.since_committed_id, limit, size, from_snapshots)

    def _check_room(self, added: tuple[str, ...]) -> None:
        """SYNC-11 adds subscriptions with each sync; together they have the bound of a set sent at once (LIM-05)."""
        room = self._settings.max_subscriptions
        if len({*self._host.subscriptions, *added}) > room:
            says = f"would be more than {room} subscriptions; send subscription_partitions to drop some"
            raise ValidationFailed([FieldError("partitions", says)])

    def _normalised(
        self, field: str, names: list[str], entries_max: int, allow_empty: bool
    ) -> tuple[str, ...]:
        try:
            return normalise(names, entries_max=entries_max, allow_empty=allow_empty)
        except PartitionError as error:
            where = field if error.index is None else f"{field}.{error.index}"
            raise ValidationFailed([FieldError(where, str(error))]) from None

    def _begin(self, ask: Ask) -> None:
        self._current = ask
        cycle = self._cycle
        if cycle is not None and self._continues(ask, cycle):
            self._set_subscriptions(ask)
            self._host.ask_page(
                ask, cycle.sync_to, cycle.snapshot_starts, lambda page: self._answer(ask, cycle.sync_to, page)
            )
        else:
            self._host.ask_head(lambda head: self._from_head(ask, head))

    def _continues(self, ask: Ask, cycle: OpenCycle) -> bool:
        """Same partitions from where the last page ended.

        A request that adds subscriptions starts a new cycle: events of the added partitions between this cycle's
        watermark and now were not broadcast, and only a newer watermark covers them (SYNC-06).
        """
        if ask.partitions != cycle.partitions or ask.since != cycle.next_since:
            return False
        return self._wanted(ask) <= set(self._host.subscriptions)

    def _wanted(self, ask: Ask) -> set[str]:
        """The subscriptions in force once this request is answered (SYNC-05, SYNC-11)."""
        if ask.subscriptions is not None:
            return set(ask.subscriptions)
        added = ask.partitions if self._settings.sync_subscribes else ()
        return {*self._host.subscriptions, *added}

    def _set_subscriptions(self, ask: Ask) -> None:
        self._host.subscribe(tuple(sorted(self._wanted(ask))))

    def _from_head(self, ask: Ask, head: int) -> None:
        self._set_subscriptions(ask)
        if ask.since >= head:
            # SYNC-07: a cursor ahead of the log gets the real head, and no events.
            self._answer(ask, head, PageResult(0, b"", 0, head, False))
        else:
            self._ask_first(ask, head)

    def _ask_first(self, ask: Ask, head: int) -> None:
        model = self._host.model()

        def answered(page: PageResult) -> None:
            if page.snapshots and self._host.model() != model:
                self._ask_first(ask, head)  # the model changed meanwhile, and has snapshots of its own
            else:
                self._answer(ask, head, page)

        self._host.ask_page(ask, head, None if ask.from_snapshots else {}, answered)

    def _answer(self, ask: Ask, sync_to: int, page: PageResult) -> None:
        next_since = page.last if page.has_more else sync_to
        self._cycle = (
            OpenCycle(ask.partitions, sync_to, next_since, page.snapshot_starts) if page.has_more else None
        )
        version, digest = self._host.model()
        self._host.answer_sync(
            encode_sync_response(
                partitions=ask.partitions,
                subscriptions=self._host.subscriptions,
                events=page.events,
                next_since=next_since,
                sync_to=sync_to,
                has_more=page.has_more,
                model_version=version,
                model_digest=digest,
                log=self._host.log(),
                snapshots=page.snapshots if ask.from_snapshots else None,
            )
        )
        if self._current is None:
            return  # the connection ended meanwhile
        self._current = None
        self._host.settle_sync(ask.size)
        if self._waiting:
            self._begin(self._waiting.popleft())
