"""The tree actions once more, written from the rules alone: plain JSON, scanned and copied each time.

`Oracle.act` refuses or performs an event. A refusal is a list of fields; for a write that the rules for
writes around trees forbid (see `unisono.model.tree`) it is `[WRITE]`: the oracle only looks at the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WRITE = "a write around trees"
TARGET = "event.payload.target"
MISSING = object()


def clone(value: Any) -> Any:
    """A deep copy, at any depth."""
    box: list[Any] = [value]
    work: list[tuple[Any, Any]] = [(box, 0)]
    while work:
        holder, key = work.pop()
        part = holder[key]
        if isinstance(part, dict):
            holder[key] = part = dict(part)
            work += [(part, inner) for inner in part]
        elif isinstance(part, list):
            holder[key] = part = list(part)
            work += [(part, inner) for inner in range(len(part))]
    return box[0]


def same(one: Any, other: Any) -> bool:
    """Equality of JSON, at any depth."""
    work = [(one, other)]
    while work:
        a, b = work.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            work += [(a[key], b[key]) for key in a]
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            work += zip(a, b, strict=True)
        elif type(a) is not type(b) or a != b:
            return False
    return True


def trees(state: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every tree in a state with its path: any object below the root, reached by keys, of the right shape."""
    work: list[tuple[tuple[str, ...], Any]] = [((), state)]
    while work:
        path, value = work.pop()
        if isinstance(value, dict):
            if path and looks_like_tree(value):
                yield path, value
            work += [((*path, key), part) for key, part in value.items()]


def looks_like_tree(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("items"), dict)
        and isinstance(value.get("tree"), list)
    )


def well_formed(tree: Any) -> bool:
    """TREE-10, with the form of nodes and items."""
    seen: list[str] = []
    work = list(tree["tree"])
    while work:
        node = work.pop()
        if not isinstance(node, dict) or set(node) != {"id", "children"}:
            return False
        if not isinstance(node["id"], str) or not isinstance(node["children"], list):
            return False
        seen.append(node["id"])
        work += node["children"]
    return (
        len(seen) == len(set(seen))
        and set(seen) == set(tree["items"])
        and not {"", "_root"} & set(seen)
        and all(isinstance(data, dict) and "id" not in data for data in tree["items"].values())
    )


def find(tree: Any, id: str) -> Any:
    """The node of an id, the root's stand-in for `_root`, or None."""
    work = [{"id": "_root", "children": tree["tree"]}]
    while work:
        node = work.pop()
        if node["id"] == id:
            return node
        work += node["children"]
    return None


def ids_below(node: Any) -> list[str]:
    found, work = [], [node]
    while work:
        node = work.pop()
        found.append(node["id"])
        work += node["children"]
    return found


def without_own_ids(state: Any) -> Any:
    """A copy of a state without the ids that items of its trees carry and that equal their keys (TREE-03)."""
    state = clone(state)
    for _, tree in trees(state):
        for key, data in tree["items"].items():
            if isinstance(data, dict) and data.get("id") == key:
                del data["id"]
    return state


def without_id(value: Any) -> Any:
    return {key: part for key, part in value.items() if key != "id"}


class Oracle:
    def __init__(self, state: Any = None) -> None:
        self.state: Any = clone(state or {})

    def act(self, event: Any) -> list[str]:
        """Perform an event of the right shape, or say which fields are refused and change nothing."""
        before = self.state
        self.state = clone(before)
        act = getattr(self, "_" + event["type"])
        kept: list[tuple[str, ...]] = []
        given = event["payload"].get("options") or {}
        options = {name: value for name, value in given.items() if value is not None}
        refused: list[str] = act(event["payload"], options, kept)
        if not refused and not all(well_formed(tree) for _, tree in trees(self.state)):
            refused = [WRITE]
        if not refused:
            after = {path for path, _ in trees(self.state)}
            if any(path in kept and path not in after for path, _ in trees(before)):
                refused = [WRITE]
        if refused:
            self.state = before
        return refused

    def look(self, path: Any) -> Any:
        value = self.state
        for key in path:
            if not isinstance(value, dict) or key not in value:
                return MISSING
            value = value[key]
        return value

    def make(self, path: Any) -> Any:
        """The object at a path, made where it is missing; None when something else is in the way."""
        value = self.state
        for key in path:
            value = value.setdefault(key, {})
            if not isinstance(value, dict):
                return None
        return value

    # Each action appends to `kept` the paths where a tree, if there is one, must remain one.

    def _set(self, payload: Any, options: Any, kept: Any) -> list[str]:
        *above, last = path = payload["target"].split(".")
        holder = self.make(above)
        if holder is None:
            return [TARGET]
        kept += [tuple(path[:length]) for length in range(len(path))]
        value, there = clone(payload["value"]), holder.get(last)
        if isinstance(value, dict) and isinstance(there, dict) and not options.get("replace", False):
            kept.append(tuple(path))
            there.update(value)
        else:
            holder[last] = value
        return []

    def _unset(self, payload: Any, options: Any, kept: Any) -> list[str]:
        *above, last = payload["target"].split(".")
        kept += [tuple(above[:length]) for length in range(len(above) + 1)]
        holder = self.look(above)
        if isinstance(holder, dict):
            holder.pop(last, None)
        return []

    def _init(self, payload: Any, options: Any, kept: Any) -> list[str]:
        self.state = without_own_ids(payload["value"])
        return []

    def _treePush(self, payload: Any, options: Any, kept: Any) -> list[str]:  # noqa: N802
        path = payload["target"].split(".")
        tree = self.look(path)
        if tree is MISSING:
            tree = self.make(path)
        if not isinstance(tree, dict):
            return [TARGET]
        if not looks_like_tree(tree):
            if "items" in tree or "tree" in tree:
                return [TARGET]
            tree.update(items={}, tree=[])
        kept += [tuple(path[:length]) for length in range(len(path) + 1)]
        id = payload["value"]["id"]
        refused = ["event.payload.value.id"] if id in tree["items"] else []
        refused += self._place(tree, {"id": id, "children": []}, options, act=not refused)
        if not refused:
            tree["items"][id] = clone(without_id(payload["value"]))
        return refused

    def _treeDelete(self, payload: Any, options: Any, kept: Any) -> list[str]:  # noqa: N802
        tree, node = self._node(payload, options)
        if node is None:
            return [TARGET if tree is None else "event.payload.options.id"]
        for id in ids_below(node):
            del tree["items"][id]
        self._lift(tree, node)
        return []

    def _treeUpdate(self, payload: Any, options: Any, kept: Any) -> list[str]:  # noqa: N802
        tree, node = self._node(payload, options)
        if node is None:
            return [TARGET if tree is None else "event.payload.options.id"]
        value = clone(without_id(payload["value"]))
        if options.get("replace", False):
            tree["items"][options["id"]] = value
        else:
            kept.append((*payload["target"].split("."), "items", options["id"]))
            tree["items"][options["id"]].update(value)
        return []

    def _treeMove(self, payload: Any, options: Any, kept: Any) -> list[str]:  # noqa: N802
        tree, node = self._node(payload, options)
        if tree is None:
            return [TARGET]
        if node is None:
            return [
                "event.payload.options.id",
                *self._place(tree, {"id": "", "children": []}, options, act=False),
            ]
        parent = options.get("parent", "_root")
        if find(tree, parent) is None or parent in ids_below(node):
            return ["event.payload.options.parent"]
        self._lift(tree, node)
        return self._place(tree, node, options, act=True)

    def _node(self, payload: Any, options: Any) -> tuple[Any, Any]:
        tree = self.look(payload["target"].split("."))
        if not looks_like_tree(tree):
            return None, None
        return tree, find(tree, options["id"])

    def _place(self, tree: Any, node: Any, options: Any, *, act: bool) -> list[str]:
        parent = find(tree, options.get("parent", "_root"))
        if parent is None:
            return ["event.payload.options.parent"]
        siblings, position = parent["children"], options.get("position", "first")
        if isinstance(position, dict):
            ((side, sibling),) = position.items()
            at = [index for index, node in enumerate(siblings) if node["id"] == sibling]
            if not at:
                return [f"event.payload.options.position.{side}"]
            index = at[0] + (side == "after")
        else:
            index = 0 if position == "first" else len(siblings)
        if act:
            siblings.insert(index, node)
        return []

    def _lift(self, tree: Any, node: Any) -> None:
        work = [tree["tree"]]
        while work:
            siblings = work.pop()
            if any(child is node for child in siblings):
                siblings.remove(node)
                return
            work += [child["children"] for child in siblings]
