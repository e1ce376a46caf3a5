"""The tree actions, rule by rule."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.model.oracle import clone, same
from unisono.model.forest import Malformed
from unisono.model.profile import Profile
from unisono.model.tree import TreeProfile, TreeState
from unisono.model.treeactions import TARGET_SEGMENTS_MAX

PROFILE: Profile[TreeState] = TreeProfile()


def event(kind: str, target: str | None = None, **payload: Any) -> Any:
    return {"type": kind, "payload": payload if target is None else {"target": target, **payload}}


def push(
    id: str, *, target: str = "explorer", parent: str = "_root", position: Any = "last", **data: Any
) -> Any:
    options = {"parent": parent, "position": position}
    return event("treePush", target, value={"id": id, **data}, options=options)


def move(id: str, **options: Any) -> Any:
    return event("treeMove", "explorer", options={"id": id, **options})


def delete(id: str, target: str = "explorer") -> Any:
    return event("treeDelete", target, options={"id": id})


def update(id: str, value: Any, **options: Any) -> Any:
    return event("treeUpdate", "explorer", value=value, options={"id": id, **options})


def put(target: str, value: Any, **options: Any) -> Any:
    return event("set", target, value=value, options=options)


def node(id: str, *children: Any) -> Any:
    return {"id": id, "children": list(children)}


def tree(*nodes: Any, **items: Any) -> Any:
    return {"items": items, "tree": list(nodes)}


def after(state: TreeState, *events: Any) -> Any:
    """The dump after events that are all accepted."""
    for one in events:
        assert PROFILE.shape(one) == []
        assert PROFILE.refusals(state, one) == []
        PROFILE.apply(state, one)
    return state.dump()


def refused(state: TreeState, one: Any) -> list[str]:
    """The fields a well-shaped event is refused on; it must be refused and change nothing."""
    assert PROFILE.shape(one) == []
    before = json.dumps(state.dump())
    errors = PROFILE.refusals(state, one)
    assert errors
    assert all(error.message for error in errors)
    assert json.dumps(state.dump()) == before
    return [error.field for error in errors]


def outline() -> TreeState:
    """A with B and C below it, B with D, and E beside A."""
    state = PROFILE.empty()
    after(
        state,
        push("A", name="a"),
        push("B", parent="A"),
        push("C", parent="A"),
        push("D", parent="B"),
        push("E"),
    )
    return state


def order(state: TreeState, target: str = "explorer") -> str:
    """The order of a tree as text: A(B(D)C)E."""
    dumped: Any = state.dump()

    def line(nodes: Any) -> str:
        return "".join(one["id"] + (f"({line(one['children'])})" if one["children"] else "") for one in nodes)

    return line(dumped[target]["tree"])


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
        (event("treePush", "t", value={"id": "A"}, options=None), ["payload.options"]),
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


def test_a_state_shares_nothing_with_what_went_in_or_out() -> None:
    given = {"explorer": tree(node("A"), A={"list": [{"x": 1}]}), "plain": {"list": [[1]]}}
    kept = clone(given)
    state = PROFILE.load(given)
    one = put("new", {"list": [{"x": 1}], "inner": {}})
    after(state, one, put("new.inner.x", 1), put("plain.more", 1), update("A", {"y": 1}))
    assert given == kept
    assert one == put("new", {"list": [{"x": 1}], "inner": {}})
    one["payload"]["value"]["list"][0]["x"] = given["plain"]["list"][0][0] = "changed"
    dumped: Any = state.dump()
    dumped["new"]["list"][0]["x"] = dumped["explorer"]["items"]["A"]["list"] = "changed"
    again: Any = state.dump()
    assert again["new"]["list"] == [{"x": 1}]
    assert again["plain"]["list"] == [[1]]
    assert again["explorer"]["items"]["A"]["list"] == [{"x": 1}]


def test_equal_states_dump_to_equal_bytes_however_they_came_about() -> None:
    one, other = PROFILE.empty(), PROFILE.empty()
    after(one, put("b", 1), put("a", {"y": [{"q": 1, "p": 2}], "x": 1}), push("B"), push("A"))
    after(
        other,
        push("A"),
        push("B", position="first"),
        put("a.x", 1),
        put("a.y", [{"p": 2, "q": 1}], replace=True),
    )
    after(other, put("b", 1))
    assert json.dumps(one.dump()) == json.dumps(other.dump())


def test_marks_nest_and_settling_voids_them() -> None:
    state = outline()
    outer = state.mark()
    start = json.dumps(state.dump())
    after(state, delete("B"))
    inner = state.mark()
    middle = json.dumps(state.dump())
    after(state, event("init", value={"x": 1}), push("Q", target="x2"))
    state.rollback(inner)
    assert json.dumps(state.dump()) == middle
    after(state, push("B", parent="E"))
    state.rollback(outer)
    assert json.dumps(state.dump()) == start
    with pytest.raises(ValueError, match="void"):
        state.rollback(inner)
    state.settle()
    with pytest.raises(ValueError, match="void"):
        state.rollback(outer)
    fresh = state.mark()
    with pytest.raises(ValueError, match="void"):
        state.rollback(outer)
    state.rollback(fresh)


@pytest.mark.parametrize(
    ("dumped", "place"),
    [([], "JSON object"), (None, "JSON object"), ({"a": {"b": tree(node("Z"))}}, "a.b.tree")],
)
def test_what_is_no_state_is_not_loaded(dumped: Any, place: str) -> None:
    with pytest.raises(Malformed, match=place):
        PROFILE.load(dumped)


@pytest.mark.req("TREE-12")
def test_a_tree_of_100_000_levels() -> None:
    levels = 100_000
    state = PROFILE.empty()
    above = "_root"
    for level in range(levels):
        one = push(f"n{level}", parent=above)
        assert not PROFILE.refusals(state, one)
        PROFILE.apply(state, one)
        above = f"n{level}"
    dumped: Any = state.dump()
    loaded = PROFILE.load(dumped)
    assert same(loaded.dump(), dumped)
    assert loaded.weight() == state.weight()
    assert refused_deep(state, move("n1", parent=above)) == ["event.payload.options.parent"]
    mark = state.mark()
    for one in (move(above), move("n50000"), delete("n50000"), delete("n0")):
        assert PROFILE.refusals(state, one) == []
        PROFILE.apply(state, one)
    assert state.dump() == {"explorer": tree(node(above), **{above: {}})}
    state.rollback(mark)
    assert same(state.dump(), dumped)


def refused_deep(state: TreeState, one: Any) -> list[str]:
    return [error.field for error in PROFILE.refusals(state, one)]


@pytest.mark.req("TREE-12")
def test_values_of_100_000_levels() -> None:
    deep: Any = 1
    for _ in range(50_000):
        deep = {"a": [deep]}
    chain: Any = 1
    for _ in range(100_000):
        chain = {"a": chain}
    state = PROFILE.empty()
    for one in (put("chain", chain), push("A", deep=deep)):
        assert PROFILE.refusals(state, one) == []
        PROFILE.apply(state, one)
    mark = state.mark()
    PROFILE.apply(state, event("unset", "chain"))
    PROFILE.apply(state, delete("A"))
    assert state.dump() == {"explorer": tree()}
    state.rollback(mark)
    assert same(state.dump(), {"chain": chain, "explorer": tree(node("A"), A={"deep": deep})})
    broken: Any = tree(node("Z"))
    for _ in range(100_000):
        broken = {"a": broken}
    assert refused_deep(state, put("broken", broken))[0].startswith("event.payload.value.a.a.a")


def large(size: int) -> TreeState:
    """A tree of `size` nodes, a hundred to a parent."""
    rows = [[node(f"n{row}-{place}") for place in range(99)] for row in range(max(1, size // 100))]
    nodes = [node(f"n{row}", *children) for row, children in enumerate(rows)]
    ids = [one["id"] for top in nodes for one in (top, *top["children"])]
    return PROFILE.load({"explorer": {"items": {id: {"name": id} for id in ids}, "tree": nodes}})


@pytest.mark.req("TREE-12")
def test_an_action_costs_the_same_in_a_large_tree() -> None:
    """One action on a tree 1,000 times as large must not cost ten times as much; a scan would cost 1,000."""
    small, big = large(100), large(100_000)

    def cost(state: TreeState, make: Callable[[int], Any]) -> float:
        best = float("inf")
        for turn in range(60):
            one = make(turn)
            mark = state.mark()
            start = time.perf_counter()
            refusals = PROFILE.refusals(state, one)
            PROFILE.apply(state, one)
            best = min(best, time.perf_counter() - start)
            assert not refusals
            state.rollback(mark)
        state.settle()
        return best

    gc.disable()
    try:
        for make in (
            lambda turn: push(f"new{turn}", parent="n0", position={"after": "n0-50"}),
            lambda turn: move("n0-7", parent="_root", position={"before": "n0"}),
            lambda turn: update("n0-7", {"name": turn}),
            lambda turn: delete("n0-7"),
            lambda turn: put("explorer.items.n0.name", turn),
            lambda turn: put("explorer", {"color": turn}),
            lambda turn: event("unset", "explorer.items.n0.name"),
        ):
            assert cost(big, make) < 10 * cost(small, make) + 20e-6
    finally:
        gc.enable()


@pytest.mark.req("TREE-11")
def test_one_reducer_replays_a_log_to_the_same_state() -> None:
    log = [
        push("A"),
        push("B", parent="A"),
        update("B", {"x": [1]}),
        put("s.t", {"u": 1}),
        move("B"),
        delete("A"),
    ]
    judged, folded = PROFILE.empty(), TreeProfile().empty()
    dumped = after(judged, *log)
    for one in log:
        TreeProfile().apply(folded, one)
    assert json.dumps(folded.dump()) == json.dumps(dumped)
