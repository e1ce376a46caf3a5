"""Plain JSON values as states hold and share them: copied, weighed and looked through at the speed of C.

A value that is in a state is never changed in place: several states may hold the same one, and who wants to change
a container of it takes a copy of that one container. A value is weighed by its JSON text, which an encoder writes a
hundred times faster than Python walks: what was sent as one message of hundreds of thousands of tiny parts costs
milliseconds and not a second. Nothing here recurses in Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import orjson

from unisono.vocabulary import Json

OBJECT_BYTES: Final = 64
ENTRY_BYTES: Final = 40
ARRAY_BYTES: Final = 56
SLOT_BYTES: Final = 8
STRING_BYTES: Final = 48
NUMBER_BYTES: Final = 28
"""Roughly what CPython 3.11 takes for each part; a string, also as a key, takes its UTF-8 bytes besides."""

HEAVY_BYTES: Final = 16 * 1024
"""From this weight on a container remembers it: weighing it again, once per partition, would show."""

LIGHT_BYTES: Final = 200
"""No value with a JSON text up to this is heavy: a byte of text stands for 80 bytes of memory at most."""

_PASSED: Final = orjson.OPT_PASSTHROUGH_SUBCLASS
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"')

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


class HeavyObject(dict[str, Json]):
    """An object that knows what it weighs; it is never changed."""

    __slots__ = ("weight",)
    weight: int


class HeavyArray(list[Json]):
    """An array that knows what it weighs; it is never changed."""

    __slots__ = ("weight",)
    weight: int


def packed(value: Json) -> bytes | None:
    """A value as bytes that are equal only for equal values, types and the order of keys included.

    None when it cannot be packed: it is too deep, or no JSON.
    """
    try:
        return _pack(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def unpacked(data: bytes) -> Any:
    """What `packed` was given, as containers that nobody else has."""
    return _unpack(data)


def copied(value: Json) -> Json:
    """A JSON value in ordinary dicts and lists that shares no container with it."""
    if not isinstance(value, (dict, list)):
        return value
    try:
        copy: Json = _unpack(_pack(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _copied_stepwise(value)
    return copy


def text_of(value: object) -> bytes | None:
    """The JSON text of a value; None when it is too deep for the encoder, or no JSON."""
    try:
        return orjson.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return None


def heavy(value: Any) -> Any:
    """The value, in a container that remembers its weight where that is worth it."""
    if type(value) is dict or type(value) is list:
        weighs = weigh((value,))
        if weighs >= HEAVY_BYTES:
            known: HeavyObject | HeavyArray = (
                HeavyObject(value) if isinstance(value, dict) else HeavyArray(value)
            )
            known.weight = weighs
            return known
    return value


def weigh(values: Iterable[object]) -> int:
    """About how many bytes these values take together; what has a `weight` says itself what it is."""
    level: list[Any] = list(values)
    if len(level) == 1 and (not level[0] or not isinstance(level[0], (dict, list))):
        return _weigh_stepwise(level)
    known = 0

    def unpacked(part: Any) -> object:
        nonlocal known
        weight = getattr(part, "weight", None)
        if weight is None:
            return dict.copy(part) if isinstance(part, dict) else list.copy(part)
        known += weight
        return None  # weighs nothing by itself, see `_weigh_text`

    try:
        text = orjson.dumps(level, unpacked, _PASSED)
    except (TypeError, ValueError, RecursionError):
        return _weigh_stepwise(level)
    return known + _weigh_text(text) - ARRAY_BYTES - SLOT_BYTES * len(level)


def weigh_entry(key: str, value: object) -> int:
    """What one entry of an object takes."""
    if isinstance(value, (dict, list)):
        return weigh_entries({key: value})
    return ENTRY_BYTES + _weigh_string(key) + _weigh_stepwise((value,))


def weigh_entries(entries: Mapping[str, object]) -> int:
    """What the entries of an object take, keys and values."""
    if isinstance(entries, HeavyObject):
        return entries.weight - OBJECT_BYTES
    if len(entries) < 8 and not any(isinstance(value, (dict, list)) for value in entries.values()):
        return sum(weigh_entry(key, value) for key, value in entries.items())
    return weigh((entries,)) - OBJECT_BYTES


def _weigh_text(text: bytes) -> int:
    """The weight of one JSON text; of `null`, `true` and `false` there is one each in the process."""
    if b'"' not in text:
        bare = text
    elif b"\\" not in text:
        bare = b'"'.join(text.split(b'"')[::2])
    else:
        bare = _STRING.sub(b'"', text)
    strings, entries = bare.count(b'"'), bare.count(b":")
    chars = len(text) - len(bare) - strings
    arrays, objects = bare.count(b"["), bare.count(b"{")
    # Every container that is not empty has one comma less than it has parts.
    parts = bare.count(b",") + arrays + objects - bare.count(b"[]") - bare.count(b"{}")
    literals = bare.count(b"n") + bare.count(b"t") + bare.count(b"f")
    numbers = 1 + parts - arrays - objects - (strings - entries) - literals
    return (
        OBJECT_BYTES * objects
        + ENTRY_BYTES * entries
        + ARRAY_BYTES * arrays
        + SLOT_BYTES * (parts - entries)
        + STRING_BYTES * strings
        + chars
        + NUMBER_BYTES * numbers
    )


def _weigh_stepwise(values: Iterable[Any]) -> int:
    """The same for what is too deep for the encoder."""
    total, waiting = 0, list(values)
    while waiting:
        value = waiting.pop()
        weight = getattr(value, "weight", None)
        if weight is not None:
            total += weight
        elif isinstance(value, dict):
            total += OBJECT_BYTES + sum(ENTRY_BYTES + _weigh_string(key) for key in value)
            waiting.extend(value.values())
        elif isinstance(value, list):
            total += ARRAY_BYTES + SLOT_BYTES * len(value)
            waiting.extend(value)
        elif isinstance(value, str):
            total += _weigh_string(value)
        elif value is not None and not isinstance(value, bool):
            total += NUMBER_BYTES
    return total


def _weigh_string(text: str) -> int:
    try:
        return STRING_BYTES + len(orjson.dumps(text)) - 2
    except TypeError:  # half a character
        return STRING_BYTES + len(text.encode("utf-8", "surrogatepass"))


def _copied_stepwise(value: Any) -> Json:
    """For what is too deep for the encoder."""
    holder: list[Any] = [value]
    waiting: list[Any] = [holder]
    while waiting:
        container = waiting.pop()
        places = container.items() if isinstance(container, dict) else enumerate(container)
        for place, part in places:
            if isinstance(part, (dict, list)):
                copy = dict(part) if isinstance(part, dict) else list(part)
                container[place] = copy  # replaces a value, so the iteration stays valid
                waiting.append(copy)
    top: Json = holder[0]
    return top
