"""Looking over a model before it serves anyone, and trying it on events.

Events are judged as the server would judge them: shape, then refusals and application in every partition of
the event, all or none (TREE-09), each line against what the lines before it left.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from unisono.model.loading import MANIFEST, ModelError, Problem, load_model
from unisono.model.model import CANONICAL, COMPATIBILITY, Model
from unisono.model.partition import PartitionState
from unisono.model.registry import shorten
from unisono.model.rules import RuleFailed
from unisono.model.schema import EVENT_TYPE
from unisono.vocabulary import FieldError, JsonObject

DEFAULT_PARTITION = "default"
"""Where bare events of a trial go."""

REFUSALS_KEPT_MAX = 1_000
"""Refused lines kept word for word; beyond, they are only counted."""

REFUSALS_SHOWN_MAX = 50


class Refusal(msgspec.Struct, frozen=True):
    """One line of the events that the model refuses, and why."""

    line: int
    errors: tuple[FieldError, ...]


class Count(msgspec.Struct):
    """What became of the events of one schema or tree action."""

    accepted: int = 0
    refused: int = 0


class Report(msgspec.Struct):
    """What was found. `problems` make a model unusable; `warnings` are for its author to consider."""

    path: Path
    summary: str = ""
    problems: list[Problem] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)
    counts: dict[str, Count] = msgspec.field(default_factory=dict)
    refusals: list[Refusal] = msgspec.field(default_factory=list)
    tried: bool = False

    @property
    def refused(self) -> int:
        return sum(count.refused for count in self.counts.values())

    @property
    def ok(self) -> bool:
        """No problem in the model and no line refused; warnings do not count."""
        return not self.problems and not self.refused

    def text(self) -> str:
        """The report for a person to read."""
        lines = [self.summary or f"model in {self.path}"]
        lines += _section("problems", map(str, self.problems))
        lines += _section("warnings", self.warnings)
        if self.tried:
            lines += _section("events", self._count_lines() or ["none"])
            lines += _section("refused", self._refusal_lines())
        lines += ["", "ok" if self.ok else "not ok"]
        return "\n".join(lines) + "\n"

    def _count_lines(self) -> list[str]:
        width = max(map(len, self.counts), default=0)
        return [
            f"{name:<{width}}  {count.accepted} accepted, {count.refused} refused"
            for name, count in sorted(self.counts.items())
        ]

    def _refusal_lines(self) -> list[str]:
        shown = [
            f"line {refusal.line}: {error.field}: {error.message}"
            for refusal in self.refusals[:REFUSALS_SHOWN_MAX]
            for error in refusal.errors
        ]
        left_out = self.refused - min(len(self.refusals), REFUSALS_SHOWN_MAX)
        return [*shown, f"and {left_out} more lines"] if left_out > 0 else shown


def check_model(path: Path, events: Iterable[bytes] | None = None) -> Report:
    """Lint the model in a directory, and try it on events: one JSON object per line.

    A line is an event, or an object with `event` and `partitions` such as the log exports.
    """
    report = Report(path)
    try:
        model = load_model(path)
    except ModelError as error:
        report.problems += error.problems
        return report
    report.summary = _summary(model)
    report.warnings += _considerations(model, path)
    if events is not None:
        report.tried = True
        _Trial(model, report).run(events)
        report.warnings += _trial_considerations(model, report)
    return report


class _Trial:
    """One run of events through a model, with the partitions they make."""

    def __init__(self, model: Model, report: Report) -> None:
        self._model = model
        self._report = report
        self._states: dict[str, PartitionState] = {}

    def run(self, events: Iterable[bytes]) -> None:
        for number, line in enumerate(events, start=1):
            if not line.strip():
                continue
            try:
                event, partitions = _parse(line)
            except ValueError as error:
                self._report.problems.append(Problem("events", f"line {number}", str(error)))
                continue
            errors = self._submit(event, partitions)
            count = self._report.counts.setdefault(_name(event), Count())
            if not errors:
                count.accepted += 1
                continue
            count.refused += 1
            if len(self._report.refusals) < REFUSALS_KEPT_MAX:
                self._report.refusals.append(Refusal(number, tuple(errors)))

    def _submit(self, event: JsonObject, partitions: list[str]) -> list[FieldError]:
        profile = CANONICAL if event.get("type") == EVENT_TYPE else COMPATIBILITY
        errors = self._model.shape(profile, event)
        if errors:
            return errors
        states = [self._states.setdefault(name, PartitionState()) for name in partitions]
        for state in states:
            errors = self._model.refusals(profile, state, event)
            if errors:
                return errors
        marks = [state.mark() for state in states]
        try:
            for state in states:
                self._model.apply(profile, state, event)
        except RuleFailed as failed:
            for state, mark in zip(states, marks, strict=True):
                state.rollback(mark)
            return [failed.error]
        for state in states:
            state.settle()
        return []


def _parse(line: bytes) -> tuple[JsonObject, list[str]]:
    """The event of a line and its partitions; `ValueError` says what the line lacks."""
    try:
        item = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(item, dict):
        raise ValueError("is not an object")  # noqa: TRY004
    if "event" not in item:
        return item, [DEFAULT_PARTITION]
    event, partitions = item["event"], item.get("partitions")
    if not isinstance(event, dict):
        raise ValueError("`event` is not an object")  # noqa: TRY004
    if not isinstance(partitions, list) or not partitions or not all(isinstance(p, str) for p in partitions):
        raise ValueError("`partitions` is not a non-empty array of strings")
    return event, sorted(set(partitions))


def _name(event: JsonObject) -> str:
    """What an event is counted under: its schema, or its tree action."""
    payload = event.get("payload")
    if event.get("type") == EVENT_TYPE and isinstance(payload, dict):
        return shorten(str(payload.get("schema")), 100)
    return shorten(str(event.get("type")), 100)


def _summary(model: Model) -> str:
    registry = model.canonical.registry if model.canonical is not None else None
    schemas = len(registry.names) if registry is not None else 0
    targets = None if model.policy is None else model.policy.targets
    trees = "any tree target" if targets is None else f"{len(targets)} tree target(s)"
    return f"model {model.name!r}, version {model.version}: {schemas} schema(s), {trees}"


def _considerations(model: Model, path: Path) -> list[str]:
    assert model.canonical is not None
    assert model.canonical.registry is not None
    registry, rules = model.canonical.registry, model.canonical.rules
    found = [] if registry.names else ["schemas/: there is none, so no canonical event is accepted"]
    for name in registry.names:
        document = registry.documents[name]
        if not rules.of(name):
            found.append(f"schemas/{name}.json: no rule is for it; its events are kept and change no state")
        elif rules.reducer(name) is None:
            found.append(f"schemas/{name}.json: it has checks and no reducer; its events change no state")
        if not document.get("description") and not document.get("title"):
            found.append(f"schemas/{name}.json: has no description")
        if not document.keys() - {"$schema", "$id", "$comment", "title", "description"}:
            found.append(f"schemas/{name}.json: allows any data")
    named = tomllib.loads((path / MANIFEST).read_text()).values()
    found += [
        f"{file}: is there, and {MANIFEST} does not name it"
        for file in ("rules.py", "tree.toml")
        if (path / file).exists() and file not in named
    ]
    strays = (file for file in sorted((path / "schemas").glob("*")) if file.is_file())
    found += [
        f"schemas/{file.name}: is no .json file, so it is no schema"
        for file in strays
        if file.suffix != ".json"
    ]
    return found


def _trial_considerations(model: Model, report: Report) -> list[str]:
    assert model.canonical is not None
    assert model.canonical.registry is not None
    names = model.canonical.registry.names
    return [
        *(f"{name}: no event was accepted" for name in names if not _accepted(report, name)),
        *(f"{rule}: failed {count} time(s)" for rule, count in sorted(model.canonical.failed_rules.items())),
        *(
            f"{rule}: over its time {count} time(s)"
            for rule, count in sorted(model.canonical.slow_rules.items())
        ),
    ]


def _accepted(report: Report, name: str) -> int:
    return report.counts[name].accepted if name in report.counts else 0


def _section(title: str, lines: Iterable[str]) -> list[str]:
    indented = [f"  {line}" for line in lines]
    return ["", f"{title}:", *indented] if indented else []
