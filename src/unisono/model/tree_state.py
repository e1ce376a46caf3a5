"""The state of one partition under the tree actions: one JSON object, with its trees indexed.

In memory the state is plain JSON but for one thing: where an object is a tree, a Forest stands in the place
of its `tree` array. An object is a tree when it is reached from the root through object keys alone, is not
the root itself, and holds `items` as an object and `tree` as an array. Arrays are opaque: nothing addresses
into them, so what is in them is data.

The value of an event is put in as it is and may be part of many partitions at once (LIM-07). Such a value is closed:
nobody changes anything in it. Where an action leads into a closed object, a copy of that one object takes its place,
an `Object`, which belongs to this state alone and whose own parts are still closed. So a value costs its bytes once,
when it comes, and one level of it where it is touched for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import orjson

from unisono.model.forest import NODE_BYTES, Forest, Malformed
from unisono.model.values import LIGHT_BYTES, heavy, text_of, weigh, weigh_entries, weigh_entry
from unisono.vocabulary import Json, JsonObject

Value: TypeAlias = "bool | int | float | str | list[Json] | Forest | dict[str, Value] | None"
Link: TypeAlias = "tuple[Link, str] | None"
"""A path as a link to its parent's path, so that deep values do not pay for the paths of all their parts."""

OPENED_AT_ONCE_MAX: Final = 100
"""Parts of a whole state that are looked at one by one, so that each large one remembers its weight."""

_SORTED: Final = orjson.OPT_SORT_KEYS
_EMPTY: Final = Forest()
"""The order of every closed tree without items; a tree that is opened has its own."""


class Object(dict[str, Value]):
    """An object that belongs to one state and is changed in place; any other dict is closed."""

    __slots__ = ()


class TreeState:
    """What a partition holds; changed in place, undone exactly.

    Always true: every tree in it is well formed (TREE-10), nothing that was given to it is ever changed by it, what
    it gave out is shared with nobody, and `weight` equals the weight of a fresh load of its dump. The order of object
    keys is no part of the state: `dump` sorts them, so equal states dump to equal bytes however they came about.

    What is given to it is its own from then on, and whoever gave it does not change it any more.

    Changes are recorded for undoing from the first `mark` until `settle`, and not otherwise.
    """

    __slots__ = ("_journal", "_root", "_settled", "_weight")

    def __init__(self, value: JsonObject | None = None) -> None:
        self._root = adopt_root(value or {})
        self._weight = weigh((self._root,))
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
        try:
            dumped: Json = orjson.loads(orjson.dumps(self._root, _plain_forest, _SORTED))
        except (TypeError, ValueError, RecursionError):
            return plain(self._root)  # deeper than the encoder goes
        return dumped

    def weight(self) -> int:
        return self._weight

    def trail(self, path: Sequence[str]) -> list[Object]:
        """The objects along a path, the root first, up to where it ends, is missing, or is no object."""
        objects = [self._root]
        for key in path:
            if not isinstance(objects[-1].get(key), dict):
                break
            objects.append(self.open(objects[-1], key))
        return objects

    def open(self, holder: Object, key: str) -> Object:
        """The object at a key, made this state's own; that is no change of the state, and never undone."""
        found = holder[key]
        if not isinstance(found, Object):
            assert isinstance(found, dict)
            found = holder[key] = _opened(found)
        return found

    def restart(self, value: Object, weight: int) -> None:
        """Replace everything; `value` is adopted, and weighs so much."""
        before, self._root = self._root, Object(value)
        self._note(partial(setattr, self, "_root", before), weight - self._weight)

    def merge(self, holder: Object, changes: Mapping[str, Value]) -> None:
        """Set each key of an object of this state; `changes` are adopted, and what is a tree afterwards is one."""
        replaced = {key: holder[key] for key in changes if key in holder}
        added = weigh_entries(changes) - weigh_entries(replaced)
        before = None if holder is self._root else holder.get("tree")
        holder.update(changes)
        self._note(partial(_unmerge, holder, list(changes), replaced), added)
        if holder is not self._root and ("tree" in changes or "items" in changes):
            self._index(holder, before)

    def _index(self, holder: Object, before: Value) -> None:
        """Let an object whose `items` or `tree` were set be a tree of its own, if it is one."""
        items, tree = holder.get("items"), holder.get("tree")
        if not isinstance(items, dict) or not isinstance(tree, list | Forest):
            return
        if isinstance(tree, list):
            forest = Forest.grow(tree, items)
            holder["tree"] = forest
            self._note(_nothing, forest.weight - weigh((tree,)))
        elif tree is not before:
            holder["tree"] = tree.copy()
        self.open(holder, "items")

    def drop(self, holder: Object, key: str) -> None:
        """Remove one key of an object of this state."""
        value = holder.pop(key)
        self._note(partial(holder.__setitem__, key, value), -weigh_entry(key, value))

    def plant(self, tree: Object, id: str, data: Value, parent: str, before: str | None) -> None:
        """Add an item to a tree; `data` is adopted."""
        items, forest = parts(tree)
        items[id] = data
        forest.add(id)
        forest.place(id, parent, before)
        self._note(partial(_uproot, items, forest, id), NODE_BYTES + weigh_entry(id, data))

    def prune(self, tree: Object, top: str) -> None:
        """Remove an item and all below it from a tree."""
        items, forest = parts(tree)
        gone = [(id, forest.nodes[id], items[id]) for id in forest.within(top)]
        place = forest.lift(top)
        for id, _, _ in gone:
            del forest.nodes[id]
            del items[id]
        weight = NODE_BYTES * len(gone) + weigh_entries({id: data for id, _, data in gone})

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

    def _note(self, undo: Callable[[], object], added: int) -> None:
        self._weight += added
        if self._journal is not None:
            self._journal.append((undo, added))


class ReplayedTreeState(TreeState):
    """The same state for a fold, which never undoes and asks no weight: neither is kept, which halves the work."""

    __slots__ = ()

    def __init__(self, value: JsonObject | None = None) -> None:
        self._root = adopt_root(value or {})
        self._weight = 0
        self._journal = None
        self._settled = 0

    def mark(self) -> int:
        raise TypeError("a replayed state cannot be undone")

    def weight(self) -> int:
        raise TypeError("a replayed state has no weight")

    def restart(self, value: Object, weight: int) -> None:  # noqa: ARG002
        self._root = Object(value)

    def merge(self, holder: Object, changes: Mapping[str, Value]) -> None:
        before = None if holder is self._root else holder.get("tree")
        holder.update(changes)
        if holder is not self._root and ("tree" in changes or "items" in changes):
            self._index(holder, before)

    def drop(self, holder: Object, key: str) -> None:
        del holder[key]

    def plant(self, tree: Object, id: str, data: Value, parent: str, before: str | None) -> None:
        items, forest = parts(tree)
        items[id] = data
        forest.add(id)
        forest.place(id, parent, before)

    def prune(self, tree: Object, top: str) -> None:
        items, forest = parts(tree)
        gone = list(forest.within(top))
        forest.lift(top)
        for id in gone:
            del forest.nodes[id]
            del items[id]

    def move(self, tree: Object, id: str, parent: str, before: str | None) -> None:
        _, forest = parts(tree)
        forest.lift(id)
        forest.place(id, parent, before)

    def _note(self, undo: Callable[[], object], added: int) -> None:
        """Nothing is undone."""


def is_tree(value: Value) -> bool:
    return isinstance(value, dict) and isinstance(value.get("tree"), Forest)


def parts(tree: Object) -> tuple[Object, Forest]:
    """The items and the order of a tree."""
    items, forest = tree["items"], tree["tree"]
    assert isinstance(items, Object), "a tree is opened whole"
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
    if len(value) <= OPENED_AT_ONCE_MAX:
        return Object({key: adopt(value[key], (None, key)) for key in sorted(value)})
    shared: Any = value
    return Object(_indexed(shared, None, root=True) if _claims_trees(text_of(value)) else shared)


def adopt(value: Json, link: Link = None) -> Value:
    """Plain JSON as a state holds it, closed, its trees checked and indexed; raises Malformed.

    Where there is no tree in it, it is the value itself. Otherwise the objects that lead to trees are copies.
    """
    if not isinstance(value, dict | list):
        return value
    text = text_of(value)
    if isinstance(value, dict) and _claims_trees(text):
        return heavy(_indexed(value, link))  # type: ignore[no-any-return]
    light = text is not None and len(text) <= LIGHT_BYTES
    return value if light else heavy(value)  # type: ignore[return-value]


def _claims_trees(text: bytes | None) -> bool:
    """Whether there may be a tree in a value of this text; False is certain."""
    return text is None or (b'"tree":' in text and b'"items":' in text)


def _indexed(value: Any, link: Link, *, root: bool = False) -> dict[str, Value]:
    """A copy of the objects that can be addressed, with an order in the place of the array of each tree."""
    top: dict[str, Value] = {}
    work: list[tuple[Any, dict[str, Value], Link]] = [(value, top, link)]
    while work:
        source, copy, link = work.pop()
        copy.update(source)
        if "tree" in source and (source is not value or not root):
            items, tree = source.get("items"), source["tree"]
            if isinstance(items, dict) and isinstance(tree, list):
                try:
                    copy["tree"] = _ordered(tree, items)
                except Malformed as fault:
                    raise Malformed(_path(link) + fault.path, fault.message, of_key=fault.of_key) from None
        inner = [key for key, part in source.items() if part and isinstance(part, dict)]
        for key in sorted(inner) if len(inner) > 1 else inner:
            child: dict[str, Value] = {}
            copy[key] = child
            work.append((source[key], child, (link, key)))
    return top


def _ordered(tree: list[Json], items: JsonObject) -> Forest:
    if not tree and not items:
        return _EMPTY
    forest = Forest.grow(tree, items)
    check_items(items, forest)
    return forest


def _opened(closed: dict[str, Value]) -> Object:
    """A copy of one closed object; what is in it stays closed, but for the parts of a tree."""
    opened = Object(closed)
    forest = opened.get("tree")
    if isinstance(forest, Forest):
        items = opened["items"]
        assert isinstance(items, dict)
        opened["tree"], opened["items"] = forest.copy(), Object(items)
    return opened


def _plain_forest(forest: object) -> list[Json]:
    if not isinstance(forest, Forest):
        raise TypeError("a state holds JSON and the order of its trees")
    return forest.plain()


def plain(value: Value) -> Json:
    """A copy of a state's value as plain JSON, keys sorted, however deep it is."""
    holder: list[Any] = [None]
    work: list[tuple[Any, Any, Any]] = [(holder, 0, value)]
    while work:
        copy, place, part = work.pop()
        made: Any
        if isinstance(part, Forest):
            made = part.plain()
        elif isinstance(part, list):
            made = [None] * len(part)
            work.extend((made, index, each) for index, each in enumerate(part))
        elif isinstance(part, dict):
            made = dict.fromkeys(sorted(part))
            work.extend((made, key, each) for key, each in part.items())
        else:
            made = part
        copy[place] = made
    return holder[0]  # type: ignore[no-any-return]


def _unmerge(holder: Object, keys: Sequence[str], replaced: Mapping[str, Value]) -> None:
    for key in keys:
        if key in replaced:
            holder[key] = replaced[key]
        else:
            del holder[key]


def _nothing() -> None:
    """The change before this one brings its own undoing."""


def _uproot(items: Object, forest: Forest, id: str) -> None:
    forest.lift(id)
    del forest.nodes[id]
    del items[id]


def _replace(forest: Forest, id: str, parent: str, before: str | None) -> None:
    forest.lift(id)
    forest.place(id, parent, before)


def _path(link: Link) -> tuple[str, ...]:
    keys: list[str] = []
    while link is not None:
        link, key = link
        keys.append(key)
    return tuple(reversed(keys))
