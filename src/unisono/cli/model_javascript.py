"""`unisono model check --js`: reducers in JavaScript beside those of a model in Python, on the same events.

Both take every event of a run. At the end, for a log at the end of each partition, their states are compared; where
two differ, the run is made again, and the states of that partition are compared after each event.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from unisono import demo
from unisono.config import Settings
from unisono.display import shorten
from unisono.model.authorship import Authorship
from unisono.model.diff import differences
from unisono.model.model import Model
from unisono.model.partition import PartitionState
from unisono.model.replay import kind_name
from unisono.model.schema import EVENT_TYPE
from unisono.model.trials import Probe, Trial, TrialTally, place
from unisono.node.model_review import ReviewProgress, ReviewWatch, review_log
from unisono.protocol.canonical import canonical
from unisono.store.port import Record
from unisono.vocabulary import FieldError, JsonObject

DECLARED: Final = "reducers.json"

CLIENT: Final = Path(demo.__file__).parent / "static" / "client.js"
"""The JavaScript client, as the demo has it."""

SCRIPT: Final = """
import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [client, file, declared] = process.argv.slice(1);
const { canonicalText, eventModel } = await import(pathToFileURL(client));
const say = (answer) => process.stdout.write(`${JSON.stringify(answer)}\\n`);

/** A function that changes the state it is given would go unseen here, and spoil what a client can undo. */
function frozen(value) {
  if (typeof value === "object" && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value);
    for (const part of Object.values(value)) frozen(part);
  }
  return value;
}

const given = await import(pathToFileURL(file)).catch((error) => say({ error: `${file}: ${error}` }));
if (given) {
  const functions = given.default ?? given.reducers;
  const reducers = JSON.parse(readFileSync(declared, "utf8"));
  const inPlace = Object.keys(reducers).length > 0; // declared reducers change states where they are
  if (typeof functions !== "object" || functions === null) {
    say({ error: `${file}: export default an object of functions, by schema` });
  } else {
    say({ schemas: Object.keys(functions) });
    const model = eventModel({ reducers, functions });
    const states = new Map();
    for await (const line of createInterface({ input: process.stdin })) {
      const { partition, event, state, drop } = JSON.parse(line);
      if (event !== undefined) {
        if (!states.has(partition)) states.set(partition, model.empty());
        const here = states.get(partition);
        model.replay(here, event);
        here.settle();
        if (!inPlace) frozen(here.root);
      } else if (state !== undefined) say({ state: canonicalText(states.get(state)?.dump() ?? {}) });
      else states.delete(drop);
    }
  }
}
"""


class JavaScriptFailed(Exception):
    """The reducers in JavaScript cannot be run; the text says why."""


class TwinResult(msgspec.Struct, frozen=True):
    """What both came to. `difference`: the first event after which their states differ, and how."""

    events: int
    partitions: int
    missing: list[str] = []
    difference: str = ""


class _Differs(Exception):
    """Both states of a partition differ after an event."""


class JavaScriptTwin:
    """A Node process with the reducers; events go in, states are asked for."""

    def __init__(self, functions: Path, reducers: Path) -> None:
        node = shutil.which("node")
        if node is None:
            raise JavaScriptFailed("--js needs Node 20 or newer, and there is no `node` on the PATH")
        command = [node, "--input-type=module", "--eval", SCRIPT]
        self._process = subprocess.Popen(  # noqa: S603
            [*command, str(CLIENT), str(functions.absolute()), str(reducers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.schemas: list[str] = self._answer()["schemas"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise JavaScriptFailed("Node ended before it answered; what it said is above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise JavaScriptFailed(answer["error"])
        return answer

    def _send(self, **request: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            if "state" in request:
                self._process.stdin.flush()
        except BrokenPipeError:
            raise JavaScriptFailed("Node ended before it answered; what it said is above") from None

    def apply(self, partition: str, event: JsonObject) -> None:
        self._send(partition=partition, event=event)

    def state(self, partition: str) -> Any:
        self._send(state=partition)
        return json.loads(self._answer()["state"])

    def drop(self, partition: str) -> None:
        self._send(drop=partition)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class _Comparison:
    """Both reducers over one run; `closely` names a partition whose states are compared after each event."""

    def __init__(self, twin: JavaScriptTwin, closely: str | None) -> None:
        self._twin = twin
        self.closely = closely
        self.events = 0
        self.partitions: set[str] = set()
        self.differing: str | None = None

    def take(self, where: str, partition: str, event: JsonObject, state: PartitionState) -> None:
        if event.get("type") != EVENT_TYPE:
            return
        self.partitions.add(partition)
        self.events += 1
        self._twin.apply(partition, event)
        if partition == self.closely and (difference := self._difference(partition, state)):
            raise _Differs(f"{where} ({kind_name(event)}) leaves other states in {partition!r}, {difference}")

    def end(self, partition: str, state: PartitionState) -> None:
        if self.differing is None and partition in self.partitions and self._difference(partition, state):
            self.differing = partition
        self._twin.drop(partition)

    def _difference(self, partition: str, state: PartitionState) -> str:
        """What differs, in words; nothing when both states are the same."""
        ours, theirs = json.loads(canonical(state.data.dump())), self._twin.state(partition)
        found = next(differences(ours, theirs), None)
        if found is None:
            return ""
        path, here, there = found.path(), found.left, found.right
        if found.kind == "keys":
            path, here, there = [*path, "(keys)"], [*here], [*there]
        values = [shorten(json.dumps(value, ensure_ascii=False), 80) for value in (here, there)]
        return f"at {'.'.join(path) or 'the top'}: {values[0]} in Python, {values[1]} in JavaScript"


class _LineWatch:
    """Passes on what a trial tells, and remembers the line."""

    def __init__(self, watch: ReviewWatch) -> None:
        self._watch = watch
        self.line = 0

    def watch_models(self, *models: Model | None) -> None:
        self._watch.watch_models(*models)

    def start_event(self, where: str, number: int) -> None:
        self.line = number
        self._watch.start_event(where, number)

    def idle(self) -> None:
        self._watch.idle()


class _TwinTrial(Trial):
    """Example events through both."""

    def __init__(self, model: Model, name: str, compared: _Comparison, watch: _LineWatch) -> None:
        super().__init__(model, name, TrialTally(), Probe(), watch)
        self._compared = compared
        self._lines = watch

    def _submit(self, event: JsonObject, partitions: list[str], by: Authorship) -> list[FieldError]:
        errors = super()._submit(event, partitions, by)
        if not errors:
            for name in partitions:
                self._compared.take(place(self.story.name, self._lines.line), name, event, self._states[name])
        return errors

    def end(self) -> None:
        for name, state in self._states.items():
            self._compared.end(name, state)


class _TwinObserver:
    """The events of a log through both, partition by partition."""

    def __init__(self, compared: _Comparison) -> None:
        self._compared = compared

    def on_event(
        self,
        partition: str,
        record: Record,
        state: PartitionState,
        refusals: tuple[str | None, ...],  # noqa: ARG002
    ) -> None:
        event = msgspec.json.decode(record.event)
        if isinstance(event, dict):
            self._compared.take(f"event {record.committed_id}", partition, event, state)

    def on_partition_end(self, partition: str, state: PartitionState) -> None:
        self._compared.end(partition, state)


def compare_stories(
    model: Model, functions: Path, stories: Mapping[str, BinaryIO], watch: ReviewWatch
) -> TwinResult:
    """Both reducers over files of events, each from empty states on."""

    def pass_over(compared: _Comparison) -> None:
        for name, lines in stories.items():
            lines.seek(0)
            trial = _TwinTrial(model, name, compared, _LineWatch(watch))
            trial.run(lines)
            trial.end()

    return _compare(model, functions, pass_over)


def compare_log(
    model: Model,
    functions: Path,
    settings: Settings,
    upto: int,
    on_progress: Callable[[ReviewProgress], None],
    watch: ReviewWatch,
) -> TwinResult:
    """Both reducers over a log, with what has left it for its lake."""

    def pass_over(compared: _Comparison) -> None:
        review_log(
            settings,
            model,
            on_progress,
            watch,
            compare=False,
            upto=upto,
            partition=compared.closely,
            observer=_TwinObserver(compared),
        )

    return _compare(model, functions, pass_over)


def _compare(model: Model, functions: Path, pass_over: Callable[[_Comparison], None]) -> TwinResult:
    declared = model.files.get(DECLARED, b"{}")
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(declared)
        file.flush()
        first = _run(functions, Path(file.name), None, pass_over)
        missing = _missing(model, first[1])
        compared = first[0]
        if compared.differing is None:
            return TwinResult(compared.events, len(compared.partitions), missing)
        try:
            _run(functions, Path(file.name), compared.differing, pass_over)
            difference = f"the states of {compared.differing!r} differ, and not always at the same event"
        except _Differs as differs:
            difference = str(differs)
    return TwinResult(compared.events, len(compared.partitions), missing, difference)


def _run(
    functions: Path, reducers: Path, closely: str | None, pass_over: Callable[[_Comparison], None]
) -> tuple[_Comparison, list[str]]:
    twin = JavaScriptTwin(functions, reducers)
    try:
        compared = _Comparison(twin, closely)
        pass_over(compared)
        return compared, twin.schemas
    finally:
        twin.close()


def _missing(model: Model, functions: list[str]) -> list[str]:
    """The schemas that only Python reduces."""
    assert model.canonical is not None
    rules = model.canonical.rules
    in_python = [name for name in rules.schemas if (rule := rules.reducer(name)) and rule.name != DECLARED]
    return [name for name in in_python if name not in functions]
