"""The answers to a submitter, in either form of the protocol: one event, or a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from unisono.authority.judge import Duplicate, Reject
from unisono.ipc.messages import BatchOutcome, Candidate, RefusedItem, SingleOutcome, Submit
from unisono.protocol.codec import encode_event, encode_payload
from unisono.vocabulary import FieldError

_encode = msgspec.json.Encoder().encode


class RejectedResult(msgspec.Struct, frozen=True):
    """One entry of a `submit_events_result`, with the field names of the wire (SUBMIT-04)."""

    id: str
    status: str
    status_updated_at: int
    reason: str
    errors: tuple[FieldError, ...]


COMMITTED_FORMAT: Final = b'{"id":%b,"status":"committed","status_updated_at":%d,"committed_id":%d}'


def committed_result(id: str, status_updated_at: int, committed_id: int) -> bytes:
    """The entry of an event that is in the log; a retry gets the first result again (ORD-03)."""
    return COMMITTED_FORMAT % (_encode(id), status_updated_at, committed_id)


def rejected_result(id: str, now: int, verdict: Reject) -> bytes:
    return _encode(RejectedResult(id, "rejected", now, verdict.reason, verdict.errors))


def batch_outcome(conn: int, results: Sequence[bytes]) -> BatchOutcome:
    """The entries of a `submit_events_result`, in the order of the request's items."""
    return BatchOutcome(conn, b'{"results":[%b]}' % b",".join(results))


def duplicate_outcome(conn: int, item: Candidate, verdict: Duplicate) -> SingleOutcome:
    """`event_committed` with the whole event, as the first time (SUBMIT-06, ORD-03)."""
    first = verdict.known
    event = encode_event(
        first.committed_id, item.id, first.client_id, item.partitions, item.event, first.status_updated_at
    )
    return SingleOutcome(conn, True, event)


def rejected_outcome(
    submit: Submit, item: Candidate | RefusedItem, verdict: Reject, now: int
) -> SingleOutcome:
    """`event_rejected` (SUBMIT-06)."""
    payload = {
        "id": item.id,
        "client_id": submit.client_id,
        "partitions": item.partitions,
        "reason": verdict.reason,
        "errors": verdict.errors,
        "status_updated_at": now,
    }
    return SingleOutcome(submit.conn, False, encode_payload(payload))
