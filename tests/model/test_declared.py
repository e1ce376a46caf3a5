"""Declarative reducers: what each operation does, and that every fault of a file is named with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unisono.model.declared import DeclaredReducers
from unisono.model.declared_operations import DeclaredFailure
from unisono.model.load import ModelError, load_model
from unisono.model.model import CANONICAL
from unisono.model.partition import PartitionState
from unisono.model.rules import Event
from unisono.samples import sample_model

ID = {"data": "id"}


def after(operations: list[Any], *data: Any, state: Any = None) -> Any:
    """The state after one event for each data; a failure is an exception."""
    (rule,) = declared({"s": {"do": operations}}).rules
    made: dict[str, Any] = {} if state is None else state
    for each in data:
        rule.function(made, Event("s", each, {}))
    return made


def declared(document: Any) -> DeclaredReducers:
    found = DeclaredReducers(document)
    assert found.faults == []
    return found


@pytest.mark.parametrize(
    ("operation", "data", "state", "expected"),
    [
        ({"put": ["a", ID], "value": {"data": "t"}}, {"id": "x", "t": 1}, {}, {"a": {"x": 1}}),
        ({"put": ["a", ID], "value": {"data": "t"}}, {"id": "x"}, {}, {}),
        ({"put": ["a"], "value": {"data": "t", "default": []}}, {}, {}, {"a": []}),
        ({"put": ["a"], "value": {"object": {"k": {"data": "t"}, "l": 2}}}, {}, {}, {"a": {"l": 2}}),
        ({"merge": ["a"], "value": {"data": ""}, "without": ["id"]}, {"id": "x", "b": 2}, {"a": {"c": 3}},
         {"a": {"c": 3, "b": 2}}),
        ({"remove": ["a", ID]}, {"id": "x"}, {"a": {"x": 1, "y": 2}}, {"a": {"y": 2}}),
        ({"remove": ["a", "b", "c"]}, {}, {"a": 1}, {"a": 1}),
        ({"increment": ["n"]}, {}, {}, {"n": 1}),
        ({"increment": ["n"], "by": {"data": "by"}}, {"by": 0.5}, {"n": 1.5}, {"n": 2}),
        ({"insert": ["l"], "value": ID}, {"id": "x"}, {"l": ["x", "y"]}, {"l": ["y", "x"]}),
        ({"insert": ["l"], "value": ID, "repeat": True}, {"id": "x"}, {"l": ["x", "y"]}, {"l": ["x", "y", "x"]}),
        ({"insert": ["l"], "value": ID, "position": "first"}, {"id": "x"}, {"l": ["y"]}, {"l": ["x", "y"]}),
        ({"insert": ["l"], "value": ID, "position": {"after": "y"}}, {"id": "x"}, {"l": ["y", "z"]},
         {"l": ["y", "x", "z"]}),
        ({"insert": ["l"], "value": ID, "position": {"before": "?"}}, {"id": "x"}, {"l": ["y"]}, {"l": ["y", "x"]}),
        ({"insert": ["l"], "value": {"data": ""}, "by": "id", "order": "r"}, {"id": "x", "r": 2},
         {"l": [{"id": "y", "r": 1}, {"id": "z", "r": 3}]},
         {"l": [{"id": "y", "r": 1}, {"id": "x", "r": 2}, {"id": "z", "r": 3}]}),
        ({"pull": ["l"], "value": ID, "by": "id"}, {"id": "x"}, {"l": [{"id": "x"}, {"id": "y"}]},
         {"l": [{"id": "y"}]}),
        ({"when": {"exists": {"state": ["a"]}}, "do": [], "else": [{"put": ["c"], "value": 1}]}, {}, {}, {"c": 1}),
        ({"when": {"equals": [1, True]}, "do": [{"put": ["b"], "value": 1}]}, {}, {}, {}),
        ({"when": {"less": ["\uffff", "\U00010000"]}, "do": [{"put": ["b"], "value": 1}]}, {}, {}, {"b": 1}),
    ],
)  # fmt: skip
def test_operations(operation: Any, data: Any, state: Any, expected: Any) -> None:
    assert after([operation], data, state=state) == expected


@pytest.mark.parametrize(
    ("operation", "data", "state"),
    [
        ({"put": ["a", "b"], "value": 1}, {}, {"a": 1}),
        ({"put": [ID], "value": 1}, {"id": 7}, {}),
        ({"put": [ID], "value": 1}, {}, {}),
        ({"merge": ["a"], "value": ID}, {"id": "x"}, {}),
        ({"merge": ["a"], "value": {"data": ""}}, {}, {"a": []}),
        ({"insert": ["a"], "value": 1}, {}, {"a": {}}),
        ({"insert": ["a"], "value": 1, "by": "id"}, {}, {}),
        ({"increment": ["a"]}, {}, {"a": True}),
        ({"increment": ["a"], "by": 1e308}, {}, {"a": 1e308}),
    ],
)
def test_failures(operation: Any, data: Any, state: Any) -> None:
    with pytest.raises(DeclaredFailure):
        after([operation], data, state=state)


@pytest.mark.parametrize(
    ("entry", "place", "says"),
    [
        ({}, "s", "neither"),
        ({"do": 1}, "s.do", "must be a list"),
        ({"do": [{"pot": ["a"]}]}, "s.do.0", "is no operation"),
        ({"do": [{"put": ["a"], "remove": ["a"]}]}, "s.do.0", "more than one operation"),
        ({"do": [{"put": []}]}, "s.do.0.put", "at least one step"),
        ({"do": [{"put": ["a"]}]}, "s.do.0", "needs a `value`"),
        ({"do": [{"put": ["a"], "value": [1]}]}, "s.do.0.value", "a list is written"),
        ({"do": [{"put": ["a"], "value": {"dta": "x"}}]}, "s.do.0.value", "is no expression"),
        ({"do": [{"put": ["a"], "value": 1, "by": "x"}]}, "s.do.0.by", "unknown key"),
        ({"do": [{"insert": ["a"], "value": 1, "position": "middle"}]}, "s.do.0.position", "must be"),
        ({"do": [{"insert": ["a"], "value": 1, "position": "first", "order": "r"}]}, "s.do.0", "not both"),
        ({"do": [{"when": {"equals": [1]}}]}, "s.do.0.when.equals", "two expressions"),
        ({"do": [{"remove": ["a"]}] * 101}, "s.do", "more than 100"),
        ({"check": [{"refuse_if": {"exists": 1}}]}, "s.check.0", "needs `message`"),
        ({"check": [{"refuse_if": {"is": 1}, "message": "no"}]}, "s.check.0.refuse_if", "is no condition"),
    ],
)
def test_faults_are_named(entry: Any, place: str, says: str) -> None:
    ((found, message),) = DeclaredReducers({"s": entry}).faults
    assert found == place
    assert says in message


def test_deep_nesting_is_refused() -> None:
    condition: Any = {"exists": 1}
    for _ in range(100):
        condition = {"not": condition}
    faults = DeclaredReducers({"s": {"do": [{"when": condition}]}}).faults
    assert "levels deep" in faults[0][1]


def test_the_sample_model_judges_and_reduces() -> None:
    model, state = load_model(sample_model("board")), PartitionState()

    def judge(schema: str, data: Any) -> list[str]:
        event: Any = {"type": "event", "payload": {"schema": schema, "data": data}}
        errors = model.shape(CANONICAL, event) or model.refusals(CANONICAL, state, event)
        if not errors:
            model.apply(CANONICAL, state, event)
        return [f"{error.field}: {error.message}" for error in errors]

    assert judge("card.added", {"id": "c", "list": "l", "rank": 1, "title": "t"}) == []
    assert judge("card.added", {"id": "c", "list": "l", "rank": 1, "title": "t"}) == [
        "event.payload.data.id: there is already a card of this id"
    ]
    assert judge("card.edited", {"id": "d", "title": "t"}) == [
        "event.payload.data.id: there is no card of this id"
    ]
    assert judge("card.voted", {"id": "c"}) == []
    assert state.data.dump() == {
        "cards": {"c": {"list": "l", "rank": 1, "title": "t", "done": False, "votes": 1}}
    }


def test_problems_of_a_model_directory(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/a.json").write_text("{}")
    (tmp_path / "model.toml").write_text(
        'name = "m"\nmodel_version = 1\nreducers = "reducers.json"\nrules = "rules.py"\n'
    )
    (tmp_path / "rules.py").write_text(
        "from unisono.model.rules import Rules\nrules = Rules()\n"
        "@rules.reduce('a')\ndef reduce_a(state, event):\n    state['n'] = 1\n"
    )
    reducers = {"a": {"do": []}, "b": {"do": []}, "c": {"do": [{}]}}
    (tmp_path / "reducers.json").write_text(json.dumps(reducers))
    with pytest.raises(ModelError) as failed:
        load_model(tmp_path)
    assert [(problem.file, problem.place) for problem in failed.value.problems] == [
        ("reducers.json", "c.do.0"),
        ("reducers.json", "a"),
        ("reducers.json", "b"),
    ]
