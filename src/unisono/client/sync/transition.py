"""One transition of a client's sync: the state, replaced step by step, and the effects so far.

`request_next` is the one place that decides which request is made when none is unanswered.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Unpack

import msgspec

from unisono.client.sync.inputs_effects import Apply, Effect, ReportProblem, SendSync, SubmitNext, WakeAt
from unisono.client.sync.state import TOO_MANY, Phase, Request, SyncCycle, SyncState, SyncStateChanges
from unisono.protocol.client_codec import ENVELOPE_BYTES, name_bytes


class Transition:
    """One transition under way."""

    def __init__(self, state: SyncState, now: float) -> None:
        self.state = state
        self.now = now
        self.effects: list[Effect] = []

    def set(self, **changes: Unpack[SyncStateChanges]) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def report(self, code: str, message: str) -> None:
        self.emit(ReportProblem(code, message))

    # -- partitions ----------------------------------------------------------------------------------------

    def leave_out_excess(self) -> None:
        """Leave out the partitions that are too many for one connection, or for one message to this server."""
        state = self.state
        bytes_max = state.limits.max_message_bytes
        room = None if bytes_max is None else (bytes_max - ENVELOPE_BYTES) // 2
        wanted = [name for name in state.cursors if name not in state.refused_partitions]
        taken, used = 0, 0
        for name in wanted[: max(1, state.limits.max_subscriptions)]:
            used += name_bytes(name)
            if room is not None and used > room:
                break
            taken += 1
        left_out = dict.fromkeys(wanted[taken:], TOO_MANY)
        gone = left_out.keys()
        self.set(left_out=left_out, live=state.live - gone, tail_fetch_due=state.tail_fetch_due - gone)

    # -- storing -------------------------------------------------------------------------------------------

    def apply(self, effect: Apply) -> None:
        """Store, and continue once it is stored; with nothing to store, at once. Cursors only ever rise."""
        state = self.state
        moved = {name: upto for name, upto in effect.cursors.items() if upto > state.cursors.get(name, upto)}
        if state.set_aside_drafts or state.draft_failures:
            self.clear_failures({each.id for each in effect.events})
        if effect.events or effect.accepted or effect.refused or moved or effect.starts:
            highest = {name: max(upto, state.highest_cursors.get(name, 0)) for name, upto in moved.items()}
            self.set(
                storing=True,
                cursors=state.cursors | moved,
                highest_cursors=state.highest_cursors | highest,
            )
            self.emit(msgspec.structs.replace(effect, cursors=moved))
        else:
            self.request_next()

    def clear_failures(self, ids: Collection[str]) -> None:
        """Drop the failures counted for drafts that have an outcome now."""
        state = self.state
        self.set(
            set_aside_drafts={id: draft for id, draft in state.set_aside_drafts.items() if id not in ids},
            draft_failures={id: count for id, count in state.draft_failures.items() if id not in ids},
        )

    def note_committed_id(self, committed_id: int) -> None:
        if committed_id > self.state.highest_seen_id:
            self.set(highest_seen_id=committed_id)

    def live_cursors(self) -> dict[str, int]:
        """The cursors of the live partitions, as far as they are known without a page (CLIENT-14)."""
        state = self.state
        if not state.ordered_delivery or state.pending_request == "submit":
            return {}
        return dict.fromkeys(state.live, state.highest_seen_id)

    def count_tail(self, events: int) -> None:
        """Without ordered delivery, fetch what lies above the cursors by pages once enough events have come."""
        if not self.state.ordered_delivery and events:
            self.set(tail_events=self.state.tail_events + events)
            if self.state.tail_events >= self.state.options.tail_events_max:
                self.set(tail_events=0, tail_fetch_due=self.state.live)

    def finish_cycle(self, page: Apply) -> None:
        """End the cycle: store its last page, then the buffered broadcasts, in order (CLIENT-06).

        When the buffer overflowed, nothing is live until another cycle has fetched what was dropped.
        """
        cycle, buffer = self.state.cycle, self.state.buffer
        self.set(cycle=None, buffer=(), buffered_bytes=0)
        if cycle is not None and cycle.overflow:
            self.set(live=frozenset())
            self.apply(page)
            return
        buffered = tuple(sorted(buffer, key=lambda event: event.committed_id))
        self.count_tail(len(buffered))
        cursors = dict(page.cursors)
        for name, upto in self.live_cursors().items():
            cursors[name] = max(upto, cursors.get(name, 0))
        self.apply(Apply((*page.events, *buffered), cursors=cursors, starts=page.starts))

    # -- requests ------------------------------------------------------------------------------------------

    def begin_request(self, request: Request) -> None:
        self.set(pending_request=request, requested_at=self.now)
        self.emit(WakeAt(self.now + self.state.options.answer_timeout_s))

    def request_next(self) -> None:
        """Make the next request, if one may be made: continue the cycle, start one, or submit."""
        state = self.state
        if state.phase not in (Phase.SYNCING, Phase.LIVE) or state.failure is not None:
            return
        active = state.active
        behind = [name for name in active if name not in state.live]
        if behind:
            self.set(phase=Phase.SYNCING)
        if state.pending_request is not None or state.storing or state.retry_at is not None:
            return
        if state.cycle is not None:
            self._continue_cycle(state.cycle)
            return
        if not behind:
            self.set(phase=Phase.LIVE)
        to_fetch = behind or [name for name in active if name in state.tail_fetch_due]
        if to_fetch:
            self._start_cycle(to_fetch)
        elif set(state.subscribed) - set(active):
            self._unsubscribe(active)
        else:
            self._submit()

    def _submit(self) -> None:
        """Send one set-aside draft whose retry is due, otherwise the oldest of the other drafts."""
        state = self.state
        bytes_max = state.limits.max_message_bytes
        due = next((id for id, draft in state.set_aside_drafts.items() if draft.retry_at <= self.now), None)
        if due is not None:
            self.begin_request("submit")
            self.emit(SubmitNext(1, bytes_max, only=due, atomic_max=state.atomic_max))
        elif state.drafts_waiting:
            self.begin_request("submit")
            items = 1 if state.single_submits else state.batch_max
            without = frozenset(state.set_aside_drafts)
            self.emit(SubmitNext(items, bytes_max, without=without, atomic_max=state.atomic_max))

    def _start_cycle(self, to_fetch: list[str]) -> None:
        """Fetch the partitions with the highest cursor first: they are live soonest. Equal cursors go together."""
        state = self.state
        since = max(state.cursors[name] for name in to_fetch)
        group = [name for name in to_fetch if state.cursors[name] == since]
        events_only = since > 0 or group[0] in state.full_history_only
        if not since:
            group = [name for name in group if (name in state.full_history_only) == events_only]
        taken = tuple(group[: 1 if state.one_by_one else state.names_max])
        subscription = tuple(sorted({*state.live, *taken})) if state.one_by_one else state.active
        snapshots = state.server_sends_snapshots and not events_only
        self.set(cycle=SyncCycle(taken, since, subscription, snapshots=snapshots))
        self.request_next()

    def _unsubscribe(self, active: tuple[str, ...]) -> None:
        """Tell the server of removed partitions in the next cycle; where none is left, in a sync made for it."""
        if active:
            self._start_cycle(list(active))
        else:
            gone = self.state.subscribed[:1]
            self.set(cycle=SyncCycle(gone, self.state.highest_seen_id, (), discard_answer=True))
            self.request_next()

    def _continue_cycle(self, cycle: SyncCycle) -> None:
        if cycle.end_after_page:
            self.finish_cycle(Apply())
            return
        limits = self.state.limits
        limit = max(limits.sync_limit_min, min(limits.sync_limit_max, self.state.options.page_limit))
        self.begin_request("sync")
        snapshots = cycle.snapshots and cycle.sync_to is None
        self.emit(SendSync(cycle.partitions, cycle.since, limit, cycle.subscription, snapshots))
