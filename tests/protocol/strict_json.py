"""A strict reader of JSON made of other parts, and text a reader or writer may get wrong."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal

import rfc8785

from unisono.vocabulary import Json

CHARACTERS = [
    *(chr(code) for code in range(0x20)),
    *'"\\/:,.eE019-+[]{} azAZ\x7f',
    *"\u0080\u00e9\u00ff\u02c8\u02cb\u0301\u03a9\u2028\u20ac\u4e2d\ud7ff\ue000\ufb33\ufe0f\ufffe\uffff",
    *"\U00010000\U0001f602\U0010ffff",
    *("true", "null", "1.0", "1e5", ":1.5,", "\\u003a", '":', "abc", "id", "name"),
]


class Unfit(ValueError):
    """What the strict reader refuses."""


def read_number(literal: str) -> float:
    number = float(literal)
    if math.isinf(number) or (number == 0 and re.match("[-.0]*[1-9]", literal)):
        raise Unfit(literal)
    if number == 0:
        return number
    exact = Decimal(literal)
    digits = "".join(map(str, exact.as_tuple().digits)).strip("0")
    whole = exact == exact.to_integral_value()
    if exact in (Decimal(number), Decimal(repr(number))) or (not whole and len(digits) <= 17):
        return number
    raise Unfit(literal)


def read_object(pairs: list[tuple[str, Json]]) -> Json:
    if len({key for key, _ in pairs}) != len(pairs):
        raise Unfit("duplicate")
    return dict(pairs)


def read_constant(name: str) -> Json:
    raise Unfit(name)


def read_strictly(raw: bytes) -> bytes | None:
    """Canonical bytes by other means, or None where the text must be refused."""
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=read_object,
            parse_int=read_number,
            parse_float=read_number,
            parse_constant=read_constant,
        )
        return rfc8785.dumps(value)
    except ValueError:
        return None
