"""What changed between two states of a partition: for people, and as a list of operations.

Operations are those of RFC 6902 on places named by JSON Pointers, with `old` beside them, and three of their own for
trees, where positions in nested arrays would tell nobody anything: `treePush`, `treeMove` and `treeDelete`, which
name a node by its id and its place by its parent and the sibling before it. Done one after the other they turn the
first state into the second. An array that is no tree is one value. The order of an object's keys does not count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from unisono.display import escape_controls, shorten
from unisono.pipeline.deep_json import text
from unisono.vocabulary import Json, JsonObject

ROOT: Final = "_root"
VALUE_CHARS_MAX: Final = 100
"""Of a value, in a line for people."""


class StateChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation. `parent`, `after` (null: first) and `old_parent` are of nodes; `below` went with a node."""

    op: str
    path: str
    value: Json | UnsetType = UNSET
    old: Json | UnsetType = UNSET
    id: str | UnsetType = UNSET
    parent: str | UnsetType = UNSET
    after: str | UnsetType | None = UNSET
    old_parent: str | UnsetType = UNSET
    below: int | UnsetType = UNSET

    def operation(self) -> JsonObject:
        """As it is written in JSON."""
        fields = msgspec.structs.asdict(self)
        return {key: value for key, value in fields.items() if value is not UNSET}

    def line(self) -> str:
        """For a person."""
        return escape_controls(self._description())

    def _description(self) -> str:
        place = ".".join(_key_text(key) for key in _keys(self.path))
        match self.op:
            case "add":
                return f"+ {place}  {_value_text(self.value)}"
            case "remove":
                return f"- {place}  {_value_text(self.old)}"
            case "replace":
                return f"~ {place}  {_value_text(self.old)} → {_value_text(self.value)}"
            case "treePush":
                return f"+ {place}  {self.id} {self._where()}  {_value_text(self.value)}"
            case "treeMove":
                return f"> {place}  {self.id} from {_parent(self.old_parent)} to {self._where()}"
        more = f" and {self.below} below it" if self.below else ""
        return f"- {place}  {self.id}{more}  {_value_text(self.old)}"

    def _where(self) -> str:
        return f"{_parent(self.parent)}, {'first' if self.after is None else f'after {self.after}'}"


def changes(old: JsonObject, new: JsonObject) -> Iterator[StateChange]:
    """What turns one dumped state (`{"tree": …, "data": …}`) into another."""
    waiting: list[tuple[str, JsonObject, JsonObject, bool]] = []
    for half in ("data", "tree"):
        before, after = old.get(half), new.get(half)
        assert isinstance(before, dict)
        assert isinstance(after, dict)
        waiting.append((f"/{half}", before, after, half == "tree"))
    while waiting:
        path, before, after, trees = waiting.pop()
        # A tree's own root is no tree, whatever its keys are called.
        if trees and path.count("/") > 1 and _is_tree(before) and _is_tree(after):
            yield from _of_tree(path, before, after, waiting)
            continue
        yield from _of_keys(path, before, after, trees, waiting)


def _of_keys(
    path: str,
    before: JsonObject,
    after: JsonObject,
    trees: bool,
    waiting: list[tuple[str, JsonObject, JsonObject, bool]],
) -> Iterator[StateChange]:
    deeper = []
    for key in sorted({**before, **after}):
        place = f"{path}/{_escaped(key)}"
        if key not in after:
            yield StateChange("remove", place, old=before[key])
        elif key not in before:
            yield StateChange("add", place, value=after[key])
        else:
            was, now = before[key], after[key]
            if isinstance(was, dict) and isinstance(now, dict):
                deeper.append((place, was, now, trees))
            elif not _same(was, now):
                yield StateChange("replace", place, value=now, old=was)
    waiting += reversed(deeper)


def _of_tree(
    path: str,
    before: JsonObject,
    after: JsonObject,
    waiting: list[tuple[str, JsonObject, JsonObject, bool]],
) -> Iterator[StateChange]:
    was, now = TreeOrder(before["tree"]), TreeOrder(after["tree"])
    items, new_items = before["items"], after["items"]
    assert isinstance(items, dict)
    assert isinstance(new_items, dict)
    stay = _staying(was, now)
    for id, parent in now.parents.items():
        if id not in was.parents:
            yield StateChange("treePush", path, new_items[id], id=id, parent=parent, after=now.before(id))
        elif id not in stay:
            yield StateChange(
                "treeMove", path, id=id, parent=parent, after=now.before(id), old_parent=was.parents[id]
            )
    gone = was.parents.keys() - now.parents.keys()
    for id in was.parents:
        if id in gone and was.parents[id] not in gone:
            below = sum(1 for _ in was.within(id, gone)) - 1
            yield StateChange("treeDelete", path, old=items[id], id=id, below=below)
    both = [id for id in sorted(items) if id in new_items]
    nodes = {"items": {id: items[id] for id in both}}, {"items": {id: new_items[id] for id in both}}
    beside = [
        {key: value for key, value in tree.items() if key not in ("items", "tree")}
        for tree in (before, after)
    ]
    waiting.append((path, {**beside[0], **nodes[0]}, {**beside[1], **nodes[1]}, True))


class TreeOrder:
    """The order of a tree: parents before children, siblings in order."""

    def __init__(self, tree: Json) -> None:
        assert isinstance(tree, list)
        self.parents: dict[str, str] = {}
        self.children: dict[str, list[str]] = {}
        self._places: dict[str, int] = {}
        waiting: list[tuple[str, Json]] = [(ROOT, node) for node in reversed(tree)]
        while waiting:
            parent, node = waiting.pop()
            assert isinstance(node, dict)
            id, below = node["id"], node["children"]
            assert isinstance(id, str)
            assert isinstance(below, list)
            siblings = self.children.setdefault(parent, [])
            self._places[id] = len(siblings)
            siblings.append(id)
            self.parents[id] = parent
            waiting += [(id, child) for child in reversed(below)]

    def before(self, id: str) -> str | None:
        """The sibling before a node; None when it is the first."""
        place = self._places[id]
        return self.children[self.parents[id]][place - 1] if place else None

    def within(self, top: str, some: Container[str]) -> Iterator[str]:
        """A node and what hangs below it by nodes that are among `some`."""
        waiting = [top]
        while waiting:
            id = waiting.pop()
            yield id
            waiting += [child for child in self.children.get(id, ()) if child in some]


def _staying(was: TreeOrder, now: TreeOrder) -> set[str]:
    """Nodes that need not be moved: below the same parent, and as many of them as stand in the same order."""
    stay: set[str] = set()
    for parent, children in now.children.items():
        places = {id: place for place, id in enumerate(was.children.get(parent, ()))}
        common = [id for id in children if id in places]
        stay.update(common[number] for number in _rising([places[id] for id in common]))
    return stay


def _rising(values: list[int]) -> list[int]:
    """The places of a longest rising part of distinct numbers."""
    tails: list[int] = []
    ends: list[int] = []
    links: list[int] = []
    for place, value in enumerate(values):
        length = bisect_left(tails, value)
        links.append(ends[length - 1] if length else -1)
        if length == len(tails):
            tails.append(value)
            ends.append(place)
        else:
            tails[length], ends[length] = value, place
    found: list[int] = []
    place = ends[-1] if ends else -1
    while place >= 0:
        found.append(place)
        place = links[place]
    return found


def _is_tree(value: JsonObject) -> bool:
    return isinstance(value.get("items"), dict) and isinstance(value.get("tree"), list)


def _same(one: Json, other: Json) -> bool:
    return text(one, sort_keys=True) == text(other, sort_keys=True)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _keys(path: str) -> list[str]:
    return [key.replace("~1", "/").replace("~0", "~") for key in path.split("/")[1:]]


def _key_text(key: str) -> str:
    return key if key and "." not in key and key.isprintable() else text(key)


def _value_text(value: Json | UnsetType) -> str:
    if value is UNSET:
        return ""
    return shorten(text(value), VALUE_CHARS_MAX)


def _parent(id: str | UnsetType) -> str:
    return "the top" if id == ROOT else f"below {id}"
