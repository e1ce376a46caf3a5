"""What an operator writes in a model's Python module: reducers and checks, by schema.

    from unisono.model.rules import Event, FieldError, Rules, refuse

    rules = Rules()

    @rules.check("task.done")
    def task_exists(state: dict[str, Any], event: Event) -> list[FieldError]:
        if event.data["id"] in state.get("tasks", {}):
            return []
        return [refuse("id", "there is no such task")]

    @rules.reduce("task.done")
    def done(state: dict[str, Any], event: Event) -> None:
        state["tasks"][event.data["id"]]["done"] = True

`state` is the state of one partition: a JSON object of dicts and lists, `{}` at first. A reducer changes it
in place and returns nothing. What is put in is copied in (`items = []; state["items"] = items` leaves `items`
outside: read `state["items"]` back, or use `setdefault`), and only JSON can be put in.

A check says what is wrong, as a list, by `yield`, or by returning nothing when all is well. It runs after the
data has satisfied its JSON Schema, against committed state plus the items before this one (VAL-03). It cannot
change the state: a change it makes is undone.

Both must be deterministic (VAL-05): no clock, no random numbers, no files, no network, no state of their own.
The log is replayed through the reducers on the server, in clients and in Spark, and must mean the same there.

A check that raises refuses the event. A reducer that raises, or returns something, refuses the event and
leaves the state as it was. Either is logged with its traceback under `unisono.model`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import msgspec

from unisono.model.registry import ERRORS_MAX
from unisono.vocabulary import FieldError

__all__ = [
    "Check",
    "Compensating",
    "Event",
    "FieldError",
    "Reducer",
    "Rule",
    "RuleFailed",
    "Rules",
    "compensate",
    "refuse",
]

SCHEMA_FIELD = "event.payload.schema"
"""Where a failed rule is reported: nothing in the data is known to be wrong."""


class RuleFailed(Exception):
    """A reducer could not apply an event; the state is as it was before.

    The message is fit for the client: it names the rule and tells nothing of what went on inside.
    """

    @property
    def error(self) -> FieldError:
        return FieldError(SCHEMA_FIELD, str(self))

    @property
    def inside(self) -> str:
        """What went on inside, for the operator: the rule and what it raised."""
        cause = self.__cause__
        if cause is None:
            return str(self)
        raised = f"{type(cause).__name__}: {cause}".partition("\n")[0][:300]
        return f"{str(self).partition(' on this event')[0]}: {raised}"


class Event(msgspec.Struct, frozen=True):
    """An event as a rule sees it: the payload of a canonical event, and who submitted it. What a rule changes in it
    is undone afterwards.

    `data` has satisfied the schema; `meta` is empty when the client sent none. The rest comes from the server and
    cannot be forged: the device (`client_id`), the person (`user_id`, None where the token names none), those claims
    of the token that `model.toml` asks for, and the time of the commit in milliseconds. All of it is stored.
    A draft has its own client's identity, and the time at which it was made.
    """

    schema: str
    data: Any
    meta: dict[str, Any]
    client_id: str = ""
    user_id: str | None = None
    claims: dict[str, Any] = {}
    committed_at: int = 0


Reducer: TypeAlias = Callable[[dict[str, Any], Event], None]
Check: TypeAlias = Callable[[dict[str, Any], Event], Iterable[FieldError] | None]
_R = TypeVar("_R", bound=Reducer)
_C = TypeVar("_C", bound=Check)


class Compensating(msgspec.Struct, frozen=True):
    """One event that helps to take another back."""

    schema: str
    data: Any


Undoing: TypeAlias = Callable[[dict[str, Any], Event], Iterable[Compensating] | None]
_U = TypeVar("_U", bound=Undoing)


RuleFunction: TypeAlias = Callable[[dict[str, Any], Event], Any]


def _checking(function: RuleFunction) -> RuleFunction:
    def call(state: dict[str, Any], event: Event) -> list[FieldError]:
        returned = function(state, event)
        if returned is None or (type(returned) is list and not returned):
            return []
        found = list(islice(returned, ERRORS_MAX))
        for each in found:
            if not isinstance(each, FieldError):
                raise TypeError(f"a check gives FieldErrors, not {type(each).__name__!r}; see refuse()")
        return found

    return call


class Rule(msgspec.Struct, frozen=True):
    """One function registered for one schema.

    `label`: its name in logs, answers and metrics, as in `task.done/task_exists`. `call`: all that runs code of the
    function; a check may be a generator, and gives a list here.
    """

    kind: str
    schema: str
    name: str
    function: RuleFunction
    label: str = ""
    call: RuleFunction = lambda _state, _event: None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "label", f"{self.schema}/{self.name}")
        call = _checking(self.function) if self.kind == "check" else self.function
        msgspec.structs.force_setattr(self, "call", call)


class Rules:
    """The rules of one model, filled by decorators when its module is imported.

    One reducer per schema, any number of checks, run in the order they are written. Names of functions are
    unique within a schema.
    """

    def __init__(self) -> None:
        self._reducers: dict[str, Rule] = {}
        self._checks: dict[str, tuple[Rule, ...]] = {}
        self._undos: dict[str, Rule] = {}

    def reduce(self, *schemas: str) -> Callable[[_R], _R]:
        """Register what events of these schemas do to the state."""
        return self._registering("reduce", schemas)

    def check(self, *schemas: str) -> Callable[[_C], _C]:
        """Register what may be wrong with events of these schemas, given the state."""
        return self._registering("check", schemas)

    def undo(self, *schemas: str) -> Callable[[_U], _U]:
        """Register how events of these schemas are taken back: the function gives `compensate(schema, data)` for each
        event that it takes, or None where nothing does.

        Called with the state before the event, which it leaves as it is; clients alone call it.
        """
        return self._registering("undo", schemas)

    def undoing(self, schema: str) -> Rule | None:
        return self._undos.get(schema)

    def reducer(self, schema: str) -> Rule | None:
        return self._reducers.get(schema)

    def checks(self, schema: str) -> tuple[Rule, ...]:
        return self._checks.get(schema, ())

    @property
    def schemas(self) -> tuple[str, ...]:
        """The schemas that some rule is for, sorted."""
        return tuple(sorted({*self._reducers, *self._checks, *self._undos}))

    def of(self, schema: str) -> tuple[Rule, ...]:
        """The rules of a schema that judge and apply its events: its checks, then its reducer."""
        reducer = self.reducer(schema)
        return (*self.checks(schema), *((reducer,) if reducer else ()))

    def functions(self, schema: str) -> tuple[Rule, ...]:
        """Everything that is registered for a schema."""
        undoing = self.undoing(schema)
        return (*self.of(schema), *((undoing,) if undoing else ()))

    def _registering(self, kind: str, schemas: tuple[str, ...]) -> Callable[[Any], Any]:
        if not schemas or not all(isinstance(schema, str) and schema for schema in schemas):
            raise TypeError(f'name the schema the rule is for, as in @rules.{kind}("task.created")')

        def register(function: Any) -> Any:
            if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
                raise TypeError(f"the rule {function.__name__!r} is async; rules are plain functions")
            for schema in schemas:
                self.add(Rule(kind, schema, getattr(function, "__name__", "rule"), function))
            return function

        return register

    def add(self, rule: Rule) -> None:
        """Register one rule; ValueError when its place is taken."""
        if any(rule.name == other.name for other in self.functions(rule.schema)):
            raise ValueError(f"two rules for {rule.schema!r} are called {rule.name!r}")
        if rule.kind == "check":
            self._checks[rule.schema] = (*self.checks(rule.schema), rule)
            return
        if rule.kind == "undo":
            if (other := self.undoing(rule.schema)) is not None:
                raise ValueError(f"{rule.schema!r} has two undos, {other.name!r} and {rule.name!r}")
            self._undos[rule.schema] = rule
            return
        if (other := self.reducer(rule.schema)) is not None:
            raise ValueError(f"{rule.schema!r} has two reducers, {other.name!r} and {rule.name!r}")
        self._reducers[rule.schema] = rule


def refuse(path: str, message: str) -> FieldError:
    """One complaint about the data; `path` is a dot path in it (`items.0.title`), or "" for all of it."""
    return FieldError(f"event.payload.data.{path}" if path else "event.payload.data", message)


def compensate(schema: str, data: Any) -> Compensating:
    """One event that takes another back, for a function registered by `Rules.undo`."""
    return Compensating(schema, data)
