"""One event in many states: they share what it brings, and none sees what another does with it."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from tests.model.histories import Writer
from tests.model.oracle import clone
from unisono.model import values
from unisono.model.rules import Event, Rules
from unisono.model.schema import SchemaProfile
from unisono.model.tree import TreeProfile, TreeState

STATES = 3


@pytest.fixture(autouse=True)
def small_values_are_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that also the small values of these tests remember their weight."""
    monkeypatch.setattr(values, "HEAVY_BYTES", 300)


def text(state: TreeState) -> str:
    return json.dumps(state.dump())


@pytest.mark.req("LIM-07", "TREE-09", "TREE-11")
@pytest.mark.parametrize("seed", range(4))
def test_states_that_share_events_are_as_states_that_do_not(seed: int) -> None:
    profile, alone = TreeProfile(), TreeProfile()
    writer = Writer(3000 + seed)
    shared = [profile.empty() for _ in range(STATES)]
    exclusive = [alone.empty() for _ in range(STATES)]
    for step in range(400):
        event = writer.event(writer.random.choice(exclusive).dump())
        kept = clone(event)
        named = writer.random.sample(range(STATES), writer.random.randrange(1, STATES + 1))
        if profile.shape(event):
            continue
        refused = [profile.refusals(shared[index], event) for index in named]
        assert refused == [alone.refusals(exclusive[index], clone(event)) for index in named]
        if any(refused):
            continue
        marks = [(shared[index], shared[index].mark(), text(shared[index])) for index in named]
        for index in named:
            profile.apply(shared[index], event)
        if writer.chance(0.2):
            for state, mark, before in marks:
                state.rollback(mark)
                assert text(state) == before
        else:
            for index in named:
                alone.apply(exclusive[index], clone(event))
        assert event == kept
        for mine, other in zip(shared, exclusive, strict=True):
            assert text(mine) == text(other), step
            assert mine.weight() == other.weight() == profile.load(other.dump()).weight()
        if writer.chance(0.3):
            for state in (*shared, *exclusive):
                state.settle()


def keeping(*, meddling: bool = True) -> SchemaProfile:
    """Reducers that put what they get into the state in every way, and change what is there and what they got."""
    rules = Rules()

    @rules.check("put")
    def meddles(state: dict[str, Any], event: Event) -> None:
        if isinstance(event.data, dict) and meddling:
            event.data["meddled"] = True

    @rules.reduce("put")
    def put(state: dict[str, Any], event: Event) -> None:
        assert "meddled" not in event.data
        count = state["count"] = state.get("count", 0) + 1
        match event.data["how"]:
            case "whole":
                state[event.data["key"]] = event.data
            case "part":
                state[event.data["key"]] = event.data["value"]
            case "wrapped":
                state[event.data["key"]] = {"count": count, "data": event.data["value"], **event.data}
            case "appended":
                state.setdefault("all", []).append(event.data["value"])
            case "changed":
                event.data["value"].append(count)
                state[event.data["key"]] = event.data
                event.data["value"].append("later")
            case "touched":
                for value in state.values():
                    if isinstance(value, dict) and isinstance(value.get("value"), list):
                        value["value"].append(count)
                        value["value"][0]["deep"] = count
            case "moved":
                state["moved"] = dict(state)

    return SchemaProfile(None, rules)


@pytest.mark.req("LIM-07", "VAL-03", "VAL-05")
@pytest.mark.parametrize("seed", range(4))
def test_rules_share_an_event_and_never_see_what_another_did_to_it(seed: int) -> None:
    dice = random.Random(seed)
    profile, alone = keeping(), keeping()
    shared = [profile.empty() for _ in range(STATES)]
    exclusive = [alone.empty() for _ in range(STATES)]
    for step in range(120):
        data = {
            "how": dice.choice(["whole", "part", "wrapped", "appended", "changed", "touched"]),
            "key": dice.choice("abc"),
            "value": [{"deep": [step], "text": "x" * dice.choice([1, 6_000])}, step],
        }
        if step % 40 == 39:
            data["how"] = "moved"
        event: Any = {"type": "event", "payload": {"schema": "put", "data": data}}
        kept = clone(event)
        for index in dice.sample(range(STATES), dice.randrange(1, STATES + 1)):
            assert profile.refusals(shared[index], event) == []
            profile.apply(shared[index], event)
            alone.apply(exclusive[index], clone(event))
        assert event == kept
        for mine, other in zip(shared, exclusive, strict=True):
            assert json.dumps(mine.dump()) == json.dumps(other.dump()), step
            assert mine.weight() == other.weight() == profile.load(other.dump()).weight()


NASTY = {
    "arrays": [[] for _ in range(300_000)],
    "numbers": list(range(150_000)),
    "keys": {f"{number:x}": {} for number in range(80_000)},
    "deep": [json.loads("[" * 50 + "]" * 50) for _ in range(9_000)],
}


def took_s(profile: Any, states: list[Any], event: Any) -> float:
    """CPU time of judging and applying an event in all the states."""
    started = time.thread_time()
    assert profile.shape(event) == []
    for state in states:
        assert profile.refusals(state, event) == []
        profile.apply(state, event)
    return time.thread_time() - started


@pytest.mark.req("LIM-07", "TREE-12")
@pytest.mark.parametrize("value", NASTY.values(), ids=NASTY)
def test_a_large_value_costs_once_and_not_per_partition(value: Any) -> None:
    """A walk through it in Python would cost a second, and sixty-four of them a minute."""
    tree, schema = TreeProfile(), keeping(meddling=False)
    put: Any = {"type": "set", "payload": {"target": "x", "value": value, "options": {"replace": True}}}
    assert took_s(tree, [tree.empty() for _ in range(64)], put) < 1.0
    data = {"how": "whole", "key": "x", "value": value}
    kept: Any = {"type": "event", "payload": {"schema": "put", "data": data}}
    assert took_s(schema, [schema.empty() for _ in range(8)], kept) < 2.0
