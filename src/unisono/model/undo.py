"""What takes an event back, and how to see whether others have changed since what it changed.

An event is taken back by compensating events, made from the state before it: tree actions by `tree_undo`, canonical
events as the model says (`undo` in reducers.json, `@rules.undo`). The places that the event changed are remembered
with a fingerprint of what it left there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import orjson

from unisono.model.authorship import UNKNOWN, Authorship
from unisono.model.journal import Undo
from unisono.model.model import Model
from unisono.model.partition import PartitionState
from unisono.model.schema import EVENT_TYPE
from unisono.model.tracked import TrackedDict, TrackedList
from unisono.model.tree_undo import MISSING, TreePlace, Where, fitted, read_place, tree_inverse
from unisono.model.values import copied
from unisono.vocabulary import JsonObject

EVENTS_BYTES_MAX: Final = 1_000_000
"""Of the compensating events of one event: more would not fit into the messages of most servers."""

_SORTED: Final = orjson.OPT_SORT_KEYS

Place: TypeAlias = "TreePlace | tuple[str, ...]"
"""A place of the tree half, or a path in the canonical half."""

Fingerprint: TypeAlias = "bytes | list[Any] | None"
"""Of what was found at a place; None for nothing. Where an item stands is kept as it is."""


class Compensation(msgspec.Struct, frozen=True):
    """How one event is taken back; `left`: what it left at each place. No `events`: it changed nothing."""

    events: tuple[JsonObject, ...]
    left: tuple[tuple[Place, Fingerprint], ...]


def watch(
    model: Model, state: PartitionState, event: JsonObject, by: Authorship, change: Callable[[], bool]
) -> tuple[bool, Compensation | None]:
    """Let `change` apply an event to the state; what it gives, and how the event is taken back.

    None: the event changed something, and nothing takes it back.
    """
    if event.get("type") != EVENT_TYPE:
        inverse = tree_inverse(state.tree, event)
        if not change():
            return False, None
        return True, None if inverse is None else _compensation(state, inverse.events, inverse.places)
    data = state.data
    events = None if model.canonical is None else model.canonical.undo(data, event, by)
    mark = data.journal.mark()
    if not change():
        return False, None
    entries = data.journal.since(mark)
    if not entries:
        return True, Compensation((), ())
    return True, _compensation(state, events, _changed_paths(data.value, entries)) if events else None


def _compensation(
    state: PartitionState, events: Sequence[JsonObject], places: Sequence[Place]
) -> Compensation | None:
    try:
        return None if _too_large(events) else Compensation(tuple(events), fingerprints(state, places))
    except (TypeError, ValueError, RecursionError):
        return None  # deeper than the encoder goes


def _too_large(events: Sequence[JsonObject]) -> bool:
    return len(orjson.dumps(list(events))) > EVENTS_BYTES_MAX


def _changed_paths(root: TrackedDict, entries: Sequence[Undo]) -> list[tuple[str, ...]]:
    """The paths of what these changes changed: keys of objects, and lists as a whole."""
    changed: dict[int, set[str] | None] = {}
    for undo, *arguments in entries:
        container = undo.__self__
        keyed = isinstance(container, TrackedDict) and arguments and isinstance(arguments[0], str)
        known = changed.setdefault(id(container), set())
        if keyed and known is not None:
            known.add(arguments[0])
        elif not keyed:
            changed[id(container)] = None
    paths: dict[tuple[str, ...], None] = {}
    waiting: list[tuple[tuple[str, ...], Any]] = [((), root)]
    while waiting:
        path, container = waiting.pop()
        keys = changed.get(id(container), ())
        if keys is None or (isinstance(container, TrackedList) and _any_inside(container, changed)):
            paths[path] = None
        elif isinstance(container, TrackedDict):
            paths |= dict.fromkeys((*path, key) for key in keys)
            waiting += [((*path, key), part) for key, part in dict.items(container) if _tracked(part)]
    outer = [path for path in paths if not any(path[:length] in paths for length in range(1, len(path)))]
    return [_innermost(root, path) for path in outer]


def _innermost(root: TrackedDict, path: tuple[str, ...]) -> tuple[str, ...]:
    """Past objects that hold nothing but one object: they were made on the way to it, and others may use them."""
    value: Any = root
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return path
        value = value[key]
    while isinstance(value, dict) and len(value) == 1:
        ((key, inner),) = value.items()
        if not isinstance(inner, dict):
            break
        path, value = (*path, key), inner
    return path


def _tracked(value: object) -> bool:
    return isinstance(value, TrackedDict | TrackedList)


def _any_inside(elements: TrackedList, changed: Collection[int]) -> bool:
    """Whether something within the elements of a list changed: the list counts as a whole."""
    waiting: list[Any] = [elements]
    while waiting:
        container = waiting.pop()
        if id(container) in changed:
            return True
        parts = dict.values(container) if isinstance(container, dict) else list.__iter__(container)
        waiting += [part for part in parts if _tracked(part)]
    return False


# -- later -----------------------------------------------------------------------------------------------------


def fingerprints(state: PartitionState, places: Sequence[Place]) -> tuple[tuple[Place, Fingerprint], ...]:
    """What is at each place now."""
    return tuple((place, _fingerprint(state, place)) for place in places)


def _fingerprint(state: PartitionState, place: Place) -> Fingerprint:
    if isinstance(place, tuple):
        value: Any = state.data.value
        for key in place:
            if not isinstance(value, dict) or key not in value:
                return None
            value = value[key]
        value = copied(value)
    else:
        value = read_place(state.tree, place)
        if value is MISSING:
            return None
        if isinstance(place, Where):
            return list(value)
    return hashlib.sha256(orjson.dumps(value, option=_SORTED)).digest()


def unchanged(state: PartitionState, left: Sequence[tuple[Place, Fingerprint]]) -> bool:
    """Whether nobody has changed these places since; an item may have got another neighbour on one side."""
    for place, then in left:
        now = _fingerprint(state, place)
        if isinstance(then, list) and isinstance(now, list):
            if then[0] != now[0] or (then[1] != now[1] and then[2] != now[2]):
                return False
        elif then != now:
            return False
    return True


def fitting(state: PartitionState, events: Sequence[JsonObject]) -> list[JsonObject]:
    """Compensating events as they can be submitted to this state."""
    return [event if event.get("type") == EVENT_TYPE else fitted(state.tree, event) for event in events]


def compensating(
    model: Model, profile: str, state: PartitionState, event: JsonObject, by: Authorship = UNKNOWN
) -> Compensation | None:
    """How an event is taken back that was applied to a state like this one; the state stays as it is."""
    mark = state.mark()

    def change() -> bool:
        model.apply(profile, state, event, by)
        return True

    try:
        return watch(model, state, event, by, change)[1]
    finally:
        state.rollback(mark)
