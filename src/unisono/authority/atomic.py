"""One atomic batch → the verdicts of its items: all of them Commit, or none (EXT-10).

An item that is in the log with the same content is always a Duplicate, so that every answer is true of what is in the
log. A batch that is in the log as a whole gets its first results. One that is there in part can neither be committed
as a whole nor be refused as a whole: nothing more of it is committed (EXT-12).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from unisono.authority.judge import Duplicate, Reject, Verdict, judge
from unisono.authority.states.resident import States
from unisono.ipc.messages import Candidate, RefusedItem
from unisono.model.authorship import Authorship
from unisono.store.port import Record, RememberedId
from unisono.vocabulary import FieldError

ATOMIC_S: Final = 3.0
"""Judging time of one atomic batch: it cannot be continued in another group, and a shared log cancels a group that
takes 5 s. One rule more may run to its limit after this."""

NOT_PROCESSED: Final = Reject("not_processed", ())
"""Of an item that has no fault of its own, or was not judged: another one of its batch was refused."""

_TOO_LONG: Final = (
    FieldError(
        "event", "the events of this atomic batch take too long to judge together; submit fewer at once"
    ),
)

_IN_PART: Final = (
    FieldError("id", "other events of this atomic batch were committed before, without this one"),
)


def judge_atomic(
    items: Sequence[Candidate | RefusedItem],
    profile: str,
    known: Mapping[str, RememberedId | Record],
    states: States,
    authorship: Authorship,
    is_late: Callable[[], bool],
) -> list[Verdict]:
    """The verdicts in the order of the items. The changes of a batch that is refused are not staged.

    `is_late`: whether the time for this batch is over.
    """
    verdicts: list[Verdict] = []

    def stage(profile: str, candidate: Candidate, authorship: Authorship) -> tuple[FieldError, ...]:
        if in_part:
            return _IN_PART
        if verdicts and is_late():
            return _TOO_LONG
        return states.stage(profile, candidate, authorship)

    duplicates = [_duplicate(item, known) for item in items]
    in_part = any(duplicates) and not all(duplicates)
    refused = False
    states.begin_batch()
    for item, duplicate in zip(items, duplicates, strict=True):
        verdict: Verdict = duplicate or NOT_PROCESSED
        if duplicate is None and not refused:
            verdict = judge(item, profile, known, stage, authorship)
            refused = isinstance(verdict, Reject)
        verdicts.append(verdict)
    if not refused:
        states.keep_batch()
        return verdicts
    states.undo_batch()
    return [verdict if isinstance(verdict, Reject | Duplicate) else NOT_PROCESSED for verdict in verdicts]


def _duplicate(item: Candidate | RefusedItem, known: Mapping[str, RememberedId | Record]) -> Duplicate | None:
    """An item that a front refused is never one: it is told nothing of what exists (AUTHZ-06)."""
    if isinstance(item, RefusedItem):
        return None
    earlier = known.get(item.id)
    return Duplicate(earlier) if earlier is not None and earlier.hash == item.hash else None
