"""Where two JSON values differ."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.model.diff import MISSING, differences
from unisono.vocabulary import Json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
)


def found(left: Json, right: Json) -> list[tuple[str, str, Any, Any]]:
    return [(each.kind, ".".join(each.path()), each.left, each.right) for each in differences(left, right)]


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        (1, True, [("value", "", 1, True)]),
        ([1.0], [1], [("value", "0", 1.0, 1)]),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, [("value", "a.b.1", 2, 3)]),
        ({"a": []}, {"a": {}}, [("value", "a", [], {})]),
        (
            {"a": 1, "b": 2},
            {"b": 2, "a": 1},
            [("keys", "", {"a": 1, "b": 2}, {"b": 2, "a": 1})],
        ),
        ({"a": 1}, {}, [("keys", "", {"a": 1}, {}), ("value", "a", 1, MISSING)]),
        ([], [1], [("length", "", [], [1]), ("value", "0", MISSING, 1)]),
    ],
)
def test_each_kind_of_difference(left: Json, right: Json, expected: list[object]) -> None:
    assert found(left, right) == expected


@given(VALUES)
def test_a_value_does_not_differ_from_itself(value: Json) -> None:
    assert found(value, value) == []


@given(VALUES, VALUES)
def test_different_values_differ_in_both_directions(left: Json, right: Json) -> None:
    forward = [(kind, path, one, two) for kind, path, one, two in found(left, right)]
    assert bool(forward) == bool(found(right, left))
    assert bool(forward) or left == right


def test_depth_is_no_bound() -> None:
    left: Json = 1
    right: Json = 2
    for _ in range(5_000):
        left, right = {"a": left}, {"a": right}
    (difference,) = differences(left, right)
    assert (len(difference.path()), difference.left, difference.right) == (5_000, 1, 2)
