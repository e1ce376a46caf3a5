"""The tree actions that take a tree action back, made from the state before it.

A compensating action restores what the action changed, and nothing else where one action can. Its `places` say what
it overwrites, so that somebody can look whether others have changed that since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, assert_never

import msgspec

from unisono.model.forest import ROOT, Forest
from unisono.model.tree_actions import (
    Action,
    Init,
    Set,
    TreeDelete,
    TreeMove,
    TreePush,
    TreeUpdate,
    Unset,
    read,
)
from unisono.model.tree_state import TreeState, is_tree, plain
from unisono.vocabulary import Json, JsonObject

ACTIONS_MAX: Final = 100
"""Compensating actions of one event: a deleted branch of more items is not taken back."""

MISSING: Final = object()

_TREE_KEYS: Final = frozenset({"items", "tree"})


class At(msgspec.Struct, frozen=True):
    """What lies at a path; () is everything."""

    path: tuple[str, ...]


class ItemData(msgspec.Struct, frozen=True):
    """The data of an item, or some keys of it; None is all of it, and the ids of its children."""

    target: tuple[str, ...]
    id: str
    keys: tuple[str, ...] | None = None


class Where(msgspec.Struct, frozen=True):
    """Where an item stands: its parent and its neighbours."""

    target: tuple[str, ...]
    id: str


TreePlace: TypeAlias = At | ItemData | Where


class TreeInverse(msgspec.Struct, frozen=True):
    """The actions that take an action back, in order, and what they overwrite."""

    events: tuple[JsonObject, ...]
    places: tuple[TreePlace, ...]


_NOTHING: Final = TreeInverse((), ())


def tree_inverse(state: TreeState, event: JsonObject) -> TreeInverse | None:
    """What takes an action back that is about to be applied to this state; None when nothing does."""
    action = read(event)
    if isinstance(action, list):
        return None
    return _inverse(state, action)


def _inverse(state: TreeState, action: Action) -> TreeInverse | None:
    match action:
        case Init():
            return TreeInverse((_event("init", {"value": state.dump()}),), (At(()),))
        case Unset():
            old = read_place(state, At(action.target))
            return _NOTHING if old is MISSING else _put_back(state, action.target)
        case Set():
            return _undo_set(state, action)
        case TreePush():
            if _tree(state, action.target) is None:
                return _undo_first_push(state, action)
            options: JsonObject = {"id": action.id}
            return TreeInverse(
                (_on(action.target, "treeDelete", options),), (ItemData(action.target, action.id),)
            )
        case TreeDelete():
            return _undo_delete(state, action)
        case TreeUpdate():
            return _undo_update(state, action)
        case TreeMove():
            found = _tree(state, action.target)
            if found is None or action.id not in found[1]:
                return None
            options = {"id": action.id, **_stands(found[1], action.id)}
            return TreeInverse((_on(action.target, "treeMove", options),), (Where(action.target, action.id),))
    assert_never(action)


def _undo_set(state: TreeState, action: Set) -> TreeInverse:
    missing = _first_missing(state, action.target)
    if missing is not None:
        return _take_away(state, missing)
    old, value = read_place(state, At(action.target)), action.value
    if action.replace or not isinstance(value, dict) or not isinstance(old, dict):
        return _put_back(state, action.target)
    if not value:
        return _NOTHING
    if not _TREE_KEYS.isdisjoint(value):
        return _put_back(state, action.target)
    if all(key in old for key in value):
        back = _event("set", {"target": ".".join(action.target), "value": {key: old[key] for key in value}})
        return TreeInverse((back,), tuple(At((*action.target, key)) for key in value))
    (key, *more) = value
    if not more and key and "." not in key:
        return _take_away(state, (*action.target, key))
    return _put_back(state, action.target)


def _undo_first_push(state: TreeState, action: TreePush) -> TreeInverse:
    missing = _first_missing(state, action.target)
    return _put_back(state, action.target) if missing is None else _take_away(state, missing)


def _undo_delete(state: TreeState, action: TreeDelete) -> TreeInverse | None:
    """Push every item of the branch again, parents first."""
    found = _tree(state, action.target)
    if found is None or action.id not in found[1]:
        return None
    items, forest = found
    events: list[JsonObject] = []
    waiting: list[tuple[str, JsonObject]] = [(action.id, _stands(forest, action.id))]
    while waiting:
        id, options = waiting.pop()
        if len(events) == ACTIONS_MAX:
            return None
        data: Any = plain(items[id])
        value = {"id": id, **data}
        events.append(
            _event("treePush", {"target": ".".join(action.target), "value": value, "options": options})
        )
        for child in reversed(_children(forest, id)):
            waiting.append((child, {"parent": id, "position": "last"}))
    return TreeInverse(tuple(events), (ItemData(action.target, action.id),))


def _undo_update(state: TreeState, action: TreeUpdate) -> TreeInverse | None:
    found = _tree(state, action.target)
    if found is None or action.id not in found[0]:
        return None
    old: Any = plain(found[0][action.id])
    options: JsonObject = {"id": action.id}
    keeps = _TREE_KEYS.isdisjoint(action.data)  # an item that became a tree is put back whole
    if not action.replace and keeps and all(key in old for key in action.data):
        if not action.data:
            return _NOTHING
        value = {key: old[key] for key in action.data}
        place = ItemData(action.target, action.id, tuple(action.data))
        return TreeInverse((_on(action.target, "treeUpdate", options, value),), (place,))
    back = _on(action.target, "treeUpdate", options | {"replace": True}, old)
    return TreeInverse((back,), (ItemData(action.target, action.id, ()),))


# -- places ----------------------------------------------------------------------------------------------------


def read_place(state: TreeState, place: TreePlace) -> Any:
    """What is there, as plain JSON; MISSING when nothing is."""
    if isinstance(place, At):
        value = _raw(state, place.path)
        return value if value is MISSING else plain(value)
    found = _tree(state, place.target)
    if found is None or place.id not in found[1]:
        return MISSING
    items, forest = found
    if isinstance(place, Where):
        node = forest.nodes[place.id]
        return [node.parent, node.before, node.after]
    data: Any = plain(items[place.id])
    if place.keys is None:
        return [data, list(_children(forest, place.id))]
    return {key: data[key] for key in place.keys if key in data} if place.keys else data


def fitted(state: TreeState, event: JsonObject) -> JsonObject:
    """A compensating push or move whose neighbour is gone: it goes to the end."""
    action = read(event)
    if not isinstance(action, TreePush | TreeMove) or action.position.side != "after":
        return event
    found = _tree(state, action.target)
    if found is None or action.parent not in found[1].nodes:
        return event
    node = found[1].nodes.get(action.position.sibling)
    if node is not None and node.parent == action.parent:
        return event
    payload: Any = event["payload"]
    options = payload["options"] | {"position": "last"}
    return {**event, "payload": payload | {"options": options}}


# -- parts -----------------------------------------------------------------------------------------------------


def _raw(state: TreeState, path: tuple[str, ...]) -> Any:
    value: Any = state.root
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return MISSING
        value = value[key]
    return value


def _tree(state: TreeState, target: tuple[str, ...]) -> tuple[Any, Forest] | None:
    value = _raw(state, target)
    return (value["items"], value["tree"]) if target and is_tree(value) else None


def _first_missing(state: TreeState, target: tuple[str, ...]) -> tuple[str, ...] | None:
    """The shortest part of a path where nothing is."""
    prefixes = (target[:length] for length in range(1, len(target) + 1))
    return next((path for path in prefixes if _raw(state, path) is MISSING), None)


def _children(forest: Forest, id: str) -> Sequence[str]:
    found: list[str] = []
    child = forest.nodes[id].first
    while child is not None:
        found.append(child)
        child = forest.nodes[child].after
    return found


def _stands(forest: Forest, id: str) -> JsonObject:
    """The options that put an item where it stands now."""
    node = forest.nodes[id]
    position: Json = "first" if node.before is None else {"after": node.before}
    return {"parent": node.parent or ROOT, "position": position}


def _put_back(state: TreeState, path: tuple[str, ...]) -> TreeInverse:
    """Set a value as it is now. What made a tree of an object is taken back with the object, which is then none."""
    while len(path) > 1 and path[-1] in _TREE_KEYS:
        path = path[:-1]
    payload = {"target": ".".join(path), "value": read_place(state, At(path)), "options": {"replace": True}}
    return TreeInverse((_event("set", payload),), (At(path),))


def _take_away(state: TreeState, path: tuple[str, ...]) -> TreeInverse:
    """Unset what is missing now."""
    if len(path) > 1 and path[-1] in _TREE_KEYS:
        return _put_back(state, path)
    return TreeInverse((_event("unset", {"target": ".".join(path)}),), (At(path),))


def _on(
    target: tuple[str, ...],
    kind: Literal["treeDelete", "treeMove", "treeUpdate"],
    options: JsonObject,
    value: JsonObject | None = None,
) -> JsonObject:
    payload: JsonObject = {"target": ".".join(target), "options": options}
    return _event(kind, payload if value is None else payload | {"value": value})


def _event(kind: str, payload: JsonObject) -> JsonObject:
    return {"type": kind, "payload": payload}
