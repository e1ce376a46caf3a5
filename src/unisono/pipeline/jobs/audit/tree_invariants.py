"""Checks that a partition's state is well formed: the invariants of its trees (TREE-10), link by link."""

from __future__ import annotations

from collections.abc import Iterator

from unisono.display import shorten_repr
from unisono.model.forest import ROOT, Forest, Malformed
from unisono.model.pack import unpack
from unisono.model.partition import PartitionState
from unisono.model.tree_state import Object, Value, check_items

NAME_CHARS_MAX = 60


def stored_fault(state: bytes) -> str | None:
    """The fault of a state in a snapshot; loading it checks every tree."""
    try:
        PartitionState.load(unpack(state))
    except Malformed as fault:
        return f"at {_shorten('.'.join(fault.path))}: {fault.message}"
    except (ValueError, TypeError) as error:
        return f"it cannot be loaded: {error}"
    return None


def fault(state: PartitionState) -> str | None:
    """The fault of a state in memory: each id once, each node linked both ways and reached, no cycle."""
    for path, tree in _trees(state.tree.root):
        forest, items = tree["tree"], tree["items"]
        assert isinstance(forest, Forest)
        problem = _link_fault(forest)
        if problem is None and not isinstance(items, dict):
            problem = "`items` is no object"
        elif problem is None and isinstance(items, dict):
            try:
                check_items(items, forest)
            except Malformed as malformed:
                problem = malformed.message
        if problem is not None:
            return f"at {_shorten(path)}: {problem}"
    return None


def _trees(root: Object) -> Iterator[tuple[str, dict[str, Value]]]:
    waiting: list[tuple[str, dict[str, Value]]] = [("", root)]
    while waiting:
        path, holder = waiting.pop()
        if isinstance(holder.get("tree"), Forest):
            yield path, holder
        for key, part in holder.items():
            if isinstance(part, dict):
                waiting.append((f"{path}.{key}" if path else key, part))


def _link_fault(forest: Forest) -> str | None:
    """Walk down from the root; a node met twice is a cycle or has two parents, one never met is detached."""
    nodes, met = forest.nodes, {ROOT}
    waiting = [ROOT]
    while waiting:
        parent = waiting.pop()
        before, id = None, nodes[parent].first
        while id is not None:
            node = nodes.get(id)
            if node is None:
                return f"{_shorten(id)} is linked and not in the tree"
            if id in met:
                return f"{_shorten(id)} is reached twice"
            if node.parent != parent or node.before != before:
                return f"{_shorten(id)} is not linked both ways"
            met.add(id)
            waiting.append(id)
            before, id = id, node.after
        if nodes[parent].last != before:
            return f"the last child of {_shorten(parent)} is not the last in its order"
    if len(met) != len(nodes):
        return f"{_shorten(min(nodes.keys() - met))} is reached from nowhere"
    return None


def _shorten(text: str) -> str:
    return shorten_repr(text, NAME_CHARS_MAX)
