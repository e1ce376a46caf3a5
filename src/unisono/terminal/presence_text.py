"""Who else is in the outline, in words: their names, and the items they are at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from unisono.client import Present
from unisono.display import blank_controls, shorten
from unisono.terminal.outline import Outline
from unisono.vocabulary import Json

NAME_CHARS_MAX: Final = 24
TITLE_CHARS_MAX: Final = 30


def cursor_at(target: str, item: str | None) -> Json:
    """What this client says of itself: the item it is at, in one of the partition's outlines."""
    return {"target": target, "item": item}


def who_is_here(others: Sequence[Present], target: str, outline: Outline) -> str:
    """One line: who else is here, and where."""
    return "here: " + ", ".join(_whereabouts(other, target, outline) for other in others)


def name_of(other: Present) -> str:
    """The person where the server knows it, else the client."""
    return shorten(blank_controls(other.user_id or other.client_id), NAME_CHARS_MAX)


def _whereabouts(other: Present, target: str, outline: Outline) -> str:
    item = _item(other, target)
    row = None if item is None else outline.find(item)
    if row is None:
        return name_of(other)
    return f"{name_of(other)} at {shorten(blank_controls(row.title), TITLE_CHARS_MAX)!r}"


def _item(other: Present, target: str) -> str | None:
    """Other programs may say anything of themselves."""
    value = other.value
    if not isinstance(value, dict) or value.get("target") != target:
        return None
    item = value.get("item")
    return item if isinstance(item, str) else None
