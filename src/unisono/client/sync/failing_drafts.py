"""Drafts the server fails on: found, set aside and sent again later, while the others go on (CLIENT-08).

A server that answers a submit with server_error, or closes with 1011, may fail on one of its drafts every time.
After FAILURES_MAX such failures of one submit its drafts are sent one at a time, and a draft that fails as often
alone is set aside: it stays pending, because its outcome is unknown, and is left out of submits until its retry is
due. The drafts of a transaction count as one.

A server can also fail on everything for a while. So the first result after drafts were set aside makes their retries
due at once, in their order, and an answer for one of them makes the retries of all others due. A connection that is
lost in any other way says nothing about a draft and does not count.
"""

from __future__ import annotations

from typing import Final

import msgspec

from unisono.client.sync.inputs_effects import WakeAt
from unisono.client.sync.state import SetAsideDraft
from unisono.client.sync.transition import Transition
from unisono.protocol.errors import CloseCode

FAILURES_MAX: Final = 3
"""Failures of one submit, and then of one draft, before it is acted on: a restart of a server causes one or two."""

SERVER_ERROR: Final = "server_error"
SET_ASIDE: Final = "draft_set_aside"


def is_server_failure(step: Transition, code: int | None) -> bool:
    """Whether the connection was lost because the server failed on a submit."""
    state = step.state
    if state.pending_request != "submit" or not state.submitted:
        return False
    return state.failure == SERVER_ERROR or (state.failure is None and code == CloseCode.SERVER_ERROR)


def on_server_failure(step: Transition) -> None:
    """The server failed on the submitted drafts."""
    state = step.state
    ids = state.submitted
    if len(ids) > 1 and not state.submitted_batch:
        step.set(batch_failures=state.batch_failures + 1)
        if step.state.batch_failures >= FAILURES_MAX:
            step.set(single_submits=len(ids))
        return
    id = ids[0]
    if (draft := state.set_aside_drafts.get(id)) is not None:
        wait_s = min(state.options.draft_retry_cap_s, 2 * draft.wait_s)
        _set_aside(step, ids, SetAsideDraft(draft.reason, step.now + wait_s, wait_s, proven=True))
        return
    failures = state.draft_failures.get(id, 0) + 1
    step.set(draft_failures=state.draft_failures | {id: failures})
    if failures >= FAILURES_MAX:
        reason = f"server_error: the server failed {failures} times when this draft was sent to it"
        wait_s = state.options.draft_retry_base_s
        step.set(single_submits=max(0, state.single_submits - 1))
        step.report(SET_ASIDE, f"{id!r}: {reason}; it stays pending and is tried again")
        _set_aside(step, ids, SetAsideDraft(reason, step.now + wait_s, wait_s))


def _set_aside(step: Transition, ids: tuple[str, ...], draft: SetAsideDraft) -> None:
    """Set one draft aside, or those of one transaction."""
    step.set(set_aside_drafts=step.state.set_aside_drafts | dict.fromkeys(ids, draft))
    step.emit(WakeAt(draft.retry_at))


def on_answered(step: Transition, ids: set[str]) -> None:
    """The server answered for these drafts, so it works: drafts it failed on before are due for a retry."""
    step.set(batch_failures=0)
    retry_all = any(id in step.state.set_aside_drafts for id in ids)
    step.clear_failures(ids)
    if step.state.set_aside_drafts:
        drafts = {}
        for id, draft in step.state.set_aside_drafts.items():
            due = retry_all or not draft.proven
            drafts[id] = msgspec.structs.replace(draft, retry_at=step.now, proven=True) if due else draft
        step.set(set_aside_drafts=drafts)


def on_retry(step: Transition, id: str) -> None:
    """The program wants a set-aside draft sent now."""
    draft = step.state.set_aside_drafts.get(id)
    if draft is not None:
        due = msgspec.structs.replace(draft, retry_at=step.now)
        step.set(set_aside_drafts=step.state.set_aside_drafts | {id: due})
    step.request_next()


def schedule_retry(step: Transition) -> None:
    """Set a timer for the next retry of a set-aside draft."""
    times = [d.retry_at for d in step.state.set_aside_drafts.values() if d.retry_at > step.now]
    if times:
        step.emit(WakeAt(min(times)))
