"""Judges imported events in their order, against the states they find.

The order is global, but an event only depends on the states of its own partitions. Most events have one, so a
partition is judged by itself; of an event in several, each partition gives its own verdict, and `rounds.py` brings
them together. Partitions that share events, directly or through others, belong to one *component*, which can also be
judged as a whole (`Judge.judge`): that is the definition, and what is done when rounds do not settle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import orjson

from unisono.model.authorship import UNKNOWN, Authorship, authorship_of
from unisono.model.model import CANONICAL, Model
from unisono.model.pack import unpack
from unisono.model.partition import PartitionState
from unisono.model.rules import RuleFailed
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.import_.rows import profile_of
from unisono.pipeline.open_log import read_partitions
from unisono.store.maintenance import NO_MODEL_VERSION
from unisono.store.port import LogReader, Pruned
from unisono.vocabulary import FieldError

FAILED: Final = 1_000
"""Added to the rank of a verdict that came while the event was applied, after every partition was asked."""


class LocalVerdict(msgspec.Struct, frozen=True, order=True):
    """Why one partition does not take an event. Of several, the smallest counts.

    `rank`: the place of the partition among the event's, plus FAILED where the partition did not refuse the event and
    a rule failed when it was applied.
    """

    rank: int
    field: str
    message: str


class Judge:
    """Judges the events of one group of partitions after the other, each in order.

    Invariant: `_states` has the touched partitions of the current group, after the log and the events that were
    accepted so far.
    """

    def __init__(self, model: Model, log: LogReader | None, upto: int) -> None:
        """`log` has the events that states start from, up to `upto`; None when it is empty."""
        self._model = model
        self._log = log
        self._upto = upto
        self._group: int | None = None
        self._states: dict[str, PartitionState] = {}
        rules = model.canonical.rules.schemas if model.canonical is not None else ()
        self._canonical_changes = bool(rules)

    def enter(self, group: int) -> None:
        """Switch to a partition or a component, and drop the states of the one before."""
        if group != self._group:
            self._group = group
            self._states = {}

    def judge_in(
        self, text: bytes, partition: str, place: int, by: Authorship, *, refused_elsewhere: bool = False
    ) -> LocalVerdict | None:
        """What one partition of an event says to it; None when it was applied there.

        `refused_elsewhere`: another of its partitions does not take it, so it is not applied here either.
        """
        event = orjson.loads(text)
        profile = profile_of(event)
        if profile == CANONICAL and not self._canonical_changes:
            return None
        state = self._state(partition)
        errors = self._model.refusals(profile, state, event, by)
        if errors:
            return LocalVerdict(place, errors[0].field, errors[0].message)
        mark = state.mark()
        try:
            self._model.apply(profile, state, event, by)
            if refused_elsewhere:
                state.rollback(mark)
        except RuleFailed as failure:
            state.rollback(mark)
            return LocalVerdict(FAILED + place, failure.error.field, failure.error.message)
        finally:
            state.settle()
        return None

    def judge(self, text: bytes, partitions: Sequence[str], by: Authorship = UNKNOWN) -> FieldError | None:
        """The error of an event of valid shape; None when it was applied in all its partitions."""
        event = orjson.loads(text)
        profile = profile_of(event)
        if profile == CANONICAL and not self._canonical_changes:
            return None
        states = [self._state(name) for name in partitions]
        for state in states:
            errors = self._model.refusals(profile, state, event, by)
            if errors:
                return errors[0]
        marks = [state.mark() for state in states]
        try:
            for state in states:
                self._model.apply(profile, state, event, by)
        except RuleFailed as failure:
            for state, mark in zip(states, marks, strict=True):
                state.rollback(mark)
            return failure.error
        finally:
            for state in states:
                state.settle()
        return None

    def _state(self, partition: str) -> PartitionState:
        state = self._states.get(partition)
        if state is None:
            state = self._states[partition] = self._loaded(partition)
        return state

    def _loaded(self, partition: str) -> PartitionState:
        if self._log is None:
            return PartitionState()
        version = self._model.version if self._model.version is not None else NO_MODEL_VERSION
        snapshot = self._log.snapshot(partition, version, self._model.digest)
        since, state = 0, PartitionState()
        if snapshot is not None and snapshot.committed_id <= self._upto:
            try:
                since, state = snapshot.committed_id, PartitionState.load(unpack(snapshot.state))
            except ValueError:
                since, state = 0, PartitionState()  # same as no snapshot
        try:
            for records in read_partitions(self._log, (partition,), since, self._upto):
                for record in records:
                    by = authorship_of(record.client_id, record.author, record.status_updated_at)
                    self._model.apply_committed(state, orjson.loads(record.event), by)
                state.settle()
        except Pruned as error:
            raise PipelineError(
                f"the state of partition {partition!r} is unknown: events up to {error.upto} were pruned, and "
                "there is no snapshot of this model. Make snapshots first, or import with --shape-only"
            ) from error
        return state


class Components:
    """Groups partitions that share events: a union-find over numbers of names.

    Has only partitions that share an event with another, about 100 bytes each.
    """

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def link(self, numbers: Iterable[int]) -> None:
        first, *others = numbers
        root = self._root(first)
        for number in others:
            other = self._root(number)
            if other != root:
                # The smaller number leads, so the result does not depend on the order of links.
                root, other = min(root, other), max(root, other)
                self._parents[other] = root

    def _root(self, number: int) -> int:
        parents = self._parents
        parent = parents.setdefault(number, number)
        while parent != number:
            grand = parents[parent]
            parents[number] = grand  # path halving
            number, parent = parent, grand
        return number

    def leaders(self) -> dict[int, int]:
        """partition → its component, for components of several partitions."""
        return {number: self._root(number) for number in self._parents}

    def __iter__(self) -> Iterator[int]:
        return iter(self._parents)
