"""Looking over a model before it serves anyone, and trying it on events."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from unisono.model.load import MANIFEST, ModelError, ModelProblem, load_model
from unisono.model.model import Model
from unisono.model.rule_source import hints
from unisono.model.trials import Count, Probe, Refusal, Trial, TrialObserver, TrialRun, TrialTally, place

REFUSALS_SHOWN_MAX = 50


class ModelCheckReport(msgspec.Struct):
    """What was found. `problems` make a model unusable; `warnings` are for its author to consider."""

    path: str
    summary: str = ""
    problems: list[ModelProblem] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)
    tally: TrialTally = msgspec.field(default_factory=TrialTally)
    stories: list[TrialRun] = msgspec.field(default_factory=list)
    rules: dict[str, list[str]] = msgspec.field(default_factory=dict)
    sections: list[list[str]] = msgspec.field(default_factory=list)

    @property
    def counts(self) -> dict[str, Count]:
        return self.tally.counts

    @property
    def refusals(self) -> list[Refusal]:
        return self.tally.refusals

    @property
    def refused(self) -> int:
        return sum(count.refused for count in self.counts.values())

    @property
    def ok(self) -> bool:
        """No problem in the model, no line that is none, and no line refused; warnings do not count."""
        return not self.problems and not self.tally.problems and not self.refused

    def text(self) -> str:
        """The report for a person to read."""
        lines = [self.summary or f"model in {self.path}"]
        lines += _section("problems", map(str, [*self.problems, *self.tally.problems]))
        lines += _section("warnings", self.warnings)
        if self.stories:
            lines += _section("events", self._count_lines() or ["none"])
            lines += _section("refused", self._refusal_lines())
        for section in self.sections:
            lines += ["", *section]
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
            f"{place(refusal.story, refusal.line)}: {error.field}: {error.message}"
            for refusal in self.refusals[:REFUSALS_SHOWN_MAX]
            for error in refusal.errors
        ]
        left_out = self.refused - min(len(self.refusals), REFUSALS_SHOWN_MAX)
        return [*shown, f"and {left_out} more lines"] if left_out > 0 else shown


def check_model(
    path: Path,
    events: Iterable[bytes] | None = None,
    *,
    stories: Mapping[str, Iterable[bytes]] | None = None,
    probe: Probe | None = None,
    watch: TrialObserver | None = None,
) -> ModelCheckReport:
    """Lint the model in a directory, and try it on events: one JSON object per line.

    A line is an event, or an object with `event` and `partitions` such as the log exports. Each of `stories` is tried
    by itself, from empty states on; `events` is one more, without a name.
    """
    report = ModelCheckReport(str(path))
    runs = dict(stories or {}) | ({} if events is None else {"": events})
    try:
        model = load_model(path)
    except ModelError as error:
        report.problems += error.problems
        return report
    report.summary = _summary(model)
    report.warnings += _considerations(model, path)
    report.rules = rules_of(model)
    if model.canonical is not None:
        model.canonical.measure_cpu_time()
    if watch is not None:
        watch.idle()
        watch.watch_models(model)
    for name, lines in runs.items():
        trial = Trial(model, name, report.tally, probe or Probe(), watch)
        trial.run(lines)
        report.stories.append(trial.story)
    if runs:
        report.warnings += _trial_considerations(model, report)
    return report


def rules_of(model: Model) -> dict[str, list[str]]:
    """The names of a model's rules by schema, the checks before the reducer."""
    assert model.canonical is not None
    rules = model.canonical.rules
    return {schema: [rule.name for rule in rules.of(schema)] for schema in rules.schemas}


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
    manifest = tomllib.loads(model.files[MANIFEST].decode())
    if isinstance(source := manifest.get("rules"), str):
        found += [f"{source}: {hint}" for hint in hints(model.files[source])]
    named = manifest.values()
    found += [
        f"{file}: is there, and {MANIFEST} does not name it"
        for file in ("reducers.json", "rules.py", "tree.toml")
        if (path / file).exists() and file not in named
    ]
    strays = (file for file in sorted((path / "schemas").glob("*")) if file.is_file())
    found += [
        f"schemas/{file.name}: is no .json file, so it is no schema"
        for file in strays
        if file.suffix != ".json"
    ]
    return found


def _trial_considerations(model: Model, report: ModelCheckReport) -> list[str]:
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


def _accepted(report: ModelCheckReport, name: str) -> int:
    return report.counts[name].accepted if name in report.counts else 0


def _section(title: str, lines: Iterable[str]) -> list[str]:
    indented = [f"  {line}" for line in lines]
    return ["", f"{title}:", *indented] if indented else []
