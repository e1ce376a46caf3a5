"""Drafts the server fails on: found, set aside, tried again; the others go on (CLIENT-08).

A server that answers a submit with server_error, or closes with 1011, may fail on one draft of it every time. After
some such failures of one submit its drafts go out one at a time, and a draft that failed as often alone is set aside:
it stays pending, because its outcome is unknown, and is left out of submits until its time comes.

A server can also fail on everything for a while. So the first result after drafts were set aside has them tried again
at once, in their order, and one that is then answered lets all others be tried again. A connection that is lost in
any other way says nothing about a draft and does not count.
"""

from __future__ import annotations

from typing import Final

import msgspec

from unisono.client.sync.inputs_effects import WakeAt
from unisono.client.sync.state import SetAsideDraft, Transition
from unisono.protocol.errors import CloseCode

FAULTS_MAX: Final = 3
"""Failures of one submit, and then of one draft, before it is dealt with: a restart of a server is one or two."""

SERVER_ERROR: Final = "server_error"
SET_ASIDE: Final = "draft_set_aside"


def is_fault(step: Transition, code: int | None) -> bool:
    """Whether the connection was lost because the server failed on what was submitted."""
    state = step.state
    if state.asked != "submit" or not state.submitted:
        return False
    return state.failure == SERVER_ERROR or (state.failure is None and code == CloseCode.SERVER_ERROR)


def faulted(step: Transition) -> None:
    """The server failed on the drafts that are unanswered."""
    state = step.state
    if len(state.submitted) > 1:
        step.set(faults=state.faults + 1)
        if step.state.faults >= FAULTS_MAX:
            step.set(singly=len(state.submitted))
        return
    (id,) = state.submitted
    if id in state.held:
        wait_s = min(state.options.draft_retry_cap_s, 2 * state.held[id].wait_s)
        _hold(step, SetAsideDraft(state.held[id].reason, step.now + wait_s, wait_s, proven=True))
        return
    blamed = state.blamed.get(id, 0) + 1
    step.set(blamed=state.blamed | {id: blamed})
    if blamed >= FAULTS_MAX:
        reason = f"server_error: the server failed {blamed} times when this draft was sent to it"
        wait_s = state.options.draft_retry_base_s
        step.set(singly=max(0, state.singly - 1))
        step.report(SET_ASIDE, f"{id!r}: {reason}; it stays pending and is tried again")
        _hold(step, SetAsideDraft(reason, step.now + wait_s, wait_s))


def _hold(step: Transition, held: SetAsideDraft) -> None:
    (id,) = step.state.submitted
    step.set(held=step.state.held | {id: held})
    step.do(WakeAt(held.retry_at))


def answered(step: Transition, ids: set[str]) -> None:
    """The server answered for these drafts, so it works: what it failed on before is tried again."""
    step.set(faults=0)
    everything = any(id in step.state.held for id in ids)
    step.forget(ids)
    if step.state.held:
        step.set(held={
            id: msgspec.structs.replace(held, retry_at=step.now, proven=True)
            if everything or not held.proven
            else held
            for id, held in step.state.held.items()
        })  # fmt: skip


def retried(step: Transition, id: str) -> None:
    """The program wants a draft that is set aside tried now."""
    held = step.state.held.get(id)
    if held is not None:
        step.set(held=step.state.held | {id: msgspec.structs.replace(held, retry_at=step.now)})
    step.next()


def wake(step: Transition) -> None:
    """Be woken when the next of the drafts that are set aside is to be tried."""
    times = [held.retry_at for held in step.state.held.values() if held.retry_at > step.now]
    if times:
        step.do(WakeAt(min(times)))
