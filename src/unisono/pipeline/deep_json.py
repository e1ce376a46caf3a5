"""JSON text of values of any depth: encoders recurse and give up, while a tree of nodes may be far deeper."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from unisono.model.pack import unpack
from unisono.vocabulary import Json


def text(value: Json, *, pretty: bool = False, sort_keys: bool = False) -> str:
    """A value as JSON, on one line or indented."""
    option = (orjson.OPT_INDENT_2 if pretty else 0) | (orjson.OPT_SORT_KEYS if sort_keys else 0)
    try:
        return orjson.dumps(value, option=option).decode()
    except orjson.JSONEncodeError:  # too deep, or an integer beyond 64 bits from a reducer
        return "".join(_tokens(value, pretty, sort_keys))


def state_text(packed: bytes) -> str:
    """The JSON of a packed state."""
    return packed.decode() if packed.startswith(b"{") else text(unpack(packed))


def _tokens(value: Json, pretty: bool, sort_keys: bool) -> Iterator[str]:
    """The encoder's output, without recursion: a stack of open values with their closing brackets."""
    stack: list[tuple[Iterator[tuple[str, Json]], str]] = [(iter([("", value)]), "")]
    first = True
    while stack:
        parts, closing = stack[-1]
        key, part = next(parts, (None, None))
        depth = len(stack) - 1
        if key is None:
            stack.pop()
            if closing:
                yield ("\n" + "  " * (depth - 1) if pretty and not first else "") + closing
            first = False
            continue
        if closing:
            yield ("" if first else ",") + ("\n" + "  " * depth if pretty else "") + key
        first = False
        if isinstance(part, dict):
            names = sorted(part) if sort_keys else list(part)
            colon = ": " if pretty else ":"
            stack.append((iter([(_scalar(name) + colon, part[name]) for name in names]), "}"))
            first = True
            yield "{"
        elif isinstance(part, list):
            stack.append((iter([("", item) for item in part]), "]"))
            first = True
            yield "["
        else:
            yield _scalar(part)


def _scalar(value: Json) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return orjson.dumps(value).decode()
