"""Taking events back: do and undo give the state before, and redo the state after."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.model.events import delete, event, move, node, push, put, tree, update
from tests.model.histories import Writer
from unisono.model.authorship import UNKNOWN
from unisono.model.load import ModelError, load_model
from unisono.model.model import CANONICAL, COMPATIBILITY, Model, open_model
from unisono.model.partition import PartitionState
from unisono.model.tree_undo import ACTIONS_MAX
from unisono.model.undo import Compensation, compensating, fitting, unchanged, watch
from unisono.samples import sample_model

MODEL = open_model()


def text(state: PartitionState) -> str:
    return json.dumps(state.dump(), sort_keys=True)


def do(model: Model, state: PartitionState, one: Any) -> Compensation | None:
    """Apply an event that nothing speaks against; how it is taken back."""
    profile = CANONICAL if one["type"] == "event" else COMPATIBILITY
    assert model.shape(profile, one) == []
    assert model.refusals(profile, state, one) == []

    def change() -> bool:
        model.apply(profile, state, one)
        return True

    changed, found = watch(model, state, one, UNKNOWN, change)
    assert changed
    return found


def refused(model: Model, state: PartitionState, one: Any) -> bool:
    profile = CANONICAL if one["type"] == "event" else COMPATIBILITY
    return bool(model.shape(profile, one) or model.refusals(profile, state, one))


@pytest.mark.req("CLIENT-21")
@pytest.mark.parametrize(("seed", "calm"), [*((seed, False) for seed in range(4)), (6, True)])
def test_any_tree_action_is_taken_back_exactly(seed: int, calm: bool) -> None:
    writer, state, undone = Writer(seed, calm=calm), PartitionState(), 0
    for step in range(400):
        one = writer.event(state.tree.dump())
        if refused(MODEL, state, one):
            continue
        before = text(state)
        assert (preview := compensating(MODEL, COMPATIBILITY, state, one)) is not None or one[
            "type"
        ] == "treeDelete"
        assert text(state) == before
        found = do(MODEL, state, one)
        assert found == preview
        after = text(state)
        if found is None:
            continue
        assert unchanged(state, found.left)
        for back in fitting(state, found.events):
            do(MODEL, state, back)
        assert text(state) == before, (step, one, found)
        again = do(MODEL, state, one)
        assert text(state) == after, (step, one)
        assert again == found
        undone += 1
    assert undone > 60


@pytest.mark.req("CLIENT-21")
def test_a_stack_of_actions_is_taken_back_one_by_one() -> None:
    writer, state, stack = Writer(77, calm=True), PartitionState(), []
    for _ in range(150):
        one = writer.event(state.tree.dump())
        if not refused(MODEL, state, one):
            before = text(state)
            found = do(MODEL, state, one)
            assert found is not None
            stack.append((before, found))
    for before, found in reversed(stack):
        assert unchanged(state, found.left)
        for back in found.events:
            do(MODEL, state, back)
        assert text(state) == before


def shown(*events: Any) -> PartitionState:
    state = PartitionState()
    for one in events:
        MODEL.apply(COMPATIBILITY, state, one)
    return state


@pytest.mark.req("CLIENT-22")
@pytest.mark.parametrize(
    ("mine", "theirs", "free"),
    [
        (put("theme", "dark", replace=True), put("theme", "blue", replace=True), False),
        (put("theme", "dark", replace=True), put("size", 3, replace=True), True),
        (put("s", {"a": 2}), put("s", {"b": 5}), True),
        (put("s", {"a": 2}), put("s", {"a": 5}), False),
        (put("s", {"new": 2}), put("s", {"b": 5}), True),
        (put("s", {"new": 2, "a": 7}), put("s", {"b": 5}), False),
        (push("C"), push("D", parent="C"), False),
        (push("C"), update("C", {"name": "theirs"}), False),
        (push("C"), push("D"), True),
        (update("A", {"name": "x"}), update("A", {"size": 2}), True),
        (update("A", {"name": "x"}), update("A", {"name": "y"}), False),
        (update("A", {"fresh": 1}), update("A", {"size": 2}), False),
        (update("A", {"name": "x"}), delete("A"), False),
        (move("A", parent="B"), move("A", parent="_root"), False),
        (move("A", parent="B"), push("D", parent="B"), True),
        (delete("A"), push("A"), False),
        (delete("A"), push("D"), True),
        (event("unset", "s"), put("s", {"z": 1}), False),
        (event("init", value={"x": 1}), put("theme", "blue"), False),
    ],
)
def test_what_others_changed_since_is_noticed(mine: Any, theirs: Any, free: bool) -> None:
    state = shown(
        put("theme", "light", replace=True),
        put("s", {"a": 1, "b": 2}),
        push("B"),
        push("A", name="a", size=1),
    )
    found = do(MODEL, state, mine)
    assert found is not None
    do(MODEL, state, theirs)
    assert unchanged(state, found.left) is free


def test_a_neighbour_that_is_gone_does_not_keep_an_item_away() -> None:
    state = shown(push("A"), push("B"))  # B, A
    found = do(MODEL, state, delete("A"))
    assert found is not None
    do(MODEL, state, delete("B"))
    for back in fitting(state, found.events):
        do(MODEL, state, back)
    assert state.tree.dump() == {"explorer": tree(node("A"), A={})}


def test_a_large_branch_is_not_taken_back() -> None:
    state = shown(push("top"), *(push(f"n{n}", parent="top") for n in range(ACTIONS_MAX)))
    assert do(MODEL, state, delete("top")) is None


# -- canonical events ------------------------------------------------------------------------------------------


def canonical(schema: str, **data: Any) -> Any:
    return {"type": "event", "payload": {"schema": schema, "data": data}}


def board(chance: random.Random, state: Any) -> Any:
    """Some event of the board."""
    cards = sorted(state.get("cards", {}))
    kind = chance.choice(
        ["added", "edited", "voted", "removed", "renamed", "list"] if cards else ["added", "renamed"]
    )
    card = chance.choice(cards) if cards else ""
    match kind:
        case "added":
            return canonical(
                "card.added", id=f"c{chance.randrange(9**6)}", list="l", rank=chance.random(), title="t"
            )
        case "edited":
            fields = {"list": "m", "rank": chance.random(), "title": "u", "done": chance.random() < 0.5}
            return canonical("card.edited", id=card, **dict(chance.sample(sorted(fields.items()), 2)))
        case "voted":
            return canonical("card.voted", id=card, votes=chance.choice([-1, 1]))
        case "removed":
            return canonical("card.removed", id=card)
        case "renamed":
            return canonical("board.renamed", title=f"b{chance.random()}")
    return canonical("list.added", id=f"l{chance.randrange(9)}", name="n")


@pytest.mark.req("CLIENT-21")
@pytest.mark.parametrize("seed", range(3))
def test_the_board_takes_back_what_it_says(seed: int) -> None:
    model, chance, state = load_model(sample_model("board")), random.Random(seed), PartitionState()
    do(model, state, canonical("card.added", id="c", list="l", rank=0, title="t"))
    kinds: dict[str, list[bool]] = {}
    for _ in range(400):
        one = board(chance, state.data.dump())
        if refused(model, state, one):
            continue
        before = text(state)
        found = do(model, state, one)
        kinds.setdefault(one["payload"]["schema"], []).append(found is not None)
        if found is None:
            continue
        after = text(state)
        for back in found.events:
            assert not refused(model, state, back), (one, back)
            do(model, state, back)
        assert text(state) == before, (one, found)
        do(model, state, one)
        assert text(state) == after
    assert {schema: any(each) for schema, each in kinds.items()} == {
        "board.renamed": True,
        "card.added": True,
        "card.edited": True,
        "card.removed": True,
        "card.voted": True,
        "list.added": False,  # no event removes a list
    }


@pytest.mark.req("CLIENT-22")
def test_only_what_an_event_changed_counts() -> None:
    model, state = load_model(sample_model("board")), PartitionState()
    for n in range(3):
        found = do(model, state, canonical("card.added", id=f"c{n}", list="l", rank=n, title="t"))
        assert found is not None
        assert [place for place, _ in found.left] == [("cards", f"c{n}")]
    found = do(model, state, canonical("card.edited", id="c1", title="mine"))
    assert found is not None
    assert [place for place, _ in found.left] == [("cards", "c1", "title")]
    assert found.events == (canonical("card.edited", id="c1", title="t"),)
    do(model, state, canonical("card.edited", id="c1", rank=7))
    do(model, state, canonical("card.removed", id="c2"))
    assert unchanged(state, found.left)
    do(model, state, canonical("card.edited", id="c1", title="theirs"))
    assert not unchanged(state, found.left)


def made(tmp_path: Path, **files: Any) -> Path:
    (tmp_path / "schemas").mkdir()
    for schema in ("a", "b"):
        (tmp_path / "schemas" / f"{schema}.json").write_text("{}")
    manifest = 'name = "m"\nmodel_version = 1\n'
    for key, (name, content) in files.items():
        manifest += f'{key} = "{name}"\n'
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    (tmp_path / "model.toml").write_text(manifest)
    return tmp_path


@pytest.mark.parametrize(
    ("undo", "says"),
    [
        ({}, "must be a list"),
        ([], "has 1 to 10 events"),
        ([{"schema": "a", "data": 1}] * 11, "has 1 to 10 events"),
        ([{"schema": "a"}], "needs `data`"),
        ([{"data": 1}], "needs `schema`"),
        ([{"schema": "c", "data": 1}], "'c' has no file schemas/c.json"),
        ([{"schema": "a", "data": 1, "restore": []}], "has at least one step"),
        ([{"schema": "a", "data": 1, "if": 1}], "is no condition"),
        ([{"schema": "a", "data": 1, "when": 1}], "unknown key"),
    ],
)
def test_a_wrong_undo_is_refused_with_its_place(tmp_path: Path, undo: Any, says: str) -> None:
    entry = {"do": [{"put": ["x"], "value": {"data": ""}}], "undo": undo}
    with pytest.raises(ModelError, match=r"a\.undo") as refusal:
        load_model(made(tmp_path, reducers=("reducers.json", {"a": entry})))
    assert says in str(refusal.value)


def test_a_python_model_says_how_its_events_are_taken_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
from unisono.model.rules import Rules, compensate
rules = Rules()

@rules.reduce("a")
def put(state, event):
    state.setdefault("rows", []).append({"n": event.data["n"]})
    state["rows"][0]["first"] = True

@rules.reduce("b")
def cut(state, event):
    del state["rows"][event.data["keep"]:]

@rules.undo("a")
def uncut(state, event):
    state["meddled"] = True
    if event.data["n"] == 13:
        return None
    if event.data["n"] == 14:
        raise RuntimeError("100%")
    return [compensate("b", {"keep": len(state.get("rows", []))})]
"""
    model = load_model(made(tmp_path, rules=("rules.py", source)))
    state = PartitionState()
    do(model, state, canonical("a", n=1))
    before = text(state)
    found = do(model, state, canonical("a", n=2))
    assert found is not None
    assert [place for place, _ in found.left] == [("rows",)]
    (back,) = found.events
    assert back == canonical("b", keep=1)
    do(model, state, back)
    assert text(state) == before
    for unlucky in (13, 14):
        assert do(model, state, canonical("a", n=unlucky)) is None
    (line,) = caplog.messages
    assert line.endswith("failed with RuntimeError('100%'); its event cannot be taken back")
    assert do(model, state, canonical("b", keep=0)) is None  # the model names no inverse
    assert msgspec.json.decode(text(state))["data"] == {"rows": []}
