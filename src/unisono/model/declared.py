"""Declarative reducers: what events do, written as data, so that Python and JavaScript give it one meaning.

`reducers.json` maps schemas to checks and operations; `docs/reference/reducers.md` is its specification. Here it is
read once, with every fault named, into the rules that the model calls like those of a Python module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from unisono.model.declared_operations import (
    MISSING,
    Condition,
    Expression,
    Operation,
    PathOf,
    compare,
    do_all,
    given,
    increment,
    insert,
    inside,
    merge,
    negate,
    path_of,
    pull,
    put,
    remove,
    restore,
    same,
    when,
)
from unisono.model.rules import Compensating, Event, FieldError, Rule, refuse
from unisono.vocabulary import Json, JsonObject

OPERATIONS_MAX: Final = 100
DEPTH_MAX: Final = 16
"""Of one reducer: enough for any event, too little to make a commit wait."""

UNDO_EVENTS_MAX: Final = 10
"""Events that take one event back."""

NAME: Final = "declared"
"""The name of these rules, as in `note.added/declared`."""

_OPERATIONS: Final = {
    "put": {"value"},
    "merge": {"value", "without"},
    "remove": set(),
    "insert": {"value", "by", "position", "order", "repeat"},
    "pull": {"value", "by"},
    "increment": {"by"},
    "when": {"do", "else"},
}
_EXPRESSIONS: Final = ("data", "meta", "state", "const", "object", "array")
_CONDITIONS: Final = ("exists", "equals", "less", "not", "all", "any")


class _Fault(Exception):
    """Something wrong at one place."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(message)
        self.place = place


class DeclaredReducers:
    """The rules of a `reducers.json`; `faults` are its problems, as place and message."""

    def __init__(self, document: JsonObject) -> None:
        self.rules: list[Rule] = []
        self.faults: list[tuple[str, str]] = []
        for schema, entry in document.items():
            if schema == "$comment":
                continue
            try:
                self.rules += _read_schema(schema, entry)
            except _Fault as fault:
                self.faults.append((fault.place, str(fault)))


def _read_schema(schema: str, entry: Json) -> Iterator[Rule]:
    fields = _object(entry, schema, {"check", "do", "undo"})
    for number, each in enumerate(_list(fields.get("check", []), f"{schema}.check")):
        place = f"{schema}.check.{number}"
        yield Rule("check", schema, f"{NAME} check {number + 1}", _read_check(each, place))
    operations = _read_operations(fields.get("do", []), f"{schema}.do", 0)
    if _count(fields.get("do", [])) > OPERATIONS_MAX:
        raise _Fault(f"{schema}.do", f"has more than {OPERATIONS_MAX} operations")
    if "do" in fields:
        yield Rule("reduce", schema, NAME, _reducer(operations))
    elif "check" not in fields:
        raise _Fault(schema, "has neither `check` nor `do`")
    if "undo" in fields:
        yield Rule("undo", schema, f"{NAME} undo", _read_undo(fields["undo"], f"{schema}.undo"))


def undo_schemas(document: JsonObject) -> Iterator[tuple[str, str]]:
    """Every place where `undo` names a schema, and the schema; the document has no faults."""
    for schema, entry in document.items():
        undo = entry.get("undo", []) if isinstance(entry, dict) else []
        for number, each in enumerate(undo if isinstance(undo, list) else []):
            if isinstance(each, dict):
                yield f"{schema}.undo.{number}.schema", str(each.get("schema"))


def _read_undo(undo: Json, place: str) -> Callable[[dict[str, Any], Event], list[Compensating] | None]:
    listed = _list(undo, place)
    if not 0 < len(listed) <= UNDO_EVENTS_MAX:
        raise _Fault(place, f"has 1 to {UNDO_EVENTS_MAX} events")
    makers = [_read_undo_event(each, f"{place}.{number}") for number, each in enumerate(listed)]

    def take_back(state: dict[str, Any], event: Event) -> list[Compensating] | None:
        events: list[Compensating] = []
        for holds, make in makers:
            if not holds(state, event):
                continue
            made = make(state, event)
            if made is None:
                return None
            events.append(made)
        return events

    return take_back


def _read_undo_event(
    event: Json, place: str
) -> tuple[Condition, Callable[[dict[str, Any], Event], Compensating | None]]:
    fields = _object(
        event, place, {"schema", "data", "restore", "negate", "if", "comment"}, required=("schema", "data")
    )
    schema = fields["schema"]
    if not isinstance(schema, str) or not schema:
        raise _Fault(f"{place}.schema", "must be the name of a schema")
    data = _read_expression(fields["data"], f"{place}.data", 0)
    restored = _read_path(fields["restore"], f"{place}.restore", 0) if "restore" in fields else None
    negated = _texts(fields.get("negate", []), f"{place}.negate")
    holds: Condition = lambda _state, _event: True  # noqa: E731
    if "if" in fields:
        holds = _read_condition(fields["if"], f"{place}.if", 0)

    def make(state: dict[str, Any], event: Event) -> Compensating | None:
        made = data(state, event)
        if restored is not None and made is not MISSING:
            made = restore(made, event.data, inside(state, restored(state, event)))
        if negated and made is not MISSING:
            made = negate(made, negated)
        return None if made is MISSING else Compensating(schema, made)

    return holds, make


def _count(operations: Json) -> int:
    """How many operations there are, also in others; their shape was checked before."""
    total, waiting = 0, [operations]
    while waiting:
        listed = waiting.pop()
        for each in listed if isinstance(listed, list) else []:
            total += 1
            waiting += [each[key] for key in ("do", "else") if isinstance(each, dict) and key in each]
    return total


def _reducer(operations: tuple[Operation, ...]) -> Callable[[dict[str, Any], Event], None]:
    def reduce(state: dict[str, Any], event: Event) -> None:
        do_all(operations, state, event)

    return reduce


def _read_check(check: Json, place: str) -> Callable[[dict[str, Any], Event], list[FieldError]]:
    fields = _object(
        check, place, {"refuse_if", "field", "message", "comment"}, required=("refuse_if", "message")
    )
    holds = _read_condition(fields["refuse_if"], f"{place}.refuse_if", 0)
    field, message = fields.get("field", ""), fields["message"]
    if not isinstance(field, str):
        raise _Fault(f"{place}.field", "must be a dot path in the data")
    if not isinstance(message, str) or not message:
        raise _Fault(f"{place}.message", "must be a text for the person whose event is refused")
    errors = [refuse(field, message)]

    def judge(state: dict[str, Any], event: Event) -> list[FieldError]:
        return errors if holds(state, event) else []

    return judge


def _read_operations(operations: Json, place: str, depth: int) -> tuple[Operation, ...]:
    if depth > DEPTH_MAX:
        raise _Fault(place, f"is nested more than {DEPTH_MAX} levels deep")
    return tuple(
        _read_operation(each, f"{place}.{number}", depth)
        for number, each in enumerate(_list(operations, place))
    )


def _read_operation(operation: Json, place: str, depth: int) -> Operation:
    kind = _kind(operation, place, tuple(_OPERATIONS), "operation")
    fields = _object(operation, place, {kind, "comment", *_OPERATIONS[kind]})
    if kind == "when":
        holds = _read_condition(fields["when"], f"{place}.when", depth)
        yes = _read_operations(fields.get("do", []), f"{place}.do", depth + 1)
        no = _read_operations(fields.get("else", []), f"{place}.else", depth + 1)
        return when(holds, yes, no)
    path = _read_path(fields[kind], f"{place}.{kind}", depth)
    if kind == "remove":
        return remove(path)
    if kind == "increment":
        return increment(path, _read_expression(fields.get("by", 1), f"{place}.by", depth))
    if "value" not in fields:
        raise _Fault(place, "needs a `value`")
    value = _read_expression(fields["value"], f"{place}.value", depth)
    if kind == "put":
        return put(path, value)
    if kind == "merge":
        return merge(path, value, frozenset(_texts(fields.get("without", []), f"{place}.without")))
    by = fields.get("by")
    if by is not None and not isinstance(by, str):
        raise _Fault(f"{place}.by", "must be the name of a field of the elements")
    if kind == "pull":
        return pull(path, value, by)
    return _read_insert(fields, path, value, by, place, depth)


def _read_insert(
    fields: JsonObject, path: PathOf, value: Expression, by: str | None, place: str, depth: int
) -> Operation:
    order, repeat, position = fields.get("order"), fields.get("repeat", False), fields.get("position")
    if order is not None and not isinstance(order, str):
        raise _Fault(f"{place}.order", "must be the name of a field of the elements")
    if not isinstance(repeat, bool):
        raise _Fault(f"{place}.repeat", "must be true or false")
    if order is not None and position is not None:
        raise _Fault(place, "has a `position` or an `order`, not both")
    side, sibling = "last", None
    if isinstance(position, dict) and len(position) == 1 and next(iter(position)) in ("before", "after"):
        side = next(iter(position))
        sibling = _read_expression(position[side], f"{place}.position.{side}", depth)
    elif position in ("first", "last"):
        side = str(position)
    elif position is not None:
        says = 'must be "first", "last", {"before": EXPRESSION} or {"after": EXPRESSION}'
        raise _Fault(f"{place}.position", says)
    return insert(path, value, by, side, sibling, order, repeat=repeat)


def _read_condition(condition: Json, place: str, depth: int) -> Condition:
    if depth > DEPTH_MAX:
        raise _Fault(place, f"is nested more than {DEPTH_MAX} levels deep")
    kind = _kind(condition, place, _CONDITIONS, "condition")
    body = _object(condition, place, {kind})[kind]
    place = f"{place}.{kind}"
    if kind == "exists":
        found = _read_expression(body, place, depth)
        return lambda state, event: found(state, event) is not MISSING
    if kind == "not":
        inner = _read_condition(body, place, depth + 1)
        return lambda state, event: not inner(state, event)
    if kind in ("all", "any"):
        parts = [
            _read_condition(each, f"{place}.{number}", depth + 1)
            for number, each in enumerate(_list(body, place))
        ]
        join = all if kind == "all" else any
        return lambda state, event: join(part(state, event) for part in parts)
    if not isinstance(body, list) or len(body) != 2:
        raise _Fault(place, "takes two expressions")
    left, right = (_read_expression(each, f"{place}.{number}", depth) for number, each in enumerate(body))
    if kind == "equals":
        return lambda state, event: same(left(state, event), right(state, event))
    return lambda state, event: compare(left(state, event), right(state, event)) < 0


def _read_expression(expression: Json, place: str, depth: int) -> Expression:
    if depth > DEPTH_MAX:
        raise _Fault(place, f"is nested more than {DEPTH_MAX} levels deep")
    if isinstance(expression, list):
        raise _Fault(place, 'a list is written {"array": […]} or {"const": […]}')
    if not isinstance(expression, dict):
        return lambda _state, _event: expression
    kind = _kind(expression, place, _EXPRESSIONS, "expression")
    body = _object(expression, place, {kind, "default"} if kind in ("data", "meta", "state") else {kind})[
        kind
    ]
    place = f"{place}.{kind}"
    if kind == "const":
        return lambda _state, _event: body
    if kind == "object":
        parts = {
            key: _read_expression(each, f"{place}.{key}", depth + 1)
            for key, each in _object(body, place, None).items()
        }
        return lambda state, event: {
            key: value for key, part in parts.items() if (value := part(state, event)) is not MISSING
        }
    if kind == "array":
        each_of = [
            _read_expression(each, f"{place}.{number}", depth + 1)
            for number, each in enumerate(_list(body, place))
        ]
        return lambda state, event: [
            value for part in each_of if (value := part(state, event)) is not MISSING
        ]
    default = expression.get("default", MISSING)
    if kind == "state":
        path = _read_path(body, place, depth)
        return lambda state, event: inside(state, path(state, event), default)
    return given(kind, _read_data_path(body, place), default)


def _read_data_path(path: Json, place: str) -> tuple[str, ...]:
    if isinstance(path, str):
        return tuple(path.split(".")) if path else ()
    return tuple(_texts(path, place))


def _read_path(path: Json, place: str, depth: int) -> PathOf:
    steps = _list(path, place)
    if not steps:
        raise _Fault(place, "has at least one step")
    return path_of(
        [
            each if isinstance(each, str) else _read_expression(each, f"{place}.{number}", depth + 1)
            for number, each in enumerate(steps)
        ]
    )


# -- parts ---------------------------------------------------------------------------------------------------


def _kind(value: Json, place: str, known: tuple[str, ...], what: str) -> str:
    found = [key for key in known if isinstance(value, dict) and key in value]
    # `by`, `value` and the like are fields of an operation; what it does is the first of the known keys.
    if not found:
        raise _Fault(place, f"is no {what}: an object with one of {', '.join(known)}")
    if len(found) > 1:
        raise _Fault(place, f"is more than one {what}: {' and '.join(found)}")
    return found[0]


def _object(value: Json, place: str, known: set[str] | None, required: tuple[str, ...] = ()) -> JsonObject:
    if not isinstance(value, dict):
        raise _Fault(place, "must be an object")
    for key in value if known is not None else ():
        if key not in (known or ()):
            raise _Fault(f"{place}.{key}", f"unknown key; known are {', '.join(sorted(known or ()))}")
    for key in required:
        if key not in value:
            raise _Fault(place, f"needs `{key}`")
    return value


def _list(value: Json, place: str) -> list[Json]:
    if not isinstance(value, list):
        raise _Fault(place, "must be a list")
    return value


def _texts(value: Json, place: str) -> list[str]:
    texts = _list(value, place)
    if not all(isinstance(each, str) for each in texts):
        raise _Fault(place, "must be a list of texts")
    return [str(each) for each in texts]
