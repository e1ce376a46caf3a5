"""The counts of a revalidation. Every list is bounded, and counts of subsets add up in any order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from unisono.vocabulary import FieldError

SHAPE: Final = "shape"
"""The event itself is wrong: its schema, its data, its form. The same in all of its partitions."""
STATE: Final = "state"
"""A check or a precondition fails on the state of a partition."""
RULE: Final = "rule"
"""A reducer fails on it."""

KINDS_MAX: Final = 1_000
REASONS_MAX: Final = 1_000
"""Counted separately; further ones are counted together."""
EXAMPLES_PER_REASON: Final = 3
EXAMPLES_MAX: Final = 200
DIFFERENCES_MAX: Final = 20
TEXT_MAX: Final = 500
REFUSED_MAX: Final = 200_000
"""Refused events of several partitions, which are sent to all tasks."""

_NUMBERS: Final = re.compile(r"\.\d+(?=\.|$)")


class EventKind(msgspec.Struct, frozen=True, order=True):
    """Events of one type, and of one schema where the type is `event`."""

    type: str
    schema: str = ""

    @property
    def name(self) -> str:
        return self.schema or self.type or "(no type)"


OTHER_KINDS: Final = EventKind("(all others)")


class Reason(msgspec.Struct, frozen=True, order=True):
    """Why an event is refused: stage of the judgement, field (without array indices), message."""

    stage: str
    field: str
    message: str


OTHER_REASONS: Final = Reason("", "", "(all others)")


def reason_of(stage: str, error: FieldError) -> Reason:
    return Reason(stage, _NUMBERS.sub(".*", error.field), error.message)


class VerdictCounts(msgspec.Struct):
    """Of one kind. Events are counted once, skips once for each partition."""

    events: int = 0
    rejected_before: int = 0
    rejected_now: int = 0
    newly_rejected: int = 0
    no_longer_rejected: int = 0
    skipped_before: int = 0
    skipped_now: int = 0
    newly_skipped: int = 0

    @property
    def rejected_by_both(self) -> int:
        return self.rejected_now - self.newly_rejected

    def add(self, other: VerdictCounts) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class VerdictExample(msgspec.Struct, frozen=True, order=True):
    """One event that is newly rejected (or, without a reason, newly skipped), where, and its text, shortened."""

    committed_id: int
    partition: str
    id: str
    client_id: str
    kind: EventKind
    reason: Reason | None
    event: str


class StateDifference(msgspec.Struct, frozen=True):
    """A path in a state with its values before and now, shortened; None where there is none."""

    path: str
    before: str | None
    now: str | None


class Difference(msgspec.Struct, frozen=True):
    """A partition whose state differs, with the first differing paths."""

    partition: str
    changes: list[StateDifference]


class RefusedEvent(msgspec.Struct, frozen=True):
    """An event of several partitions that one of them refuses because of its state."""

    committed_id: int
    reason: Reason
    partition: str
    partitions: tuple[str, ...]


class RevalidationOutcome(msgspec.Struct):
    """The outcome of a subset of the partitions, or of all."""

    partitions: int = 0
    rows: int = 0
    erased: int = 0
    kinds: dict[EventKind, VerdictCounts] = {}
    reasons: dict[tuple[EventKind, Reason], int] = {}
    examples: dict[tuple[EventKind, Reason], list[VerdictExample]] = {}
    skipped: list[VerdictExample] = []
    differing: int = 0
    differences: list[Difference] = []
    refused_before: list[RefusedEvent] = []
    refused_now: list[RefusedEvent] = []
    refused_all: bool = True
    """False when more were refused than `REFUSED_MAX`."""
    written: list[str] = []
    """Files with rows behind the counts."""

    def of_kind(self, kind: EventKind) -> VerdictCounts:
        found = self.kinds.get(kind)
        if found is None:
            kind = kind if len(self.kinds) < KINDS_MAX else OTHER_KINDS
            found = self.kinds.setdefault(kind, VerdictCounts())
        return found

    def count_reason(
        self, kind: EventKind, reason: Reason, times: int, examples: Iterable[VerdictExample]
    ) -> None:
        key = (kind, reason)
        if key not in self.reasons and len(self.reasons) >= REASONS_MAX:
            key = (OTHER_KINDS, OTHER_REASONS)
        self.reasons[key] = self.reasons.get(key, 0) + times
        kept = self.examples.setdefault(key, [])
        kept.extend(examples)
        if len(kept) > EXAMPLES_PER_REASON:
            kept.sort(key=_by_id)
            del kept[EXAMPLES_PER_REASON:]

    def keep_skipped(self, examples: Iterable[VerdictExample]) -> None:
        self.skipped.extend(examples)
        if len(self.skipped) > EXAMPLES_PER_REASON:
            self.skipped.sort(key=_by_id)
            del self.skipped[EXAMPLES_PER_REASON:]

    def add(self, other: RevalidationOutcome) -> None:
        """Add the counts of other partitions; refused events are merged by the job."""
        self.partitions += other.partitions
        self.rows += other.rows
        self.erased += other.erased
        for kind, counts in other.kinds.items():
            self.of_kind(kind).add(counts)
        for (kind, reason), times in other.reasons.items():
            self.count_reason(kind, reason, times, other.examples[kind, reason])
        self.keep_skipped(other.skipped)
        self.differing += other.differing
        self.differences = sorted(
            [*self.differences, *other.differences], key=lambda difference: difference.partition.encode()
        )[:DIFFERENCES_MAX]


def elsewhere(refused: Iterable[RefusedEvent]) -> dict[int, Reason]:
    """Event → why, as its first refusing partition says; the same whatever order they come in."""
    found: dict[int, RefusedEvent] = {}
    for each in refused:
        known = found.get(each.committed_id)
        if known is None or each.partition.encode() < known.partition.encode():
            found[each.committed_id] = each
    return {committed_id: each.reason for committed_id, each in found.items()}


def totals(kinds: Mapping[EventKind, VerdictCounts]) -> VerdictCounts:
    total = VerdictCounts()
    for counts in kinds.values():
        total.add(counts)
    return total


def _by_id(example: VerdictExample) -> tuple[int, bytes]:
    return example.committed_id, example.partition.encode()
