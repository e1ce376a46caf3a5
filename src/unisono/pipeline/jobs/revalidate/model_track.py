"""One model on one partition: its judgement of each event, and the effect of a replay.

Two states are followed. The *judged* state is that of a server which gets the same events today, in this order: a
refused event changes nothing. The *replayed* state is what a server makes of the existing log, where an event that
cannot be applied is skipped. Both are one object until an event is refused that replay applies, which is rare.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from unisono.model.authorship import UNKNOWN, Authorship
from unisono.model.model import CANONICAL, COMPATIBILITY, Model
from unisono.model.partition import PartitionState
from unisono.model.rules import RuleFailed
from unisono.model.schema import EVENT_TYPE
from unisono.pipeline.jobs.revalidate.result import RULE, SHAPE, STATE, Reason, reason_of
from unisono.vocabulary import JsonObject


class PartitionVerdict(msgspec.Struct, frozen=True):
    """`refused`: why this partition refuses the event. `elsewhere`: another one does, and this one would not."""

    refused: Reason | None
    elsewhere: Reason | None
    skipped: bool

    @property
    def rejected(self) -> Reason | None:
        return self.refused or self.elsewhere


class Track:
    """A model, and its states of the current partition.

    `elsewhere`: events that another of their partitions refuses. An event is accepted in all of its partitions or in
    none.
    """

    def __init__(self, model: Model, elsewhere: Mapping[int, Reason]) -> None:
        self._model = model
        self._elsewhere = elsewhere
        self._judged: PartitionState | None = None
        self.replayed = PartitionState()

    def begin(self) -> None:
        """Start another partition."""
        self.replayed = PartitionState()
        self._judged = None

    def settle(self) -> None:
        self.replayed.settle()
        if self._judged is not None:
            self._judged.settle()

    def take(self, committed_id: int, event: JsonObject, by: Authorship = UNKNOWN) -> PartitionVerdict:
        """Judge an event and replay it."""
        elsewhere = self._elsewhere.get(committed_id)
        refused = self._judge(event, by, apply=elsewhere is None)
        if refused is not None:
            elsewhere = None
        if refused is None and elsewhere is None:
            if self._judged is None:
                return PartitionVerdict(None, None, False)  # it was applied to the one state there is
        elif self._judged is None and self._would_part(event, by):
            self._judged = PartitionState.load(self.replayed.dump())
        return PartitionVerdict(refused, elsewhere, not self._model.apply_committed(self.replayed, event, by))

    def _judge(self, event: JsonObject, by: Authorship, *, apply: bool) -> Reason | None:
        state = self.replayed if self._judged is None else self._judged
        profile = CANONICAL if event.get("type") == EVENT_TYPE else COMPATIBILITY
        if errors := self._model.shape(profile, event):
            return reason_of(SHAPE, errors[0])
        if errors := self._model.refusals(profile, state, event, by):
            return reason_of(STATE, errors[0])
        mark = None if apply else state.mark()
        try:
            self._model.apply(profile, state, event, by)
        except RuleFailed as failure:
            return reason_of(RULE, failure.error)
        if mark is not None:
            state.rollback(mark)
        return None

    def _would_part(self, event: JsonObject, by: Authorship) -> bool:
        """Whether replay of a refused event would change the state, which stays unchanged here."""
        if event.get("type") == EVENT_TYPE and not self._reduces(event):
            return False
        mark = self.replayed.mark()
        applied = self._model.apply_committed(self.replayed, event, by)
        self.replayed.rollback(mark)
        return applied

    def _reduces(self, event: JsonObject) -> bool:
        payload = event.get("payload")
        if self._model.canonical is None or not isinstance(payload, dict):
            return False
        schema = payload.get("schema")
        return isinstance(schema, str) and self._model.canonical.rules.reducer(schema) is not None
