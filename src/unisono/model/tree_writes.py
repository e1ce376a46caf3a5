"""Where a write lands in a state, and whether the trees around it stay trees.

Every write that is not a removal is one thing: keys merged into one object that is already there. Judging and
applying it therefore look at the same MergedWrite, and the rule of `tree.py` is stated once, in `fault`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from unisono.model.forest import Forest, Malformed
from unisono.model.registry import field_path
from unisono.model.tree_state import (
    Object,
    TreeState,
    Value,
    adopt,
    adopt_root,
    check_item,
    check_items,
    is_tree,
)
from unisono.model.values import weigh
from unisono.vocabulary import FieldError, Json, JsonObject

Role: TypeAlias = Literal["root", "items", "item", "other"]
"""What an object is to the tree around it: the `items` of one, the data of an item, or neither."""


class EventValue:
    """The value an event brings, as states will hold it: looked through once, however many partitions it goes to."""

    __slots__ = ("_forest", "_given", "_root", "_value")

    def __init__(self, given: Json) -> None:
        self._given = given
        self._value: tuple[Value] | None = None
        self._root: tuple[Object, int] | None = None
        self._forest: tuple[list[Json], Forest] | None = None

    def value(self) -> Value:
        """The value adopted; raises Malformed."""
        if self._value is None:
            self._value = (adopt(self._given),)
        return self._value[0]

    def root(self) -> tuple[Object, int]:
        """The value as a whole state, and what it weighs; raises Malformed."""
        if self._root is None:
            assert isinstance(self._given, dict), "the shape was checked before"
            root = adopt_root(self._given)
            self._root = root, weigh((root,))
        return self._root

    def forest(self, tree: list[Json], items: Mapping[str, object]) -> Forest:
        """The order that `tree` gives to items that are in the state already; raises Malformed."""
        if self._forest is None or self._forest[0] is not tree:
            self._forest = tree, Forest.grow(tree, items)
        elif any(id not in items for id in self._forest[1].ids):
            Forest.grow(tree, items)  # says which one
        return self._forest[1]


class MergedWrite(msgspec.Struct, frozen=True):
    """A write as keys merged into one object of the state.

    `path` leads from `changes` to the value the event carries; its keys come from the event's target.
    """

    holder: Object
    role: Role
    changes: JsonObject
    path: tuple[str, ...]

    def adopted(self, brought: EventValue) -> Mapping[str, Value]:
        """The changes as the state will hold them."""
        value: Any = brought.value()
        above: list[Any] = [self.changes]
        for key in self.path[:-1]:
            above.append(above[-1][key])
        for holder, key in zip(reversed(above), reversed(self.path), strict=False):
            value = {**holder, key: value}
            if key == "items" and isinstance(holder.get("tree"), list):
                value["tree"] = Forest.grow(holder["tree"], value["items"])
        items = value.get("items", self.holder.get("items"))
        tree = value.get("tree", self.holder.get("tree"))
        if self.role != "root" and isinstance(items, dict) and isinstance(tree, list):
            return {**value, "tree": brought.forest(tree, items)}
        return value  # type: ignore[no-any-return]


def landing(
    state: TreeState, target: Sequence[str], value: Json, *, merge: bool, path: tuple[str, ...] = ()
) -> MergedWrite | None:
    """Where `value` lands at `target`, missing segments becoming objects; None if a non-object is in the way.

    With `merge`, an object is merged into an object that is there. `path` leads from `value` to what the event
    carries.
    """
    objects = state.trail(target)
    at = len(objects) - 1
    if at == len(target):
        if merge and isinstance(value, dict):
            return MergedWrite(objects[at], role(objects, target), value, path)
        at -= 1
    elif at < len(target) - 1 and target[at] in objects[at]:
        return None
    for key in reversed(target[at + 1 :]):
        value = {key: value}
    holders = objects[: at + 1]
    return MergedWrite(holders[-1], role(holders, target), {target[at]: value}, (*target[at:], *path))


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


def fault(write: MergedWrite, brought: EventValue) -> FieldError | None:
    """Why a write would leave something malformed, if it would."""
    try:
        _check_role(write)
    except Malformed as malformed:
        return field_error(malformed, len(write.path))
    try:
        brought.value()
    except Malformed as malformed:
        return field_error(malformed, 0)
    try:
        if write.role != "root":
            _check_tree(write, brought)
    except Malformed as malformed:
        return field_error(malformed, len(write.path))
    return None


def field_error(malformed: Malformed, depth: int) -> FieldError:
    """The field of the event that is to blame: its target for what the target names, its value otherwise."""
    if len(malformed.path) < depth + malformed.of_key:
        return FieldError("event.payload.target", malformed.message)
    return FieldError(field_path("event.payload.value", malformed.path[depth:]), malformed.message)


def _check_role(write: MergedWrite) -> None:
    if write.role == "item":
        check_item(write.changes, ())
    elif write.role == "items":
        for id in sorted(write.changes):
            if id not in write.holder:
                raise Malformed((id,), "there is no such item; treePush adds one", of_key=True)
            check_item(write.changes[id], (id,))


def _check_tree(write: MergedWrite, brought: EventValue) -> None:
    """What has `items` and `tree` after the changes is a tree, and a tree stays one (TREE-10)."""
    holder = write.holder
    touched = [key for key in ("items", "tree") if key in write.changes]
    if not touched:
        return
    try:
        changes = write.adopted(brought)
        items, tree = changes.get("items", holder.get("items")), changes.get("tree", holder.get("tree"))
        if isinstance(items, dict) and isinstance(tree, Forest):
            check_items(items, tree)
        elif is_tree(holder):
            wrong = "tree" if isinstance(items, dict) else "items"
            raise Malformed((wrong,), "a tree keeps `items` an object and `tree` an array")
    except Malformed as malformed:
        if malformed.path[0] in touched:
            raise
        raise Malformed((touched[0],), f"does not fit the tree that is there: {malformed.message}") from None
