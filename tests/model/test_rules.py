"""Rules of a model: checks and reducers, what they see, and what happens when they fail or are slow."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.model.canonical_events import event
from unisono.model.authorship import Authorship
from unisono.model.rules import Event, FieldError, RuleFailed, Rules, refuse
from unisono.model.schema import SchemaProfile, SchemaState
from unisono.vocabulary import JsonObject


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


@pytest.mark.req("VAL-03")
@pytest.mark.parametrize("claims", [{}, {"role": "editor"}])
@pytest.mark.parametrize("meta", [None, {}, {"a": [1]}])
def test_no_rule_sees_what_another_did_to_meta_or_claims(claims: JsonObject, meta: JsonObject | None) -> None:
    rules, seen = Rules(), []

    def look(event: Event) -> None:
        seen.append(repr(event))
        event.meta["mine"] = event.claims["mine"] = True
        event.claims.pop("role", None)
        event.meta.pop("a", None)
        event.data["list"].append(2)

    @rules.check("add")
    def first(state: dict[str, Any], event: Event) -> None:
        look(event)

    @rules.check("add")
    def second(state: dict[str, Any], event: Event) -> None:
        look(event)

    @rules.reduce("add")
    def reduced(state: dict[str, Any], event: Event) -> None:
        look(event)

    profile, state = ruled(rules)
    by = Authorship("device", "person", claims, 7)
    shown = Event("add", {"list": [1]}, meta or {}, "device", "person", claims, 7)
    kept = copy.deepcopy(meta)  # `judge` takes its event for itself
    given = event("add", {"list": [1]}) if kept is None else event("add", {"list": [1]}, meta=kept)
    profile.limit_rules(5.0)
    assert profile.judge(state, given, by) == []
    profile.rest_rules()
    assert seen == [repr(shown)] * 3
    assert by.claims == claims


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
