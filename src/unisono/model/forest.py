"""The order of a tree: who is whose child, and in which place.

A forest contains ids only; the items themselves are beside it, under `items`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import msgspec

from unisono.display import shorten_repr
from unisono.model.values import OBJECT_BYTES
from unisono.vocabulary import Json

NODE_BYTES = 140
"""Roughly what CPython 3.11 takes for one node."""

ID_CHARS_MAX = 60
"""Of an id in a message."""

ROOT = "_root"
"""The name of the place above all items; never an item's own id (TREE-13)."""


class Malformed(ValueError):
    """Something that claims to be a tree and is not one.

    `path` leads from the value looked at to the fault. `of_key` says that the last key of the path is what is
    wrong, rather than the value under it.
    """

    def __init__(self, path: tuple[str, ...], message: str, *, of_key: bool = False) -> None:
        super().__init__(message)
        self.path = path
        self.message = message
        self.of_key = of_key


class ForestNode(msgspec.Struct, gc=False):
    """The links of one id.

    Neighbours are named, not referenced: a forest has no reference cycles, so a state that is let go is freed
    at once, and the garbage collector has nothing to walk in it.
    """

    parent: str | None = None
    before: str | None = None
    after: str | None = None
    first: str | None = None
    last: str | None = None


class Forest:
    """Ordered trees below one root, with each id once.

    Always true: `nodes` holds `ROOT`; every other node is linked below exactly one parent, between the
    siblings it names, and is reached from the root. Only between `add` and `place`, or between `lift` and
    `place`, does one node hang free.

    Placing, lifting and looking up cost the same at any size and depth; nothing here recurses (TREE-12).
    """

    __slots__ = ("nodes",)

    def __init__(self) -> None:
        self.nodes: dict[str, ForestNode] = {ROOT: ForestNode()}

    @classmethod
    def grow(cls, tree: list[Json], ids: Container[str]) -> Forest:
        """The forest that `[{id, children: […]}, …]` describes, its ids all in `ids`; raises Malformed."""
        forest = cls()
        nodes = forest.nodes
        pending: list[tuple[str, list[Json]]] = [(ROOT, tree)]
        while pending:
            parent, children = pending.pop()
            for child in children:
                id, below = _parts(child)
                if id == ROOT:
                    raise Malformed(("tree",), f"{ROOT!r} is not an item id")
                if id in nodes:
                    raise Malformed(("tree",), f"{shorten_repr(id, ID_CHARS_MAX)} is in the tree twice")
                if id not in ids:
                    raise Malformed(
                        ("tree",), f"{shorten_repr(id, ID_CHARS_MAX)} is in the tree and not among the items"
                    )
                forest.add(id)
                forest.place(id, parent, None)
                if below:
                    pending.append((id, below))
        return forest

    def __len__(self) -> int:
        return len(self.nodes) - 1

    def __contains__(self, id: object) -> bool:
        return id in self.nodes and id != ROOT

    @property
    def ids(self) -> Iterator[str]:
        return (id for id in self.nodes if id != ROOT)

    @property
    def weight(self) -> int:
        return OBJECT_BYTES + len(self) * NODE_BYTES

    def copy(self) -> Forest:
        """The same order, to be changed without changing this one."""
        copy = Forest()
        copy.nodes = {
            id: ForestNode(node.parent, node.before, node.after, node.first, node.last)
            for id, node in self.nodes.items()
        }
        return copy

    def add(self, id: str) -> None:
        self.nodes[id] = ForestNode()

    def place(self, id: str, parent: str, before: str | None) -> None:
        """Link a free node below `parent`, just before the sibling `before`, or last."""
        nodes = self.nodes
        node, above = nodes[id], nodes[parent]
        node.parent, node.after = parent, before
        if before is None:
            node.before, above.last = above.last, id
        else:
            right = nodes[before]
            node.before, right.before = right.before, id
        if node.before is None:
            above.first = id
        else:
            nodes[node.before].after = id

    def lift(self, id: str) -> tuple[str, str | None]:
        """Free a node, with all that hangs below it, and tell the place it had, as `place` takes it."""
        nodes = self.nodes
        node = nodes[id]
        assert node.parent is not None, "the root is never lifted"
        above = nodes[node.parent]
        if node.before is None:
            above.first = node.after
        else:
            nodes[node.before].after = node.after
        if node.after is None:
            above.last = node.before
        else:
            nodes[node.after].before = node.before
        return node.parent, node.after

    def within(self, top: str) -> Iterator[str]:
        """`top` and everything below it, parents before children, siblings in order."""
        nodes = self.nodes
        id = top
        while True:
            yield id
            down = nodes[id].first
            if down is not None:
                id = down
                continue
            while id != top:
                node = nodes[id]
                if node.after is not None:
                    id = node.after
                    break
                assert node.parent is not None
                id = node.parent
            if id == top:
                return

    def holds(self, top: str, id: str) -> bool:
        """Whether `id` is `top` or lies below it.

        Climbs from `id` for no more steps than there are nodes below `top`: one that lies there has no longer way
        up. So it costs the smaller of the two, and moving a leaf into a deep place is as cheap as moving a
        large subtree into a shallow one.
        """
        climbing: str | None = id
        for _ in self.within(top):
            if climbing == top:
                return True
            if climbing is None:
                return False
            climbing = self.nodes[climbing].parent
        return False

    def plain(self) -> list[Json]:
        """The forest as `[{id, children: […]}, …]`."""
        nodes = self.nodes
        top: list[Json] = []
        here = top
        above: list[list[Json]] = []
        id = nodes[ROOT].first
        while id is not None:
            children: list[Json] = []
            here.append({"children": children, "id": id})
            node = nodes[id]
            if node.first is not None:
                above.append(here)
                here, id = children, node.first
                continue
            while node.after is None and above:
                assert node.parent is not None
                here, node = above.pop(), nodes[node.parent]
            id = node.after
        return top


def _parts(node: Json) -> tuple[str, list[Json]]:
    if not isinstance(node, dict) or node.keys() != {"id", "children"}:
        raise Malformed(("tree",), "each node of a tree is an object of `id` and `children`, nothing else")
    id, children = node["id"], node["children"]
    if not isinstance(id, str) or not id:
        raise Malformed(("tree",), "the `id` of a node is a non-empty string")
    if not isinstance(children, list):
        raise Malformed(("tree",), f"the `children` of {shorten_repr(id, ID_CHARS_MAX)} must be an array")
    return id, children
