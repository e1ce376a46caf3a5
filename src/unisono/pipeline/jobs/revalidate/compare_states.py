"""Where two states differ, however deep they are."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from unisono.pipeline.jobs.revalidate.result import StateDifference
from unisono.vocabulary import Json, JsonObject

CHANGES_MAX: Final = 5
VALUE_CHARS_MAX: Final = 120
PATH_CHARS_MAX: Final = 200

Path: TypeAlias = "tuple[Path, str] | None"
"""A place by its way up, which costs the same at any depth: the place that holds it, and its key there."""

_MISSING: Final = object()


def changes(before: JsonObject, now: JsonObject, most: int = CHANGES_MAX) -> list[StateDifference]:
    """The first places, in the order of the states, where two states are not the same; at most `most`."""
    found: list[StateDifference] = []
    waiting: list[tuple[Path, object, object]] = [(None, before, now)]
    while waiting and len(found) < most:
        path, left, right = waiting.pop()
        if isinstance(left, dict) and isinstance(right, dict):
            keys = list(dict.fromkeys((*left, *right)))
            if list(left) != list(right) and left.keys() == right.keys():
                found.append(StateDifference(_named(path), "the same keys", "in another order"))
            waiting += [
                ((path, key), left.get(key, _MISSING), right.get(key, _MISSING)) for key in reversed(keys)
            ]
        elif isinstance(left, list) and isinstance(right, list):
            pairs = [
                (
                    (path, str(place)),
                    left[place] if place < len(left) else _MISSING,
                    right[place] if place < len(right) else _MISSING,
                )
                for place in range(max(len(left), len(right)))
            ]
            waiting += reversed(pairs)
        elif type(left) is not type(right) or isinstance(left, dict | list) or left != right:
            found.append(StateDifference(_named(path), _shown(left), _shown(right)))
    return found


def _named(path: Path) -> str:
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(key)
    text = ".".join(reversed(keys))
    return text if len(text) <= PATH_CHARS_MAX else f"{text[:PATH_CHARS_MAX]}…"


def _shown(value: object) -> str | None:
    if value is _MISSING:
        return None
    plain: Json = value  # type: ignore[assignment]
    try:
        text = msgspec.json.encode(plain).decode()
    except RecursionError:
        return "(a deep value)"
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"
