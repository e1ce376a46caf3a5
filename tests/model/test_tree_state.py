"""The state itself: undoing, dumping, loading, depth and cost."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.model.events import (
    PROFILE,
    after,
    delete,
    event,
    move,
    node,
    outline,
    push,
    put,
    tree,
    update,
)
from tests.model.oracle import clone, same
from unisono.model.forest import Malformed
from unisono.model.tree import TreeProfile, TreeState


def test_a_state_changes_nothing_that_went_in_and_shares_nothing_that_comes_out() -> None:
    given = {"explorer": tree(node("A"), A={"list": [{"x": 1}]}), "plain": {"list": [[1]]}}
    kept = clone(given)
    state = PROFILE.load(given)
    one = put("new", {"list": [{"x": 1}], "inner": {}})
    after(state, one, put("new.inner.x", 1), put("plain.more", 1), update("A", {"y": 1}), push("B"))
    assert given == kept
    assert one == put("new", {"list": [{"x": 1}], "inner": {}})
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
