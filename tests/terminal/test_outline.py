"""From a view to rows."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from unisono.terminal.outline import Outline, OutlineRow, nearest, read, visible
from unisono.vocabulary import Json


def node(id: str, *children: dict[str, Any]) -> dict[str, Any]:
    return {"id": id, "children": list(children)}


def view(*tree: dict[str, Any], **titles: Any) -> Any:
    """A view with an outline; an item is called by its id in capitals unless its title is given."""
    ids: list[str] = []
    waiting = list(tree)
    while waiting:
        at = waiting.pop()
        ids.append(at["id"])
        waiting += at["children"]
    return {
        "outline": {"items": {id: titles.get(id, {"title": id.upper()}) for id in ids}, "tree": list(tree)}
    }


SAMPLE = view(node("a", node("b", node("c")), node("d")), node("e"))


def test_rows_stand_in_reading_order_and_know_their_neighbours() -> None:
    outline = read(SAMPLE, "outline")
    assert outline.rows == (
        OutlineRow("a", "A", 0, None, None, "e", below=3),
        OutlineRow("b", "B", 1, "a", None, "d", below=1),
        OutlineRow("c", "C", 2, "b", None, None),
        OutlineRow("d", "D", 1, "a", "b", None),
        OutlineRow("e", "E", 0, None, "a", None),
    )
    assert outline.find("d") == outline.rows[3]
    assert outline.find("z") is None
    assert outline.find(None) is None
    assert outline.parents("c") == ["b", "a"]
    assert outline.parents("e") == []


def test_an_item_is_called_by_its_title_or_its_name_or_its_id() -> None:
    outline = read(
        view(
            *(node(id) for id in "abcdef"),
            a={"title": "one", "name": "two"},
            b={"name": "two"},
            c={},
            d={"title": 7},
            e={"title": ["x"], "name": None},
            f={"title": ""},
        ),
        "outline",
    )
    assert [(row.title, row.label) for row in outline.rows] == [
        ("one", "title"),
        ("two", "name"),
        ("c", "title"),
        ("7", "title"),
        ("e", "title"),
        ("", "title"),
    ]


def test_where_nothing_is_yet_the_outline_is_empty() -> None:
    nothing_yet: list[Json] = [{}, {"other": 1}]
    for nothing in nothing_yet:
        assert read(nothing, "outline") == Outline("outline")
    assert read({"deep": {}}, "deep.er") == Outline("deep.er")


def test_what_is_no_tree_is_named() -> None:
    others: list[Json] = [
        {"outline": 1},
        {"outline": {"theme": "dark"}},
        {"outline": {"items": []}},
        {"outline": []},
    ]
    for other in others:
        assert "no outline" in read(other, "outline").problem
    assert "no outline" in read({"outline": 1}, "outline.deeper").problem
    assert read({"a": {"b": SAMPLE["outline"]}}, "a.b").rows == read(SAMPLE, "outline").rows


def test_a_very_deep_outline_is_read() -> None:
    deep = node("n9999")
    for number in reversed(range(9999)):
        deep = node(f"n{number}", deep)
    outline = read(view(deep), "outline")
    assert (len(outline.rows), outline.rows[0].below, outline.rows[-1].depth) == (10_000, 9_999, 9_999)
    assert len(outline.parents("n9999")) == 9_999


def test_folded_rows_hide_what_is_below() -> None:
    outline = read(SAMPLE, "outline")

    def ids(*folded: str) -> str:
        return "".join(row.id for row in visible(outline, folded))

    assert ids() == "abcde"
    assert ids("b") == "abde"
    assert ids("a") == ids("a", "b") == "ae"
    assert ids("e") == "abcde"


def test_a_selection_goes_to_the_next_that_is_left_or_else_to_the_one_before() -> None:
    old = read(SAMPLE, "outline").rows

    def left(*ids: str) -> Outline:
        return read(view(*(node(id) for id in ids)), "outline")

    assert nearest(old, "b", left("a", "d", "e")) == "d"
    assert nearest(old, "e", left("a", "d")) == "d"
    assert nearest(old, "c", left("a")) == "a"
    assert nearest(old, "c", left("new")) == "new"
    assert nearest(old, None, left("a", "b")) == "a"
    assert nearest((), None, left("x")) == "x"
    assert nearest(old, "c", left()) is None


@given(st.recursive(st.just([]), lambda children: st.lists(children, max_size=4), max_leaves=30))
def test_every_row_agrees_with_the_tree_it_came_from(shape: list[Any]) -> None:
    """`shape` is nothing but nested lists; each list is a node."""
    expected: list[tuple[int, int]] = []

    def grow(children: list[Any], depth: int, prefix: str) -> list[dict[str, Any]]:
        nodes = []
        for number, child in enumerate(children):
            place = len(expected)
            expected.append((depth, 0))
            nodes.append(node(f"{prefix}{number}", *grow(child, depth + 1, f"{prefix}{number}.")))
            expected[place] = (depth, len(expected) - place - 1)
        return nodes

    outline = read(view(*grow(shape, 0, "")), "outline")
    assert [(row.depth, row.below) for row in outline.rows] == expected
    for row in outline.rows:
        assert row.parent == next(iter(outline.parents(row.id)), None)
        for neighbour, back in ((row.before, "after"), (row.after, "before")):
            found = outline.find(neighbour)
            assert found is None or (getattr(found, back), found.parent) == (row.id, row.parent)
