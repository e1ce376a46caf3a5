"""One submitted item → Commit, Duplicate or Reject.

The order of checks is fixed: refused by the front (not authorised, not representable), committed before (ORD-03,
ORD-04), then the model. A retry is therefore answered from the log even if a newer model would reject the event, and
a refusal of access reveals nothing about what exists (AUTHZ-06).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from unisono.ipc.messages import Candidate, RefusedItem
from unisono.model.authorship import UNKNOWN, Authorship
from unisono.store.port import Record, RememberedId
from unisono.vocabulary import FieldError


class Commit(msgspec.Struct, frozen=True):
    """New and valid: it gets the next committed_id."""


COMMIT: Final = Commit()


class Duplicate(msgspec.Struct, frozen=True):
    """Committed before with the same content; the first result is the answer."""

    known: RememberedId | Record


class Reject(msgspec.Struct, frozen=True):
    """Not committed, not stored, not broadcast; the id stays free (SUBMIT-08)."""

    reason: str
    errors: tuple[FieldError, ...]


Verdict: TypeAlias = Commit | Duplicate | Reject


Stage: TypeAlias = Callable[[str, Candidate, Authorship], tuple[FieldError, ...]]
"""The errors of an event of a profile; if there are none, its changes are staged."""


def judge(
    item: Candidate | RefusedItem,
    profile: str,
    known: Mapping[str, RememberedId | Record],
    stage: Stage,
    authorship: Authorship = UNKNOWN,
) -> Verdict:
    """`known` has the ids in the log and those the group has accepted so far (ORD-05)."""
    if isinstance(item, RefusedItem):
        return Reject(item.reason, item.errors)
    earlier = known.get(item.id)
    if earlier is not None:
        if earlier.hash == item.hash:
            return Duplicate(earlier)
        return Reject(
            "validation_failed",
            (FieldError("event", f"id {item.id!r} was committed before with a different payload"),),
        )
    errors = stage(profile, item, authorship)
    return Reject("validation_failed", errors) if errors else COMMIT
