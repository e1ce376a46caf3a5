"""Partition states for a page: a bounded part of a value, and what differs between two values.

A state may be as large and as deep as its events made it; what leaves this module is neither.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec
import orjson

from unisono.display import shorten
from unisono.model.diff import MISSING, differences
from unisono.vocabulary import Json, JsonObject

NODES_MAX: Final = 20_000
CHARS_MAX: Final = 1_000_000
DEPTH_MAX: Final = 80
PARTS_MAX: Final = 2_000
"""Entries shown of one object or array."""

TEXT_CHARS_MAX: Final = 2_000
DIFFERENCES_MAX: Final = 500
SHOWN_CHARS_MAX: Final = 400
"""Of a value in a list of changes."""


class LeftOut(msgspec.Struct, frozen=True):
    """A place of which a view shows less than there is: `parts` more entries, or more of a text."""

    path: tuple[str, ...]
    parts: int
    what: str


class StateView(msgspec.Struct, frozen=True):
    """A part of a value, upper levels first, and where something was left out."""

    value: Json
    left_out: tuple[LeftOut, ...]


def bounded_view(value: Json) -> StateView:
    """At most NODES_MAX values and about CHARS_MAX characters, no deeper than DEPTH_MAX."""
    holder: list[Any] = [None]
    left_out: list[LeftOut] = []
    waiting: deque[tuple[Any, Any, Any, tuple[str, ...]]] = deque([(holder, 0, value, ())])
    nodes, chars = 0, 0
    while waiting:
        copy, place, part, path = waiting.popleft()
        nodes += 1
        if isinstance(part, str):
            shown = shorten(part, TEXT_CHARS_MAX) if chars < CHARS_MAX else ""
            if shown != part:
                left_out.append(LeftOut(path, len(part) - len(shown), "characters"))
            chars += len(shown)
            copy[place] = shown
            continue
        if not isinstance(part, dict | list):
            copy[place] = part
            continue
        room = 0 if len(path) >= DEPTH_MAX or chars >= CHARS_MAX else NODES_MAX - nodes - len(waiting)
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        some = keys[: max(0, min(room, PARTS_MAX))]
        if len(some) < len(keys):
            left_out.append(LeftOut(path, len(keys) - len(some), "entries"))
        made: Any = {} if isinstance(part, dict) else [None] * len(some)
        chars += sum(len(key) for key in some if isinstance(key, str))
        for key in some:
            if isinstance(part, dict):
                made[key] = None
            waiting.append((made, key, part[key], (*path, str(key))))
        copy[place] = made
    return StateView(holder[0], tuple(left_out))


def shown_value(value: Any) -> str | None:
    """A value in one short line of JSON; None where there is nothing."""
    if value is MISSING:
        return None
    try:
        text = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        return "(nested too deeply to show)"
    return shorten(text, SHOWN_CHARS_MAX)


def state_differences(before: Json, after: Json) -> tuple[list[JsonObject], bool]:
    """The differences of two states, DIFFERENCES_MAX at most, and whether there are more.

    The order of a tree counts as the parent of each item, and as the order of the items below one parent.
    """
    found: list[JsonObject] = []
    for each in differences(_by_parent(before), _by_parent(after)):
        path = each.path()
        if each.kind == "length" or (each.kind == "keys" and set(each.left) != set(each.right)):
            continue  # the entries that were added or removed follow by themselves
        if each.kind == "keys" and path and isinstance(path[-1], _OrderKey) and each.left != each.right:
            continue  # so do the items that were moved
        if len(found) == DIFFERENCES_MAX:
            return found, True
        left, right = (
            (None, None) if each.kind == "keys" else (shown_value(each.left), shown_value(each.right))
        )
        kind: str = "parent" if len(path) > 1 and isinstance(path[-2], _OrderKey) else each.kind
        found.append({"path": [str(step) for step in path], "kind": kind, "before": left, "after": right})
    return found, False


class _OrderKey(str):
    """The key of a tree's order, equal to the plain one: a difference below it is one of an item's place."""

    __slots__ = ()


def _by_parent(value: Any) -> Any:
    """A copy of the objects of a state in which the `tree` of each tree is an object of parents."""
    top: list[Any] = [None]
    waiting: list[tuple[Any, Any, Any]] = [(top, 0, value)]
    while waiting:
        copy, place, part = waiting.pop()
        if not isinstance(part, dict):
            copy[place] = part
            continue
        is_tree = isinstance(part.get("items"), dict) and isinstance(part.get("tree"), list)
        made: dict[str, Any] = {}
        for key, each in part.items():
            if key == "tree" and is_tree:
                made[_OrderKey(key)] = parents(each)
            else:
                made[key] = None
                waiting.append((made, key, each))
        copy[place] = made
    return top[0]


def parents(tree: list[Any]) -> dict[str, str]:
    """item → the item above it, in the order in which the tree is drawn; empty at the top."""
    found: dict[str, str] = {}
    waiting: list[tuple[str, Any]] = [("", node) for node in reversed(tree)]
    while waiting:
        above, node = waiting.pop()
        if isinstance(node, dict) and isinstance(node.get("id"), str):
            found[node["id"]] = above
            children = node.get("children")
            if isinstance(children, list):
                waiting += [(node["id"], child) for child in reversed(children)]
    return found
