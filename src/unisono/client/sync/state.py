"""The state of a client's sync, and one step of it: what every transition has in common.

A step holds the state, replaced as it goes, and the effects so far. `next` is the one place that decides which
request is made when none is under way.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from unisono.client.net.wire import ENVELOPE_BYTES, CommittedEvent, Limits, name_bytes
from unisono.client.options import Options
from unisono.client.sync.inputs_effects import Apply, Effect, ReportProblem, SendSync, SubmitNext, WakeAt
from unisono.protocol.partitions import ENTRIES_MAX
from unisono.vocabulary import LogIdentity

TOO_MANY: Final = "too_many_partitions"
"""Why a partition is left out: the server takes no more names on one connection."""


class Phase(StrEnum):
    """Where a client stands, in the words of its status."""

    OFFLINE = "offline"
    CONNECTING = "connecting"
    SYNCING = "syncing"
    LIVE = "live"


class SyncCycle(msgspec.Struct, frozen=True):
    """One run of pages up to a watermark.

    `subscription` is sent with the first request, `sync_to` known from the first page on. `void`: what is still
    unanswered belongs to a past that was dropped. `over`: end after this page, because the partitions have
    changed. `overflow`: broadcasts were dropped, so another cycle must follow. `snapshots`: the first page may
    come with snapshots.
    """

    partitions: tuple[str, ...]
    since: int
    subscription: tuple[str, ...] | None
    sync_to: int | None = None
    void: bool = False
    over: bool = False
    overflow: bool = False
    snapshots: bool = False


class SetAsideDraft(msgspec.Struct, frozen=True):
    """A pending draft that is set aside, because the server fails on it.

    It is tried again at `retry_at`. `proven`: the server failed on it again after it had answered for another.
    """

    reason: str
    retry_at: float
    wait_s: float
    proven: bool = False


class SyncState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the sync of one client depends on; from `phase` on, what belongs to one connection.

    - `model_digest`, `log`: what the server last told of its model's content and of its log; None where it told none.
    - `known`: how far each partition ever got with this server; stays when a cursor goes back for another model.
    - `snapshots`: whether to ask for them; `started`: whether the server said that it gives them.
    - `based`: partitions the store has from a base on; without one, a new start must drop it.
    - `whole`: partitions whose snapshot could not be used, so that all of their history is asked for.
    - `singly`: so many drafts go out one at a time, to find the one a server refuses a batch for.
    - `faults`: how often in a row the server failed on a submit of several drafts; `blamed`: how often on a draft
      that was sent alone; `held`: the drafts that are set aside for it.
    - `aside`: partitions the server refuses to sync, with its reason; tried again on the next connection.
    - `left_out`: partitions beyond what the server lets one connection subscribe to, the last ones that were added.
    - `names_max`: how many partitions one sync names.
    - `solo`: the server does not say which partition it refuses, so they are asked for one at a time.
    - `due`: live partitions whose tail above the cursor is to be fetched by pages.
    - `frontier`: the highest committed_id a broadcast or result has named.
    """

    profile: str
    options: Options = Options()
    cursors: dict[str, int] = {}
    known: dict[str, int] = {}
    model_version: int | UnsetType | None = UNSET
    model_digest: str | None = None
    log: LogIdentity | None = None
    drafts_waiting: bool = False
    batch_max: int = 100
    singly: int = 0
    faults: int = 0
    blamed: dict[str, int] = {}
    held: dict[str, SetAsideDraft] = {}
    storing: bool = False
    snapshots: bool = False
    based: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()

    phase: Phase = Phase.OFFLINE
    asked: Literal["connect", "sync", "submit"] | None = None
    asked_at: float = 0.0
    retry_at: float | None = None
    submitted: tuple[str, ...] = ()
    failure: str | None = None
    limits: Limits = Limits()
    ordered: bool = False
    started: bool = False
    aside: dict[str, str] = {}
    left_out: dict[str, str] = {}
    names_max: int = ENTRIES_MAX
    solo: bool = False
    live: frozenset[str] = frozenset()
    due: frozenset[str] = frozenset()
    subscribed: tuple[str, ...] = ()
    cycle: SyncCycle | None = None
    buffer: tuple[CommittedEvent, ...] = ()
    buffered_bytes: int = 0
    frontier: int = 0
    tail: int = 0

    @property
    def active(self) -> tuple[str, ...]:
        """The partitions that are followed and neither set aside nor left out, sorted."""
        gone = self.aside.keys() | self.left_out.keys()
        return tuple(sorted(name for name in self.cursors if name not in gone))


class Transition:
    """One transition under way."""

    def __init__(self, state: SyncState, now: float) -> None:
        self.state = state
        self.now = now
        self.effects: list[Effect] = []

    def set(self, **changes: Any) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)

    def do(self, effect: Effect) -> None:
        self.effects.append(effect)

    def report(self, code: str, message: str) -> None:
        self.do(ReportProblem(code, message))

    # -- following -----------------------------------------------------------------------------------------

    def choose(self) -> None:
        """Leave out the partitions that are too many for one connection, or for one message to this server."""
        state = self.state
        bytes_max = state.limits.max_message_bytes
        room = None if bytes_max is None else (bytes_max - ENVELOPE_BYTES) // 2
        wanted = [name for name in state.cursors if name not in state.aside]
        kept, used = 0, 0
        for name in wanted[: max(1, state.limits.max_subscriptions)]:
            used += name_bytes(name)
            if room is not None and used > room:
                break
            kept += 1
        left_out = dict.fromkeys(wanted[kept:], TOO_MANY)
        gone = left_out.keys()
        self.set(left_out=left_out, live=state.live - gone, due=state.due - gone)

    # -- storing -------------------------------------------------------------------------------------------

    def apply(self, effect: Apply) -> None:
        """Store, and go on when it is stored; with nothing to store, at once. Cursors only ever rise."""
        known = self.state.cursors
        moved = {name: upto for name, upto in effect.cursors.items() if upto > known.get(name, upto)}
        if self.state.held or self.state.blamed:
            self.forget({each.id for each in effect.events})
        if effect.events or effect.accepted or effect.refused or moved or effect.starts:
            reached = {name: max(upto, self.state.known.get(name, 0)) for name, upto in moved.items()}
            self.set(storing=True, cursors=known | moved, known=self.state.known | reached)
            self.do(msgspec.structs.replace(effect, cursors=moved))
        else:
            self.next()

    def forget(self, ids: Collection[str]) -> None:
        """What was held against drafts that have an outcome now."""
        state = self.state
        self.set(
            held={id: held for id, held in state.held.items() if id not in ids},
            blamed={id: count for id, count in state.blamed.items() if id not in ids},
        )

    def seen(self, committed_id: int) -> None:
        if committed_id > self.state.frontier:
            self.set(frontier=committed_id)

    def live_cursors(self) -> dict[str, int]:
        """How far the live partitions have got, as far as that is known without a page (CLIENT-14)."""
        state = self.state
        if not state.ordered or state.asked == "submit":
            return {}
        return dict.fromkeys(state.live, state.frontier)

    def grow_tail(self, events: int) -> None:
        """Without ordered delivery, what lies above the cursor is fetched by pages now and then."""
        if not self.state.ordered and events:
            self.set(tail=self.state.tail + events)
            if self.state.tail >= self.state.options.tail_events_max:
                self.set(tail=0, due=self.state.live)

    def flush(self, page: Apply) -> None:
        """End the cycle: its last page, then the broadcasts that waited, in order (CLIENT-06).

        When some were dropped for want of room, nothing is live until another cycle has fetched them.
        """
        cycle, buffer = self.state.cycle, self.state.buffer
        self.set(cycle=None, buffer=(), buffered_bytes=0)
        if cycle is not None and cycle.overflow:
            self.set(live=frozenset())
            self.apply(page)
            return
        waited = tuple(sorted(buffer, key=lambda event: event.committed_id))
        self.grow_tail(len(waited))
        cursors = dict(page.cursors)
        for name, upto in self.live_cursors().items():
            cursors[name] = max(upto, cursors.get(name, 0))
        self.apply(Apply((*page.events, *waited), cursors=cursors, starts=page.starts))

    # -- asking --------------------------------------------------------------------------------------------

    def ask(self, kind: Literal["connect", "sync", "submit"]) -> None:
        self.set(asked=kind, asked_at=self.now)
        self.do(WakeAt(self.now + self.state.options.answer_timeout_s))

    def next(self) -> None:
        """The next request, if one may be made: go on with a cycle, start one, or submit."""
        state = self.state
        if state.phase not in (Phase.SYNCING, Phase.LIVE) or state.failure is not None:
            return
        active = state.active
        behind = [name for name in active if name not in state.live]
        if behind:
            self.set(phase=Phase.SYNCING)
        if state.asked is not None or state.storing or state.retry_at is not None:
            return
        if state.cycle is not None:
            self._go_on(state.cycle)
            return
        if not behind:
            self.set(phase=Phase.LIVE)
        waiting = behind or [name for name in active if name in state.due]
        if waiting:
            self._start_cycle(waiting)
        elif set(state.subscribed) - set(active):
            self._unsubscribe(active)
        else:
            self._submit()

    def _submit(self) -> None:
        """One draft that was set aside and whose time has come, or the oldest of the others."""
        state = self.state
        bytes_max = state.limits.max_message_bytes
        due = next((id for id, held in state.held.items() if held.retry_at <= self.now), None)
        if due is not None:
            self.ask("submit")
            self.do(SubmitNext(1, bytes_max, only=due))
        elif state.drafts_waiting:
            self.ask("submit")
            items = 1 if state.singly else state.batch_max
            self.do(SubmitNext(items, bytes_max, without=frozenset(state.held)))

    def _start_cycle(self, waiting: list[str]) -> None:
        """Those with the highest cursor first: they are live soonest. Equal cursors go together."""
        state = self.state
        since = max(state.cursors[name] for name in waiting)
        group = [name for name in waiting if state.cursors[name] == since]
        whole = since > 0 or group[0] in state.whole
        if not since:
            group = [name for name in group if (name in state.whole) == whole]
        taken = tuple(group[: 1 if state.solo else state.names_max])
        wanted = tuple(sorted({*state.live, *taken})) if state.solo else state.active
        self.set(cycle=SyncCycle(taken, since, wanted, snapshots=state.started and not whole))
        self.next()

    def _unsubscribe(self, active: tuple[str, ...]) -> None:
        """Partitions were removed: the next cycle says so, and where none is left, a sync made for it."""
        if active:
            self._start_cycle(list(active))
        else:
            gone = self.state.subscribed[:1]
            self.set(cycle=SyncCycle(gone, self.state.frontier, (), void=True))
            self.next()

    def _go_on(self, cycle: SyncCycle) -> None:
        if cycle.over:
            self.flush(Apply())
            return
        limits = self.state.limits
        limit = max(limits.sync_limit_min, min(limits.sync_limit_max, self.state.options.page_limit))
        self.ask("sync")
        first = cycle.snapshots and cycle.sync_to is None
        self.do(SendSync(cycle.partitions, cycle.since, limit, cycle.subscription, first))
