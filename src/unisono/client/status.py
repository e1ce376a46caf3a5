"""What a client tells of itself: where it stands, and what became of its drafts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from unisono.client.store.outbox import DraftRecord
from unisono.client.sync.state import TOO_MANY, Phase
from unisono.client.view.partition import parse
from unisono.vocabulary import FieldError, JsonObject


class Problem(msgspec.Struct, frozen=True):
    """Something that went wrong, last; `code` is an error code of the wire or one of this library's.

    This library's are: `unreachable`, `no_answer`, `dead_server`, `token_failed`, `cursor_ahead`,
    `log_changed`, `integrity_violation`, `protocol_violation`, `unexpected`, `bad_snapshot`, `model_changed`,
    `model_mismatch`, `too_many_partitions`, `draft_set_aside`, `stopped`.
    """

    code: str
    message: str
    at_ms: int


PASSING: Final = frozenset({
    "unreachable", "no_answer", "dead_server", "token_failed", "protocol_violation", "unexpected", "stopped",
    "auth_failed", "server_error", "rate_limited",
})  # fmt: skip
"""Problems of a connection: over when the client is live."""

REFUSALS: Final = frozenset({"forbidden", "validation_failed", "bad_request", TOO_MANY})
"""Problems of a request: over when nothing is refused any more."""


class Status(msgspec.Struct, frozen=True):
    """One moment of a client.

    `cursor` is the lowest of `cursors`, the committed_id up to which each partition is complete. `set_aside` are
    partitions that are not followed, with the reason: the server's where it refuses them, `too_many_partitions`
    where it has no room for them. `drafts_set_aside` are pending drafts that the server fails on, by id, with the
    reason. `stopped` says why no connection is tried any more.
    """

    phase: Phase
    cursor: int
    cursors: Mapping[str, int]
    pending: int
    rejected: int
    set_aside: Mapping[str, str]
    model_version: int | None
    last_error: Problem | None
    stopped: str | None
    drafts_set_aside: Mapping[str, str] = {}


class Committed(msgspec.Struct, frozen=True):
    """The server took the draft: it is an event now, in its place in the one order."""

    id: str
    committed_id: int
    status_updated_at: int


class Rejected(msgspec.Struct, frozen=True):
    """The server refused the draft; it is kept, out of the view, until it is retried or discarded.

    `created_at` is this machine's time of the draft, `status_updated_at` the server's of the refusal; None where the
    server gave none, or the client found out by itself that the server would not take the draft. `transaction` is the
    same number for the drafts of one transaction: they are rejected, retried and discarded together, and all but the
    one that was refused have the reason `not_processed`.
    """

    id: str
    partitions: tuple[str, ...]
    event: JsonObject
    reason: str
    errors: tuple[FieldError, ...]
    created_at: int
    status_updated_at: int | None = None
    transaction: int | None = None


def rejection(draft: DraftRecord) -> Rejected:
    return Rejected(
        draft.id,
        draft.partitions,
        parse(draft.event),
        draft.reason or "",
        draft.errors,
        draft.created_at,
        draft.status_updated_at,
        draft.batch,
    )
