"""Tracked containers behave like plain ones, and undo puts back exactly what was."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.model.journal import Journal
from unisono.model.tracked import TrackedDict, TrackedList, track
from unisono.model.values import copied
from unisono.vocabulary import Json, JsonObject

KEYS = st.sampled_from(["a", "b", "c", "d", "__proto__", ""])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-1, 1), st.text(max_size=3))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=8,
)
INDEXES = st.integers(-6, 6)
SLICES = st.builds(
    slice,
    st.none() | INDEXES,
    st.none() | INDEXES,
    st.none() | st.sampled_from([-2, -1, 1, 2, 3]),
)
Change = Callable[[Any], object]


def put(container: Any, place: Any, value: Any) -> None:
    container[place] = value


def drop(container: Any, place: Any) -> None:
    del container[place]


def in_place_or(container: Any, other: Any) -> None:
    container |= other


def in_place_add(container: Any, other: Any) -> None:
    container += other


def in_place_times(container: Any, times: int) -> None:
    container *= times


def by_text(value: Json) -> str:
    return json.dumps(value)


def sort(container: Any) -> None:
    """A plain list whose parts cannot be compared is left half sorted; a tracked one is as it was."""
    sorted(container)
    container.sort()


@st.composite
def dict_changes(draw: st.DrawFn) -> Change:
    key, value = draw(KEYS), draw(VALUES)
    other = draw(st.dictionaries(KEYS, VALUES, max_size=3))
    changes: list[Change] = [
        lambda d: put(d, key, value),
        lambda d: drop(d, key),
        lambda d: d.update(other),
        lambda d: d.update(list(other.items())),
        lambda d: d.update(a=value),
        lambda d: in_place_or(d, other),
        lambda d: d.pop(key),
        lambda d: d.pop(key, value),
        lambda d: d.popitem(),
        lambda d: d.setdefault(key, value),
        lambda d: d.clear(),
    ]
    return draw(st.sampled_from(changes))


@st.composite
def list_changes(draw: st.DrawFn) -> Change:
    index, span, value = draw(INDEXES), draw(SLICES), draw(VALUES)
    others = draw(st.lists(VALUES, max_size=4))
    changes: list[Change] = [
        lambda x: x.append(value),
        lambda x: x.extend(others),
        lambda x: x.extend(x),
        lambda x: in_place_add(x, others),
        lambda x: in_place_times(x, draw_times),
        lambda x: x.insert(index, value),
        lambda x: x.pop(index),
        lambda x: x.pop(),
        lambda x: x.remove(value),
        lambda x: x.remove(x[index]),
        lambda x: x.sort(key=by_text),
        lambda x: x.sort(key=by_text, reverse=True),
        sort,
        lambda x: x.reverse(),
        lambda x: x.clear(),
        lambda x: put(x, index, value),
        lambda x: put(x, span, others),
        lambda x: put(x, span, x[span][::-1]),
        lambda x: drop(x, index),
        lambda x: drop(x, span),
    ]
    draw_times = draw(st.integers(-1, 3))
    return draw(st.sampled_from(changes))


def containers(root: Any) -> list[Any]:
    """Every container below `root`, in an order that plain and tracked copies share."""
    found, waiting = [], [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (dict, list)):
            found.append(value)
            waiting.extend(value.values() if isinstance(value, dict) else value)
    return found


def attempt(change: Change, container: Any) -> type[Exception] | None:
    try:
        change(container)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        return type(error)
    return None


def text(value: Json) -> str:
    """JSON text, which unlike `==` tells key order, and 1 from True."""
    return json.dumps(value)


def weighed(value: JsonObject) -> int:
    journal = Journal()
    track(value, journal)
    return journal.weight


@given(st.data())
def test_tracked_containers_follow_plain_ones_and_roll_back_to_any_mark(data: st.DataObject) -> None:
    start = data.draw(st.dictionaries(KEYS, VALUES, max_size=5))
    oracle = copy.deepcopy(start)
    journal = Journal()
    state = track(start, journal)
    history = [(journal.mark(), text(oracle))]
    for _ in range(data.draw(st.integers(1, 12))):
        which = data.draw(st.integers(0, 100))
        theirs = containers(oracle)
        mine = containers(state)
        place = which % len(theirs)
        strategy = dict_changes() if isinstance(theirs[place], dict) else list_changes()
        change = data.draw(strategy)
        before = text(oracle)
        assert attempt(change, mine[place]) == attempt(change, theirs[place])
        oracle = copy.deepcopy(json.loads(text(oracle)))  # plain containers share; JSON does not
        assert text(copied(state)) == text(oracle), before
        assert journal.weight == weighed(oracle)
        history.append((journal.mark(), text(oracle)))
        if data.draw(st.integers(0, 9)) == 0:
            journal.settle()
            history = [(journal.mark(), text(oracle))]
        elif data.draw(st.integers(0, 5)) == 0:
            chosen = data.draw(st.integers(0, len(history) - 1))
            del history[chosen + 1 :]
            mark, expected = history[chosen]
            journal.rollback(mark)
            oracle = json.loads(expected)
            assert text(copied(state)) == expected
            assert journal.weight == weighed(oracle)
    mark, expected = history[0]
    journal.rollback(mark)
    assert text(copied(state)) == expected
    assert journal.weight == weighed(json.loads(expected))
    assert all(isinstance(each, (TrackedDict, TrackedList)) for each in containers(state))


def test_key_order_returns_after_deletions_in_the_middle() -> None:
    journal = Journal()
    state = track({name: index for index, name in enumerate("abcdef")}, journal)
    mark = journal.mark()
    del state["b"]
    state["b"] = "again"
    state["g"] = 1
    del state["e"]
    state.clear()
    state["z"] = 1
    del state["z"]
    journal.rollback(mark)
    assert list(state.items()) == [(name, index) for index, name in enumerate("abcdef")]


def test_what_is_put_in_is_copied_also_from_the_same_state() -> None:
    journal = Journal()
    outside: list[Json] = [1]
    state: Any = track({"a": {"x": [1]}}, journal)
    state["outside"] = outside
    outside.append(2)
    state["b"] = state["a"]
    state["b"]["x"].append(2)
    state["a"]["inner"] = state["a"]
    assert copied(state) == {"a": {"x": [1], "inner": {"x": [1]}}, "outside": [1], "b": {"x": [1, 2]}}


def test_changing_a_value_in_place_through_its_parent_keeps_the_value() -> None:
    journal = Journal()
    state: Any = track({"list": [1], "object": {"a": 1}}, journal)
    items, settings = state["list"], state["object"]
    state["list"] += [2]
    state["list"] *= 2
    state["object"] |= {"b": 2}
    assert state["list"] is items
    assert state["object"] is settings
    assert copied(state) == {"list": [1, 2, 1, 2], "object": {"a": 1, "b": 2}}


def test_changes_to_a_value_taken_out_are_undone_and_weigh_nothing() -> None:
    journal = Journal()
    state: Any = track({"a": {"x": [1, 2, 3]}, "keep": "me"}, journal)
    mark, weight = journal.mark(), journal.weight
    taken = state.pop("a")
    taken["x"].clear()
    taken["long"] = "x" * 10_000
    assert journal.weight == weighed({"keep": "me"})
    journal.rollback(mark)
    assert copied(state) == {"a": {"x": [1, 2, 3]}, "keep": "me"}
    assert journal.weight == weight


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({1, 2}, "'set'"),
        ((1, 2), "'tuple'"),
        (b"bytes", "'bytes'"),
        (object(), "'object'"),
        (float("nan"), "nan is no JSON number"),
        (float("inf"), "inf is no JSON number"),
        (2**64, "64 bits"),
        ("\ud800", "half a character"),
        ({1: "x"}, "keys are strings"),
        ([[[{"deep": [print]}]]], "'builtin_function_or_method'"),
    ],
    ids=lambda value: type(value).__name__ if type(value) is object else repr(value),
)
def test_only_json_is_held(value: object, says: str) -> None:
    journal = Journal()
    state: Any = track({"list": [0]}, journal)
    attempts: list[Callable[[], object]] = [
        lambda: put(state, "new", value),
        lambda: put(state, "list", value),
        lambda: state.update(new=value),
        lambda: state.setdefault("new", value),
        lambda: in_place_or(state, {"new": value}),
        lambda: state["list"].append(value),
        lambda: state["list"].extend([value]),
        lambda: state["list"].insert(0, value),
        lambda: put(state["list"], 0, value),
        lambda: put(state["list"], slice(0, 1), [value]),
        lambda: put(state["list"], slice(None, None, 2), [value]),
        lambda: in_place_add(state["list"], [value]),
    ]
    for attempt_ in attempts:
        with pytest.raises(TypeError, match=f"a state holds JSON only; .*{says}"):
            attempt_()
    assert copied(state) == {"list": [0]}
    assert journal.mark() == 0


def test_keys_are_strings_and_nothing_contains_itself() -> None:
    state: Any = track({}, Journal())
    with pytest.raises(TypeError, match="keys are strings"):
        state[1] = "x"
    loop: list[Any] = []
    loop.append({"loop": loop})
    with pytest.raises(TypeError, match="contains itself"):
        state["loop"] = loop
    twice = [1]
    state["twice"] = [twice, twice]
    state["by"] = defaultdict(list, {"k": [1]})
    assert copied(state) == {"twice": [[1], [1]], "by": {"k": [1]}}
    assert type(state["by"]) is TrackedDict


def test_depth_causes_no_recursion() -> None:
    depth = 100_000
    value: Json = "bottom"
    for level in range(depth):
        value = {"down": value} if level % 2 else [value]
    journal = Journal()
    state: Any = track({}, journal)
    state["deep"] = value
    dumped: Any = copied(state)["deep"]  # type: ignore[call-overload,index]
    levels = 0
    while dumped != "bottom":
        dumped = dumped["down"] if type(dumped) is dict else dumped[0]
        levels += 1
    assert levels == depth
    journal.rollback(0)
    assert copied(state) == {}
    assert journal.weight == weighed({})


def test_void_marks_are_refused() -> None:
    journal = Journal()
    state = track({}, journal)
    state["a"] = 1
    before = journal.mark()
    state["a"] = 2
    journal.settle()
    state.update(a=3, b=4)
    for void in (before, journal.mark() + 1):
        with pytest.raises(ValueError, match="void"):
            journal.rollback(void)
    assert state == {"a": 3, "b": 4}


def test_copies_are_plain_and_share_nothing() -> None:
    journal = Journal()
    state: Any = track({"a": [{"b": 1}]}, journal)
    deep = copy.deepcopy(state)
    assert type(deep) is dict
    assert type(deep["a"]) is list
    deep["a"][0]["b"] = 2
    assert type(copy.copy(state)) is dict
    assert type(copy.copy(state["a"])) is list
    assert copied(state) == {"a": [{"b": 1}]}
    assert journal.mark() == 0


def test_weight_is_near_the_memory_taken() -> None:
    source: JsonObject = {
        f"note-{index}": {"title": f"Title {index}", "tags": ["x", f"tag {index}"], "rank": index * 1.5}
        for index in range(2_000)
    }
    encoded = json.dumps(source)
    tracemalloc.start()
    journal = Journal()
    state = track(json.loads(encoded), journal)
    held, _ = tracemalloc.get_traced_memory()
    assert len(state) == len(source)
    tracemalloc.stop()
    assert 0.4 < journal.weight / held < 2.5
