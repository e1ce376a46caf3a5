"""Committed events run through another model: which of them no longer apply, and which it would refuse today.

Two questions, and they differ. An event that does *not apply* stays in the log and changes no state: its schema is
gone, its reducer fails on it, or its tree action does not fit what the events before it left. An event that still
applies may yet be one that the model would *refuse* if it were submitted now: replay does not judge again.

Partitions come one after the other, so that the states of one are in memory at a time. What an event of several
partitions does is counted once.
"""

from __future__ import annotations

from typing import Final

import msgspec

from unisono.display import shorten
from unisono.model.authorship import UNKNOWN, Authorship
from unisono.model.model import CANONICAL, COMPATIBILITY, Model
from unisono.model.partition import PartitionState
from unisono.model.registry import MESSAGE_CHARS_MAX
from unisono.model.schema import EVENT_TYPE
from unisono.vocabulary import JsonObject

EXAMPLES_MAX: Final = 3
"""Events named for one kind and one answer: enough to see what is wrong."""

KINDS_MAX: Final = 1_000
"""Kinds counted by name. Schemas of a model are fewer; in a log of an open model they are the clients' to choose."""

KINDS_SHOWN_MAX: Final = 20
OTHER_KINDS: Final = "(other kinds)"

SEVERAL_MAX: Final = 200_000
"""Events of several partitions remembered as counted, some ten megabytes; beyond, one may count several times."""

SETTLE_EVENTS: Final = 1_000
"""Events between two settles of a state, so that what it could undo stays small."""

NAME_CHARS_MAX: Final = 100


class ReplayExample(msgspec.Struct, frozen=True):
    """One event, the partition in which it was looked at, and why."""

    committed_id: int
    partition: str
    reason: str

    def __str__(self) -> str:
        return f"event {self.committed_id} in {shorten(self.partition, 60)!r}: {self.reason}"


class ReplayKind(msgspec.Struct):
    """What became of the events of one schema or one tree action.

    `no_longer` applied under the model in force and do not under the new one; `never` apply under neither;
    `refused` apply, and would be refused if they were submitted now.
    """

    events: int = 0
    no_longer: int = 0
    never: int = 0
    refused: int = 0
    lost: list[ReplayExample] = msgspec.field(default_factory=list)
    refusals: list[ReplayExample] = msgspec.field(default_factory=list)


class Review(msgspec.Struct):
    """What a model makes of a log up to `upto`. `exact`: no event was counted more than once."""

    upto: int = 0
    events: int = 0
    partitions: int = 0
    erased: int = 0
    kinds: dict[str, ReplayKind] = msgspec.field(default_factory=dict)
    exact: bool = True

    @property
    def no_longer(self) -> int:
        return sum(kind.no_longer for kind in self.kinds.values())

    @property
    def never(self) -> int:
        return sum(kind.never for kind in self.kinds.values())

    @property
    def refused(self) -> int:
        return sum(kind.refused for kind in self.kinds.values())

    def lines(self) -> list[str]:
        """The review for a person to read."""
        erased = f", {self.erased:,} of them erased" if self.erased else ""
        lines = [
            f"history up to {self.upto}: {self.events:,} events in {self.partitions:,} partitions{erased}",
            f"  {self.no_longer:,} no longer apply: they stay in the log and change no state",
        ]
        lines += self._kind_lines("no_longer", "lost")
        if self.never:
            lines.append(f"  {self.never:,} more did not apply before either")
        lines.append(f"  {self.refused:,} still apply, and would be refused if they were submitted now")
        lines += self._kind_lines("refused", "refusals")
        if not self.exact:
            lines.append("  (events of several partitions are too many to count each once)")
        return lines

    def _kind_lines(self, count: str, examples: str) -> list[str]:
        concerned = [
            (name, kind, number) for name, kind in self.kinds.items() if (number := getattr(kind, count))
        ]
        concerned.sort(key=lambda each: (-each[2], each[0]))
        lines = []
        for name, kind, number in concerned[:KINDS_SHOWN_MAX]:
            lines.append(f"    {name}: {number:,} of {kind.events:,}")
            lines += [f"      {example}" for example in getattr(kind, examples)]
        if len(concerned) > KINDS_SHOWN_MAX:
            lines.append(f"    and {len(concerned) - KINDS_SHOWN_MAX} more kinds")
        return lines


class Reviewer:
    """Takes the events of one partition after the other, each in order, and adds up the review."""

    def __init__(self, model: Model, before: Model | None, upto: int) -> None:
        """`before`: the model in force, whose own losses are no news; None: whatever does not apply is news."""
        self.review = Review(upto)
        self._model = model
        self._before = before
        self._counted: dict[int, str] = {}
        self._partition: str | None = None
        self._now = PartitionState()
        self._then = PartitionState()
        self._unsettled = 0

    @property
    def partition(self) -> str | None:
        """The partition at hand."""
        return self._partition

    @property
    def state(self) -> PartitionState:
        """What the partition at hand has come to under the new model."""
        return self._now

    def go_on(self, partition: str) -> None:
        """What follows is of this partition: from its first event on, or after those taken last."""
        if partition == self._partition:
            return
        self.review.partitions += 1
        self._partition = partition
        self._now = PartitionState()
        self._then = PartitionState()
        self._unsettled = 0

    def skip(self, partitions: tuple[str, ...]) -> None:
        """An event whose text was erased: there is nothing to apply."""
        if partitions[0] == self._partition:
            self.review.events += 1
            self.review.erased += 1

    def take(
        self, committed_id: int, event: JsonObject, partitions: tuple[str, ...], by: Authorship = UNKNOWN
    ) -> tuple[str | None, str | None]:
        """One event; `partitions` are all of its partitions, as they are stored.

        Gives why it does not apply here, and why it would be refused, None where nothing speaks against it.
        """
        kind = self._kind(event)
        if partitions[0] == self._partition:
            self.review.events += 1
            kind.events += 1
        several = len(partitions) > 1
        refusal = self._refusal(event, by)
        lost = self._lost(self._model, self._now, event, by)
        lost_before = None if self._before is None else self._lost(self._before, self._then, event, by)
        if lost is not None:
            if lost_before is None:
                self._count(kind, "no_longer", committed_id, several)
                self._keep(kind.lost, committed_id, lost)
            else:
                self._count(kind, "never", committed_id, several)
        elif refusal is not None and self._count(kind, "refused", committed_id, several):
            self._keep(kind.refusals, committed_id, refusal)
        self._unsettled += 1
        if self._unsettled >= SETTLE_EVENTS:
            self._unsettled = 0
            self._now.settle()
            self._then.settle()
        return lost, refusal

    def _refusal(self, event: JsonObject, by: Authorship) -> str | None:
        profile = CANONICAL if event.get("type") == EVENT_TYPE else COMPATIBILITY
        errors = self._model.shape(profile, event) or self._model.refusals(profile, self._now, event, by)
        return f"{errors[0].field}: {errors[0].message}" if errors else None

    def _lost(self, model: Model, state: PartitionState, event: JsonObject, by: Authorship) -> str | None:
        obstacle = model.obstacle(state, event, by)
        if obstacle is None and event.get("type") == EVENT_TYPE and model.canonical is not None:
            registry, payload = model.canonical.registry, event["payload"]
            if registry is not None and isinstance(payload, dict) and payload["schema"] not in registry:
                return "its schema is not in the model"
        return obstacle

    def _count(self, kind: ReplayKind, what: str, committed_id: int, several: bool) -> bool:
        """Count an event once, under the gravest of what its partitions say; True if it counts here."""
        gravity = ("refused", "never", "no_longer")
        before = self._counted.get(committed_id) if several else None
        if before is not None:
            if gravity.index(before) >= gravity.index(what):
                return False
            setattr(kind, before, getattr(kind, before) - 1)
        if several:
            if before is None and len(self._counted) >= SEVERAL_MAX:
                self.review.exact = False
            else:
                self._counted[committed_id] = what
        setattr(kind, what, getattr(kind, what) + 1)
        return True

    def _keep(self, examples: list[ReplayExample], committed_id: int, reason: str) -> None:
        """The first few by committed_id."""
        if any(example.committed_id == committed_id for example in examples):
            return
        assert self._partition is not None, "a partition comes before its events"
        examples.append(ReplayExample(committed_id, self._partition, shorten(reason, MESSAGE_CHARS_MAX)))
        examples.sort(key=lambda example: example.committed_id)
        del examples[EXAMPLES_MAX:]

    def _kind(self, event: JsonObject) -> ReplayKind:
        name = kind_name(event)
        if name not in self.review.kinds and len(self.review.kinds) >= KINDS_MAX:
            name = OTHER_KINDS
        return self.review.kinds.setdefault(name, ReplayKind())


def kind_name(event: JsonObject) -> str:
    """What an event is counted under: its schema, or its tree action."""
    payload = event.get("payload")
    if event.get("type") == EVENT_TYPE and isinstance(payload, dict):
        return shorten(str(payload.get("schema")), NAME_CHARS_MAX)
    return shorten(str(event.get("type")), NAME_CHARS_MAX)
