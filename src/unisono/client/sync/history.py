"""Committed events as they come: broadcasts, pages, and the occasions to start over (CLIENT-04..06, -10..12)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from unisono.client.net.wire import CommittedEvent, Connected, ErrorMessage, SyncResponse
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
from unisono.client.sync.state import Phase, SyncCycle, Transition
from unisono.protocol.partitions import ENTRIES_MAX
from unisono.vocabulary import LogIdentity


def broadcast(step: Transition, event: CommittedEvent, *, more: bool = False) -> None:
    """Store it now, or let it wait for the end of the cycle it is above.

    Every event moves the cursor of each live partition; of those that come together, the last one alone does.
    """
    step.seen(event.committed_id)
    if not any(name in step.state.cursors for name in event.partitions):
        return
    cycle = step.state.cycle
    if cycle is None:
        step.grow_tail(1)
        step.apply(Apply((event,), cursors={} if more else step.live_cursors()))
    elif cycle.sync_to is not None and event.committed_id <= cycle.sync_to:
        step.apply(Apply((event,)))
    else:
        _hold(step, event, cycle)


def _hold(step: Transition, event: CommittedEvent, cycle: SyncCycle) -> None:
    """CLIENT-06: what may lie above the watermark waits, within bounds."""
    state = step.state
    size = state.buffered_bytes + len(bytes(event.event))
    if len(state.buffer) >= state.options.buffer_events_max or size > state.options.buffer_bytes_max:
        step.set(cycle=msgspec.structs.replace(cycle, overflow=True), buffer=(), buffered_bytes=0)
    elif not cycle.overflow:
        step.set(buffer=(*state.buffer, event), buffered_bytes=size)


def page(step: Transition, told: SyncResponse, received: Received) -> None:
    """A sync_response: take it, or find out that it belongs to another past than ours."""
    cycle = step.state.cycle
    if step.state.asked != "sync" or cycle is None:
        step.report("unexpected", "a sync_response that was not asked for")
        return
    step.set(asked=None)
    if cycle.subscription is not None:
        step.set(subscribed=cycle.subscription)
    _learn_digest(step, told)
    if log(step, told):
        step.next()
    elif cycle.void:
        step.flush(Apply())
    elif told.sync_to_committed_id < (reached := _reached(step, cycle)):
        step.set(cycle=None)
        at = f"events up to {reached} were had, and the server's last is {told.sync_to_committed_id}"
        start_over(step, "cursor_ahead", at)
    elif told.has_more and told.next_since_committed_id <= cycle.since:
        step.report("protocol_violation", "a page with has_more that does not move on")
        step.set(failure="protocol_violation")
        step.do(DropConnection())
    elif told.model_version is not None and _is_other(step, told.model_version, told.model_digest):
        model(step, told.model_version, told.model_digest)
        step.flush(Apply(told.events))
    elif unusable := [name for name in received.unusable if name in cycle.partitions]:
        _refetch(step, cycle, unusable)
    else:
        _take(step, told, cycle, received.bases)


def _reached(step: Transition, cycle: SyncCycle) -> int:
    known = step.state.known
    return max(cycle.since, *(known.get(name, 0) for name in cycle.partitions))


def _refetch(step: Transition, cycle: SyncCycle, unusable: list[str]) -> None:
    """Snapshots that cannot be used stand for events that did not come: ask for the whole history instead."""
    names = ", ".join(map(repr, unusable))
    if cycle.snapshots:
        step.report("bad_snapshot", f"the server's snapshot of {names} cannot be used; fetching all events")
        step.set(whole=step.state.whole | set(unusable))
        step.flush(Apply())
    else:
        step.report("protocol_violation", f"a snapshot of {names} that was declined")
        step.set(failure="protocol_violation", snapshots=False)
        step.do(DropConnection())


def _take(step: Transition, told: SyncResponse, cycle: SyncCycle, bases: Mapping[str, StartState]) -> None:
    sync_to, reached = told.sync_to_committed_id, told.next_since_committed_id
    early = tuple(event for event in step.state.buffer if event.committed_id <= sync_to)
    kept = tuple(event for event in step.state.buffer if event.committed_id > sync_to)
    step.set(buffer=kept, buffered_bytes=sum(len(bytes(event.event)) for event in kept))
    names = [name for name in cycle.partitions if name in step.state.cursors]
    cursors = {name: max(reached, bases[name].committed_id) if name in bases else reached for name in names}
    starts: dict[str, StartState | None] = {}
    if cycle.sync_to is None and not cycle.since:
        starts = {name: bases.get(name) for name in names if name in bases or name in step.state.based}
        step.set(based=(step.state.based - set(names)) | {name for name in names if name in bases})
    taken = Apply((*told.events, *early), cursors=cursors, starts=starts)
    if not told.has_more:
        step.set(
            live=step.state.live | (set(names) & set(step.state.active)),
            due=step.state.due - set(names),
            tail=0,
        )
        step.flush(taken)
    elif cycle.over:
        step.flush(taken)
    else:
        step.set(cycle=msgspec.structs.replace(cycle, since=reached, sync_to=sync_to, subscription=None))
        step.apply(taken)


def refused(step: Transition, error: ErrorMessage) -> None:
    """Set aside the partitions the server names; where it names none, find them one by one."""
    state = step.state
    cycle = state.cycle
    assert cycle is not None, "a sync is asked for by a cycle"
    step.set(asked=None)
    if cycle.void:
        step.set(subscribed=())
        step.flush(Apply())
        return
    if error.code == "validation_failed" and len(cycle.partitions) > ENTRIES_MAX:
        # A server that counts its subscriptions by another limit than the names of one sync.
        step.set(names_max=ENTRIES_MAX)
        step.flush(Apply())
        return
    told = error.details.get("partitions") if isinstance(error.details, dict) else None
    named = [name for name in state.active if name in told] if isinstance(told, list) else []
    if not named and (state.solo or len(state.active) == 1):
        named = list(cycle.partitions)
    step.set(
        aside=state.aside | dict.fromkeys(named, error.code),
        live=state.live - set(named),
        due=state.due - set(named),
        solo=state.solo or not named,
    )
    step.choose()
    step.flush(Apply())


# -- starting over -----------------------------------------------------------------------------------------


def log(step: Transition, told: Connected | SyncResponse) -> bool:
    """The server names its log; True when it is another than before, so that everything starts over (DUR-08)."""
    if told.log_id is None or told.log_epoch is None:
        return False
    known, named = step.state.log, LogIdentity(told.log_id, told.log_epoch)
    if named == known:
        return False
    step.set(log=named)
    if known is None:
        step.do(NoteLog(named))
        return False
    what = "epoch of its log" if named.log_id == known.log_id else "log"
    step.report("log_changed", f"the server has another {what} than before; fetching everything anew")
    step.set(buffer=(), buffered_bytes=0, cycle=None, whole=frozenset(), frontier=0)
    _rewind(step, Reset(named))
    return True


def model(step: Transition, version: int | None, digest: str | None = None) -> None:
    """The server names its model; another than before asks for everything from 0 (CLIENT-10)."""
    known = step.state.model_version
    other = _is_other(step, version, digest)
    step.set(model_version=version, model_digest=digest)
    if not other:
        step.do(NoteModel(version, digest))
        return
    now = (
        f"{version} now, it was {known}" if known != version else f"{version} as before, with another content"
    )
    step.report("model_changed", f"the server's model version is {now}")
    step.set(whole=frozenset())
    _rewind(step, Rewind(version, digest))


def _learn_digest(step: Transition, told: SyncResponse) -> None:
    """`version_changed` names a version only; the content comes with the next page."""
    known = step.state
    if (
        told.model_digest is not None
        and known.model_digest is None
        and told.model_version == known.model_version
    ):
        step.set(model_digest=told.model_digest)
        step.do(NoteModel(told.model_version, told.model_digest))


def _is_other(step: Transition, version: int | None, digest: str | None) -> bool:
    """Whether a model is another than the one known; digests count where both are told."""
    known = step.state
    if known.model_version is UNSET:
        return False
    if known.model_version != version:
        return True
    return digest is not None and known.model_digest not in (None, digest)


def start_over(step: Transition, code: str, message: str) -> None:
    """CLIENT-11, CLIENT-12: what is stored is not what the server has."""
    step.report(code, f"{message}; fetching everything anew")
    step.set(buffer=(), buffered_bytes=0)
    _rewind(step, Reset())
    step.next()


def _rewind(step: Transition, effect: Rewind | Reset) -> None:
    """Every cursor to 0. An answer still under way is let pass; whatever waits is below the next watermark."""
    state = step.state
    cycle = state.cycle
    if cycle is not None:
        cycle = msgspec.structs.replace(cycle, void=True) if state.asked == "sync" else None
    nothing: frozenset[str] = frozenset()
    step.set(cursors=dict.fromkeys(state.cursors, 0), live=nothing, due=nothing, tail=0, cycle=cycle)
    if isinstance(effect, Reset):
        step.set(known={}, based=nothing)
    step.do(effect)


# -- partitions --------------------------------------------------------------------------------------------


def added(step: Transition, told: PartitionAdded) -> None:
    """Follow it from its cursor, alone until it has caught up; ask again where it was refused."""
    state, name = step.state, told.partition
    step.set(
        cursors=state.cursors | {name: told.cursor},
        known=state.known | {name: told.known},
        based=state.based | {name} if told.based else state.based - {name},
        aside={other: why for other, why in state.aside.items() if other != name},
    )
    _choose_anew(step)
    step.next()


def removed(step: Transition, partition: str) -> None:
    """Follow it no longer; a cycle that fetches it ends with the page that is under way."""
    state = step.state
    cycle = state.cycle
    if cycle is not None and partition in cycle.partitions:
        # Out of the cycle for good: added again before the answer comes, it starts from its own cursor.
        others = tuple(name for name in cycle.partitions if name != partition)
        cycle = msgspec.structs.replace(cycle, partitions=others, over=True, void=cycle.void or not others)
    step.set(
        cursors={name: upto for name, upto in state.cursors.items() if name != partition},
        known={name: upto for name, upto in state.known.items() if name != partition},
        aside={name: why for name, why in state.aside.items() if name != partition},
        live=state.live - {partition},
        due=state.due - {partition},
        based=state.based - {partition},
        whole=state.whole - {partition},
        cycle=cycle,
    )
    _choose_anew(step)
    step.next()


def _choose_anew(step: Transition) -> None:
    """What the server takes is known on a connection only."""
    if step.state.phase in (Phase.SYNCING, Phase.LIVE):
        step.choose()
