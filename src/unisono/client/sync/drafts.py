"""Submitting drafts: in draft_clock order, in batches, and none delayed by one that is refused (CLIENT-08).

The drafts of a transaction are sent as one atomic batch and have one outcome (CLIENT-17).
"""

from __future__ import annotations

from typing import Final

from unisono.client.sync import failing_drafts
from unisono.client.sync.inputs_effects import Accepted, Apply, DraftRejected, DropConnection, Submitted
from unisono.client.sync.transition import Transition
from unisono.protocol.client_codec import ErrorMessage, SubmitResult, field_errors
from unisono.vocabulary import FieldError

UNFIT: Final = {
    "atomic_unsupported": "the server does not take transactions (the extension atomic)",
    "too_many_events": "the transaction has more events than the server takes in one batch",
    "too_big": "the transaction is larger than a message to this server may be",
}
"""Why a transaction is rejected by the client itself: it is never sent in parts."""


def on_submitted(step: Transition, submitted: Submitted) -> None:
    """The core has performed SubmitNext."""
    if submitted.too_large is not None:
        step.set(pending_request=None)
        step.clear_failures({submitted.too_large})
        error = FieldError("event", "the event is larger than a message to this server may be")
        _reject(step, (submitted.too_large,), "too_big", (error,))
    elif submitted.unfit:
        step.set(pending_request=None)
        step.clear_failures(set(submitted.unfit))
        _reject(step, submitted.unfit, submitted.reason, (FieldError("", UNFIT[submitted.reason]),))
    elif submitted.ids:
        step.set(submitted=submitted.ids, submitted_batch=submitted.atomic)
    elif submitted.gone is not None:
        step.set(pending_request=None)
        step.clear_failures({submitted.gone})
        step.request_next()
    else:
        step.set(pending_request=None, drafts_waiting=False)
        step.request_next()


def on_results(step: Transition, response: SubmitResult) -> None:
    """Results are matched by id; their order does not matter."""
    state = step.state
    if state.pending_request != "submit":
        step.report("unexpected", "a submit_events_result without a submit_events")
        return
    accepted = tuple(
        Accepted(each.id, each.committed_id, int(each.status_updated_at))
        for each in response.results
        if each.status == "committed" and each.committed_id is not None
    )
    refused = tuple(
        DraftRejected(
            each.id,
            each.reason or "rejected",
            field_errors(each.errors),
            int(each.status_updated_at) if each.status_updated_at else None,
        )
        for each in response.results
        if each.status == "rejected"
    )
    step.set(
        pending_request=None,
        submitted=(),
        single_submits=max(0, state.single_submits - 1),
        batch_max=max(1, min(state.limits.max_batch_size, state.batch_max * 2)),
    )
    for each in accepted:
        step.note_committed_id(each.committed_id)
    answered = {each.id for each in accepted} | {each.id for each in refused}
    failing_drafts.on_answered(step, answered)
    missing = set(state.submitted) - answered
    if missing:
        step.report("protocol_violation", f"a result that leaves out {len(missing)} of its drafts")
        step.set(failure="protocol_violation")
        step.emit(DropConnection())
    step.count_tail(len(accepted))
    step.apply(Apply(accepted=accepted, refused=refused, cursors=step.live_cursors()))


def on_refused(step: Transition, code: str, message: str, errors: tuple[FieldError, ...]) -> None:
    """The server refuses the request as a whole: find the draft at fault by sending each alone.

    The drafts of a transaction are rejected together.
    """
    ids, single_submits = step.state.submitted, step.state.single_submits
    step.set(pending_request=None, submitted=())
    if len(ids) > 1 and not step.state.submitted_batch:
        step.set(single_submits=len(ids))
        step.request_next()
    elif ids:
        step.set(single_submits=max(0, single_submits - 1))
        failing_drafts.on_answered(step, set(ids))
        _reject(step, ids, code, errors or (FieldError("", message),))
    else:
        step.request_next()


def _reject(step: Transition, ids: tuple[str, ...], reason: str, errors: tuple[FieldError, ...]) -> None:
    step.apply(Apply(refused=tuple(DraftRejected(id, reason, errors) for id in ids)))


def on_error(step: Transition, error: ErrorMessage) -> None:
    details = error.details if isinstance(error.details, dict) else {}
    on_refused(step, error.code, error.message, field_errors(details.get("errors")))
