"""Committed events: broadcasts, pages, and the reasons to start over (CLIENT-04..06, -10..12)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from unisono.client.sync.inputs_effects import (
    Apply,
    DropConnection,
    NoteLog,
    NoteModel,
    PartitionAdded,
    Received,
    Reset,
    Rewind,
    StartState,
)
from unisono.client.sync.state import Phase, SyncCycle
from unisono.client.sync.transition import Transition
from unisono.protocol.client_codec import CommittedEvent, Connected, ErrorMessage, SyncResponse
from unisono.protocol.partitions import ENTRIES_MAX
from unisono.vocabulary import LogIdentity


def on_broadcast(step: Transition, event: CommittedEvent, *, more: bool = False) -> None:
    """Store it now, or buffer it until the end of the cycle.

    Every event moves the cursor of each live partition; of broadcasts that come together, only the last one does.
    """
    step.note_committed_id(event.committed_id)
    if not any(name in step.state.cursors for name in event.partitions):
        return
    cycle = step.state.cycle
    if cycle is None:
        step.count_tail(1)
        step.apply(Apply((event,), cursors={} if more else step.live_cursors()))
    elif cycle.sync_to is not None and event.committed_id <= cycle.sync_to:
        step.apply(Apply((event,)))
    else:
        _buffer(step, event, cycle)


def _buffer(step: Transition, event: CommittedEvent, cycle: SyncCycle) -> None:
    """CLIENT-06: what may lie above the watermark waits in a bounded buffer."""
    state = step.state
    size = state.buffered_bytes + len(bytes(event.event))
    if len(state.buffer) >= state.options.buffer_events_max or size > state.options.buffer_bytes_max:
        step.set(cycle=msgspec.structs.replace(cycle, overflow=True), buffer=(), buffered_bytes=0)
    elif not cycle.overflow:
        step.set(buffer=(*state.buffer, event), buffered_bytes=size)


def on_page(step: Transition, page: SyncResponse, received: Received) -> None:
    """A sync_response: store it, or find that the server's log is not the one the store has."""
    cycle = step.state.cycle
    if step.state.pending_request != "sync" or cycle is None:
        step.report("unexpected", "a sync_response without a sync")
        return
    step.set(pending_request=None)
    if cycle.subscription is not None:
        step.set(subscribed=cycle.subscription)
    _learn_digest(step, page)
    if check_log(step, page):
        step.request_next()
    elif cycle.discard_answer:
        step.finish_cycle(Apply())
    elif page.sync_to_committed_id < (highest := _highest_cursor(step, cycle)):
        step.set(cycle=None)
        start_over(
            step,
            "cursor_ahead",
            f"the client has events up to {highest}, and the server's last is {page.sync_to_committed_id}",
        )
    elif page.has_more and page.next_since_committed_id <= cycle.since:
        step.report("protocol_violation", "a page with has_more that does not move on")
        step.set(failure="protocol_violation")
        step.emit(DropConnection())
    elif page.model_version is not None and _is_other_model(step, page.model_version, page.model_digest):
        check_model(step, page.model_version, page.model_digest)
        step.finish_cycle(Apply(page.events))
    elif unusable := [name for name in received.unusable if name in cycle.partitions]:
        _fetch_full_history(step, cycle, unusable)
    else:
        _store_page(step, page, cycle, received.start_states)


def _highest_cursor(step: Transition, cycle: SyncCycle) -> int:
    highest = step.state.highest_cursors
    return max(cycle.since, *(highest.get(name, 0) for name in cycle.partitions))


def _fetch_full_history(step: Transition, cycle: SyncCycle, unusable: list[str]) -> None:
    """Unusable snapshots stand for events that did not come: request the whole history instead."""
    names = ", ".join(map(repr, unusable))
    if cycle.snapshots:
        step.report("bad_snapshot", f"the server's snapshot of {names} cannot be used; fetching all events")
        step.set(full_history_only=step.state.full_history_only | set(unusable))
        step.finish_cycle(Apply())
    else:
        step.report("protocol_violation", f"a snapshot of {names} that was declined")
        step.set(failure="protocol_violation", wants_snapshots=False)
        step.emit(DropConnection())


def _store_page(
    step: Transition, page: SyncResponse, cycle: SyncCycle, bases: Mapping[str, StartState]
) -> None:
    state = step.state
    sync_to, next_since = page.sync_to_committed_id, page.next_since_committed_id
    below = tuple(event for event in state.buffer if event.committed_id <= sync_to)
    above = tuple(event for event in state.buffer if event.committed_id > sync_to)
    step.set(buffer=above, buffered_bytes=sum(len(bytes(event.event)) for event in above))
    names = [name for name in cycle.partitions if name in state.cursors]
    cursors = {
        name: max(next_since, bases[name].committed_id) if name in bases else next_since for name in names
    }
    starts: dict[str, StartState | None] = {}
    if cycle.sync_to is None and not cycle.since:
        starts = {name: bases.get(name) for name in names if name in bases or name in state.snapshot_based}
        step.set(
            snapshot_based=(state.snapshot_based - set(names)) | {name for name in names if name in bases}
        )
    apply = Apply((*page.events, *below), cursors=cursors, starts=starts)
    if not page.has_more:
        step.set(
            live=state.live | (set(names) & set(state.active)),
            tail_fetch_due=state.tail_fetch_due - set(names),
            tail_events=0,
        )
        step.finish_cycle(apply)
    elif cycle.end_after_page:
        step.finish_cycle(apply)
    else:
        step.set(cycle=msgspec.structs.replace(cycle, since=next_since, sync_to=sync_to, subscription=None))
        step.apply(apply)


def on_sync_error(step: Transition, error: ErrorMessage) -> None:
    """Stop requesting the partitions the server names; where it names none, request each alone to find them."""
    state = step.state
    cycle = state.cycle
    assert cycle is not None, "only a cycle requests a sync"
    step.set(pending_request=None)
    if cycle.discard_answer:
        step.set(subscribed=())
        step.finish_cycle(Apply())
        return
    if error.code == "validation_failed" and len(cycle.partitions) > ENTRIES_MAX:
        # This server's limit on subscriptions is not its limit on the names of one sync.
        step.set(names_max=ENTRIES_MAX)
        step.finish_cycle(Apply())
        return
    listed = error.details.get("partitions") if isinstance(error.details, dict) else None
    asked = dict.fromkeys((*state.active, *cycle.partitions))
    refused = [name for name in asked if name in listed] if isinstance(listed, list) else []
    if not refused and (state.one_by_one or len(state.active) == 1):
        refused = list(cycle.partitions)
    step.set(
        refused_partitions=state.refused_partitions | dict.fromkeys(refused, error.code),
        live=state.live - set(refused),
        tail_fetch_due=state.tail_fetch_due - set(refused),
        one_by_one=state.one_by_one or not refused,
    )
    step.leave_out_excess()
    step.finish_cycle(Apply())


def on_revoked(step: Transition, error: ErrorMessage) -> None:
    """The server has taken partitions out of the subscriptions (AUTHZ-09): they are refused on this connection.

    A sync that names one of them gets an error of its own.
    """
    state = step.state
    listed = error.details.get("partitions") if isinstance(error.details, dict) else None
    lost = {name for name in state.active if name in listed} if isinstance(listed, list) else set()
    step.set(
        refused_partitions=state.refused_partitions | dict.fromkeys(sorted(lost), error.code),
        live=state.live - lost,
        tail_fetch_due=state.tail_fetch_due - lost,
        subscribed=tuple(name for name in state.subscribed if name not in lost),
    )
    _partitions_changed(step)


# -- starting over -----------------------------------------------------------------------------------------


def check_log(step: Transition, message: Connected | SyncResponse) -> bool:
    """The server names its log; True when it is another than before, so that everything starts over (DUR-08)."""
    if message.log_id is None or message.log_epoch is None:
        return False
    known, named = step.state.log, LogIdentity(message.log_id, message.log_epoch)
    if named == known:
        return False
    step.set(log=named)
    if known is None:
        step.emit(NoteLog(named))
        return False
    what = "epoch of its log" if named.log_id == known.log_id else "log"
    step.report("log_changed", f"the server has another {what} than before; fetching everything again")
    step.set(buffer=(), buffered_bytes=0, cycle=None, full_history_only=frozenset(), highest_seen_id=0)
    _rewind(step, Reset(named))
    return True


def check_model(step: Transition, version: int | None, digest: str | None = None) -> None:
    """The server names its model; when it is another than before, everything is fetched from 0 (CLIENT-10)."""
    known = step.state.model_version
    other = _is_other_model(step, version, digest)
    step.set(model_version=version, model_digest=digest)
    if not other:
        step.emit(NoteModel(version, digest))
        return
    now = (
        f"{version} now, it was {known}" if known != version else f"{version} as before, with another content"
    )
    step.report("model_changed", f"the server's model version is {now}")
    step.set(full_history_only=frozenset())
    _rewind(step, Rewind(version, digest))


def _learn_digest(step: Transition, page: SyncResponse) -> None:
    """`version_changed` names a version only; the digest comes with the next page."""
    state = step.state
    if (
        page.model_digest is not None
        and state.model_digest is None
        and page.model_version == state.model_version
    ):
        step.set(model_digest=page.model_digest)
        step.emit(NoteModel(page.model_version, page.model_digest))


def _is_other_model(step: Transition, version: int | None, digest: str | None) -> bool:
    """Whether a model is another than the known one; digests are compared where both are known."""
    state = step.state
    if state.model_version is UNSET:
        return False
    if state.model_version != version:
        return True
    return digest is not None and state.model_digest not in (None, digest)


def start_over(step: Transition, code: str, message: str) -> None:
    """CLIENT-11, CLIENT-12: the stored events are not those the server has."""
    step.report(code, f"{message}; fetching everything again")
    step.set(buffer=(), buffered_bytes=0)
    _rewind(step, Reset())
    step.request_next()


def _rewind(step: Transition, effect: Rewind | Reset) -> None:
    """Set every cursor to 0. A pending answer is discarded; buffered events are below the next watermark."""
    state = step.state
    cycle = state.cycle
    if cycle is not None:
        requested = state.pending_request == "sync"
        cycle = msgspec.structs.replace(cycle, discard_answer=True) if requested else None
    step.set(
        cursors=dict.fromkeys(state.cursors, 0),
        live=frozenset(),
        tail_fetch_due=frozenset(),
        tail_events=0,
        cycle=cycle,
    )
    if isinstance(effect, Reset):
        step.set(highest_cursors={}, snapshot_based=frozenset())
    step.emit(effect)


# -- partitions --------------------------------------------------------------------------------------------


def on_partition_added(step: Transition, added: PartitionAdded) -> None:
    """Follow it from its cursor; request it again where it was refused."""
    state, name = step.state, added.partition
    based = state.snapshot_based
    step.set(
        cursors=state.cursors | {name: added.cursor},
        highest_cursors=state.highest_cursors | {name: added.highest_cursor},
        snapshot_based=based | {name} if added.snapshot_based else based - {name},
        refused_partitions={other: why for other, why in state.refused_partitions.items() if other != name},
    )
    _partitions_changed(step)


def on_partition_removed(step: Transition, partition: str) -> None:
    """Stop following it; a cycle that fetches it ends with the page under way."""
    state = step.state
    cycle = state.cycle
    if cycle is not None and partition in cycle.partitions:
        # Out of the cycle for good: added again before the answer comes, it starts from its own cursor.
        others = tuple(name for name in cycle.partitions if name != partition)
        cycle = msgspec.structs.replace(
            cycle, partitions=others, end_after_page=True, discard_answer=cycle.discard_answer or not others
        )
    step.set(
        cursors={name: upto for name, upto in state.cursors.items() if name != partition},
        highest_cursors={name: upto for name, upto in state.highest_cursors.items() if name != partition},
        refused_partitions={name: why for name, why in state.refused_partitions.items() if name != partition},
        live=state.live - {partition},
        tail_fetch_due=state.tail_fetch_due - {partition},
        snapshot_based=state.snapshot_based - {partition},
        full_history_only=state.full_history_only - {partition},
        cycle=cycle,
    )
    _partitions_changed(step)


def _partitions_changed(step: Transition) -> None:
    """The server's limits are known on a connection only."""
    if step.state.phase in (Phase.SYNCING, Phase.LIVE):
        step.leave_out_excess()
    step.request_next()
