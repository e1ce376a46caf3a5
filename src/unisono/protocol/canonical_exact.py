"""Canonical JSON by the letter of RFC 8785, value by value: for what the fast path leaves in doubt.

What is refused while reading stays in the tree as a `NotCanonical`, and the writer raises it with its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from json.encoder import encode_basestring
from typing import Final, NoReturn, cast

import orjson

from unisono.protocol.canonical_errors import NotCanonical, key_twice, lone_surrogate, too_deep
from unisono.protocol.canonical_numbers import float_text, integer_text, parse_number
from unisono.vocabulary import Json

NESTING_MAX: Final = 254
"""Levels of arrays and objects: where orjson stops, so both paths accept the same values."""


def write_exact(value: object) -> bytes:
    """The canonical bytes of a value, or of a tree that `parse_exact` read."""
    parts: list[str] = []
    try:
        _write(value, parts, NESTING_MAX)
    except RecursionError:
        raise too_deep() from None
    return "".join(parts).encode()


def _write(value: object, parts: list[str], levels: int) -> None:
    if isinstance(value, str):
        parts.append(_quoted(value))
    elif value is None:
        parts.append("null")
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    elif isinstance(value, int):
        parts.append(integer_text(value))
    elif isinstance(value, float):
        parts.append(float_text(value))
    elif isinstance(value, dict):
        _write_object(value, parts, levels)
    elif isinstance(value, list | tuple):
        _write_array(value, parts, levels)
    elif isinstance(value, NotCanonical):
        raise value
    else:
        raise NotCanonical(f"a {type(value).__name__} is not a JSON value")


def _write_object(value: dict[object, object], parts: list[str], levels: int) -> None:
    if not levels:
        raise too_deep()
    before = "{"
    for key in _in_order(value):
        parts += (before, _quoted(key), ":")
        try:
            _write(value[key], parts, levels - 1)
        except NotCanonical as refusal:
            raise refusal.below(key) from None
        before = ","
    parts.append("}" if value else "{}")


def _write_array(value: list[object] | tuple[object, ...], parts: list[str], levels: int) -> None:
    if not levels:
        raise too_deep()
    before = "["
    for index, item in enumerate(value):
        parts.append(before)
        try:
            _write(item, parts, levels - 1)
        except NotCanonical as refusal:
            raise refusal.below(index) from None
        before = ","
    parts.append("]" if value else "[]")


def _in_order(keys: Iterable[object]) -> list[str]:
    """Keys as the RFC orders them: by UTF-16 code units."""
    names: list[str] = []
    for key in keys:
        if not isinstance(key, str):
            raise NotCanonical("an object key must be a string")
        names.append(key)
    if "".join(names).isascii():
        return sorted(names)
    return sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def _quoted(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise lone_surrogate() from None
    return encode_basestring(text)


def parse_exact(raw: bytes) -> tuple[Json, bytes]:
    """Decode one JSON text, with its canonical bytes."""
    try:
        tree: object = _DECODER.decode(raw.decode())
    except UnicodeDecodeError as error:
        raise NotCanonical(f"not valid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise NotCanonical(f"not valid JSON at character {error.pos}: {error.msg}") from None
    except RecursionError:
        raise too_deep() from None
    text = write_exact(tree)
    return cast(Json, tree), text


def why_refused(raw: bytes) -> NotCanonical:
    """Why a text has no canonical form. Its first bad number is found at once, without building the tree's places."""
    try:
        value: Json = _PLACELESS_DECODER.decode(raw.decode())
        orjson.dumps(value)
    except NotCanonical as refusal:
        return refusal
    except UnicodeDecodeError as error:
        return NotCanonical(f"not valid UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        return NotCanonical(f"not valid JSON at character {error.pos}: {error.msg}")
    except RecursionError:
        return too_deep()
    except TypeError as error:
        return lone_surrogate() if "surrogates" in str(error) else too_deep()
    return key_twice()


def _object(pairs: list[tuple[str, object]]) -> dict[str, object] | NotCanonical:
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            return key_twice(key.encode("utf-8", "replace").decode())
        members[key] = value
    return members


def _integer(literal: str) -> int | float | NotCanonical:
    return int(literal) if len(literal) <= 15 else parse_number(literal)


def _raised(literal: str) -> int | float:
    number = _integer(literal) if literal.lstrip("-").isdecimal() else parse_number(literal)
    if isinstance(number, NotCanonical):
        raise number
    return number


def _constant(name: str) -> NotCanonical:
    return NotCanonical(f"{name} is not a JSON number")


def _constant_raised(name: str) -> NoReturn:
    raise _constant(name)


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=parse_number, parse_constant=_constant
)


_PLACELESS_DECODER: Final = json.JSONDecoder(
    parse_int=_raised, parse_float=_raised, parse_constant=_constant_raised
)
