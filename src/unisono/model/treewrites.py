"""Where a write lands in a state, and whether the trees around it stay trees.

Every write that is not a removal is one thing: keys merged into one object that is already there. Judging and
applying it therefore look at the same Landing, and the rule of `tree.py` is stated once, in `fault`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from unisono.model.forest import Forest, Malformed
from unisono.model.registry import field_path
from unisono.model.treestate import Object, TreeState, adopt, check_item, check_items, is_tree
from unisono.vocabulary import FieldError, Json, JsonObject

Role: TypeAlias = Literal["root", "items", "item", "other"]
"""What an object is to the tree around it: the `items` of one, the data of an item, or neither."""


class Landing(msgspec.Struct, frozen=True):
    """A write as keys merged into one object of the state.

    `depth` says how many keys lead from `changes` to the value the event carries; those come from the event's
    target.
    """

    holder: Object
    role: Role
    changes: JsonObject
    depth: int


def landing(
    state: TreeState, target: Sequence[str], value: Json, *, merge: bool, depth: int = 0
) -> Landing | None:
    """Where `value` lands at `target`, missing segments becoming objects; None if a non-object is in the way.

    With `merge`, an object is merged into an object that is there. `depth` counts the keys within `value`
    that lead to what the event carries.
    """
    objects = state.trail(target)
    at = len(objects) - 1
    if at == len(target):
        if merge and isinstance(value, dict):
            return Landing(objects[at], role(objects, target), value, depth)
        at -= 1
    elif at < len(target) - 1 and target[at] in objects[at]:
        return None
    for key in reversed(target[at + 1 :]):
        value = {key: value}
    holders = objects[: at + 1]
    return Landing(holders[-1], role(holders, target), {target[at]: value}, depth + len(target) - at)


def role(objects: Sequence[Object], path: Sequence[str]) -> Role:
    """The role of the last of the objects along a path."""
    at = len(objects) - 1
    if at == 0:
        return "root"
    if path[at - 1] == "items" and is_tree(objects[at - 1]):
        return "items"
    if at >= 2 and path[at - 2] == "items" and is_tree(objects[at - 2]):
        return "item"
    return "other"


def fault(write: Landing) -> FieldError | None:
    """Why a write would leave something malformed, if it would."""
    try:
        _check_role(write)
        for key in sorted(write.changes):
            adopt(write.changes[key], (None, key))
        if write.role != "root":
            _check_tree(write.holder, write.changes)
    except Malformed as malformed:
        return field_error(malformed, write.depth)
    return None


def field_error(malformed: Malformed, depth: int) -> FieldError:
    """The field of the event that is to blame: its target for what the target names, its value otherwise."""
    if len(malformed.path) < depth + malformed.of_key:
        return FieldError("event.payload.target", malformed.message)
    return FieldError(field_path("event.payload.value", malformed.path[depth:]), malformed.message)


def _check_role(write: Landing) -> None:
    if write.role == "item":
        check_item(write.changes, ())
    elif write.role == "items":
        for id in sorted(write.changes):
            if id not in write.holder:
                raise Malformed((id,), "there is no such item; treePush adds one", of_key=True)
            check_item(write.changes[id], (id,))


def _check_tree(holder: Object, changes: JsonObject) -> None:
    """What has `items` and `tree` after the changes is a tree, and a tree stays one (TREE-10)."""
    touched = [key for key in ("items", "tree") if key in changes]
    if not touched:
        return
    items, tree = changes.get("items", holder.get("items")), changes.get("tree", holder.get("tree"))
    if not isinstance(items, dict) or not isinstance(tree, list | Forest):
        if is_tree(holder):
            wrong = "tree" if isinstance(items, dict) else "items"
            raise Malformed((wrong,), "a tree keeps `items` an object and `tree` an array")
        return
    try:
        check_items(items, tree if isinstance(tree, Forest) else Forest.grow(tree, items))
    except Malformed as malformed:
        if malformed.path[0] in touched:
            raise
        raise Malformed((touched[0],), f"does not fit the tree that is there: {malformed.message}") from None
