"""The operator's tree policy."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from unisono.model.policy import PolicyError, TreePolicy
from unisono.model.tree import TreeProfile

POLICY = """
init = false

[targets.explorer]
actions = ["treePush", "treeMove", "set"]

[targets.explorer.schema.treePush]
type = "object"
required = ["name"]
additionalProperties = false

[targets.explorer.schema.treePush.properties]
id = {type = "string", maxLength = 5}
name = {type = "string"}
tags = {type = "array", items = {type = "integer"}}

[targets.settings]

[targets.settings.schema.set]
type = "object"
properties.theme.enum = ["dark", "light"]
properties.font.properties.size = {type = "integer"}
required = []

[targets."settings.private"]
actions = ["unset"]

[targets."a.b"]
actions = ["treePush"]
"""


def profile(text: str = POLICY) -> TreeProfile:
    return TreeProfile(policy=TreePolicy.parse(tomllib.loads(text), "tree.toml"))


def fields(judge: TreeProfile, kind: str, target: str, **payload: Any) -> list[str]:
    event: Any = {"type": kind, "payload": {"target": target, **payload}}
    errors = judge.shape(event)
    assert errors == judge.shape(event)
    assert all(error.message for error in errors)
    return [error.field for error in errors]


@pytest.mark.req("TREE-08", "TREE-13")
def test_a_target_that_is_not_listed_is_refused() -> None:
    judge = profile()
    value = {"id": "A", "name": "a"}
    assert fields(judge, "treePush", "explorer", value=value) == []
    assert fields(judge, "treePush", "other", value=value) == ["event.payload.target"]
    assert fields(judge, "treePush", "explorer.items.A.sub", value=value) == ["event.payload.target"]
    assert fields(judge, "treePush", "a", value=value) == ["event.payload.target"]
    assert fields(judge, "treePush", "a.b", value=value) == []
    assert fields(judge, "set", "a", value={"b": 1}) == ["event.payload.target"]
    assert fields(judge, "set", "explorers", value=1) == ["event.payload.target"]


@pytest.mark.req("TREE-08")
def test_an_action_that_is_not_listed_is_refused() -> None:
    judge = profile()
    assert fields(judge, "treeDelete", "explorer", options={"id": "A"}) == ["event.type"]
    assert fields(judge, "treeMove", "explorer", options={"id": "A"}) == []
    assert fields(judge, "unset", "explorer") == ["event.type"]
    assert fields(judge, "treeDelete", "settings", options={"id": "A"}) == []


@pytest.mark.req("TREE-08")
def test_set_and_unset_go_deeper_under_the_longest_listed_target() -> None:
    judge = profile()
    assert fields(judge, "set", "explorer.items.A.name", value="x") == []
    assert fields(judge, "unset", "settings.theme") == []
    assert fields(judge, "set", "settings.private", value=1) == ["event.type"]
    assert fields(judge, "set", "settings.private.key", value=1) == ["event.type"]
    assert fields(judge, "unset", "settings.private.key") == []


@pytest.mark.req("TREE-08", "VAL-04", "VAL-05")
def test_values_satisfy_the_schema_of_their_target_and_action() -> None:
    judge = profile()
    wrong = {"id": "too long", "tags": [1, "two"], "color": "red"}
    value = "event.payload.value"
    expected = [f"{value}.color", f"{value}.id", f"{value}.name", f"{value}.tags.1"]
    assert fields(judge, "treePush", "explorer", value=wrong) == expected
    turned = dict(reversed(wrong.items()))
    assert fields(judge, "treePush", "explorer", value=turned) == expected
    assert fields(judge, "set", "explorer", value=7) == []


def test_a_schema_sees_a_deeper_value_where_it_will_be() -> None:
    judge = profile()
    assert fields(judge, "set", "settings", value={"theme": "dark"}) == []
    assert fields(judge, "set", "settings", value={"theme": "pink"}) == ["event.payload.value.theme"]
    assert fields(judge, "set", "settings.theme", value="dark") == []
    assert fields(judge, "set", "settings.theme", value="pink") == ["event.payload.value"]
    assert fields(judge, "set", "settings.font", value={"size": "big"}) == ["event.payload.value.size"]
    assert fields(judge, "set", "settings.font.size", value="big") == ["event.payload.value"]
    strict = profile(POLICY.replace("required = []", 'required = ["theme"]'))
    assert fields(strict, "set", "settings.font.size", value=1) == ["event.payload.target"]


@pytest.mark.req("PROF-08")
def test_init_is_refused_when_the_policy_says_so_and_not_announced() -> None:
    init: Any = {"type": "init", "payload": {"value": {}}}
    assert "init" not in profile().accepted_event_types
    assert [error.field for error in profile().shape(init)] == ["event.type"]
    allowing = profile(POLICY.replace("init = false", ""))
    assert "init" in allowing.accepted_event_types
    assert allowing.shape(init) == []
    off = TreeProfile(policy=TreePolicy.parse({}, "tree.toml"), accept_init=False)
    assert "init" not in off.accepted_event_types


@pytest.mark.req("TREE-08")
@pytest.mark.parametrize("table", [{}, {"init": True}])
def test_without_targets_every_target_is_allowed(table: Any) -> None:
    judge = TreeProfile(policy=TreePolicy.parse(table, "tree.toml"))
    assert fields(judge, "treePush", "any.where", value={"id": "A"}) == []
    assert fields(TreeProfile(), "treePush", "any.where", value={"id": "A"}) == []
    closed = TreeProfile(policy=TreePolicy.parse({"targets": {}}, "tree.toml"))
    assert fields(closed, "unset", "any") == ["event.payload.target"]


def test_the_shape_is_judged_before_the_policy() -> None:
    assert fields(profile(), "treePush", "other") == ["event.payload.value"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("int = false", r"tree\.toml: int: unknown key"),
        ("init = 1", r"tree\.toml: init: must be true or false"),
        ("targets = []", r"tree\.toml: targets: must be a table"),
        ("targets.a = 1", r"tree\.toml: targets\.a: must be a table"),
        ('[targets."a..b"]', r"tree\.toml: targets\.a\.\.b: the target must have no empty segment"),
        ("[targets.a]\naction = []", r"tree\.toml: targets\.a\.action: unknown key"),
        ("[targets.a.b]\nactions = []", r"targets\.a\.b: unknown key.*quoted"),
        ("[targets.a]\nactions = 'set'", r"tree\.toml: targets\.a\.actions: must be an array"),
        (
            "[targets.a]\nactions = ['set', 'treePsh']",
            r"targets\.a\.actions\[1\]: 'treePsh' is not an action",
        ),
        ("[targets.a]\nactions = ['init']", r"targets\.a\.actions\[0\]: 'init' is not an action"),
        ("[targets.a]\nactions = [['set']]", r"targets\.a\.actions\[0\]"),
        ("[targets.a]\nschema = 1", r"targets\.a\.schema: must be a table"),
        ("[targets.a.schema]\nset = true", r"targets\.a\.schema\.set: must be a JSON Schema"),
        (
            "[targets.a.schema.unset]",
            r"targets\.a\.schema\.unset: only set, treePush, treeUpdate carry a value",
        ),
        ("[targets.a]\nactions = ['unset']\nschema.set = {}", r"targets\.a\.schema\.set: set is not among"),
        ("[targets.a.schema.set]\ntype = 'objekt'", r"tree\.toml: targets\.a\.schema\.set\.type: "),
        (
            "[targets.a.schema.set]\n'$ref' = 'https://example.com/x'",
            r"targets\.a\.schema\.set.*never fetched",
        ),
        ("[targets.a.schema.set]\n'$ref' = '#/nowhere'", r"targets\.a\.schema\.set: "),
        ("[targets.a.schema.set]\nconst = 2020-01-01", r"targets\.a\.schema\.set: "),
    ],
)
def test_a_policy_that_cannot_be_used_names_the_key(text: str, named: str) -> None:
    with pytest.raises(PolicyError, match=named):
        profile(text)
