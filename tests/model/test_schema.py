"""The canonical profile: shape, schemas, and the operator's rules."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.canonical_events import event
from unisono.model.profile import Profile
from unisono.model.registry import DATA_DEPTH_MAX, ERRORS_MAX, SchemaProblems, SchemaRegistry
from unisono.model.rules import FieldError
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


def test_a_state_must_be_an_object() -> None:
    with pytest.raises(TypeError, match="JSON object"):
        SchemaProfile(None).load([])
