"""The seven tree actions as they come in: the shape of each payload, read once into a typed action.

Reading looks at the event alone. Keys it does not know are the application's and are let be. `null` means the default
where there is one: for `options` as a whole, and in it for `replace`, `parent` and `position`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, TypeAlias

import msgspec

from unisono.model.forest import ROOT
from unisono.vocabulary import FieldError, Json, JsonObject

ACTIONS = ("set", "unset", "init", "treePush", "treeDelete", "treeUpdate", "treeMove")

TARGET_SEGMENTS_MAX = 64
"""As deep as a message may nest (LIM-06): no chain of short events builds a state too deep to encode."""

TARGETS_CACHED = 1_024
TARGET_CHARS_CACHED = 200
"""Targets whose segments are kept: events have the same few again and again."""


class Position(msgspec.Struct, frozen=True):
    """A place among siblings; `sibling` is named for `after` and `before` only."""

    side: Literal["first", "last", "after", "before"]
    sibling: str = ""


_FIRST: Final = Position("first")
_LAST: Final = Position("last")


class Set(msgspec.Struct, frozen=True):
    target: tuple[str, ...]
    value: Json
    replace: bool


class Unset(msgspec.Struct, frozen=True):
    target: tuple[str, ...]


class Init(msgspec.Struct, frozen=True):
    value: JsonObject


class TreePush(msgspec.Struct, frozen=True):
    target: tuple[str, ...]
    id: str
    data: JsonObject
    parent: str
    position: Position


class TreeDelete(msgspec.Struct, frozen=True):
    target: tuple[str, ...]
    id: str


class TreeUpdate(msgspec.Struct, frozen=True):
    target: tuple[str, ...]
    id: str
    data: JsonObject
    replace: bool


class TreeMove(msgspec.Struct, frozen=True):
    target: tuple[str, ...]
    id: str
    parent: str
    position: Position


Action: TypeAlias = Set | Unset | Init | TreePush | TreeDelete | TreeUpdate | TreeMove


def read(event: JsonObject, accepted: tuple[str, ...] = ACTIONS) -> Action | list[FieldError]:
    """The action an event asks for, or everything wrong with its shape, in a fixed order."""
    kind = event.get("type")
    if not isinstance(kind, str) or kind not in accepted:
        return [FieldError("event.type", f"must be one of {', '.join(accepted)}")]
    payload = event.get("payload")
    if not isinstance(payload, dict):
        return [FieldError("event.payload", "must be an object")]
    reader = _Reader(payload)
    action = _READERS[kind](reader)
    return reader.errors or action


def split_target(target: Json) -> tuple[str, ...] | str:
    """The segments of a dot path, or what is wrong with it."""
    if not isinstance(target, str) or not target:
        return "must be a non-empty dot path such as `explorer` or `settings.theme`"
    return _segments(target) if len(target) <= TARGET_CHARS_CACHED else _segments.__wrapped__(target)


@lru_cache(maxsize=TARGETS_CACHED)
def _segments(target: str) -> tuple[str, ...] | str:
    if target.count(".") >= TARGET_SEGMENTS_MAX:
        return f"must have at most {TARGET_SEGMENTS_MAX} segments"
    segments = tuple(target.split("."))
    if "" in segments:
        return "must have no empty segment: no dot at either end, no two dots together"
    return segments


class _Reader:
    """Takes fields out of one payload and keeps what is wrong with them."""

    def __init__(self, payload: JsonObject) -> None:
        self.errors: list[FieldError] = []
        self._payload = payload
        self._given: JsonObject | None = None

    def wrong(self, field: str, message: str) -> None:
        self.errors.append(FieldError(f"event.payload.{field}", message))

    def target(self) -> tuple[str, ...]:
        segments = split_target(self._payload.get("target"))
        if isinstance(segments, str):
            self.wrong("target", segments)
            return ()
        return segments

    def value(self) -> Json:
        if "value" not in self._payload:
            self.wrong("value", "is missing")
        return self._payload.get("value")

    def object_value(self) -> JsonObject:
        value = self._payload.get("value")
        if isinstance(value, dict):
            return value
        self.wrong("value", "must be an object")
        return {}

    def options(self) -> JsonObject:
        if self._given is None:
            given = self._payload.get("options")
            if given is not None and not isinstance(given, dict):
                self.wrong("options", "must be an object")
            self._given = given if isinstance(given, dict) else {}
        return self._given

    def option(self, name: str, default: Json) -> Json:
        given = self.options().get(name)
        return default if given is None else given

    def item_id(self, id: Json, field: str) -> str:
        if not isinstance(id, str) or not id:
            self.wrong(field, "must be a non-empty string")
        elif id == ROOT:
            self.wrong(field, f"{ROOT!r} is the place above all items, not an item id")
        return id if isinstance(id, str) else ""

    def option_id(self) -> str:
        known = len(self.errors)
        options = self.options()
        return "" if len(self.errors) > known else self.item_id(options.get("id"), "options.id")

    def replace(self) -> bool:
        replace = self.option("replace", False)
        if not isinstance(replace, bool):
            self.wrong("options.replace", "must be true or false")
        return replace is True

    def parent(self) -> str:
        parent = self.option("parent", ROOT)
        if not isinstance(parent, str) or not parent:
            self.wrong("options.parent", f"must be an item id, or {ROOT!r}")
            return ROOT
        return parent

    def position(self) -> Position:
        match self.option("position", "first"):
            case "first":
                return _FIRST
            case "last":
                return _LAST
            case {"after": id, **rest} if not rest:
                return Position("after", self.item_id(id, "options.position.after"))
            case {"before": id, **rest} if not rest:
                return Position("before", self.item_id(id, "options.position.before"))
        self.wrong("options.position", 'must be "first", "last", {"after": id} or {"before": id}')
        return _FIRST


def _set(reader: _Reader) -> Set:
    action = Set(reader.target(), reader.value(), reader.replace())
    if isinstance(action.value, list) and not action.replace:
        reader.wrong("value", "an array is set only with options.replace true")
    return action


def _unset(reader: _Reader) -> Unset:
    return Unset(reader.target())


def _init(reader: _Reader) -> Init:
    return Init(_without_own_ids(reader.object_value()))


def _push(reader: _Reader) -> TreePush:
    target = reader.target()
    known = len(reader.errors)
    value = reader.object_value()
    id = "" if len(reader.errors) > known else reader.item_id(value.get("id"), "value.id")
    return TreePush(target, id, _without_id(value), reader.parent(), reader.position())


def _delete(reader: _Reader) -> TreeDelete:
    return TreeDelete(reader.target(), reader.option_id())


def _update(reader: _Reader) -> TreeUpdate:
    target, value = reader.target(), reader.object_value()
    return TreeUpdate(target, reader.option_id(), _without_id(value), reader.replace())


def _move(reader: _Reader) -> TreeMove:
    return TreeMove(reader.target(), reader.option_id(), reader.parent(), reader.position())


def _without_own_ids(state: JsonObject) -> JsonObject:
    """A state whose trees hold items that may carry their key as their `id`, without those ids (TREE-03)."""
    top: JsonObject = {}
    work: list[tuple[JsonObject, JsonObject]] = [(state, top)]
    while work:
        source, copy = work.pop()
        tree = source is not state and isinstance(source.get("tree"), list)
        for key, part in source.items():
            if not isinstance(part, dict):
                copy[key] = part
                continue
            bare = (
                {id: _without_own_id(id, data) for id, data in part.items()}
                if tree and key == "items"
                else part
            )
            child: JsonObject = {}
            copy[key] = child
            work.append((bare, child))
    return top


def _without_own_id(id: str, data: Json) -> Json:
    return _without_id(data) if isinstance(data, dict) and data.get("id") == id else data


def _without_id(value: JsonObject) -> JsonObject:
    return {key: part for key, part in value.items() if key != "id"}


_READERS: dict[str, Callable[[_Reader], Action]] = {
    "set": _set,
    "unset": _unset,
    "init": _init,
    "treePush": _push,
    "treeDelete": _delete,
    "treeUpdate": _update,
    "treeMove": _move,
}
