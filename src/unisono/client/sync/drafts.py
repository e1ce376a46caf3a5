"""Drafts on their way: in draft_clock order, in batches, and none held up by one that is refused (CLIENT-08)."""

from __future__ import annotations

from unisono.client.net.wire import ErrorMessage, SubmitResult, field_errors
from unisono.client.sync import failing_drafts as syncfaults
from unisono.client.sync.inputs_effects import Accepted, Apply, DraftRejected, DropConnection, Submitted
from unisono.client.sync.state import Transition
from unisono.vocabulary import FieldError


def submitted(step: Transition, told: Submitted) -> None:
    """What the shell made of SubmitNext."""
    if told.too_large is not None:
        step.set(asked=None)
        step.forget({told.too_large})
        error = FieldError("event", "the event is larger than a message to this server may be")
        step.apply(Apply(refused=(DraftRejected(told.too_large, "too_big", (error,)),)))
    elif told.ids:
        step.set(submitted=told.ids)
    elif told.gone is not None:
        step.set(asked=None)
        step.forget({told.gone})
        step.next()
    else:
        step.set(asked=None, drafts_waiting=False)
        step.next()


def results(step: Transition, told: SubmitResult) -> None:
    """Results are matched by id, in whatever order they stand."""
    state = step.state
    if state.asked != "submit":
        step.report("unexpected", "a submit_events_result that was not asked for")
        return
    accepted = tuple(
        Accepted(each.id, each.committed_id, int(each.status_updated_at))
        for each in told.results
        if each.status == "committed" and each.committed_id is not None
    )
    refused = tuple(
        DraftRejected(
            each.id,
            each.reason or "rejected",
            field_errors(each.errors),
            int(each.status_updated_at) if each.status_updated_at else None,
        )
        for each in told.results
        if each.status == "rejected"
    )
    step.set(
        asked=None,
        submitted=(),
        singly=max(0, state.singly - 1),
        batch_max=max(1, min(state.limits.max_batch_size, state.batch_max * 2)),
    )
    for each in accepted:
        step.seen(each.committed_id)
    known = {each.id for each in accepted} | {each.id for each in refused}
    syncfaults.answered(step, known)
    left_out = set(state.submitted) - known
    if left_out:
        step.report("protocol_violation", f"a result that leaves out {len(left_out)} of its drafts")
        step.set(failure="protocol_violation")
        step.do(DropConnection())
    step.grow_tail(len(accepted))
    step.apply(Apply(accepted=accepted, refused=refused, cursors=step.live_cursors()))


def refused(step: Transition, code: str, message: str, errors: tuple[FieldError, ...]) -> None:
    """The request as a whole was refused: find the draft at fault by sending them one by one."""
    ids, singly = step.state.submitted, step.state.singly
    step.set(asked=None, submitted=())
    if len(ids) > 1:
        step.set(singly=len(ids))
        step.next()
    elif ids:
        step.set(singly=max(0, singly - 1))
        syncfaults.answered(step, {ids[0]})
        step.apply(Apply(refused=(DraftRejected(ids[0], code, errors or (FieldError("", message),)),)))
    else:
        step.next()


def refused_by(step: Transition, error: ErrorMessage) -> None:
    details = error.details if isinstance(error.details, dict) else {}
    refused(step, error.code, error.message, field_errors(details.get("errors")))
