"""Events run through a model as a server would judge them, without one.

Shape, then refusals and application in every partition of the event, all or none (TREE-09), each line against what
the lines before it left. Two runs of the same lines must come to the same; so that they can be compared, a run tells
what its states are, and what it refused, after the lines that a probe asks for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from unisono.model.authorship import UNKNOWN, Authorship
from unisono.model.model import CANONICAL, COMPATIBILITY, Model
from unisono.model.pack import pack
from unisono.model.partition import PartitionState
from unisono.model.registry import ModelProblem
from unisono.model.replay import kind_name
from unisono.model.rules import RuleFailed
from unisono.model.schema import EVENT_TYPE
from unisono.vocabulary import FieldError, Json, JsonObject

DEFAULT_PARTITION = "default"
"""Where bare events of a trial go."""

REFUSALS_KEPT_MAX = 1_000
"""Refused lines kept word for word; beyond, they are only counted."""


class Refusal(msgspec.Struct, frozen=True):
    """One line of the events that the model refuses, and why."""

    story: str
    line: int
    errors: tuple[FieldError, ...]


class Count(msgspec.Struct):
    """What became of the events of one schema or tree action."""

    accepted: int = 0
    refused: int = 0


class TrialTally(msgspec.Struct):
    """What became of all lines; `problems` are lines that are no events."""

    counts: dict[str, Count] = msgspec.field(default_factory=dict)
    refusals: list[Refusal] = msgspec.field(default_factory=list)
    problems: list[ModelProblem] = msgspec.field(default_factory=list)


class Probe(msgspec.Struct, frozen=True):
    """Where a run is looked at: every so many places in `since < place <= upto`, and at the end.

    `states`: what the states are there comes whole.
    """

    since: int = 0
    upto: int = 0
    every: int = 1
    states: bool = False

    def due(self, place: int) -> bool:
        if not self.since < place <= self.upto:
            return False
        return place == self.upto or (place - self.since) % self.every == 0


class Mark(msgspec.Struct, frozen=True):
    """What a run had come to after a place: a digest of its states and of all it had refused.

    `kind` is that of the event there; `states` are there when they were asked for.
    """

    place: int
    digest: str
    kind: str = ""
    states: dict[str, Any] | None = None
    refused: tuple[str, ...] = ()


class TrialRun(msgspec.Struct):
    """One run over one sequence of lines; the last mark is of its end. `states` are those at the end."""

    name: str
    marks: list[Mark] = msgspec.field(default_factory=list)
    states: dict[str, Any] = msgspec.field(default_factory=dict)


class TrialObserver(Protocol):
    """Is notified of what runs, in case it does not return."""

    def watch_models(self, *models: Model | None) -> None: ...

    def start_event(self, where: str, number: int) -> None: ...

    def idle(self) -> None: ...


class Trial:
    """One run of lines through a model, with the partitions they make."""

    def __init__(
        self, model: Model, name: str, tally: TrialTally, probe: Probe, watch: TrialObserver | None = None
    ) -> None:
        self.story = TrialRun(name)
        self._model = model
        self._tally = tally
        self._probe = probe
        self._watch = watch
        self._states: dict[str, PartitionState] = {}
        self._refusing = hashlib.sha256()

    def run(self, lines: Iterable[bytes]) -> None:
        number, kind, errors = 0, "", list[FieldError]()
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                event, partitions, by = _parse(line)
            except ValueError as error:
                name = self.story.name or "events"
                self._tally.problems.append(ModelProblem(name, f"line {number}", str(error)))
                continue
            if self._watch is not None:
                self._watch.start_event(self.story.name, number)
            errors = self._submit(event, partitions, by)
            kind = kind_name(event)
            self._count(kind, number, errors)
            if self._probe.due(number):
                self.story.marks.append(self._mark(number, kind, errors))
        if self._watch is not None:
            self._watch.idle()
        self.story.marks.append(self._mark(number, kind, errors))
        self.story.states = {name: state.dump() for name, state in sorted(self._states.items())}

    def _count(self, kind: str, number: int, errors: list[FieldError]) -> None:
        count = self._tally.counts.setdefault(kind, Count())
        if not errors:
            count.accepted += 1
            return
        count.refused += 1
        self._refusing.update(repr((number, [str(error) for error in errors])).encode())
        if len(self._tally.refusals) < REFUSALS_KEPT_MAX:
            self._tally.refusals.append(Refusal(self.story.name, number, tuple(errors)))

    def _mark(self, number: int, kind: str, errors: list[FieldError]) -> Mark:
        digest = self._refusing.copy()
        dumps: dict[str, Json] = {name: state.dump() for name, state in sorted(self._states.items())}
        for name, state in dumps.items():
            digest.update(state_digest(name, state))
        refused = tuple(f"{error.field}: {error.message}" for error in errors)
        states = dumps if self._probe.states else None
        return Mark(number, digest.hexdigest(), kind, states, refused)

    def _submit(self, event: JsonObject, partitions: list[str], by: Authorship) -> list[FieldError]:
        profile = CANONICAL if event.get("type") == EVENT_TYPE else COMPATIBILITY
        errors = self._model.shape(profile, event)
        if errors:
            return errors
        states = [self._states.setdefault(name, PartitionState()) for name in partitions]
        for state in states:
            errors = self._model.refusals(profile, state, event, by)
            if errors:
                return errors
        marks = [state.mark() for state in states]
        try:
            for state in states:
                self._model.apply(profile, state, event, by)
        except RuleFailed as failed:
            for state, mark in zip(states, marks, strict=True):
                state.rollback(mark)
            return [FieldError(failed.error.field, failed.inside)]
        for state in states:
            state.settle()
        return []


def state_digest(partition: str, state: Json) -> bytes:
    """What tells one state of a partition from another; the order of keys counts."""
    assert isinstance(state, dict)
    return hashlib.sha256(pack({"partition": partition, "state": state})).digest()


def place(story: str, line: int) -> str:
    """A line as a person finds it."""
    return f"{story}: line {line}" if story else f"line {line}"


class _Committer(msgspec.Struct):
    """Who submitted the event of a line, where it says so; the names are those of the wire."""

    client_id: str = ""
    user_id: str | None = None
    claims: dict[str, Any] = {}
    status_updated_at: int = 0


def _parse(line: bytes) -> tuple[JsonObject, list[str], Authorship]:
    """The event of a line, its partitions, and who submitted it; `ValueError` says what the line lacks."""
    try:
        item = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(item, dict):
        raise ValueError("is not an object")  # noqa: TRY004
    if "event" not in item:
        return item, [DEFAULT_PARTITION], UNKNOWN
    event, partitions = item["event"], item.get("partitions")
    if not isinstance(event, dict):
        raise ValueError("`event` is not an object")  # noqa: TRY004
    if not isinstance(partitions, list) or not partitions or not all(isinstance(p, str) for p in partitions):
        raise ValueError("`partitions` is not a non-empty array of strings")
    try:
        by = msgspec.convert(item, _Committer)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    authorship = Authorship(by.client_id, by.user_id, by.claims, by.status_updated_at)
    return event, sorted(set(partitions)), authorship
