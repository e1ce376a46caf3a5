"""Where two JSON values differ, however deep they are: one walk in document order, without recursion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

import msgspec

from unisono.vocabulary import Json

Place: TypeAlias = "tuple[Place, str] | None"
"""A place by its way up, which costs the same at any depth: the place that contains it, and its key there."""


class Missing:
    """The type of MISSING."""


MISSING: Final = Missing()
"""One side of a difference has nothing at its place."""


class JsonDifference(msgspec.Struct, frozen=True):
    """One place where two values differ.

    `keys`: two objects with other keys, or with the same keys in another order. `length`: two arrays of other
    lengths. `value`: anything else; one side is MISSING where only the other has something.
    """

    kind: Literal["keys", "length", "value"]
    place: Place
    left: Any
    right: Any

    def path(self) -> list[str]:
        """The keys that lead to the place, from the top."""
        keys: list[str] = []
        place = self.place
        while place is not None:
            place, key = place
            keys.append(key)
        return keys[::-1]


def differences(left: Json, right: Json) -> Iterator[JsonDifference]:
    """Every difference, in the order of the values; those within an object or an array follow its own.

    Types count: 1, 1.0 and true are three values.
    """
    waiting: list[tuple[Place, Any, Any]] = [(None, left, right)]
    while waiting:
        place, one, two = waiting.pop()
        if isinstance(one, dict) and isinstance(two, dict):
            if list(one) != list(two):
                yield JsonDifference("keys", place, one, two)
            keys = list(dict.fromkeys((*one, *two)))
            waiting += [
                ((place, key), one.get(key, MISSING), two.get(key, MISSING)) for key in reversed(keys)
            ]
        elif isinstance(one, list) and isinstance(two, list):
            if len(one) != len(two):
                yield JsonDifference("length", place, one, two)
            waiting += [
                (
                    (place, str(index)),
                    one[index] if index < len(one) else MISSING,
                    two[index] if index < len(two) else MISSING,
                )
                for index in reversed(range(max(len(one), len(two))))
            ]
        elif not _same_scalar(one, two):
            yield JsonDifference("value", place, one, two)


def _same_scalar(one: Any, two: Any) -> bool:
    if type(one) is not type(two) or isinstance(one, dict | list):
        return False
    return repr(one) == repr(two) if isinstance(one, float) else bool(one == two)
