"""What a state may hold besides objects and arrays: the scalars of JSON that storing keeps exactly."""

from __future__ import annotations

import math
import re

from unisono.vocabulary import Json

INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1
"""Integers outside do not survive the JSON encoders that store a state."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def scalar(value: object) -> Json:
    """The value itself; `TypeError` when it is not a scalar of JSON."""
    if type(value) is str:
        if not value.isascii() and _SURROGATE.search(value):
            raise TypeError("a state holds JSON only; this string holds half a character")
        return value
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        if not INTEGER_MIN <= value <= INTEGER_MAX:
            raise TypeError("a state holds JSON only; this integer needs more than 64 bits")
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise TypeError(f"a state holds JSON only; {value} is no JSON number")
        return value
    raise TypeError(
        f"a state holds JSON only; a value of type {type(value).__name__!r} is none of"
        " None, bool, int, float, str, list and dict"
    )


def check_key(key: object) -> str:
    """The key itself; `TypeError` when no JSON object can have it."""
    if type(key) is not str:
        raise TypeError(f"a state holds JSON only; {key!r:.60} is no key of an object, keys are strings")
    scalar(key)
    return key
