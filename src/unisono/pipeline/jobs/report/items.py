"""What an event edits, in Python; `sql/places.sql` has the same for DuckDB, much faster on many events.

An *item* is, within a partition:

- a tree action on a node (treePush, treeUpdate, treeMove, treeDelete): its target and the node's id;
- `set` and `unset`: their target; `init`: the partition as a whole;
- a canonical event whose data has an `id`: the schema's name up to its last dot, and that id, so that `note.added`
  and `note.edited` of one id are about one note. Canonical events without one name no item.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

import orjson

Item: TypeAlias = tuple[str, str, str]
"""Family, place and node."""

_TARGETED: Final = frozenset(("set", "unset", "treePush", "treeUpdate", "treeDelete", "treeMove"))
_BY_OPTION: Final = frozenset(("treeUpdate", "treeDelete", "treeMove"))
_WITH_ID: Final = ("data", "value", "options")
_LAST_PART: Final = re.compile(r"\.[^.]*\Z")

ODD_ITEM_TYPE: Final = "STRUCT(family VARCHAR, place VARCHAR, node VARCHAR)"


def item_of(kind: str | None, schema: str | None, event: bytes) -> Item | None:
    """What an event edits; None where it names no item."""
    if kind == "init":
        return "path", "", ""
    if kind is None or (kind != "event" and kind not in _TARGETED):
        return None
    try:
        payload = orjson.loads(event)["payload"]
        if kind == "event":
            place, node = _text(schema), _text(payload["data"]["id"])
            return None if place is None or node is None else ("event", _LAST_PART.sub("", place), node)
        place = _text(payload["target"])
        if not kind.startswith("tree"):
            return None if place is None else ("path", place, "")
        node = _text(payload["options" if kind in _BY_OPTION else "value"]["id"])
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return None  # damaged, or without one of these
    return None if place is None or node is None else ("tree", place, node)


def short_event(event: str) -> str:
    """A text that names what an event edits, and nothing else of it."""
    try:
        payload = orjson.loads(event)["payload"]
        named = {part: _only_id(payload[part]) for part in _WITH_ID if part in payload}
        if "target" in payload:
            named["target"] = payload["target"]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return "{}"
    return orjson.dumps({"payload": named}).decode()


def _only_id(part: Any) -> dict[str, Any]:
    return {"id": part["id"]} if isinstance(part, dict) and "id" in part else {}


def _text(value: Any) -> str | None:
    """A JSON value as a name: a string as it is, anything else by its JSON."""
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value).decode()


def odd_item(kind: str | None, schema: str | None, event: str) -> dict[str, str] | None:
    """`item_of`, called from SQL for what it does not name by itself."""
    found = item_of(kind, schema, event.encode())
    return None if found is None else dict(zip(("family", "place", "node"), found, strict=True))


def item_name(item: Item) -> str:
    """An item, for people."""
    _, place, node = item
    return f"{place} / {node}" if node else place or "(everything)"
