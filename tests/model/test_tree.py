"""The tree actions, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.events import (
    PROFILE,
    after,
    delete,
    event,
    move,
    node,
    order,
    outline,
    push,
    put,
    refused,
    tree,
    update,
)
from tests.model.oracle import clone
from unisono.model.tree import TreeProfile
from unisono.model.tree_actions import TARGET_SEGMENTS_MAX


@pytest.mark.req("TREE-01")
def test_set_merges_objects_shallowly_and_sets_everything_else() -> None:
    state = PROFILE.empty()
    assert after(state, put("a", {"x": {"deep": 1}, "y": 1})) == {"a": {"x": {"deep": 1}, "y": 1}}
    assert after(state, put("a", {"x": {"other": 2}})) == {"a": {"x": {"other": 2}, "y": 1}}
    assert after(state, put("a", {"z": 0}, replace=True)) == {"a": {"z": 0}}
    assert after(state, put("a", 5)) == {"a": 5}
    assert after(state, put("a", {"now": "an object"})) == {"a": {"now": "an object"}}
    assert after(state, put("a", None)) == {"a": None}
    assert after(state, put("a", [1, {"b": 2}], replace=True)) == {"a": [1, {"b": 2}]}


@pytest.mark.req("TREE-01")
def test_set_makes_objects_of_missing_segments_and_of_nothing_else() -> None:
    state = PROFILE.empty()
    assert after(state, put("a.b.c", 1)) == {"a": {"b": {"c": 1}}}
    assert refused(state, put("a.b.c.d", 2)) == ["event.payload.target"]
    after(state, put("list", [1], replace=True), put("nothing", None))
    assert refused(state, put("list.0", 2)) == ["event.payload.target"]
    assert refused(state, put("nothing.x", 2)) == ["event.payload.target"]


@pytest.mark.req("TREE-01", "VAL-04")
def test_an_array_is_set_only_with_replace() -> None:
    fields = [error.field for error in PROFILE.shape(put("a", []))]
    assert fields == ["event.payload.value"]
    assert [error.field for error in PROFILE.shape(put("a", [], replace=False))] == fields


@pytest.mark.req("TREE-02")
def test_unset_removes_and_a_missing_path_is_no_change() -> None:
    state = PROFILE.load({"a": {"b": 1, "c": 2}, "n": 5})
    assert after(state, event("unset", "a.b")) == {"a": {"c": 2}, "n": 5}
    for missing in ("a.b", "a.b.c", "x", "x.y.z", "n.m", "a.c.d"):
        assert after(state, event("unset", missing)) == {"a": {"c": 2}, "n": 5}
    assert after(state, event("unset", "a")) == {"n": 5}


@pytest.mark.req("TREE-03")
def test_init_replaces_the_whole_state() -> None:
    state = outline()
    value = {"explorer": tree(node("Z"), Z={"name": "z"}), "other": 1}
    assert after(state, event("init", value=value)) == value
    assert after(state, push("Y")) == {
        "explorer": tree(node("Z"), node("Y"), Z={"name": "z"}, Y={}),
        "other": 1,
    }
    assert after(state, event("init", value={})) == {}


@pytest.mark.req("TREE-03", "TREE-10")
def test_init_takes_items_with_their_own_ids_and_stores_them_without() -> None:
    state = outline()
    inner = tree(node("X"), X={"id": "X", "n": 1})
    given = {
        "explorer": tree(node("A", node("B")), A={"id": "A", "name": "a", "sub": inner}, B={}),
        "deep": {"er": tree(node("id"), id={"id": "id"})},
        "items": {"Z": {"id": "Q"}},
        "tree": [],
        "list": [tree(node("ghost"), other={"id": 5})],
    }
    one = event("init", value=given)
    kept = clone(one)
    stored = {
        **clone(given),
        "explorer": tree(node("A", node("B")), A={"name": "a", "sub": tree(node("X"), X={"n": 1})}, B={}),
        "deep": {"er": tree(node("id"), id={})},
    }
    assert after(state, one) == stored
    assert one == kept
    assert state.weight() == PROFILE.load(state.dump()).weight()
    assert after(state, update("A", {"name": "new"}))["explorer"]["items"]["A"]["name"] == "new"


@pytest.mark.req("TREE-03", "VAL-04")
@pytest.mark.parametrize("id", ["B", "", None, 7, ["A"], {"id": "A"}])
def test_init_refuses_an_item_with_another_id(id: Any) -> None:
    wrong = {"deep": {"er": tree(node("A"), node("C"), A={"id": id}, C={"id": "C"})}}
    assert refused(outline(), event("init", value=wrong)) == ["event.payload.value.deep.er.items.A.id"]
    within = {"t": tree(node("C"), C={"id": "C", "sub": tree(node("A"), A={"id": id})})}
    assert refused(outline(), event("init", value=within)) == ["event.payload.value.t.items.C.sub.items.A.id"]


@pytest.mark.req("TREE-01", "TREE-04", "TREE-06", "TREE-07")
def test_null_means_the_default_where_there_is_one() -> None:
    state = outline()
    after(
        state,
        event("treePush", "explorer", value={"id": "F"}, options=None),
        event("treePush", "explorer", value={"id": "G"}, options={"parent": None, "position": None}),
        event("treePush", "explorer", value={"id": "H"}, options={"parent": "A", "position": None}),
    )
    assert order(state) == "GFA(HB(D)C)E"
    after(state, move("D", parent=None, position=None), move("E", parent="A", position=None))
    assert order(state) == "DGFA(EHBC)"
    after(state, update("A", {"x": 1}, replace=None), event("set", "s", value={"a": 1}, options=None))
    dumped = after(state, put("s", {"b": 2}, replace=None))
    assert dumped["explorer"]["items"]["A"] == {"name": "a", "x": 1}
    assert dumped["s"] == {"a": 1, "b": 2}


@pytest.mark.req("TREE-04")
def test_push_takes_its_place_among_the_siblings_of_its_parent() -> None:
    state = PROFILE.empty()
    after(state, event("treePush", "explorer", value={"id": "A", "name": "a"}))
    after(state, event("treePush", "explorer", value={"id": "B"}))
    assert order(state) == "BA"
    after(
        state,
        push("C", position="last"),
        push("D", position={"after": "B"}),
        push("E", position={"before": "B"}),
    )
    assert order(state) == "EBDAC"
    after(
        state,
        push("F", position={"after": "C"}),
        push("G", parent="D"),
        push("H", parent="D", position="first"),
    )
    after(state, push("I", parent="D", position={"before": "G"}))
    assert order(state) == "EBD(HIG)ACF"


@pytest.mark.req("TREE-04")
def test_item_data_is_stored_without_its_id() -> None:
    state = PROFILE.empty()
    assert after(state, push("A", name="a", tags=[1])) == {
        "explorer": tree(node("A"), A={"name": "a", "tags": [1]}),
    }


@pytest.mark.req("TREE-05")
def test_delete_takes_the_descendants_and_their_items() -> None:
    state = outline()
    dumped = after(state, delete("B"))
    assert order(state) == "A(C)E"
    assert sorted(dumped["explorer"]["items"]) == ["A", "C", "E"]
    assert after(state, delete("A"), delete("E")) == {"explorer": tree()}


@pytest.mark.req("TREE-06")
def test_update_merges_shallowly_or_replaces_and_never_stores_an_id() -> None:
    state = PROFILE.empty()
    after(state, push("A", name="a", style={"bold": True}))
    after(state, update("A", {"id": "B", "style": {"size": 2}, "done": False}))
    items = state.dump()["explorer"]["items"]  # type: ignore[index,call-overload]
    assert items == {"A": {"name": "a", "style": {"size": 2}, "done": False}}
    assert after(state, update("A", {"id": 7, "x": 1}, replace=True)) == {
        "explorer": tree(node("A"), A={"x": 1})
    }
    assert after(state, update("A", {}, replace=True)) == {"explorer": tree(node("A"), A={})}


@pytest.mark.req("TREE-07")
def test_move_takes_the_subtree_along() -> None:
    state = outline()
    for one, expected in (
        (move("B"), "B(D)A(C)E"),
        (move("B", position="last"), "A(C)EB(D)"),
        (move("B", parent="A", position={"after": "C"}), "A(CB(D))E"),
        (move("B", parent="A", position={"before": "C"}), "A(B(D)C)E"),
        (move("E", parent="D"), "A(B(D(E))C)"),
        (move("E", parent="D", position="last"), "A(B(D(E))C)"),
        (move("D", parent="A", position="first"), "A(D(E)BC)"),
        (move("D", parent="A", position="first"), "A(D(E)BC)"),
        (move("B", parent="A", position={"after": "D"}), "A(D(E)BC)"),
        (move("B", parent="A", position={"before": "C"}), "A(D(E)BC)"),
        (move("C", parent="A", position="last"), "A(D(E)BC)"),
    ):
        before = clone(state.dump())
        after(state, one)
        assert order(state) == expected
        dumped: Any = state.dump()
        assert dumped["explorer"]["items"] == before["explorer"]["items"]


@pytest.mark.req("TREE-08", "VAL-04")
@pytest.mark.parametrize(
    ("one", "fields"),
    [
        (push("A"), ["event.payload.value.id"]),
        (push("Z", parent="nobody"), ["event.payload.options.parent"]),
        (push("Z", position={"after": "nobody"}), ["event.payload.options.position.after"]),
        (push("Z", position={"before": "B"}), ["event.payload.options.position.before"]),
        (push("Z", parent="B", position={"after": "B"}), ["event.payload.options.position.after"]),
        (push("A", parent="nobody"), ["event.payload.value.id", "event.payload.options.parent"]),
        (update("nobody", {}), ["event.payload.options.id"]),
        (delete("nobody"), ["event.payload.options.id"]),
        (move("nobody"), ["event.payload.options.id"]),
        (move("nobody", parent="none"), ["event.payload.options.id", "event.payload.options.parent"]),
        (move("E", parent="nobody"), ["event.payload.options.parent"]),
        (move("A", parent="A"), ["event.payload.options.parent"]),
        (move("A", parent="D"), ["event.payload.options.parent"]),
        (move("E", position={"after": "B"}), ["event.payload.options.position.after"]),
        (move("E", position={"before": "E"}), ["event.payload.options.position.before"]),
        (delete("A", "nowhere"), ["event.payload.target"]),
        (delete("A", "explorer.items"), ["event.payload.target"]),
        (delete("A", "explorer.tree"), ["event.payload.target"]),
    ],
)
def test_strict_refusals_name_their_field(one: Any, fields: list[str]) -> None:
    assert refused(outline(), one) == fields


@pytest.mark.req("TREE-08", "TREE-13")
@pytest.mark.parametrize(
    "here", [None, 5, "text", [], {"items": {}}, {"tree": []}, {"items": [], "tree": []}]
)
def test_a_target_that_is_not_a_tree_is_refused(here: Any) -> None:
    state = PROFILE.load({"explorer": here, "a": {"b": here}})
    for one in (push("A"), push("A", target="a.b"), update("A", {}), delete("A"), move("A")):
        assert refused(state, one) == ["event.payload.target"]


@pytest.mark.req("TREE-13")
def test_push_makes_a_tree_where_nothing_is_or_where_an_object_is() -> None:
    state = PROFILE.load({"empty": {}, "object": {"color": "red"}})
    after(state, push("A", target="new.in.depth"), push("A", target="empty"), push("A", target="object"))
    assert state.dump() == {
        "new": {"in": {"depth": tree(node("A"), A={})}},
        "empty": tree(node("A"), A={}),
        "object": {"color": "red", **tree(node("A"), A={})},
    }
    assert refused(state, push("B", target="other", parent="A")) == ["event.payload.options.parent"]
    assert refused(state, push("B", target="other", position={"after": "A"})) == [
        "event.payload.options.position.after"
    ]


@pytest.mark.req("TREE-13", "VAL-04")
def test_root_is_not_an_item_id() -> None:
    assert [error.field for error in PROFILE.shape(push("_root"))] == ["event.payload.value.id"]
    for one in (delete("_root"), update("_root", {}), move("_root")):
        assert [error.field for error in PROFILE.shape(one)] == ["event.payload.options.id"]
    beside = push("A", position={"after": "_root"})
    assert [error.field for error in PROFILE.shape(beside)] == ["event.payload.options.position.after"]


@pytest.mark.req("VAL-04", "VAL-05")
@pytest.mark.parametrize(
    ("one", "fields"),
    [
        ({}, ["type"]),
        ({"type": "event", "payload": {}}, ["type"]),
        ({"type": ["set"], "payload": 7}, ["type"]),
        ({"type": "set"}, ["payload"]),
        ({"type": "set", "payload": []}, ["payload"]),
        (event("set"), ["payload.target", "payload.value"]),
        (event("set", "", value=1), ["payload.target"]),
        (event("set", ".a", value=1), ["payload.target"]),
        (event("set", "a..b", value=1), ["payload.target"]),
        (event("set", "a.", value=1), ["payload.target"]),
        (event("set", "a", value=1, options=[]), ["payload.options"]),
        (event("set", "a", value=1, options={"replace": 1}), ["payload.options.replace"]),
        ({"type": "set", "payload": {"target": 5, "value": 1}}, ["payload.target"]),
        (event("unset"), ["payload.target"]),
        (event("init"), ["payload.value"]),
        (event("init", value=[]), ["payload.value"]),
        (event("treePush"), ["payload.target", "payload.value"]),
        (event("treePush", "t", value="A"), ["payload.value"]),
        (event("treePush", "t", value={}), ["payload.value.id"]),
        (event("treePush", "t", value={"id": ""}), ["payload.value.id"]),
        (event("treePush", "t", value={"id": 5}), ["payload.value.id"]),
        (event("treePush", "t", value={"id": "A"}, options=[]), ["payload.options"]),
        (event("treePush", "t", value={"id": "A"}, options={"parent": 1}), ["payload.options.parent"]),
        (event("treePush", "t", value={"id": "A"}, options={"parent": ""}), ["payload.options.parent"]),
        (push("A", position="middle"), ["payload.options.position"]),
        (push("A", position=0), ["payload.options.position"]),
        (push("A", position={}), ["payload.options.position"]),
        (push("A", position={"after": "B", "before": "C"}), ["payload.options.position"]),
        (push("A", position={"behind": "B"}), ["payload.options.position"]),
        (push("A", position={"after": None}), ["payload.options.position.after"]),
        (push("A", position={"before": ""}), ["payload.options.position.before"]),
        (event("treeDelete", "t"), ["payload.options.id"]),
        (event("treeDelete", "t", options={}), ["payload.options.id"]),
        (event("treeDelete", "t", options=None), ["payload.options.id"]),
        (event("treeMove", "t", options={"id": None, "position": None}), ["payload.options.id"]),
        ({"type": "unset", "payload": {"target": None}}, ["payload.target"]),
        (event("init", value=None), ["payload.value"]),
        (event("treeUpdate", "t", value=None, options={"id": "A"}), ["payload.value"]),
        (event("treeDelete", "t", options="A"), ["payload.options"]),
        (event("treeUpdate", "t"), ["payload.value", "payload.options.id"]),
        (event("treeUpdate", "t", value={}, options={"id": ""}), ["payload.options.id"]),
        (update("A", {}, replace="yes"), ["payload.options.replace"]),
        (event("treeMove", ""), ["payload.target", "payload.options.id"]),
        (
            move("", parent=[], position=[]),
            [f"payload.options.{key}" for key in ("id", "parent", "position")],
        ),
    ],
)
def test_the_shape_of_each_action(one: Any, fields: list[str]) -> None:
    errors = PROFILE.shape(one)
    assert [error.field for error in errors] == [f"event.{field}" for field in fields]
    assert PROFILE.shape(clone(one)) == errors


@pytest.mark.req("VAL-04")
def test_keys_the_rules_do_not_know_are_the_applications() -> None:
    one = push("A")
    one["meta"] = one["payload"]["note"] = one["payload"]["options"]["hint"] = {"any": "thing"}
    assert PROFILE.shape(one) == []


def test_a_target_is_bounded_in_depth() -> None:
    assert PROFILE.shape(put(".".join("a" * TARGET_SEGMENTS_MAX), 1)) == []
    too_deep = put("a." * TARGET_SEGMENTS_MAX + "a", 1)
    assert [error.field for error in PROFILE.shape(too_deep)] == ["event.payload.target"]


@pytest.mark.req("PROF-08")
def test_accepted_event_types_tell_whether_init_is_taken() -> None:
    kinds = ("set", "unset", "init", "treePush", "treeDelete", "treeUpdate", "treeMove")
    assert PROFILE.name == "compatibility"
    assert PROFILE.accepted_event_types == kinds
    closed = TreeProfile(accept_init=False)
    assert closed.accepted_event_types == tuple(kind for kind in kinds if kind != "init")
    assert [error.field for error in closed.shape(event("init", value={}))] == ["event.type"]
    assert closed.shape(push("A")) == []


HOSTILE = [
    "__proto__",
    "constructor",
    "a.b",
    ".",
    "items",
    "tree",
    "children",
    "id",
    "first",
    "0",
    " ",
    "\x00",
]
HOSTILE += ["\u00e9", "e\u0301", "\U0001f333", "null", "x" * 100_000]


@pytest.mark.req("TREE-04", "TREE-05", "TREE-06", "TREE-07", "TREE-10")
def test_any_string_is_an_id_and_never_a_path() -> None:
    state = PROFILE.empty()
    for above, id in zip(["_root", *HOSTILE], HOSTILE, strict=False):
        after(state, push(id, parent=above, name=id))
    dumped: Any = state.dump()
    assert dumped["explorer"]["items"] == {id: {"name": id} for id in HOSTILE}
    assert PROFILE.load(dumped).dump() == dumped
    for id in HOSTILE:
        assert refused(state, push(id)) == ["event.payload.value.id"]
        after(state, update(id, {"seen": True}), move(id, position="last"))
    assert [one["id"] for one in state.dump()["explorer"]["tree"]] == HOSTILE  # type: ignore[index,call-overload,union-attr]
    for id in HOSTILE:
        after(state, delete(id))
    assert state.dump() == {"explorer": tree()}


def test_refused_values_and_targets_are_not_repeated_at_length() -> None:
    long = "x" * 1_000_000
    for one in (put(long + ".y.z", 1), delete("A", long), put("a", {long: tree(node(long))})):
        errors = PROFILE.shape(one) or PROFILE.refusals(PROFILE.load({long: 5}), one)
        assert errors
        assert all(len(error.field) + len(error.message) < 1_000 for error in errors)
