"""The answers to a submitter, in either form of the protocol: one event, or a batch."""

from __future__ import annotations

from collections.abc import Mapping

from unisono.authority.judge import Commit, Duplicate, Reject, Verdict
from unisono.ipc.messages import Candidate, ItemResult, RefusedItem, SingleOutcome, Submit
from unisono.protocol.codec import encode_event, encode_payload
from unisono.store.port import RememberedId


def result_of(
    item: Candidate | RefusedItem, verdict: Verdict, known: Mapping[str, RememberedId], now: int
) -> ItemResult:
    """One entry of a `submit_events_result`; a retry gets the first result again (ORD-03)."""
    match verdict:
        case Commit():
            return ItemResult(item.id, "committed", now, known[item.id].committed_id)
        case Duplicate(first):
            return ItemResult(item.id, "committed", first.status_updated_at, first.committed_id)
        case Reject(reason, errors):
            return ItemResult(item.id, "rejected", now, reason=reason, errors=errors)


def single_outcome(
    submit: Submit, item: Candidate | RefusedItem, result: ItemResult, known: Mapping[str, RememberedId]
) -> SingleOutcome:
    """`event_committed` with the whole event, or `event_rejected` (SUBMIT-06)."""
    if result.status == "committed":
        assert isinstance(item, Candidate)
        first = known[item.id]
        event = encode_event(
            first.committed_id, item.id, first.client_id, item.partitions, item.event, first.status_updated_at
        )
        return SingleOutcome(submit.conn, True, event)
    payload = {
        "id": item.id,
        "client_id": submit.client_id,
        "partitions": item.partitions,
        "reason": result.reason,
        "errors": result.errors,
        "status_updated_at": result.status_updated_at,
    }
    return SingleOutcome(submit.conn, False, encode_payload(payload), result.reason)
