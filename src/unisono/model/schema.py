"""The canonical profile: events name a schema, and Python rules say what they do to the state.

`{"type": "event", "payload": {"schema": …, "data": …, "meta"?: …}}`. Other keys of the payload are kept with the
event and mean nothing: no schema judges them and no rule sees them (VAL-02).
"""

from __future__ import annotations

from time import thread_time
from typing import Any

from unisono.display import shorten
from unisono.model.authorship import UNKNOWN, Authorship
from unisono.model.journal import Journal
from unisono.model.registry import DATA, ERRORS_MAX, SchemaRegistry
from unisono.model.rule_calls import RULE_BUDGET_MS, RuleCalls, RuleWatch
from unisono.model.rules import Rules
from unisono.model.tracked import track
from unisono.model.values import copied
from unisono.vocabulary import FieldError, Json, JsonObject

EVENT_TYPE = "event"
PAYLOAD = "event.payload"
NAME_CHARS_MAX = 100


class SchemaState:
    """What the reducers of a model have made of one partition's events: a JSON object, `{}` at first.

    `value` is for reducers and checks; nobody else changes it. `weighed`: its weight is kept; a fold needs none.
    """

    __slots__ = ("journal", "value")

    def __init__(self, value: JsonObject | None = None, *, weighed: bool = True) -> None:
        self.journal = Journal()
        self.value = track({} if value is None else value, self.journal, weighed=weighed)

    def mark(self) -> int:
        return self.journal.mark()

    def rollback(self, mark: int) -> None:
        self.journal.rollback(mark)

    def settle(self) -> None:
        self.journal.settle()

    def dump(self) -> Json:
        return copied(self.value)

    def weight(self) -> int:
        return self.journal.weight


class SchemaProfile:
    """Judges canonical events by a registry of schemas and the operator's rules.

    Without a registry any schema name and any data will do: the open model, for trying things out.
    """

    def __init__(
        self,
        registry: SchemaRegistry | None,
        rules: Rules | None = None,
        rule_budget_ms: float = RULE_BUDGET_MS,
    ) -> None:
        self.registry = registry
        self.rules = rules if rules is not None else Rules()
        self._calls = RuleCalls(self.rules, rule_budget_ms)

    @property
    def name(self) -> str:
        return "canonical"

    @property
    def accepted_event_types(self) -> tuple[str, ...]:
        return (EVENT_TYPE,)

    def silence(self) -> None:
        """For a replay: a server's log is the place to say why a rule fails."""
        self._calls.quiet = True

    def measure_cpu_time(self) -> None:
        """For a trial beside others: how long a rule waits for the processor says nothing of the rule."""
        self._calls.clock = thread_time

    @property
    def slow_rules(self) -> dict[str, int]:
        """How often each rule went over its time budget, by label."""
        return self._calls.slow

    @property
    def failed_rules(self) -> dict[str, int]:
        """How often each rule raised, by label."""
        return self._calls.failed

    @property
    def running_rule(self) -> str | None:
        """The rule being called now without a limit, for a watcher in another thread."""
        return self._calls.running

    @property
    def stopped_rules(self) -> dict[str, int]:
        """How often each rule was stopped because the time of its event was over, by label."""
        return self._calls.stopped

    def limit_rules(self, timeout_s: float, watch: RuleWatch | None = None) -> None:
        """Limit the rules of one event to `timeout_s` while it is judged; `watch` is called around each rule."""
        self._calls.timeout_s = timeout_s
        self._calls.watch = watch

    def rest_rules(self) -> None:
        """No event is judged for a while: whatever limits rules stops its clock."""
        self._calls.rest()

    def shape(self, event: JsonObject) -> list[FieldError]:
        payload = event.get("payload")
        if event.get("type") == EVENT_TYPE and isinstance(payload, dict) and "data" in payload:
            schema = payload.get("schema")
            if isinstance(schema, str) and schema and "meta" not in payload:
                registry = self.registry
                if registry is None or registry.accepts(schema, payload["data"]):
                    return []
        return self._shape_errors(event)

    def _shape_errors(self, event: JsonObject) -> list[FieldError]:
        """All that is wrong; `shape` finds at once that most events are right."""
        if event.get("type") != EVENT_TYPE:
            return [FieldError("event.type", f"must be {EVENT_TYPE!r}")]
        payload = event.get("payload")
        if not isinstance(payload, dict):
            return [FieldError(PAYLOAD, "must be an object" if "payload" in event else "is required")]
        unnamed = self._schema_errors(payload)
        errors = [*unnamed]
        if "data" not in payload:
            errors.append(FieldError(DATA, "is required"))
        elif not unnamed:
            errors += self._data_errors(payload)
        if not isinstance(payload.get("meta", {}), dict):
            errors.append(FieldError(f"{PAYLOAD}.meta", "must be an object"))
        return errors[:ERRORS_MAX]

    def refusals(self, state: SchemaState, event: JsonObject, by: Authorship = UNKNOWN) -> list[FieldError]:
        payload: Any = event["payload"]  # its shape was checked before
        return self._calls.refusals(state.value, state.journal, payload, by)

    def judge(self, state: SchemaState, event: JsonObject, by: Authorship = UNKNOWN) -> list[FieldError]:
        """As `refusals` and then, if there are none, `apply`; whoever gave the event does not use it any more."""
        calls = self._calls
        payload: Any = event["payload"]
        errors = calls.refusals(state.value, state.journal, payload, by)
        if not errors:
            calls.reduce(state.value, state.journal, payload, by, last=True)
        return errors

    def apply(self, state: SchemaState, event: JsonObject, by: Authorship = UNKNOWN) -> None:
        """Let the schema's reducer change the state; `RuleFailed`, and no change, when it cannot."""
        payload: Any = event["payload"]
        self._calls.reduce(state.value, state.journal, payload, by)

    def undo(
        self, state: SchemaState, event: JsonObject, by: Authorship = UNKNOWN
    ) -> list[JsonObject] | None:
        """The events that take this one back, from the state before it; None where the model names none."""
        payload: Any = event["payload"]
        payloads = self._calls.undo(state.value, state.journal, payload, by)
        return None if payloads is None else [{"type": EVENT_TYPE, "payload": each} for each in payloads]

    def replay(
        self, state: SchemaState, event: JsonObject, by: Authorship = UNKNOWN, *, shared: bool = True
    ) -> None:
        """As `apply`, for an event of the log: no limit of time counts. `shared`: others use the event too."""
        payload: Any = event["payload"]
        self._calls.replay(state.value, state.journal, payload, by, shared=shared)

    def empty(self) -> SchemaState:
        return SchemaState()

    def load(self, dumped: Json) -> SchemaState:
        if not isinstance(dumped, dict):
            raise TypeError("the state of a canonical partition is a JSON object")
        return SchemaState(dumped)

    def _schema_errors(self, payload: JsonObject) -> list[FieldError]:
        field = f"{PAYLOAD}.schema"
        schema = payload.get("schema")
        if not isinstance(schema, str) or not schema:
            return [FieldError(field, "must be a non-empty string" if "schema" in payload else "is required")]
        if self.registry is not None and schema not in self.registry:
            return [FieldError(field, f"{shorten(schema, NAME_CHARS_MAX)!r} is not a schema of this model")]
        return []

    def _data_errors(self, payload: JsonObject) -> list[FieldError]:
        schema = payload["schema"]
        if self.registry is None or not isinstance(schema, str):
            return []
        return self.registry.errors(schema, payload["data"])
