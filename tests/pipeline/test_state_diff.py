from __future__ import annotations

import copy
import random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.outline import Outlines, outline_model
from unisono.model.pack import pack, unpack
from unisono.model.partition import PartitionState
from unisono.pipeline.deep_json import _tokens, state_text, text
from unisono.pipeline.state_diff import StateChange, changes

Json = Any

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=15,
)
objects = st.dictionaries(st.sampled_from(["a", "b", "c/d", "e~f", ""]), values, max_size=4)


def patched(state: Json, operations: list[Json]) -> Json:
    """The operations done one after the other, by somebody who knows nothing of how they were found."""
    state = copy.deepcopy(state)
    for operation in operations:
        keys = [key.replace("~1", "/").replace("~0", "~") for key in operation["path"].split("/")[1:]]
        holder = state
        for key in keys[:-1]:
            holder = holder[key]
        last, kind = keys[-1], operation["op"]
        if kind == "add":
            assert last not in holder
            holder[last] = operation["value"]
        elif kind == "replace":
            assert orjson.dumps(holder[last]) == orjson.dumps(operation["old"])
            holder[last] = operation["value"]
        elif kind == "remove":
            del holder[last]
        else:
            _on_tree(holder[last], operation)
    return state


def _on_tree(tree: Json, operation: Json) -> None:
    id = operation["id"]
    if operation["op"] == "treePush":
        assert id not in tree["items"]
        tree["items"][id] = operation["value"]
        node = {"children": [], "id": id}
    else:
        siblings = _siblings_of(tree["tree"], id)
        node = siblings.pop([child["id"] for child in siblings].index(id))
    if operation["op"] == "treeDelete":
        gone = _ids(node)
        assert len(gone) == operation["below"] + 1
        for each in gone:
            del tree["items"][each]
        return
    parent = operation["parent"]
    children = tree["tree"] if parent == "_root" else _node(tree["tree"], parent)["children"]
    place = (
        0 if operation["after"] is None else 1 + [child["id"] for child in children].index(operation["after"])
    )
    children.insert(place, node)


def _ids(node: Json) -> list[str]:
    return [node["id"], *(id for child in node["children"] for id in _ids(child))]


def _node(nodes: Json, id: str) -> Json:
    for node in nodes:
        if node["id"] == id:
            return node
        if (found := _node(node["children"], id)) is not None:
            return found
    return None


def _siblings_of(nodes: Json, id: str) -> Json:
    if any(node["id"] == id for node in nodes):
        return nodes
    return next((found for node in nodes if (found := _siblings_of(node["children"], id)) is not None), None)


def operations(old: Json, new: Json) -> list[Json]:
    return [change.operation() for change in changes(old, new)]


@given(objects, objects, objects, objects)
def test_done_one_after_the_other_they_make_the_second_state(
    one: Json, two: Json, three: Json, four: Json
) -> None:
    old, new = {"tree": one, "data": two}, {"tree": three, "data": four}
    done = patched(old, operations(old, new))
    assert orjson.dumps(done, option=orjson.OPT_SORT_KEYS) == orjson.dumps(new, option=orjson.OPT_SORT_KEYS)
    assert operations(old, old) == []


@st.composite
def trees(draw: st.DrawFn) -> Json:
    """A tree over some of the same few ids, in any shape."""
    ids = draw(st.lists(st.sampled_from("abcdefgh"), unique=True))
    top: list[Json] = []
    nodes: list[Json] = []
    for id in ids:
        node = {"children": [], "id": id}
        place = draw(st.integers(-1, len(nodes) - 1))
        siblings = top if place < 0 else nodes[place]["children"]
        siblings.insert(draw(st.integers(0, len(siblings))), node)
        nodes.append(node)
    return {"items": {id: {"n": draw(st.integers(0, 2))} for id in ids}, "tree": top}


@given(trees(), trees())
def test_trees_are_told_by_their_nodes(one: Json, two: Json) -> None:
    old, new = {"tree": {"t": one}, "data": {}}, {"tree": {"t": two}, "data": {}}
    found = operations(old, new)
    assert patched(old, found) == new
    moved = [each["id"] for each in found if each["op"] == "treeMove"]
    assert len(moved) == len(set(moved))
    assert not any(each["path"].startswith("/tree/t/tree") for each in found), "no positions in nested arrays"


def test_of_real_histories() -> None:
    model, chance = outline_model(), random.Random(4)
    for seed in range(3):
        state, states = PartitionState(), []
        for record in Outlines(seed, 1).records(400):
            model.apply_committed(state, orjson.loads(record.event))
            states.append(state.dump())
        for _ in range(20):
            old, new = sorted(chance.sample(range(len(states)), 2))
            assert patched(states[old], operations(states[old], states[new])) == states[new]
            assert patched(states[new], operations(states[new], states[old])) == states[old]


def tree(*nodes: Json, **items: Json) -> Json:
    return {"tree": {"outline": {"items": items, "tree": list(nodes)}}, "data": {"title": "A", "gone": 1}}


def node(id: str, *children: Json) -> Json:
    return {"id": id, "children": list(children)}


def test_lines_for_people() -> None:
    old = tree(
        node("a", node("b")), node("c"), node("d", node("e")), a={}, b={}, c={}, d={}, e={"t": "x" * 300}
    )
    new = tree(node("c"), node("a"), node("f", node("b")), a={"done": True}, b={}, c={}, f={"t": 1})
    del new["data"]["gone"]
    new["data"].update({"title": "B", "a.b": [1]})
    assert [change.line() for change in changes(old, new)] == [
        "> tree.outline  c from the top to the top, first",
        '+ tree.outline  f the top, after a  {"t":1}',
        "> tree.outline  b from below a to below f, first",
        "- tree.outline  d and 1 below it  {}",
        "+ tree.outline.items.a.done  true",
        '+ data."a.b"  [1]',
        "- data.gone  1",
        '~ data.title  "A" → "B"',
    ]
    steering = StateChange(
        "treePush", "/tree/a\x07", {"t": "\x9b2J"}, id="n\x1b[2J\n", parent="_root", after=None
    )
    assert steering.line() == r'+ tree."a\u0007"  n\u001b[2J\u000a the top, first  {"t":"\u009b2J"}'
    long = StateChange("add", "/data/x", value="y" * 500).line()
    assert len(long) < 120
    assert long.endswith("…")


@given(values)
def test_text_without_recursion_is_what_the_encoder_writes(value: Json) -> None:
    assert "".join(_tokens(value, False, False)) == orjson.dumps(value).decode()
    assert "".join(_tokens(value, True, False)) == orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    sorted_keys = orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    assert text(value, sort_keys=True) == sorted_keys


@pytest.mark.req("TREE-12")
def test_states_deeper_than_encoders_go() -> None:
    nodes: Json = []
    for number in range(3_000):
        nodes = [{"children": nodes, "id": f"n{number}"}]
    items: Json = {f"n{number}": {} for number in range(3_000)}
    deep: Json = {"tree": {"outline": {"items": items, "tree": nodes}}, "data": {}}
    written = state_text(pack(deep))
    assert written == text(unpack(pack(deep)))
    assert written.count('"children"') == 3_000
    other = unpack(pack(deep))
    other["tree"]["outline"]["items"]["n7"] = {"t": 1}  # type: ignore[index,call-overload]
    assert [change.line() for change in changes(deep, other)] == ["+ tree.outline.items.n7.t  1"]
    assert text(2**70) == str(2**70)
