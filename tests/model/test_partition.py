"""Both halves of a partition: undone together, dumped and loaded, and replayed from the log."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.model.load import Model, load_model, no_model
from unisono.model.model import CANONICAL, COMPATIBILITY
from unisono.model.partition import PartitionState
from unisono.model.profile import ProfileState
from unisono.model.rules import Event, RuleFailed, Rules
from unisono.model.schema import SchemaProfile
from unisono.model.tree import TreeProfile
from unisono.samples import sample_model
from unisono.vocabulary import FieldError, Json, JsonObject

SAMPLE = load_model(sample_model())

IDS = st.sampled_from(["a", "b", "c", "__proto__"])


def canonical(schema: str, data: Json) -> JsonObject:
    return {"type": "event", "payload": {"schema": schema, "data": data}}


def tree(action: str, target: str, **payload: Json) -> JsonObject:
    return {"type": action, "payload": {"target": target, **payload}}


EVENTS: st.SearchStrategy[JsonObject] = st.one_of(
    st.builds(lambda id, text: canonical("note.added", {"id": id, "text": text}), IDS, st.text(max_size=2)),
    st.builds(lambda id: canonical("note.edited", {"id": id, "text": "edited"}), IDS),
    st.builds(lambda id: canonical("note.removed", {"id": id}), IDS),
    st.builds(lambda text: canonical("outline.renamed", {"title": text}), st.text(max_size=2)),
    st.builds(lambda id: tree("treePush", "outline", value={"id": id, "title": "t"}), IDS),
    st.builds(lambda id: tree("treeDelete", "outline", options={"id": id}), IDS),
    st.builds(lambda id, parent: tree("treeMove", "outline", options={"id": id, "parent": parent}), IDS, IDS),
    st.builds(lambda value: tree("set", "settings.x", value=value), st.integers(0, 3)),
    st.just(tree("unset", "settings")),
)


def submit(model: Model, state: PartitionState, event: JsonObject) -> list[FieldError]:
    profile = CANONICAL if event["type"] == "event" else COMPATIBILITY
    errors = model.shape(profile, event) or model.refusals(profile, state, event)
    if not errors:
        model.apply(profile, state, event)
    return errors


def order(state: PartitionState) -> list[str]:
    notes: Any = state.data.value.get("notes", {})
    return list(notes)


def halves(state: PartitionState) -> tuple[ProfileState, ProfileState]:
    return state.tree, state.data


def test_it_is_a_state() -> None:
    state: ProfileState = PartitionState()
    assert state.dump() == {"tree": {}, "data": {}}


@pytest.mark.req("TREE-11")
@given(st.lists(EVENTS, max_size=25), st.data())
def test_judging_replaying_undoing_and_reloading_agree(events: list[JsonObject], data: st.DataObject) -> None:
    judged, replayed = PartitionState(), PartitionState()
    committed = []
    for event in events:
        before, weight, keys = judged.dump(), judged.weight(), order(judged)
        mark = judged.mark()
        if submit(SAMPLE, judged, event):
            assert judged.dump() == before
            continue
        if data.draw(st.integers(0, 3)) == 0:  # its group fails
            judged.rollback(mark)
            assert (judged.dump(), order(judged)) == (before, keys)
            assert abs(judged.weight() - weight) < 1_000, "an empty half may stay or go"
            continue
        committed.append(event)
        if data.draw(st.booleans()):
            judged.settle()
    for number, event in enumerate(committed):
        assert SAMPLE.apply_committed(replayed, event)
        if number == len(committed) // 2:
            replayed = PartitionState.load(replayed.dump())
    assert replayed.skipped == 0
    assert replayed.dump() == judged.dump()
    assert order(replayed) == order(judged)
    for half, again in zip(halves(replayed), halves(PartitionState.load(replayed.dump())), strict=True):
        assert half.weight() == again.weight()


def test_marks_nest_and_halves_made_since_are_dropped() -> None:
    state = PartitionState()
    empty = state.mark()
    assert submit(SAMPLE, state, canonical("note.added", {"id": "a", "text": "x"})) == []
    one = state.mark()
    assert state.mark() == one
    assert submit(SAMPLE, state, tree("set", "settings.x", value=1)) == []
    assert submit(SAMPLE, state, canonical("note.removed", {"id": "a"})) == []
    two = state.mark()
    assert submit(SAMPLE, state, tree("set", "settings.x", value=2)) == []
    state.rollback(two)
    assert state.dump() == {"tree": {"settings": {"x": 1}}, "data": {"notes": {}}}
    state.rollback(one)
    assert state.dump() == {"tree": {}, "data": {"notes": {"a": {"text": "x", "tags": []}}}}
    with pytest.raises(ValueError, match="void"):
        state.rollback(two)
    state.rollback(empty)
    assert state.dump() == {"tree": {}, "data": {}}
    state.settle()
    state.mark()
    with pytest.raises(ValueError, match="void"):
        state.rollback(empty)


@pytest.mark.parametrize(
    "dumped", [None, [], {}, {"tree": {}}, {"tree": {}, "data": []}, {"tree": 1, "data": {}}]
)
def test_what_is_no_dump_is_refused(dumped: Json) -> None:
    with pytest.raises(ValueError, match="partition"):
        PartitionState.load(dumped)


def ruled(version: int) -> Model:
    """Version 2 knows no notes but those that have a text."""
    rules = Rules()

    @rules.reduce("note")
    def note(state: dict[str, Any], event: Event) -> None:
        state["seen"] = state.get("seen", 0) + 1
        state.setdefault("texts", []).append(event.data["text"] if version == 2 else None)

    return Model("notes", version, SchemaProfile(None, rules), TreeProfile())


@pytest.mark.req("TREE-11", "VAL-05")
def test_replay_skips_what_cannot_be_applied_and_leaves_no_trace() -> None:
    log: list[JsonObject] = [
        canonical("note", {"text": "first"}),
        canonical("note", {}),
        canonical("unknown", {}),
        {"type": "event", "payload": {"data": 1}},
        {"type": "event", "payload": []},
        {"type": "event", "payload": {"schema": "note"}},
        tree("treePush", "explorer", value={"id": "a"}),
        tree("treePush", "explorer", value={"id": "a"}),
        tree("treeDelete", "nowhere", options={"id": "a"}),
        {"type": "no such action", "payload": {}},
        {"type": None},
        {},
        canonical("note", {"text": "last"}),
    ]
    model = ruled(2)
    states = [PartitionState(), PartitionState()]
    applied = [[model.apply_committed(state, event) for event in log] for state in states]
    assert applied[0] == applied[1]
    assert [index for index, done in enumerate(applied[0]) if done] == [0, 2, 6, 12]
    assert [state.skipped for state in states] == [9, 9]
    assert states[0].dump() == states[1].dump()
    assert states[0].data.dump() == {"seen": 2, "texts": ["first", "last"]}
    mark = states[0].mark()
    assert not model.apply_committed(states[0], log[1])
    states[0].rollback(mark)
    assert states[0].skipped == 9


def test_replay_does_not_ask_todays_policy() -> None:
    state = PartitionState()
    elsewhere = tree("treePush", "elsewhere", value={"id": "a"})
    assert SAMPLE.shape(COMPATIBILITY, elsewhere)
    assert SAMPLE.apply_committed(state, elsewhere)
    assert SAMPLE.apply_committed(state, {"type": "init", "payload": {"value": {"x": 1}}})
    assert state.tree.dump() == {"x": 1}


def test_without_a_model_canonical_events_are_skipped_in_replay() -> None:
    state = PartitionState()
    assert not no_model().apply_committed(state, canonical("note", {}))
    assert state.skipped == 1


@pytest.mark.req("TREE-09")
def test_a_failing_rule_in_one_partition_can_be_undone_in_all() -> None:
    model = ruled(2)
    states = [PartitionState(), PartitionState.load({"tree": {}, "data": {"texts": "not a list"}})]
    before = [state.dump() for state in states]
    marks = [state.mark() for state in states]
    event = canonical("note", {"text": "x"})
    model.apply(CANONICAL, states[0], event)
    with pytest.raises(RuleFailed):
        model.apply(CANONICAL, states[1], event)
    assert states[1].dump() == before[1]
    for state, mark in zip(states, marks, strict=True):
        state.rollback(mark)
    assert [state.dump() for state in states] == before


def init(**value: Json) -> JsonObject:
    return {"type": "init", "payload": {"value": value}}


MORE_EVENTS: st.SearchStrategy[JsonObject] = st.one_of(
    EVENTS,
    st.builds(
        lambda id, side, other: tree(
            "treePush", "outline", value={"id": id}, options={"position": {side: other}}
        ),
        IDS,
        st.sampled_from(["after", "before"]),
        IDS,
    ),
    st.builds(
        lambda id, replace: tree(
            "treeUpdate", "outline", value={"n": {"x": [1]}}, options={"id": id, "replace": replace}
        ),
        IDS,
        st.booleans(),
    ),
    st.builds(lambda id: tree("set", f"outline.items.{id}.title", value="set"), IDS),
    st.builds(
        lambda ids: tree(
            "set", "outline.tree", value=[{"id": id, "children": []} for id in ids], options={"replace": True}
        ),
        st.permutations(["a", "b"]),
    ),
    st.just(tree("unset", "outline")),
    st.just(init(outline={"items": {"a": {"id": "a"}}, "tree": [{"id": "a", "children": []}]})),
    st.just(init(settings={"x": 1})),
    st.just({"type": "treePush", "payload": {}}),
    st.just({}),
)  # fmt: skip


@given(st.lists(MORE_EVENTS, max_size=30))
def test_a_replayed_state_is_the_same_without_undo_and_weight(events: list[JsonObject]) -> None:
    """Whatever is in the log: also what does not fit is skipped alike."""
    whole, folded = PartitionState(), PartitionState(replayed=True)
    for number, event in enumerate(events):
        assert SAMPLE.apply_committed(folded, event) == SAMPLE.apply_committed(whole, event)
        assert folded.dump() == whole.dump()
        if number == len(events) // 2:
            skipped = folded.skipped
            folded = PartitionState.load(folded.dump(), replayed=True)
            folded.skipped = skipped
    assert (folded.skipped, order(folded)) == (whole.skipped, order(whole))
    for half in halves(folded)[:1]:
        with pytest.raises(TypeError, match="cannot be undone"):
            half.mark()
        with pytest.raises(TypeError, match="no weight"):
            half.weight()


def test_a_reducer_that_fails_half_way_leaves_a_replayed_state_as_it_was() -> None:
    def half(state: Any, event: Event) -> None:
        state["done"] = event.data
        raise ValueError

    rules = Rules()
    rules.reduce("half")(half)
    model = Model("test", 1, SchemaProfile(None, rules), TreeProfile())
    state = PartitionState.load({"tree": {}, "data": {"kept": [1]}}, replayed=True)
    assert not model.apply_committed(state, canonical("half", {"a": 1}))
    assert (state.dump(), state.skipped) == ({"tree": {}, "data": {"kept": [1]}}, 1)
