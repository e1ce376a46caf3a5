"""Values a rule puts into a state: checked to be JSON, copied, and never changed afterwards.

Copying goes through JSON text, at the speed of C. What the text does not carry exactly comes back unequal; it is then
looked at part by part, to be copied so or refused with a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

from unisono.model.scalars import INTEGER_MAX, INTEGER_MIN, check_key, scalar
from unisono.model.values import LIGHT_BYTES, heavy, packed, text_of
from unisono.vocabulary import Json

PARTS_MAX: Final = 64
"""Containers with so many parts at most are put together from them: a rule that wraps what it was given in an object
of its own does not make another copy of it in every partition."""

REMEMBERED_BYTES: Final = 4096
"""Values from this size on are remembered by the object they came from."""


class Copies:
    """Closed copies of values.

    The same object put into the states of several partitions, unchanged, is checked and copied once. It is packed
    each time to see that it is unchanged, which is many times cheaper. The originals stay in memory: `forget` them
    before the next event.
    """

    __slots__ = ("_made",)

    def __init__(self, *, remembering: bool = True) -> None:
        self._made: dict[int, tuple[object, bytes, Json]] | None = {} if remembering else None

    def forget(self) -> None:
        if self._made:
            self._made = {}

    def all_closed(self, values: Iterable[Any]) -> list[Json]:
        if type(values) is list and len(values) > PARTS_MAX:
            closed: Any = self._copied(values)
            return list.copy(closed)
        return [self.closed(value) for value in values]

    def closed(self, value: Any) -> Any:
        """A copy that nobody changes; `TypeError` when it is not JSON or contains itself."""
        if type(value) is int and INTEGER_MIN <= value <= INTEGER_MAX:
            return value
        if not isinstance(value, (dict, list)):
            return scalar(value)
        text = text_of(value)
        if text is not None and len(text) < REMEMBERED_BYTES:
            copy = orjson.loads(text)
            if copy == value:
                return copy if len(text) <= LIGHT_BYTES else heavy(copy)
        if len(value) > PARTS_MAX:
            return self._copied(value)
        if isinstance(value, dict):
            parts = {check_key(key): self._part(part) for key, part in dict.items(value)}
            return heavy(parts)
        return heavy([self._part(part) for part in list.__iter__(value)])

    def _part(self, value: Any) -> Any:
        return self._copied(value) if isinstance(value, (dict, list)) else scalar(value)

    def _copied(self, value: Any) -> Any:
        if self._made is None:
            return heavy(_through_text(value))
        data = packed(value)
        known = self._made.get(id(value))
        if known is not None and known[1] == data:
            return known[2]
        copy = heavy(_through_text(value))
        if data is not None and len(data) >= REMEMBERED_BYTES:
            self._made[id(value)] = (value, data, copy)
        return copy


FORGETFUL: Final = Copies(remembering=False)


def _through_text(value: Any) -> Any:
    text = text_of(value)
    copy = None if text is None else orjson.loads(text)
    return copy if copy == value else _part_by_part(value)


def _part_by_part(value: Any) -> Any:
    root = _empty(value)
    frames: list[tuple[object, Iterator[tuple[Any, Any]], Any]] = [(value, _parts(value), root)]
    path = {id(value)}
    while frames:
        source, parts, copy = frames[-1]
        for key, part in parts:
            whole = part if isinstance(part, (dict, list)) else scalar(part)
            if isinstance(part, (dict, list)):
                if id(part) in path:
                    raise TypeError("a state holds JSON only; this value contains itself")
                whole = _empty(part)
                frames.append((part, _parts(part), whole))
                path.add(id(part))
            if isinstance(copy, dict):
                copy[check_key(key)] = whole
            else:
                copy.append(whole)
            if whole is not part and isinstance(part, (dict, list)):
                break
        else:
            frames.pop()
            path.discard(id(source))
    return root


def _empty(value: object) -> Any:
    return {} if isinstance(value, dict) else []


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(dict.items(value)) if isinstance(value, dict) else enumerate(list.__iter__(value))
