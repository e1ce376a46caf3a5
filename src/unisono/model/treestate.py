"""The state of one partition under the tree actions: one JSON object, with its trees indexed.

In memory the state is plain JSON but for one thing: where an object is a tree, a Forest stands in the place
of its `tree` array. An object is a tree when it is reached from the root through object keys alone, is not
the root itself, and holds `items` as an object and `tree` as an array. Arrays are opaque: nothing addresses
into them, so what is in them is data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from unisono.model.forest import Forest, Malformed
from unisono.vocabulary import Json, JsonObject

Value: TypeAlias = "bool | int | float | str | list[Json] | Forest | dict[str, Value] | None"
Object: TypeAlias = dict[str, Value]
Link: TypeAlias = "tuple[Link, str] | None"
"""A path held by its end, so that deep values do not pay for the paths of all their parts."""

OBJECT_BYTES = 64
ENTRY_BYTES = 90
ARRAY_BYTES = 56
SLOT_BYTES = 8
STRING_BYTES = 50
NUMBER_BYTES = 28
NODE_BYTES = 140
"""Roughly what CPython 3.11 takes for each part, for `weight`."""


class TreeState:
    """What a partition holds; changed in place, undone exactly.

    Always true: every tree in it is well formed (TREE-10), it shares no object with what was given to it or
    what it gave out, and `weight` equals the weight of a fresh load of its dump. The order of object keys is
    no part of the state: `dump` sorts them, so equal states dump to equal bytes however they came about.

    Changes are recorded for undoing from the first `mark` until `settle`, and not otherwise.
    """

    __slots__ = ("_journal", "_root", "_settled", "_weight")

    def __init__(self, value: JsonObject | None = None) -> None:
        self._root = adopt_root(value or {})
        self._weight = weigh(self._root)
        self._journal: list[tuple[Callable[[], object], int]] | None = None
        self._settled = 0

    @property
    def root(self) -> Object:
        return self._root

    def mark(self) -> int:
        if self._journal is None:
            self._journal = []
        return self._settled + len(self._journal)

    def rollback(self, mark: int) -> None:
        journal = self._journal
        if journal is None or not self._settled <= mark <= self._settled + len(journal):
            raise ValueError(f"mark {mark} is void: it was settled or rolled back")
        while len(journal) > mark - self._settled:
            undo, added = journal.pop()
            undo()
            self._weight -= added

    def settle(self) -> None:
        if self._journal is not None:
            self._settled += len(self._journal) + 1
            self._journal = None

    def dump(self) -> Json:
        return plain(self._root)

    def weight(self) -> int:
        return self._weight

    def trail(self, path: Sequence[str]) -> list[Object]:
        """The objects along a path, the root first, up to where it ends, is missing, or is no object."""
        objects = [self._root]
        for key in path:
            found = objects[-1].get(key)
            if not isinstance(found, dict):
                break
            objects.append(found)
        return objects

    def restart(self, value: JsonObject) -> None:
        """Replace everything."""
        root = adopt_root(value)
        before, self._root = self._root, root
        self._note(partial(setattr, self, "_root", before), weigh(root) - weigh(before))

    def merge(self, holder: Object, changes: JsonObject) -> None:
        """Set each key of an object of this state; what is a tree afterwards is indexed as one."""
        for key, value in changes.items():
            self._put(holder, key, adopt(value))
        items, tree = holder.get("items"), holder.get("tree")
        if holder is not self._root and isinstance(items, dict) and isinstance(tree, list):
            self._put(holder, "tree", Forest.grow(tree, items))

    def drop(self, holder: Object, key: str) -> None:
        """Remove one key of an object of this state."""
        value = holder.pop(key)
        self._note(partial(holder.__setitem__, key, value), -_entry(key, value))

    def plant(self, tree: Object, id: str, data: JsonObject, parent: str, before: str | None) -> None:
        """Add an item to a tree."""
        items, forest = parts(tree)
        adopted = adopt(data)
        items[id] = adopted
        forest.add(id)
        forest.place(id, parent, before)
        self._note(partial(_uproot, items, forest, id), NODE_BYTES + _entry(id, adopted))

    def prune(self, tree: Object, top: str) -> None:
        """Remove an item and all below it from a tree."""
        items, forest = parts(tree)
        gone = [(id, forest.nodes[id], items[id]) for id in forest.within(top)]
        place = forest.lift(top)
        weight = 0
        for id, _, data in gone:
            del forest.nodes[id]
            del items[id]
            weight += NODE_BYTES + _entry(id, data)

        def regrow() -> None:
            for id, node, data in gone:
                forest.nodes[id] = node
                items[id] = data
            forest.place(top, *place)

        self._note(regrow, -weight)

    def move(self, tree: Object, id: str, parent: str, before: str | None) -> None:
        """Move an item and all below it within its tree."""
        _, forest = parts(tree)
        place = forest.lift(id)
        forest.place(id, parent, before)
        self._note(partial(_replace, forest, id, *place), 0)

    def _put(self, holder: Object, key: str, value: Value) -> None:
        if key in holder:
            old = holder[key]
            holder[key] = value
            self._note(partial(holder.__setitem__, key, old), weigh(value) - weigh(old))
        else:
            holder[key] = value
            self._note(partial(holder.__delitem__, key), _entry(key, value))

    def _note(self, undo: Callable[[], object], added: int) -> None:
        self._weight += added
        if self._journal is not None:
            self._journal.append((undo, added))


def is_tree(value: Value) -> bool:
    return isinstance(value, dict) and isinstance(value.get("tree"), Forest)


def parts(tree: Object) -> tuple[Object, Forest]:
    """The items and the order of a tree."""
    items, forest = tree["items"], tree["tree"]
    assert isinstance(items, dict)
    assert isinstance(forest, Forest)
    return items, forest


def check_items(items: Mapping[str, object], forest: Forest) -> None:
    """That a tree's items are what its order names, each an object without `id`; raises Malformed."""
    if len(items) != len(forest):
        raise Malformed(("items",), f"there are {len(items)} items, and the tree names {len(forest)}")
    strange = [id for id in items if id not in forest]
    if strange:
        raise Malformed(("items", min(strange)), "this item is not in the tree", of_key=True)
    wrong = [id for id, data in items.items() if not isinstance(data, dict) or "id" in data]
    if wrong:
        check_item(items[min(wrong)], ("items", min(wrong)))


def check_item(data: object, path: tuple[str, ...]) -> None:
    if not isinstance(data, dict):
        raise Malformed(path, "an item is an object")
    if "id" in data:
        raise Malformed((*path, "id"), "the id of an item is its key: leave `id` out", of_key=True)


def adopt_root(value: JsonObject) -> Object:
    """A whole state from plain JSON; raises Malformed."""
    return {key: adopt(value[key], (None, key)) for key in sorted(value)}


def adopt(value: Json, link: Link = None) -> Value:
    """A copy of plain JSON as the state holds it, its trees checked and indexed; raises Malformed."""
    if isinstance(value, list):
        return _copy_array(value)
    if not isinstance(value, dict):
        return value
    top: Object = {}
    work: list[tuple[JsonObject, Object, Link]] = [(value, top, link)]
    while work:
        source, copy, link = work.pop()
        items, tree = source.get("items"), source.get("tree")
        forest: Forest | None = None
        if isinstance(items, dict) and isinstance(tree, list):
            try:
                forest = Forest.grow(tree, items)
                check_items(items, forest)
            except Malformed as fault:
                raise Malformed(_path(link) + fault.path, fault.message, of_key=fault.of_key) from None
        for key in sorted(source):
            part = source[key]
            if isinstance(part, dict):
                child: Object = {}
                copy[key] = child
                work.append((part, child, (link, key)))
            elif isinstance(part, list):
                copy[key] = forest if forest is not None and key == "tree" else _copy_array(part)
            else:
                copy[key] = part
    return top


def plain(value: Value) -> Json:
    """A copy of a state's value as plain JSON, keys sorted."""
    if isinstance(value, Forest):
        return value.plain()
    if isinstance(value, list):
        return _copy_array(value)
    if not isinstance(value, dict):
        return value
    top: JsonObject = {}
    work: list[tuple[Object, JsonObject]] = [(value, top)]
    while work:
        source, copy = work.pop()
        for key in sorted(source):
            part = source[key]
            if isinstance(part, dict):
                child: JsonObject = {}
                copy[key] = child
                work.append((part, child))
            elif isinstance(part, Forest):
                copy[key] = part.plain()
            else:
                copy[key] = _copy_array(part) if isinstance(part, list) else part
    return top


def weigh(value: Value) -> int:
    """About how many bytes a value takes."""
    if not isinstance(value, dict | list):
        return _weigh_leaf(value)
    total = 0
    work: list[Object | list[Json] | JsonObject] = [value]
    while work:
        holder = work.pop()
        if isinstance(holder, dict):
            total += OBJECT_BYTES + len(holder) * ENTRY_BYTES + sum(map(len, holder))
        else:
            total += ARRAY_BYTES + len(holder) * SLOT_BYTES
        for part in holder.values() if isinstance(holder, dict) else holder:
            if isinstance(part, dict | list):
                work.append(part)
            else:
                total += _weigh_leaf(part)
    return total


def _weigh_leaf(value: Value) -> int:
    if isinstance(value, str):
        return STRING_BYTES + len(value)
    if isinstance(value, Forest):
        return OBJECT_BYTES + len(value) * NODE_BYTES
    return 0 if value is None or isinstance(value, bool) else NUMBER_BYTES


def _entry(key: str, value: Value) -> int:
    return ENTRY_BYTES + len(key) + weigh(value)


def _uproot(items: Object, forest: Forest, id: str) -> None:
    forest.lift(id)
    del forest.nodes[id]
    del items[id]


def _replace(forest: Forest, id: str, parent: str, before: str | None) -> None:
    forest.lift(id)
    forest.place(id, parent, before)


def _copy_array(array: list[Json]) -> list[Json]:
    top: list[Json] = []
    work: list[tuple[list[Json] | JsonObject, list[Json] | JsonObject]] = [(array, top)]

    def copied(part: Json) -> Json:
        if not isinstance(part, dict | list):
            return part
        empty: list[Json] | JsonObject = {} if isinstance(part, dict) else []
        work.append((part, empty))
        return empty

    while work:
        source, copy = work.pop()
        if isinstance(source, dict) and isinstance(copy, dict):
            for key in sorted(source):
                copy[key] = copied(source[key])
        elif isinstance(source, list) and isinstance(copy, list):
            copy.extend([copied(part) for part in source])
    return top


def _path(link: Link) -> tuple[str, ...]:
    keys: list[str] = []
    while link is not None:
        link, key = link
        keys.append(key)
    return tuple(reversed(keys))
