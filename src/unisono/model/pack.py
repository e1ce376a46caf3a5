"""JSON values as bytes for snapshots, however deep they are.

Encoders of JSON recurse and give up at some hundred levels; a tree of nodes may be far deeper (TREE-12). The
usual value is written as plain JSON. One that is too deep is written as the same value taken apart: an array
of scalars and steps, where `[0, n]` makes an array of the last n values and `[1, n]` an object of the last n
pairs of key and value. The first byte tells the two forms apart, because a state is always an object.
"""

from __future__ import annotations

import msgspec
import orjson

from unisono.vocabulary import Json, JsonObject

_ARRAY, _OBJECT = 0, 1


def pack(value: JsonObject) -> bytes:
    """The bytes of an object; `unpack` gives it back with the order of its keys."""
    try:
        return msgspec.json.encode(value)
    except RecursionError:
        return msgspec.json.encode(_taken_apart(value))


def unpack(data: bytes) -> JsonObject:
    """The object that `pack` was given."""
    value = orjson.loads(data)
    if isinstance(value, list):
        value = _put_together(value)
    if not isinstance(value, dict):
        raise ValueError("packed data is an object")  # noqa: TRY004
    return value


def _taken_apart(value: Json) -> list[Json]:
    tokens: list[Json] = []
    # Visited from the last to the first and reversed at the end, so that a step stands behind its parts.
    waiting: list[Json] = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict):
            tokens.append([_OBJECT, len(current)])
            for key, part in current.items():
                waiting += (key, part)
        elif isinstance(current, list):
            tokens.append([_ARRAY, len(current)])
            waiting += current
        else:
            tokens.append(current)
    tokens.reverse()
    return tokens


def _put_together(tokens: list[Json]) -> Json:
    values: list[Json] = []
    for token in tokens:
        if not isinstance(token, list):
            values.append(token)
            continue
        kind, size = token
        if not isinstance(size, int) or kind not in (_ARRAY, _OBJECT):
            raise ValueError("packed data has an unknown step")
        start = len(values) - size * (2 if kind == _OBJECT else 1)
        if start < 0:
            raise ValueError("packed data ends in the middle")
        parts = values[start:]
        del values[start:]
        values.append(dict(zip(parts[::2], parts[1::2], strict=True)) if kind == _OBJECT else parts)  # type: ignore[arg-type]
    if len(values) != 1:
        raise ValueError("packed data holds more than one value")
    return values[0]
