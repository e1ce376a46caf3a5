"""Where two states differ, in the words of a report."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unisono.display import shorten
from unisono.model.diff import MISSING, JsonDifference, differences
from unisono.pipeline.jobs.revalidate.result import StateDifference
from unisono.vocabulary import JsonObject

CHANGES_MAX: Final = 5
VALUE_CHARS_MAX: Final = 121
PATH_CHARS_MAX: Final = 201


def changes(before: JsonObject, now: JsonObject, most: int = CHANGES_MAX) -> list[StateDifference]:
    """The first places, in the order of the states, where two states are not the same; at most `most`."""
    found: list[StateDifference] = []
    for difference in differences(before, now):
        if len(found) >= most:
            break
        if difference.kind == "value":
            left, right = _value_text(difference.left), _value_text(difference.right)
            found.append(StateDifference(_path_text(difference), left, right))
        elif difference.kind == "keys" and difference.left.keys() == difference.right.keys():
            found.append(StateDifference(_path_text(difference), "the same keys", "in another order"))
    return found


def _path_text(difference: JsonDifference) -> str:
    return shorten(".".join(difference.path()), PATH_CHARS_MAX)


def _value_text(value: Any) -> str | None:
    if value is MISSING:
        return None
    try:
        text = msgspec.json.encode(value).decode()
    except RecursionError:
        return "(a deep value)"
    return shorten(text, VALUE_CHARS_MAX)
