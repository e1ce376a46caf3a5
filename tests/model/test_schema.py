"""The canonical profile: shape, schemas, and the operator's rules."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.model.profile import Profile
from unisono.model.registry import DATA_DEPTH_MAX, ERRORS_MAX, SchemaProblems, SchemaRegistry
from unisono.model.rules import Event, FieldError, RuleFailed, Rules, refuse
from unisono.model.schema import SchemaProfile, SchemaState
from unisono.vocabulary import Json, JsonObject

ORDER: JsonObject = {
    "type": "object",
    "required": ["id", "items"],
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "when": {"type": "string", "format": "date"},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["title"],
                "properties": {"title": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
                "additionalProperties": False,
            },
        },
    },
}


def event(schema: str = "order", data: Json = None, **payload: Json) -> JsonObject:
    return {"type": "event", "payload": {"schema": schema, "data": data, **payload}}


def profile_of(**named: JsonObject) -> SchemaProfile:
    documents = {f"{name}.json": document for name, document in {"order": ORDER, **named}.items()}
    return SchemaProfile(SchemaRegistry(documents))


def fields(errors: list[FieldError]) -> list[str]:
    return [error.field for error in errors]


def test_it_is_a_profile() -> None:
    profile: Profile[SchemaState] = profile_of()
    assert profile.name == "canonical"
    assert profile.accepted_event_types == ("event",)
    assert profile.load(profile.empty().dump()).dump() == {}


@pytest.mark.req("VAL-02")
@pytest.mark.parametrize(
    ("given_event", "expected"),
    [
        ({"type": "treePush", "payload": {}}, ["event.type"]),
        ({"payload": {}}, ["event.type"]),
        ({"type": "event"}, ["event.payload"]),
        ({"type": "event", "payload": []}, ["event.payload"]),
        ({"type": "event", "payload": {}}, ["event.payload.schema", "event.payload.data"]),
        ({"type": "event", "payload": {"schema": "", "data": 1}}, ["event.payload.schema"]),
        ({"type": "event", "payload": {"schema": 7, "data": 1}}, ["event.payload.schema"]),
        ({"type": "event", "payload": {"schema": "order"}}, ["event.payload.data"]),
        (event("nothing"), ["event.payload.schema"]),
        (event("any", None, meta=[]), ["event.payload.meta"]),
        (event("any", None, meta=None), ["event.payload.meta"]),
        (event("any", 1, zulu=1, alpha={"data": 2}, Schema=[]), []),
        (event("nothing", 1, zulu=1), ["event.payload.schema"]),
        (event("any", None), []),
        (event("any", [1, {"x": None}], meta={}), []),
        ({**event("any", None), "anything": "else"}, []),
    ],
)
def test_shape_of_the_payload(given_event: JsonObject, expected: list[str]) -> None:
    assert fields(profile_of(any={}).shape(given_event)) == expected


@pytest.mark.req("VAL-02")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"id": "o", "items": []}, []),
        ([], [""]),
        ({}, [".id", ".items"]),
        ({"id": "o", "items": [{}]}, [".items.0.title"]),
        ({"id": "", "items": [{"title": "x"}, {"title": 1}]}, [".id", ".items.1.title"]),
        ({"id": "o", "items": [{"title": "x", "b": 1, "a": 2}]}, [".items.0.a", ".items.0.b"]),
        ({"id": "o", "items": [{"title": "x", "count": 0}]}, [".items.0.count"]),
        ({"id": "o", "items": [], "when": "yesterday"}, [".when"]),
    ],
)
def test_data_satisfies_its_schema_or_the_path_is_exact(data: Json, expected: list[str]) -> None:
    found = fields(profile_of().shape(event("order", data)))
    assert found == [f"event.payload.data{path}" for path in expected]


@pytest.mark.req("VAL-02")
@pytest.mark.parametrize("key", ["007", "7", "+1", "", "a.b", "a/b~c", "__proto__", "é", "-0"])
def test_paths_keep_the_keys_of_the_data(key: str) -> None:
    profile = profile_of(map={"additionalProperties": {"items": {"type": "string"}}})
    path = f"event.payload.data.{key}"
    assert fields(profile.shape(event("map", {"ok": ["x"], key: ["x", 1]}))) == [f"{path}.1"]
    flat = profile_of(map={"additionalProperties": {"type": "string"}})
    assert fields(flat.shape(event("map", {"ok": "x", key: 1}))) == [path]


def test_errors_name_what_to_do() -> None:
    profile = profile_of(
        strict={"required": ["a"], "propertyNames": {"maxLength": 3}, "additionalProperties": False},
        one={"oneOf": [{"type": "string"}, {"type": "object", "required": ["k"]}]},
        closed={"properties": {"x": False}},
    )
    too_long = "the value is longer than 3 characters"
    assert profile.shape(event("strict", {"long": 1})) == [
        FieldError("event.payload.data.a", "is required"),
        FieldError("event.payload.data.long", f"is no name for a property: {too_long}"),
        FieldError("event.payload.data.long", "is not a property the schema knows"),
    ]
    assert fields(profile.shape(event("one", 1))) == ["event.payload.data"]
    assert profile.shape(event("closed", {"x": 1})) == [
        FieldError("event.payload.data.x", "the schema allows no value here")
    ]


def shuffled(value: Any, order: random.Random) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {key: shuffled(value[key], order) for key in keys}
    return [shuffled(part, order) for part in value] if isinstance(value, list) else value


@pytest.mark.req("VAL-05")
@given(
    st.dictionaries(
        st.sampled_from(["id", "items", "when", "x"]),
        st.one_of(
            st.none(),
            st.just(""),
            st.lists(
                st.dictionaries(st.sampled_from(["title", "count", "y", "z"]), st.integers(-1, 1)),
                max_size=3,
            ),
        ),
    ),
    st.randoms(use_true_random=False),
)
def test_the_same_event_gets_the_same_errors_whatever_its_key_order(data: Any, order: random.Random) -> None:
    profile = profile_of()
    first = profile.shape(event("order", data))
    assert profile.shape(event("order", data)) == first
    assert profile.shape(shuffled(event("order", data), order)) == first


@pytest.mark.req("VAL-02")
def test_answers_to_hostile_data_stay_small_and_quick() -> None:
    branching: JsonObject = {"anyOf": [{"items": {"type": "string"}}, {"items": {"type": "object"}}]}
    profile = profile_of(strings={"items": {"type": "string"}})
    either = profile_of(either=branching)
    many = event("strings", [1] * 200_000)
    few = event("strings", [1] * 100)
    started = time.thread_time()
    assert fields(profile.shape(many)) == ["event.payload.data.0"]
    assert fields(either.shape(event("either", [1] * 200_000))) == ["event.payload.data"]
    assert time.thread_time() - started < 1.5
    assert fields(profile.shape(few)) == [f"event.payload.data.{index}" for index in range(ERRORS_MAX)]
    long_keys: JsonObject = {"x" * 100_000 + str(index): 1 for index in range(30)}
    closed = profile_of(closed={"additionalProperties": False})
    errors = closed.shape(event("closed", long_keys))
    assert len(errors) == ERRORS_MAX
    assert all(len(error.field) + len(error.message) < 1_000 for error in errors)
    assert len(profile.shape(event("y" * 100_000))[0].message) < 1_000


@pytest.mark.req("VAL-02")
def test_deep_data_is_refused_without_recursing() -> None:
    nested: JsonObject = {"items": {"$ref": "#"}, "type": ["array", "string"]}
    profile = profile_of(nested=nested)

    def deep(levels: int) -> Json:
        value: Json = "bottom"
        for _ in range(levels):
            value = [value]
        return value

    assert profile.shape(event("nested", deep(DATA_DEPTH_MAX))) == []
    assert fields(profile.shape(event("nested", deep(100_000)))) == ["event.payload.data"]


def test_the_open_model_takes_any_schema_and_data() -> None:
    profile = SchemaProfile(None)
    assert profile.shape(event("whatever", {"x": [1]})) == []
    assert fields(profile.shape(event("", 1, extra=1))) == ["event.payload.schema"]
    state = profile.empty()
    assert profile.refusals(state, event("whatever", 1)) == []
    profile.apply(state, event("whatever", 1))
    assert state.dump() == {}


@pytest.mark.parametrize(
    ("schema", "place", "says"),
    [
        ({"type": "strin"}, "type", "not valid"),
        ({"properties": {"a": {"minLength": -1}}}, "properties.a.minLength", "minimum"),
        ({"properties": {"a": {"pattern": "("}}}, "properties.a.pattern", "regex"),
        ({"properties": {"a": {"format": "dtae"}}}, "properties.a.format", "Unknown format"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "$schema", "2020-12"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "properties.a.$ref", "no file of this model"),
        ({"$ref": "https://example.com/x.json"}, "$ref", "never fetched"),
        ({"$ref": "../../../etc/passwd"}, "$ref", "no file of this model"),
        ({"$ref": "file:///etc/passwd"}, "$ref", "no file of this model"),
        ({"$ref": "order.json#/$defs/none"}, "", "does not exist"),
    ],
)
def test_broken_schemas_are_named_by_file_and_place(schema: JsonObject, place: str, says: str) -> None:
    with pytest.raises(SchemaProblems) as caught:
        profile_of(broken=schema)
    (problem,) = caught.value.problems
    assert (problem.file, problem.place) == ("schemas/broken.json", place)
    assert says in problem.message


def test_schemas_refer_to_each_other_by_file_and_by_id() -> None:
    profile = profile_of(
        by_file={"$ref": "order.json#/properties/id"},
        by_id={"$id": "https://example.com/a.json", "$ref": "b.json"},
        target={"$id": "https://example.com/b.json", "type": "string"},
    )
    assert fields(profile.shape(event("by_file", 1))) == ["event.payload.data"]
    assert fields(profile.shape(event("by_id", 1))) == ["event.payload.data"]
    assert profile.shape(event("by_id", "x")) == []


def ruled(rules: Rules, budget_ms: float = 50.0) -> tuple[SchemaProfile, SchemaState]:
    profile = SchemaProfile(None, rules, budget_ms)
    return profile, profile.empty()


@pytest.mark.req("VAL-03")
def test_checks_see_committed_state_and_earlier_items() -> None:
    rules = Rules()

    @rules.check("add")
    def not_twice(state: dict[str, Any], event: Event) -> list[FieldError]:
        return [refuse("id", "is taken")] if event.data["id"] in state.get("ids", []) else []

    @rules.check("add")
    def has_author(state: dict[str, Any], event: Event) -> Iterator[FieldError]:
        if "by" not in event.meta:
            yield FieldError("event.payload.meta.by", "who are you?")

    @rules.check("add")
    def content(state: dict[str, Any], event: Event) -> None:
        return None

    @rules.reduce("add")
    def add(state: dict[str, Any], event: Event) -> None:
        state.setdefault("ids", []).append(event.data["id"])

    profile, state = ruled(rules)
    first = event("add", {"id": "a"}, meta={"by": "me"})
    assert profile.refusals(state, first) == []
    profile.apply(state, first)
    again = event("add", {"id": "a"})
    expected = [
        FieldError("event.payload.data.id", "is taken"),
        FieldError("event.payload.meta.by", "who are you?"),
    ]
    assert profile.refusals(state, again) == expected
    assert profile.refusals(state, again) == expected
    profile.apply(state, event("no rule for this", 1))
    assert state.dump() == {"ids": ["a"]}


@pytest.mark.req("VAL-03")
def test_a_check_that_fails_refuses_names_the_rule_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rules = Rules()

    @rules.check("add")
    def broken(state: dict[str, Any], event: Event) -> list[FieldError]:
        raise KeyError("secret")

    @rules.check("add")
    def leaves(state: dict[str, Any], event: Event) -> list[FieldError]:
        raise SystemExit(1)

    @rules.check("add")
    def mistyped(state: dict[str, Any], event: Event) -> Any:
        return ["title is wrong"]

    @rules.check("add")
    def endless(state: dict[str, Any], event: Event) -> list[FieldError]:
        return endless(state, event)

    profile, state = ruled(rules)
    with caplog.at_level(logging.WARNING, "unisono.model"):
        errors = profile.refusals(state, event("add", 1))
        assert profile.refusals(state, event("add", 1)) == errors
    assert errors == [
        FieldError(
            "event.payload.schema",
            f"the check {name!r} of 'add' failed on this event; the server's log says why",
        )
        for name in ("broken", "leaves", "mistyped", "endless")
    ]
    assert profile.failed_rules == {f"add/{name}": 2 for name in ("broken", "leaves", "mistyped", "endless")}
    failed = [record for record in caplog.records if " failed" in record.message]
    assert len(failed) == 4, "the second time is within the interval and not logged"
    assert all(record.exc_info for record in failed)


@pytest.mark.req("VAL-02", "VAL-03")
def test_rules_see_no_other_key_of_the_payload() -> None:
    rules = Rules()

    @rules.check("add")
    def sees(state: dict[str, Any], event: Event) -> list[FieldError]:
        return [refuse("", repr(event))]

    @rules.reduce("add")
    def keeps(state: dict[str, Any], event: Event) -> None:
        state["seen"] = [event.schema, event.data, event.meta]

    profile = SchemaProfile(None, rules)
    plain, more = event("add", 1), event("add", 1, extra={"x": 1}, Meta=[])
    assert profile.shape(more) == []
    assert profile.refusals(profile.empty(), more) == profile.refusals(profile.empty(), plain)
    state = profile.empty()
    profile.apply(state, more)
    assert state.dump() == {"seen": ["add", 1, {}]}


@pytest.mark.req("VAL-03")
def test_a_check_cannot_change_the_state_nor_a_rule_the_event(caplog: pytest.LogCaptureFixture) -> None:
    rules = Rules()

    @rules.check("add")
    def meddles(state: dict[str, Any], event: Event) -> list[FieldError]:
        state["list"].clear()
        state["mine"] = True
        event.data.clear()
        return [refuse("", "no")]

    @rules.check("add")
    def sees(state: dict[str, Any], event: Event) -> list[FieldError]:
        return [refuse("seen", f"{sorted(state)} {event.data}")]

    profile = SchemaProfile(None, rules)
    state = profile.load({"list": [1, 2]})
    data: JsonObject = {"id": "a"}
    assert profile.refusals(state, event("add", data)) == [
        FieldError("event.payload.data", "no"),
        FieldError("event.payload.data.seen", "['list'] {'id': 'a'}"),
    ]
    assert state.dump() == {"list": [1, 2]}
    assert data == {"id": "a"}
    assert "add/meddles changed the state" in caplog.text


@pytest.mark.parametrize("how", ["raises", "returns", "yields", "stores", "leaves"])
def test_a_reducer_that_fails_leaves_the_state_as_it_was(how: str, caplog: pytest.LogCaptureFixture) -> None:
    rules = Rules()

    @rules.reduce("raises", "leaves", "stores", "returns")
    def fails(state: dict[str, Any], event: Event) -> Any:
        del state["b"]
        state["list"].append(3)
        match event.schema:
            case "raises":
                raise ValueError("inner matters")
            case "leaves":
                raise SystemExit
            case "stores":
                state["x"] = {1, 2}
        return {**state}

    @rules.reduce("yields")
    def yields(state: dict[str, Any], event: Event) -> Any:
        yield state

    profile = SchemaProfile(None, rules)
    state = profile.load({"a": 1, "b": 2, "list": [1]})
    with pytest.raises(RuleFailed, match=f"the reducer '.*' of '{how}' failed") as caught:
        profile.apply(state, event(how, 1))
    assert "inner matters" not in str(caught.value)
    assert caught.value.error == FieldError("event.payload.schema", str(caught.value))
    assert list(state.value.items()) == [("a", 1), ("b", 2), ("list", [1])]
    assert sum(profile.failed_rules.values()) == 1
    assert "Traceback" in caplog.text


def test_in_a_replay_what_fails_is_counted_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    rules = Rules()

    @rules.check("add")
    def broken(state: dict[str, Any], event: Event) -> None:
        raise KeyError("no such thing")

    profile, state = ruled(rules)
    profile.silence()
    assert len(profile.refusals(state, event("add", 1))) == 1
    assert profile.failed_rules == {"add/broken": 1}
    assert caplog.records == []


def test_slow_rules_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rules = Rules()
    seen: list[str | None] = []

    @rules.check("add")
    def slow(state: dict[str, Any], event: Event) -> None:
        seen.append(profile.running_rule)
        deadline = time.perf_counter() + 0.003
        while time.perf_counter() < deadline:
            pass

    @rules.reduce("add")
    def quick(state: dict[str, Any], event: Event) -> None:
        state["n"] = state.get("n", 0) + 1

    profile, state = ruled(rules, budget_ms=2)
    for _ in range(3):
        assert profile.refusals(state, event("add", 1)) == []
        profile.apply(state, event("add", 1))
    assert profile.slow_rules["add/slow"] == 3
    assert profile.failed_rules == {}
    assert [record for record in caplog.records if "add/slow took" in record.getMessage()][1:] == []
    assert seen == ["add/slow"] * 3
    assert profile.running_rule is None


def test_mistakes_in_registering_rules_are_told_at_once() -> None:
    rules = Rules()

    def one(state: dict[str, Any], event: Event) -> None: ...

    def two(state: dict[str, Any], event: Event) -> None: ...

    async def later(state: dict[str, Any], event: Event) -> None: ...

    rules.reduce("a")(one)
    with pytest.raises(ValueError, match="'a' has two reducers, 'one' and 'two'"):
        rules.reduce("a")(two)
    with pytest.raises(ValueError, match="two rules for 'a' are called 'one'"):
        rules.check("a")(one)
    with pytest.raises(TypeError, match="name the schema"):
        rules.reduce(one)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="async"):
        rules.check("a")(later)  # type: ignore[type-var]
    rules.check("a", "b")(two)
    assert rules.schemas == ("a", "b")
    assert [rule.label for rule in rules.of("a")] == ["a/two", "a/one"]


def test_a_state_must_be_an_object() -> None:
    with pytest.raises(TypeError, match="JSON object"):
        SchemaProfile(None).load([])
