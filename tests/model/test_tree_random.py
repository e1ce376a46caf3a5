"""Long random histories of hostile tree actions, held against the oracle after every step."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.histories import Writer
from tests.model.oracle import WRITE, Oracle, clone, same, trees, well_formed
from unisono.model.tree import TreeProfile, TreeState

PROFILE = TreeProfile()


def text(state: TreeState) -> str:
    return json.dumps(state.dump(), sort_keys=False)


@pytest.mark.req("TREE-01", "TREE-02", "TREE-03", "TREE-04", "TREE-05", "TREE-06", "TREE-07", "TREE-08")
@pytest.mark.req("TREE-10", "TREE-11", "VAL-04", "VAL-05")
@pytest.mark.parametrize(("seed", "calm"), [*((seed, False) for seed in range(4)), (6, True)])
def test_a_history_agrees_with_the_oracle(seed: int, calm: bool) -> None:
    compare_with_the_oracle(seed, 500, calm=calm)


def compare_with_the_oracle(seed: int, steps: int, *, calm: bool) -> None:
    writer, oracle, state = Writer(seed, calm=calm), Oracle(), PROFILE.empty()
    counts = {"accepted": 0, "refused": 0}
    for step in range(steps):
        event = writer.event(oracle.state)
        kept = clone(event)
        assert PROFILE.shape(event) == []
        refusals = PROFILE.refusals(state, event)
        assert PROFILE.refusals(state, clone(event)) == refusals
        expected = oracle.act(event)
        counts["refused" if expected else "accepted"] += 1
        fields = [error.field for error in refusals]
        if expected == [WRITE]:
            assert fields, (step, event)
            assert all(field.startswith(("event.payload.target", "event.payload.value")) for field in fields)
        else:
            assert fields[: len(expected)] == expected, (step, event)
            assert bool(fields) == bool(expected), (step, event)
        if not refusals:
            PROFILE.apply(state, event)
        assert event == kept
        dumped = state.dump()
        assert same(dumped, oracle.state), (step, event)
        assert all(well_formed(tree) for _, tree in trees(dumped))
        if step % 10 == 0:
            loaded = PROFILE.load(clone(dumped))
            assert text(loaded) == text(state)
            assert loaded.weight() == state.weight()
    assert min(counts.values()) > steps / 8, counts


@pytest.mark.parametrize("seed", range(4))
def test_rollback_restores_every_byte(seed: int) -> None:
    writer, state = Writer(1000 + seed), PROFILE.empty()
    for _ in range(120):
        marks = []
        for _ in range(writer.random.randrange(1, 6)):
            marks.append((state.mark(), text(state), state.weight()))
            for _ in range(writer.random.randrange(6)):
                event = writer.event(state.dump())
                if not PROFILE.refusals(state, event):
                    PROFILE.apply(state, event)
        keep = writer.random.randrange(len(marks) + 1)
        for mark, before, weight in reversed(marks[keep:]):
            state.rollback(mark)
            assert text(state) == before
            assert state.weight() == weight == PROFILE.load(state.dump()).weight()
        if writer.chance(0.5):
            state.settle()


@pytest.mark.req("TREE-11")
@pytest.mark.parametrize("seed", range(2))
def test_judgement_after_a_reload_is_the_same(seed: int) -> None:
    writer, state = Writer(2000 + seed), PROFILE.empty()
    for step in range(800):
        event = writer.event(state.dump())
        if step % 7 == 0:
            loaded = PROFILE.load(state.dump())
            assert PROFILE.refusals(loaded, event) == PROFILE.refusals(state, event)
            state = loaded
        if not PROFILE.refusals(state, event):
            PROFILE.apply(state, event)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.text(max_size=3)
    | st.sampled_from(["_root", "first", "a.b"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["id", "items", "tree", "children", "after", "before", "parent", "position", "replace"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
payloads = st.fixed_dictionaries({}, optional=dict.fromkeys(("target", "value", "options"), json_values))


@pytest.mark.req("VAL-04", "VAL-05")
@settings(max_examples=300, derandomize=True, database=None)
@given(
    kind=st.sampled_from([*PROFILE.accepted_event_types, "event", None, 7]),
    payload=payloads | json_values,
    target=st.none() | st.sampled_from(["explorer", "explorer.items.A", "a.b"]),
)
def test_any_json_is_judged_and_never_breaks_the_state(kind: Any, payload: Any, target: str | None) -> None:
    if target is not None and isinstance(payload, dict):
        payload = {**payload, "target": target}
    event: Any = {"type": kind, "payload": payload}
    errors = PROFILE.shape(event)
    assert errors == PROFILE.shape(clone(event))
    if errors:
        return
    tree = {"items": {"A": {}, "B": {}}, "tree": [{"id": "A", "children": [{"id": "B", "children": []}]}]}
    state = PROFILE.load({"explorer": clone(tree), "a": 1})
    before, mark = text(state), state.mark()
    if PROFILE.refusals(state, event):
        assert text(state) == before
        return
    PROFILE.apply(state, event)
    assert all(well_formed(tree) for _, tree in trees(state.dump()))
    state.rollback(mark)
    assert text(state) == before
