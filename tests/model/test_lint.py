"""`model check`: what a model's author is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unisono.model.lint import check_model
from unisono.model.rule_source import hints
from unisono.model.trials import REFUSALS_KEPT_MAX, Probe
from unisono.samples import sample_model
from unisono.vocabulary import Json

RULES = """
from unisono.model.rules import FieldError, Rules
rules = Rules()

@rules.reduce("spend")
def spend(state, event):
    state["left"] = state.get("left", 10) - event.data
    if state["left"] < 0:
        raise ValueError("overspent")

@rules.check("ask")
def ask(state, event):
    return []
"""


def line(schema: str, data: Json, *partitions: str) -> bytes:
    event: Json = {"type": "event", "payload": {"schema": schema, "data": data}}
    return json.dumps({"event": event, "partitions": [*partitions]} if partitions else event).encode()


@pytest.fixture
def purse(tmp_path: Path) -> Path:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "model.toml").write_text('name = "purse"\nmodel_version = 2\nrules = "rules.py"\n')
    (tmp_path / "rules.py").write_text(RULES)
    (tmp_path / "tree.toml").write_text("")
    (tmp_path / "schemas" / "spend.json").write_text('{"type": "integer", "description": "Money goes."}')
    (tmp_path / "schemas" / "ask.json").write_text('{"title": "A question"}')
    (tmp_path / "schemas" / "other.json").write_text('{"type": "null"}')
    (tmp_path / "schemas" / "notes.txt").write_text("stray")
    return tmp_path


def test_the_sample_model_is_beyond_reproach() -> None:
    report = check_model(sample_model())
    assert report.ok
    assert report.warnings == []
    assert report.text() == "model 'outline', version 1: 4 schema(s), 3 tree target(s)\n\nok\n"


def test_a_broken_model_is_reported_whole(tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_text("colour = 1\n")
    report = check_model(tmp_path, [line("x", 1)])
    assert not report.ok
    assert [problem.place for problem in report.problems] == ["colour", "name", "model_version"]
    assert "problems:\n  model.toml: colour: unknown key" in report.text()
    assert report.text().endswith("\nnot ok\n")


def test_warnings_for_the_author(purse: Path) -> None:
    report = check_model(purse)
    assert report.ok
    assert report.warnings == [
        "schemas/ask.json: it has checks and no reducer; its events change no state",
        "schemas/ask.json: allows any data",
        "schemas/other.json: no rule is for it; its events are kept and change no state",
        "schemas/other.json: has no description",
        "tree.toml: is there, and model.toml does not name it",
        "schemas/notes.txt: is no .json file, so it is no schema",
    ]


@pytest.mark.req("TREE-09")
def test_events_are_tried_in_order_in_all_their_partitions_or_none(purse: Path) -> None:
    lines = [
        line("spend", 4, "a"),
        line("spend", 7, "a", "b"),  # fails in a, so b keeps its 10
        line("spend", 10, "b"),
        b"",
        line("spend", "much", "b"),
        line("ask", None),
        line("none", 1),
        b'{"type": "treePush", "payload": {"target": "t", "value": {"id": "x"}}}',
        b'{"type": "treePush", "payload": {"target": "t", "value": {"id": "x"}}}',
        b'{"committed_id": 7, "partitions": ["c"], "event": {"type": "unset", "payload": {"target": "t"}}}',
    ]
    report = check_model(purse, lines)
    assert [(refusal.line, refusal.errors[0].field) for refusal in report.refusals] == [
        (2, "event.payload.schema"),
        (5, "event.payload.data"),
        (7, "event.payload.schema"),
        (9, "event.payload.value.id"),
    ]
    counts = {name: (count.accepted, count.refused) for name, count in report.counts.items()}
    assert counts == {"spend": (2, 2), "ask": (1, 0), "none": (0, 1), "treePush": (1, 1), "unset": (1, 0)}
    assert report.warnings[-2:] == ["other: no event was accepted", "spend/spend: failed 1 time(s)"]
    assert not report.ok
    text = report.text()
    assert "  treePush  1 accepted, 1 refused\n" in text
    assert (
        "  line 2: event.payload.schema: the reducer 'spend' of 'spend' failed: ValueError: overspent\n"
        in text
    )


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"7", "is not an object"),
        (b'{"event": 1}', "`event` is not an object"),
        (b'{"event": {}}', "`partitions` is not"),
        (b'{"event": {}, "partitions": [1]}', "`partitions` is not"),
    ],
)
def test_lines_that_are_no_events_are_problems(purse: Path, bad: bytes, says: str) -> None:
    report = check_model(purse, [line("spend", 1), bad])
    (problem,) = report.tally.problems
    assert str(problem).startswith(f"events: line 2: {says}")
    assert not report.ok


def test_a_long_list_of_refusals_is_counted_not_kept(purse: Path) -> None:
    report = check_model(purse, (line("none", 1) for _ in range(REFUSALS_KEPT_MAX + 5)))
    assert len(report.refusals) == REFUSALS_KEPT_MAX
    assert report.refused == REFUSALS_KEPT_MAX + 5
    assert "  and 955 more lines\n" in report.text()


def test_no_events_at_all(purse: Path) -> None:
    report = check_model(purse, [])
    assert "events:\n  none\n" in report.text()
    assert report.ok


def test_stories_start_from_nothing_and_tell_their_states(purse: Path) -> None:
    stories = {name: [line("spend", 6, "a"), line("spend", 1, "b")] for name in ("one", "two")}
    report = check_model(purse, stories=stories, probe=Probe(0, 1, states=True))
    assert report.ok
    assert [story.name for story in report.stories] == ["one", "two"]
    for story in report.stories:
        assert [mark.place for mark in story.marks] == [1, 2]
        assert story.marks[0].states == {"a": {"tree": {}, "data": {"left": 4}}}
        assert story.states["b"] == {"tree": {}, "data": {"left": 9}}
    first, second = report.stories
    assert first.marks == second.marks
    stories["two"][1] = line("spend", 2, "b")
    first, second = check_model(purse, stories=stories, probe=Probe(0, 9)).stories
    assert first.marks[0] == second.marks[0]
    assert first.marks[1].digest != second.marks[1].digest


HINTED = """
import os, random as r, datetime
from time import time as now
from uuid import uuid4
from datetime import datetime as moment

SEEN = 0

def plain(state, event):
    state["a"] = sorted({1, 2})
    state["b"] = moment.fromisoformat(event.data).isoformat()
    state["time"] = event.data["time"]

def bad(state, event):
    global SEEN
    state["a"] = now()
    state["b"] = r.choice([1, 2])
    state["c"] = str(uuid4())
    state["d"] = os.environ["HOME"]
    state["e"] = moment.now().isoformat()
    state["f"] = datetime.date.today().isoformat()
    state["g"] = open("/etc/hostname").read()
    for each in {"x", "y"}:
        state[each] = hash(each)
    state["h"] = [each for each in set(event.data)]
    state["i"] = list(set(event.data))
"""


def test_hints_at_what_is_not_deterministic() -> None:
    assert hints(HINTED.encode()) == [
        "line 15: SEEN: remembers something outside the state",
        "line 16: time.time() reads the clock",
        "line 17: random.choice() is random",
        "line 18: uuid.uuid4() is random",
        "line 19: os.environ depends on the machine it runs on",
        "line 20: datetime.datetime.now() reads the clock",
        "line 21: datetime.date.today() reads the clock",
        "line 22: open() reaches outside the state and the event",
        "line 23: goes through a set, whose order differs from process to process; sort it",
        "line 24: hash() differs from process to process",
        "line 25: goes through a set, whose order differs from process to process; sort it",
        "line 26: goes through a set, whose order differs from process to process; sort it",
    ]
    assert hints(b"def broken(") == []
