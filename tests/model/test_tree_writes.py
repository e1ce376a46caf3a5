"""Writes beside, above and inside trees."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.model.events import (
    PROFILE,
    after,
    delete,
    event,
    node,
    order,
    outline,
    push,
    put,
    refused,
    tree,
    update,
)
from tests.model.oracle import same


@pytest.mark.req("TREE-10")
@pytest.mark.parametrize(
    "one",
    [
        put("explorer.items.A.name", "new"),
        put("explorer.items.A", {"name": "new"}),
        put("explorer.items.A", {"name": "new"}, replace=True),
        put("explorer.items.A.sub", tree(node("X"), X={})),
        put("explorer.items.A", tree(node("X"), X={})),
        put("explorer.items", {"A": {"name": "new"}, "B": {}}),
        put("explorer", {"color": "red"}),
        put("explorer.color.dark", True),
        put("explorer", tree(node("Z"), Z={})),
        put("explorer", {"color": "red"}, replace=True),
        put("explorer", "gone"),
        put("explorer.tree", [node(id) for id in "EDCBA"], replace=True),
        event("unset", "explorer"),
        event("unset", "explorer.items.A.name"),
        event("unset", "explorer.items.nobody"),
    ],
)
def test_writes_that_leave_every_tree_a_tree(one: Any) -> None:
    state = outline()
    mark = state.mark()
    before = json.dumps(state.dump())
    dumped = after(state, one)
    assert json.dumps(PROFILE.load(dumped).dump()) == json.dumps(dumped)
    assert state.weight() == PROFILE.load(dumped).weight()
    state.rollback(mark)
    assert json.dumps(state.dump()) == before


@pytest.mark.req("TREE-10", "VAL-04")
@pytest.mark.parametrize(
    ("one", "field"),
    [
        (put("explorer.items.NEW", {}), "target"),
        (put("explorer.items.NEW.name", 1), "target"),
        (put("explorer.items.A", 5), "value"),
        (put("explorer.items.A.id", "A"), "target"),
        (put("explorer.items.A.id.x", "A"), "target"),
        (put("explorer.items.A", {"id": "A"}), "value.id"),
        (put("explorer.items", {"NEW": {}}), "value.NEW"),
        (put("explorer.items", {"A": []}), "value.A"),
        (put("explorer.items", {"A": {}}, replace=True), "value"),
        (put("explorer.items", 5), "value"),
        (put("explorer.tree", [], replace=True), "value"),
        (put("explorer.tree", [node(id) for id in "ABCDF"], replace=True), "value"),
        (put("explorer.tree", [node(id) for id in "ABCDEE"], replace=True), "value"),
        (put("explorer.tree", "oak"), "value"),
        (put("explorer.tree.0", {}), "target"),
        (put("explorer", {"tree": "oak"}), "value.tree"),
        (put("explorer", {"items": {}}), "value.items"),
        (put("explorer", {"items": None, "tree": None}), "value.items"),
        (put("explorer", tree(node("Z"))), "value.tree"),
        (put("explorer", tree(Z={})), "value.items"),
        (put("explorer", tree(node("Z"), Z={"id": "Z"})), "value.items.Z.id"),
        (put("explorer", tree(node("Z"), Z=[])), "value.items.Z"),
        (put("explorer", tree({"id": "Z"}, Z={})), "value.tree"),
        (put("explorer", tree({"id": "Z", "children": {}}, Z={})), "value.tree"),
        (put("explorer", tree({**node("Z"), "open": True}, Z={})), "value.tree"),
        (put("explorer", tree(node("Z", node("Z")), Z={})), "value.tree"),
        (put("explorer", tree(node("_root"), _root={})), "value.tree"),
        (put("a", {"b": {"c": tree(node("Z"))}}), "value.b.c.tree"),
        (put("loose.items.A", {}), "target"),
        (put("loose.items", {"A": {}}), "value"),
        (event("unset", "explorer.tree"), "target"),
        (event("unset", "explorer.items"), "target"),
        (event("unset", "explorer.items.A"), "target"),
        (event("init", value={"x": tree(node("Z"))}), "value.x.tree"),
        (push("Z", sub=tree(node("Q"))), "value.sub.tree"),
        (push("Z", target="fresh", sub=tree(node("Q"))), "value.sub.tree"),
        (push("Z", target="explorer.items"), "target"),
        (push("Z", target="explorer.items.NEW"), "target"),
        (push("Z", target="explorer.tree"), "target"),
        (update("A", {"sub": tree(node("Q"))}), "value.sub.tree"),
        (update("A", tree(node("Q"))), "value.tree"),
        (update("A", tree(node("Q")), replace=True), "value.tree"),
    ],
)
def test_writes_that_would_break_a_tree_are_refused(one: Any, field: str) -> None:
    state = outline()
    after(state, put("loose.tree", [node("X")], replace=True))
    assert refused(state, one) == [f"event.payload.{field}"]


@pytest.mark.req("TREE-10")
def test_an_object_that_becomes_a_tree_is_one_from_then_on() -> None:
    state = PROFILE.empty()
    after(state, put("a.tree", [node("A")], replace=True))
    assert refused(state, put("a.items.B", {})) == ["event.payload.target"]
    after(state, put("a.items.A.name", "a"), push("B", target="a", parent="A"))
    assert state.dump() == {"a": tree(node("A", node("B")), A={"name": "a"}, B={})}
    after(state, put("b", tree(node("A"), A={})), push("B", target="b"))
    assert order(state, "b") == "AB"


@pytest.mark.req("TREE-10")
def test_what_no_target_can_name_is_no_tree() -> None:
    broken = tree(node("ghost"))
    state = PROFILE.load({"items": {}, "tree": [1], "list": [broken]})
    assert after(state, put("items.A", {"x": 1})) == {"items": {"A": {"x": 1}}, "tree": [1], "list": [broken]}
    assert after(state, event("unset", "tree")) == {"items": {"A": {"x": 1}}, "list": [broken]}


@pytest.mark.req("TREE-04", "TREE-10")
def test_a_tree_lives_within_an_item_of_another() -> None:
    state = outline()
    after(state, push("X", target="explorer.items.A.sections"), push("Y", target="explorer.items.A.sections"))
    after(state, push("line", target="explorer.items.A.sections.items.Y.lines", text="hello"))
    inner = {
        "sections": tree(node("X"), node("Y"), X={}, Y={"lines": tree(node("line"), line={"text": "hello"})})
    }
    dumped: Any = state.dump()
    assert dumped["explorer"]["items"]["A"] == {"name": "a", **inner}
    mark = state.mark()
    after(state, delete("A"))
    assert refused(state, push("Z", target="explorer.items.A.sections")) == ["event.payload.target"]
    state.rollback(mark)
    assert same(state.dump(), dumped)


@pytest.mark.req("VAL-05")
def test_the_order_of_keys_does_not_change_the_judgement() -> None:
    broken: Any = {name: tree(node(name)) for name in "bca"}
    turned = {name: broken[name] for name in reversed(broken)}
    for one, other in (
        (put("t", broken), put("t", turned)),
        (event("init", value=broken), event("init", value=turned)),
    ):
        errors = PROFILE.refusals(PROFILE.empty(), one)
        assert errors == PROFILE.refusals(PROFILE.empty(), other)
        assert len(errors) == 1
