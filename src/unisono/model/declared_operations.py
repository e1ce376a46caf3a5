"""What the operations of declarative reducers do to a state, equal to `declared.ts` of the JavaScript client.

An operation that cannot be performed raises `DeclaredFailure`, and the event is refused as a whole: the journal
undoes what the operations before it did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from unisono.model.rules import Event

SAFE_INTEGER_MAX: Final = 2**53 - 1

MISSING: Final = object()
"""What an expression gives when there is nothing: no value of JSON, not even null."""

State: TypeAlias = dict[str, Any]
Expression: TypeAlias = Callable[[State, Event], Any]
Condition: TypeAlias = Callable[[State, Event], bool]
Operation: TypeAlias = Callable[[State, Event], None]
PathOf: TypeAlias = Callable[[State, Event], list[str]]


class DeclaredFailure(Exception):
    """An operation meets a state or an event it cannot be performed on."""


def do_all(operations: Iterable[Operation], state: State, event: Event) -> None:
    for operation in operations:
        operation(state, event)


# -- reading -------------------------------------------------------------------------------------------------


def inside(value: Any, path: Iterable[str], default: Any = MISSING) -> Any:
    """What lies at a path through objects."""
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return default
        value = value[step]
    return value


def given(kind: str, path: tuple[str, ...], default: Any) -> Expression:
    """A value of the event's data or meta."""
    if kind == "data":
        return lambda _state, event: inside(event.data, path, default)
    return lambda _state, event: inside(event.meta, path, default)


def path_of(steps: Sequence[str | Expression]) -> PathOf:
    def resolve(state: State, event: Event) -> list[str]:
        return [each if isinstance(each, str) else _step(each(state, event)) for each in steps]

    return resolve


def _step(value: Any) -> str:
    if not isinstance(value, str):
        raise DeclaredFailure("a step of a path is a text")
    return value


def restore(made: Any, data: Any, before: Any) -> Any:
    """`made` with the values that the keys of `data` had before; MISSING when one of them was not there."""
    if not isinstance(made, dict) or not isinstance(data, dict) or not isinstance(before, dict):
        return MISSING
    missing = [key for key in data if key not in made and key not in before]
    return MISSING if missing else {key: before[key] for key in data if key not in made} | made


def negate(made: Any, fields: Sequence[str]) -> Any:
    """`made` with the sign of these fields turned; MISSING when one is no number."""
    if not isinstance(made, dict) or not all(is_number(made.get(field)) for field in fields):
        return MISSING
    return made | {field: -made[field] for field in fields}


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal; true is not 1, and what is missing equals nothing."""
    if left is MISSING or right is MISSING:
        return False
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and len(left) == len(right)
            and all(key in right and same(left[key], right[key]) for key in left)
        )
    if isinstance(left, list):
        return (
            isinstance(right, list)
            and len(left) == len(right)
            and all(same(one, other) for one, other in zip(left, right, strict=True))
        )
    if is_number(left) and is_number(right):
        return bool(left == right)
    return type(left) is type(right) and bool(left == right)


def compare(left: Any, right: Any) -> int:
    """-1, 0 or 1 for two numbers, or two texts by code points; 0 for anything else."""
    if (is_number(left) and is_number(right)) or (isinstance(left, str) and isinstance(right, str)):
        return int(left > right) - int(left < right)
    return 0


# -- operations ----------------------------------------------------------------------------------------------


def _holder(state: State, path: Sequence[str]) -> Any:
    """The object that holds the last step of a path; missing steps become objects."""
    holder: Any = state
    for step in path[:-1]:
        if step not in holder:
            holder[step] = {}
        holder = holder[step]
        if not isinstance(holder, dict):
            raise DeclaredFailure("a path leads through a value that is not an object")
    return holder


def put(path: PathOf, value: Expression) -> Operation:
    def perform(state: State, event: Event) -> None:
        made = value(state, event)
        if made is not MISSING:
            steps = path(state, event)
            _holder(state, steps)[steps[-1]] = made

    return perform


def merge(path: PathOf, value: Expression, without: frozenset[str]) -> Operation:
    def perform(state: State, event: Event) -> None:
        made = value(state, event)
        if made is MISSING:
            return
        if not isinstance(made, dict):
            raise DeclaredFailure("only an object is merged")
        steps = path(state, event)
        holder = _holder(state, steps)
        if steps[-1] not in holder:
            holder[steps[-1]] = {}
        target = holder[steps[-1]]
        if not isinstance(target, dict):
            raise DeclaredFailure("an object is merged into an object only")
        for key, part in list(made.items()):
            if key not in without:
                target[key] = part

    return perform


def remove(path: PathOf) -> Operation:
    def perform(state: State, event: Event) -> None:
        steps = path(state, event)
        holder = inside(state, steps[:-1])
        if isinstance(holder, dict) and steps[-1] in holder:
            del holder[steps[-1]]

    return perform


def increment(path: PathOf, by: Expression) -> Operation:
    def perform(state: State, event: Event) -> None:
        step = by(state, event)
        if step is MISSING:
            return
        steps = path(state, event)
        holder = _holder(state, steps)
        now = holder.get(steps[-1], 0)
        if not is_number(step) or not is_number(now):
            raise DeclaredFailure("only a number is added to a number")
        holder[steps[-1]] = added(now, step)

    return perform


def added(now: float, step: float) -> float:
    """The sum as doubles have it; whole numbers that doubles hold exactly are ints."""
    total = float(now) + float(step)
    if not math.isfinite(total):
        raise DeclaredFailure("the sum is no number")
    return int(total) if total.is_integer() and abs(total) <= SAFE_INTEGER_MAX else total


def _elements(state: State, path: PathOf, event: Event, *, make: bool) -> Any:
    """The list at a path; None where there is none and none is made."""
    steps = path(state, event)
    holder = _holder(state, steps) if make else inside(state, steps[:-1])
    if not isinstance(holder, dict) or steps[-1] not in holder:
        if not make:
            return None
        holder[steps[-1]] = []
    elements = holder[steps[-1]]
    if not isinstance(elements, list):
        raise DeclaredFailure("there is a value that is not a list")
    return elements


def _identity(element: Any, by: str | None) -> Any:
    return element if by is None else inside(element, (by,))


def insert(
    path: PathOf,
    value: Expression,
    by: str | None,
    side: str,
    sibling: Expression | None,
    order: str | None,
    *,
    repeat: bool,
) -> Operation:
    def perform(state: State, event: Event) -> None:
        made = value(state, event)
        if made is MISSING:
            return
        identity = _identity(made, by)
        if identity is MISSING:
            raise DeclaredFailure("the new element has no such field to be known by")
        beside = MISSING if sibling is None else sibling(state, event)
        elements = _elements(state, path, event, make=True)
        if not repeat:
            _take_out(elements, identity, by)
        elements.insert(_place(elements, made, beside), made)

    def _place(elements: list[Any], made: Any, beside: Any) -> int:
        if order is not None:
            rank = inside(made, (order,))
            places = (at for at, each in enumerate(elements) if compare(inside(each, (order,)), rank) > 0)
            return next(places, len(elements))
        if side == "first":
            return 0
        places = (at for at, each in enumerate(elements) if same(_identity(each, by), beside))
        found = next(places, None)
        if side == "last" or found is None:
            return len(elements)
        return found if side == "before" else found + 1

    return perform


def pull(path: PathOf, value: Expression, by: str | None) -> Operation:
    def perform(state: State, event: Event) -> None:
        identity = value(state, event)
        if identity is MISSING:
            return
        elements = _elements(state, path, event, make=False)
        if elements is not None:
            _take_out(elements, identity, by)

    return perform


def _take_out(elements: list[Any], identity: Any, by: str | None) -> None:
    for at in range(len(elements) - 1, -1, -1):
        if same(_identity(elements[at], by), identity):
            del elements[at]


def when(holds: Condition, yes: tuple[Operation, ...], no: tuple[Operation, ...]) -> Operation:
    def perform(state: State, event: Event) -> None:
        do_all(yes if holds(state, event) else no, state, event)

    return perform
