"""Model directories: what loads, what is refused and how it is told, and that a reload is a new model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from unisono.model.load import ModelError, load_model, no_model, open_model
from unisono.model.partition import PartitionState
from unisono.samples import sample_model
from unisono.vocabulary import FieldError, Json, JsonObject

MANIFEST = 'name = "tasks"\nmodel_version = 3\n'
RULES = """
from unisono.model.rules import Event, FieldError, Rules, refuse
rules = Rules()

@rules.reduce("task")
def task(state, event):
    state["said"] = "one"
"""

TWICE = RULES + RULES.partition("rules = Rules()")[2]


def write(folder: Path, **files: str) -> Path:
    """A model directory; `schemas__x_json` is the file `schemas/x.json`."""
    for name, content in files.items():
        file = folder / name.replace("__", "/").replace("_json", ".json").replace("_toml", ".toml")
        file = file.with_name(file.name.replace("_py", ".py"))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return folder


def problems(path: Path) -> list[str]:
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert all(f"  {problem}" in str(caught.value) for problem in caught.value.problems)
    return [str(problem) for problem in caught.value.problems]


def canonical(schema: str, data: Json) -> JsonObject:
    return {"type": "event", "payload": {"schema": schema, "data": data}}


@pytest.mark.req("MODEL-01")
def test_a_directory_is_a_model_with_its_version(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        model_toml=MANIFEST + 'rules = "rules.py"\nrule_budget_ms = 20\ntree = "tree.toml"\n',
        schemas__task_json=json.dumps({"$ref": "pieces/id.json"}),
        schemas__pieces__id_json='{"type": "string"}',
        rules_py=RULES,
        tree_toml='[targets.explorer]\nactions = ["treePush"]\n',
    )
    model = load_model(path)
    assert (model.name, model.version, model.path) == ("tasks", 3, path)
    assert model.describe() == {
        "name": "tasks",
        "model_version": 3,
        "digest": model.digest,
        "schemas": {"task": {"checks": [], "reducer": "task"}},
        "tree": {"init": True, "targets": {"explorer": ["treePush"]}},
        "claims": [],
    }
    assert [error.field for error in model.shape("canonical", canonical("task", 1))] == ["event.payload.data"]
    assert [error.field for error in model.shape("canonical", canonical("pieces/id", "x"))] == [
        "event.payload.schema"
    ]
    state = PartitionState()
    model.apply("canonical", state, canonical("task", "x"))
    assert state.dump() == {"tree": {}, "data": {"said": "one"}}
    unset: JsonObject = {"type": "unset", "payload": {"target": "elsewhere"}}
    assert [error.field for error in model.shape("compatibility", unset)] == ["event.payload.target"]
    assert list(path.rglob("*.pyc")) == []


@pytest.mark.req("MODEL-01")
def test_the_least_model_and_what_accept_init_does(tmp_path: Path) -> None:
    path = write(tmp_path, model_toml=MANIFEST)
    assert load_model(path).describe()["schemas"] == {}
    assert "init" in load_model(path).compatibility.accepted_event_types
    assert "init" not in load_model(path, accept_init=False).compatibility.accepted_event_types


@pytest.mark.req("MODEL-01")
def test_a_reload_sees_new_code_and_the_old_model_keeps_its_own(tmp_path: Path) -> None:
    path = write(
        tmp_path, model_toml=MANIFEST + 'rules = "rules.py"\n', schemas__task_json="{}", rules_py=RULES
    )
    old = load_model(path)
    assert load_model(path).digest == old.digest
    (path / "rules.py").write_text(RULES.replace("one", "two"))  # same length, same second
    new = load_model(path)
    assert new.digest != old.digest
    said = []
    for model in (old, new, old):
        state = PartitionState()
        model.apply("canonical", state, canonical("task", None))
        said.append(state.data.value["said"])
    assert said == ["one", "two", "one"]


def test_all_problems_are_listed_with_file_and_place(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        model_toml='model_version = 0\nrules = "rules.py"\ntree = "tree.toml"\ncolour = 1\nrule_budget_ms = true',
        schemas__a_json='{"type": "strin", "minLength": -1}',
        schemas__b_json='{\n  "type": "object",\n}',
        schemas__c_json='{"type": "string", "type": "object"}',
        schemas__d_json="[]",
        schemas__e_json='{"minimum": NaN}',
        schemas__f_json='{"$ref": "https://example.com/x.json"}',
        rules_py="\nimport nothing_of_this_name\n",
        tree_toml="[targets.explorer]\nactions = 1\n",
    )
    (path / "schemas" / "g.json").write_bytes(b"\xff")
    found = problems(path)
    expected = [
        "model.toml: colour: unknown key; known are name, model_version, reducers, rules, rule_budget_ms, tree",
        "model.toml: name: a model has a name: a non-empty string",
        "model.toml: model_version: a model has a version: an integer from 1, below 2**53",
        "model.toml: rule_budget_ms: must be a number of milliseconds above 0",
        "schemas/b.json: line 3, column 1: is not JSON: ",
        "schemas/c.json: is not JSON: the key 'type' comes twice",
        "schemas/d.json: a schema is an object",
        "schemas/e.json: is not JSON: NaN is no JSON number",
        "schemas/g.json: byte 0: is not UTF-8",
        "schemas/a.json: minLength: ",
        "schemas/a.json: type: ",
        "schemas/f.json: $ref: refers to 'https://example.com/x.json', which is no file of this model",
        "rules.py: line 2: ModuleNotFoundError: No module named 'nothing_of_this_name'",
        "tree.toml: targets.explorer.actions: ",
    ]
    assert len(found) == len(expected), found
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "model.toml: cannot be read: No such file or directory"),
        ({"model_toml": "name = "}, "model.toml: is not TOML: "),
        ({"model_toml": 'name = "x"\nmodel_version = true\n'}, "model.toml: model_version: "),
        ({"model_toml": f'name = "x"\nmodel_version = {2**53}\n'}, "model.toml: model_version: "),
        ({"model_toml": MANIFEST + "rules = 1\n"}, "model.toml: rules: must be the name of a file"),
        ({"model_toml": MANIFEST + 'rules = "../rules.py"\n'}, "../rules.py: is outside the model's directory"),
        ({"model_toml": MANIFEST + 'tree = "none.toml"\n'}, "none.toml: cannot be read: "),
        ({"model_toml": MANIFEST + 'rules = "r.py"\n', "r_py": "x = 1"}, "r.py: has no `rules = Rules()`"),
        ({"model_toml": MANIFEST + 'rules = "r.py"\n', "r_py": "def :"}, "r.py: line 1: SyntaxError: "),
        ({"model_toml": MANIFEST + 'rules = "r.py"\n', "r_py": "exit()"}, "r.py: line 1: SystemExit: "),
        (
            {"model_toml": MANIFEST + 'rules = "r.py"\n', "r_py": RULES},
            "r.py: task: is for 'task', which has no file schemas/task.json",
        ),
        (
            {"model_toml": MANIFEST + 'rules = "r.py"\n', "schemas__task_json": "{}", "r_py": TWICE},
            "r.py: line 10: ValueError: two rules for 'task' are called 'task'",
        ),
    ],
)  # fmt: skip
def test_one_problem_each(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    (found,) = problems(write(tmp_path, **files))
    assert found.startswith(expected)


def test_a_path_that_is_no_directory(tmp_path: Path) -> None:
    assert problems(tmp_path / "none") == [f"{tmp_path / 'none'}: is not a directory"]


def test_open_and_no_model() -> None:
    anything = canonical("anything", {"x": 1})
    free, none = open_model(), no_model(accept_init=False)
    assert (free.version, none.version) == (None, None)
    assert free.shape("canonical", anything) == []
    assert [error.field for error in none.shape("canonical", anything)] == ["event.type"]
    assert none.canonical is None
    assert "init" not in none.compatibility.accepted_event_types
    assert free.describe()["schemas"] is None
    push: JsonObject = {"type": "treePush", "payload": {"target": "any", "value": {"id": "a"}}}
    for model in (free, none):
        state = PartitionState()
        assert model.shape("compatibility", push) == []
        assert model.refusals("compatibility", state, push) == []
        model.apply("compatibility", state, push)
        assert state.dump() == {
            "tree": {"any": {"items": {"a": {}}, "tree": [{"id": "a", "children": []}]}},
            "data": {},
        }
    with pytest.raises(ValueError, match="no profile 'canonical'"):
        none.refusals("canonical", PartitionState(), anything)
    with pytest.raises(ValueError, match="no profile 'other'"):
        free.refusals("other", PartitionState(), anything)


@pytest.mark.req("MODEL-01", "VAL-03")
def test_the_sample_model_works_as_its_comments_say(tmp_path: Path) -> None:
    copied = tmp_path / "mine"
    shutil.copytree(sample_model(), copied, ignore=shutil.ignore_patterns("__pycache__"))
    model = load_model(copied)
    state = PartitionState()

    def send(profile: str, event: Any) -> list[FieldError]:
        errors = model.shape(profile, event) or model.refusals(profile, state, event)
        if not errors:
            model.apply(profile, state, event)
        return errors

    assert send("canonical", canonical("outline.renamed", {"title": "Shopping"})) == []
    assert send("canonical", canonical("note.added", {"id": "n1", "text": "milk"})) == []
    assert send("canonical", canonical("note.edited", {"id": "n1", "tags": ["today"]})) == []
    assert send("canonical", canonical("note.edited", {"id": "n2", "text": "x"})) == [
        FieldError("event.payload.data.id", "there is no note of this id")
    ]
    assert send("canonical", canonical("note.added", {"id": "n1", "text": "x"})) == [
        FieldError("event.payload.data.id", "there is already a note of this id")
    ]
    assert send("canonical", canonical("note.added", {"id": "n3"})) == [
        FieldError("event.payload.data.text", "is required")
    ]
    assert send("canonical", canonical("note.added", {"id": "n3", "text": "gone"})) == []
    assert send("canonical", canonical("note.removed", {"id": "n3"})) == []

    def push(target: str, **value: str) -> JsonObject:
        return {"type": "treePush", "payload": {"target": target, "value": {**value}}}

    assert send("compatibility", push("outline", id="a", title="Food")) == []
    assert [e.field for e in send("compatibility", push("outline", id="b"))] == ["event.payload.value.title"]
    assert send("compatibility", push("explorer", id="f", name="a file")) == []
    assert [e.field for e in send("compatibility", push("other", id="b"))] == ["event.payload.target"]
    theme = {"type": "set", "payload": {"target": "settings.theme", "value": "dark"}}
    assert send("compatibility", theme) == []
    dumped: Any = state.dump()
    assert dumped["data"] == {"title": "Shopping", "notes": {"n1": {"text": "milk", "tags": ["today"]}}}
    assert dumped["tree"]["settings"] == {"theme": "dark"}
    assert dumped["tree"]["outline"]["items"] == {"a": {"title": "Food"}}


@pytest.mark.req("MODEL-01")
@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("def task(state): pass", "takes (state); a reducer is written def task(state, event)"),
        ("def task(): pass", "takes (); a"),
        ("def task(state, event, more): pass", "takes (state, event, more); a"),
        ("def task(state, event, *, more): pass", "takes (state, event, *, more); a"),
        ("def task(event, state): pass", "takes (event, state), in the wrong order; a"),
        ("def task(state, event): yield", "yields, and a reducer changes the state in place"),
        ("def task(state, event, more=1): pass", None),
        ("def task(*both): pass", None),
        ("def task(state, _, **more): pass", None),
    ],
)
def test_a_rule_with_wrong_arguments_is_found_at_once(tmp_path: Path, rule: str, says: str | None) -> None:
    head = RULES.partition("@rules")[0]
    path = write(
        tmp_path,
        model_toml=MANIFEST + 'rules = "rules.py"\n',
        schemas__task_json="{}",
        rules_py=f"{head}\n@rules.reduce('task')\n{rule}\n",
    )
    if says is None:
        load_model(path)
        return
    (told,) = problems(path)
    assert told.startswith(f"rules.py: line 6, task: {says}"), told


def test_wrong_arguments_of_a_check_are_told_once(tmp_path: Path) -> None:
    head = RULES.partition("@rules")[0]
    path = write(
        tmp_path,
        model_toml=MANIFEST + 'rules = "rules.py"\n',
        schemas__task_json="{}",
        schemas__other_json="{}",
        rules_py=f"{head}\n@rules.check('task', 'other')\ndef both(event): return []\n",
    )
    assert problems(path) == [
        "rules.py: line 6, both: takes (event); a check is written def both(state, event)"
    ]


def test_a_schema_that_cannot_be_read_is_one_problem(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        model_toml=MANIFEST + 'rules = "rules.py"\n',
        schemas__task_json='{"properties":{"a":' * 3_000 + "{}" + "}}" * 3_000,
        rules_py=RULES,
    )
    assert problems(path) == ["schemas/task.json: is nested too deep"]
