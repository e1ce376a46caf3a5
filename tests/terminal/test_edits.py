"""From keys to events: what the model makes of each, beside what was meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.model.model import COMPATIBILITY, open_model
from unisono.model.partition import PartitionState
from unisono.terminal import edits
from unisono.terminal.outline import Outline, read
from unisono.vocabulary import JsonObject

MODEL = open_model()


class Tree:
    """An outline as the model has it."""

    def __init__(self) -> None:
        self._state = PartitionState()

    @property
    def outline(self) -> Outline:
        return read(self._state.tree.dump(), "outline")

    def do(self, event: JsonObject) -> None:
        assert MODEL.shape(COMPATIBILITY, event) == []
        assert MODEL.refusals(COMPATIBILITY, self._state, event) == []
        MODEL.apply(COMPATIBILITY, self._state, event)

    @property
    def drawn(self) -> list[str]:
        return ["  " * row.depth + row.title for row in self.outline.rows]


def tree(*lines: str) -> Tree:
    """Drawn with two spaces per level; an item's title is its id."""
    made = Tree()
    above: list[str] = []
    for line in lines:
        id, depth = line.strip(), (len(line) - len(line.lstrip())) // 2
        del above[depth:]
        made.do(edits.add_into(made.outline, above[-1] if above else None, id, id))
        above.append(id)
    return made


def test_additions() -> None:
    made = tree("a", "  b", "c")
    made.do(edits.add_after(made.outline, "a", "1", "after a"))
    made.do(edits.add_after(made.outline, "b", "2", "after b"))
    made.do(edits.add_into(made.outline, "a", "3", "in a"))
    made.do(edits.add_into(made.outline, "b", "4", "in b"))
    made.do(edits.add_after(made.outline, "gone", "5", "after what is gone"))
    made.do(edits.add_into(made.outline, "gone", "6", "in what is gone"))
    assert made.drawn == [
        "a",
        "  b",
        "    in b",
        "  after b",
        "  in a",
        "after a",
        "c",
        "after what is gone",
        "in what is gone",
    ]


def test_the_first_item_of_all() -> None:
    for addition in (edits.add_after, edits.add_into):
        made = Tree()
        made.do(addition(made.outline, None, "1", "first"))
        assert made.drawn == ["first"]


def test_renaming_changes_the_field_that_names_it() -> None:
    made = tree("a")
    made.do({"type": "treePush", "payload": {"target": "outline", "value": {"id": "b", "name": "b", "n": 1}}})
    assert edits.rename(made.outline, "a", "a") is None
    assert edits.rename(made.outline, "gone", "x") is None
    for id, label in (("a", "title"), ("b", "name")):
        event = edits.rename(made.outline, id, "new")
        assert event is not None
        assert event["payload"] == {"target": "outline", "options": {"id": id}, "value": {label: "new"}}
        made.do(event)
    assert made.drawn == ["new", "new"]


@pytest.mark.parametrize(
    ("edit", "id", "after"),
    [
        (edits.move_up, "d", ["d", "a", "  b", "  c", "e"]),
        (edits.move_up, "a", None),
        (edits.move_up, "b", None),
        (edits.move_up, "gone", None),
        (edits.move_down, "a", ["d", "a", "  b", "  c", "e"]),
        (edits.move_down, "b", ["a", "  c", "  b", "d", "e"]),
        (edits.move_down, "c", None),
        (edits.move_down, "e", None),
        (edits.indent, "d", ["a", "  b", "  c", "  d", "e"]),
        (edits.indent, "c", ["a", "  b", "    c", "d", "e"]),
        (edits.indent, "a", None),
        (edits.outdent, "b", ["a", "  c", "b", "d", "e"]),
        (edits.outdent, "a", None),
        (edits.outdent, "gone", None),
        (edits.delete, "a", ["d", "e"]),
        (edits.delete, "gone", None),
    ],
)
def test_moving_and_deleting(
    edit: Callable[[Outline, str], JsonObject | None], id: str, after: list[str] | None
) -> None:
    made = tree("a", "  b", "  c", "d", "e")
    event = edit(made.outline, id)
    if after is None:
        assert event is None
    else:
        assert event is not None
        made.do(event)
        assert made.drawn == after


def test_an_addition_whose_place_is_gone_is_made_anew() -> None:
    made = tree("a", "  b")
    after_b = edits.add_after(made.outline, "b", "n", "new")
    made.do(edits.delete(made.outline, "b") or {})
    again = edits.add_anew(made.outline, after_b)
    assert again is not None
    assert again["payload"] == {
        "target": "outline",
        "value": {"id": "n", "title": "new"},
        "options": {"parent": "a", "position": "last"},
    }
    made.do(again)
    assert made.drawn == ["a", "  new"]
    assert edits.add_anew(made.outline, after_b) is None, "it is there already"

    made = tree("a")
    again = edits.add_anew(
        made.outline, after_b | {"payload": {**_payload(after_b), "options": {"parent": "gone"}}}
    )
    made.do(again or {})
    assert made.drawn == ["a", "new"]
    others: list[JsonObject | None] = [
        edits.delete(made.outline, "a"),
        {"type": "treePush", "payload": 1},
        {"type": "set"},
    ]
    for other in others:
        assert edits.add_anew(made.outline, other or {}) is None


def _payload(event: JsonObject) -> dict[str, Any]:
    payload = event["payload"]
    assert isinstance(payload, dict)
    return payload


def test_the_item_an_event_is_about() -> None:
    made = tree("a", "b")
    for event in (
        edits.add_after(made.outline, "b", "a", "x"),
        edits.rename(made.outline, "a", "x"),
        edits.move_down(made.outline, "a"),
        edits.delete(made.outline, "a"),
    ):
        assert event is not None
        assert edits.touched(event, "outline") == "a"
        assert edits.touched(event, "explorer") is None
    others: list[JsonObject] = [
        {},
        {"type": "set", "payload": {"target": "outline", "value": 1}},
        {"type": "treePush", "payload": {"target": "outline", "value": [1]}},
        {"type": "treeMove", "payload": {"target": "outline", "options": {"id": 5}}},
    ]
    for other in others:
        assert edits.touched(other, "outline") is None


# -- any edits at all, beside the same done to nested lists ------------------------------------------------------

Branch = list[Any]
"""Nodes, each `[id, its branch]`."""


def _where(branch: Branch, id: str) -> tuple[Branch, int, list[tuple[Branch, int]]] | None:
    """The branch an item is in, its place there, and the places above."""
    for place, (own, below) in enumerate(branch):
        if own == id:
            return branch, place, []
        found = _where(below, id)
        if found is not None:
            return found[0], found[1], [*found[2], (branch, place)]
    return None


def _by_hand(branch: Branch, edit: str, id: str) -> bool:
    """Do it to the lists; False when it cannot be done."""
    found = _where(branch, id)
    assert found is not None
    siblings, place, above = found
    match edit:
        case "move_up" if place > 0:
            siblings[place - 1 : place + 1] = siblings[place], siblings[place - 1]
        case "move_down" if place + 1 < len(siblings):
            siblings[place : place + 2] = siblings[place + 1], siblings[place]
        case "indent" if place > 0:
            siblings[place - 1][1].append(siblings.pop(place))
        case "outdent" if above:
            higher, parent = above[0]
            higher.insert(parent + 1, siblings.pop(place))
        case "delete":
            del siblings[place]
        case _:
            return False
    return True


def _listed(branch: Branch, depth: int = 0) -> list[tuple[str, int]]:
    return [each for id, below in branch for each in ((id, depth), *_listed(below, depth + 1))]


EDITS = ("add_after", "add_into", "move_up", "move_down", "indent", "outdent", "delete")


@given(st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 20)), max_size=40))
def test_any_edits_do_what_is_meant_and_are_never_refused(steps: list[tuple[str, int]]) -> None:
    made, lists = tree("a", "  b", "  c", "d"), [["a", [["b", []], ["c", []]]], ["d", []]]
    for number, (edit, choice) in enumerate(steps):
        outline = made.outline
        id = outline.rows[choice % len(outline.rows)].id if outline.rows else "none"
        new = f"n{number}"
        found = _where(lists, id)
        if edit == "add_after" or (edit == "add_into" and found is None):
            made.do(getattr(edits, edit)(outline, id, new, new))
            siblings, place = found[:2] if found else (lists, len(lists) - 1)
            siblings.insert(place + 1, [new, []])
        elif edit == "add_into" and found is not None:
            made.do(edits.add_into(outline, id, new, new))
            found[0][found[1]][1].append([new, []])
        elif found is not None:
            event = getattr(edits, edit)(outline, id)
            assert (event is not None) == _by_hand(lists, edit, id)
            if event is not None:
                made.do(event)
        assert [(row.id, row.depth) for row in made.outline.rows] == _listed(lists)
