"""States for a page: views are bounded whatever the state is, and differences are exact."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.console.state_view import (
    CHARS_MAX,
    DEPTH_MAX,
    DIFFERENCES_MAX,
    NODES_MAX,
    PARTS_MAX,
    bounded_view,
    state_differences,
)
from unisono.vocabulary import Json

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
)


@given(values)
def test_a_small_value_is_shown_whole(value: Json) -> None:
    view = bounded_view(value)
    assert view.value == value
    assert view.left_out == ()


def test_a_huge_value_is_shown_in_part() -> None:
    wide: Json = {"list": list(range(100_000)), "texts": ["x" * 10_000] * 10_000, "last": 1}
    view = bounded_view(wide)
    assert isinstance(view.value, dict)
    assert view.value["last"] == 1
    assert len(view.value["list"]) == PARTS_MAX  # type: ignore[arg-type]
    assert ("list",) in [each.path for each in view.left_out]
    assert len(json.dumps(view.value)) < 3 * CHARS_MAX
    many: Json = [[number] * 50 for number in range(PARTS_MAX)]
    shown: Any = bounded_view(many).value
    assert sum(1 + len(part) for part in shown) <= NODES_MAX


def test_a_deep_value_is_cut() -> None:
    deep: Any = {"end": True}
    for _ in range(5_000):
        deep = {"in": deep}
    view = bounded_view(deep)
    (cut,) = view.left_out
    assert len(cut.path) == DEPTH_MAX
    json.dumps(view.value)
    (difference,) = state_differences({"tree": {}}, {"tree": deep})[0]
    assert difference["path"] == ["tree", "in"]


@settings(max_examples=50)
@given(values, values)
def test_equal_states_differ_nowhere_and_others_somewhere(one: Json, two: Json) -> None:
    assert state_differences({"data": one}, {"data": one}) == ([], False)
    found, _ = state_differences({"data": one}, {"data": two})
    assert bool(found) == (json.dumps(one) != json.dumps(two))


def tree(*nodes: Any) -> Json:
    ids: list[str] = []
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        ids.append(node["id"])
        waiting += node["children"]
    return {"tree": {"outline": {"items": {id: {} for id in sorted(ids)}, "tree": list(nodes)}}}


def node(id: str, *children: Any) -> Json:
    return {"id": id, "children": list(children)}


def test_moved_items_are_differences_of_their_place_alone() -> None:
    before = tree(node("a"), node("b"), node("c"))
    found, more = state_differences(before, tree(node("a"), node("c", node("b"))))
    assert [(each["path"], each["kind"], each["before"], each["after"]) for each in found] == [
        (["tree", "outline", "tree", "b"], "parent", '""', '"c"')
    ]
    assert not more
    swapped, _ = state_differences(before, tree(node("b"), node("a"), node("c")))
    assert [(each["path"], each["kind"]) for each in swapped] == [(["tree", "outline", "tree"], "keys")]


def test_many_differences_are_cut() -> None:
    found, more = state_differences({}, {str(number): number for number in range(DIFFERENCES_MAX + 1)})
    assert len(found) == DIFFERENCES_MAX
    assert more
