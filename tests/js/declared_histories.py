"""Random declarative reducers and histories of events, with what Python makes of them, for TypeScript to repeat."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import orjson

from tests.js.tree_histories import HOSTILE_NAMES, NUMBERS, apply_watched, spelled
from unisono.model.declared import DeclaredReducers
from unisono.model.model import Model
from unisono.model.partition import PartitionState
from unisono.model.rules import RuleFailed, Rules
from unisono.model.schema import SchemaProfile
from unisono.model.tree import TreeProfile
from unisono.protocol.canonical import canonical

FIELDS = ["id", "a", "b", "rank", "__proto__", "constructor"]
SCHEMAS = ["one", "two", "__proto__"]


class ReducerWriter:
    """Writes reducers of every operation and events that often meet the state they make."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = [*self.random.sample(HOSTILE_NAMES, 3), "x", "y"]

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    # -- reducers --------------------------------------------------------------------------------------------

    def reducers(self) -> Any:
        return {schema: self._entry() for schema in self.random.sample(SCHEMAS, 2)}

    def _entry(self) -> Any:
        entry: Any = {"do": [self.operation(0) for _ in range(self.random.randrange(1, 4))]}
        if self.chance(0.4):
            check = {"refuse_if": self.condition(0), "field": self.random.choice(["", "id"]), "message": "no"}
            entry["check"] = [check] * self.random.randrange(1, 3)
        if self.chance(0.6):
            entry["undo"] = [self._undo() for _ in range(self.random.randrange(1, 3))]
        return entry

    def _undo(self) -> Any:
        data = {"object": {key: self.expression(1) for key in self.random.sample(FIELDS, 2)}}
        made: Any = {
            "schema": self.random.choice(SCHEMAS),
            "data": data if self.chance(0.8) else self.expression(0),
        }
        if self.chance(0.3):
            made["if"] = self.condition(0)
        if self.chance(0.4):
            made["restore"] = self.path()
        if self.chance(0.2):
            made["negate"] = self.random.sample(FIELDS, self.random.randrange(1, 3))
        return made

    def operation(self, depth: int) -> Any:
        kinds = [
            "put",
            "merge",
            "remove",
            "insert",
            "insert",
            "pull",
            "increment",
            *(["when"] if depth < 2 else []),
        ]
        kind = self.random.choice(kinds)
        if kind == "when":
            some = [self.operation(depth + 1) for _ in range(self.random.randrange(3))]
            return {"when": self.condition(0), "do": some, "else": [self.operation(depth + 1)]}
        if kind in ("insert", "pull"):
            return self._of_list(kind)
        made: Any = {kind: self.path()}
        if kind == "increment":
            return made | ({"by": self.expression(0)} if self.chance(0.6) else {})
        if kind != "remove":
            made["value"] = {"data": ""} if kind == "merge" and self.chance(0.7) else self.expression(0)
        if kind == "merge" and self.chance(0.5):
            made["without"] = self.random.sample(FIELDS, 2)
        return made

    def _of_list(self, kind: str) -> Any:
        made: Any = {kind: self.random.choice([["list"], ["list"], ["lists", "x"], self.path()])}
        made["value"] = self.random.choice([{"data": ""}, {"data": "id"}, self.expression(0)])
        if self.chance(0.6):
            made["by"] = self.random.choice(["id", "id", *FIELDS])
        if kind == "insert":
            if self.chance(0.4):
                made["order"] = self.random.choice(["rank", *FIELDS])
            elif self.chance(0.8):
                beside = {
                    self.random.choice(["before", "after"]): self.random.choice(
                        [{"data": "b"}, {"data": "id"}]
                    )
                }
                made["position"] = self.random.choice(["first", "last", beside, beside])
            if self.chance(0.2):
                made["repeat"] = self.chance(0.5)
        return made

    def path(self) -> Any:
        steps = [self.step() for _ in range(self.random.randrange(1, 4))]
        return ["list"] if self.chance(0.1) else steps

    def step(self) -> Any:
        if self.chance(0.5):
            return self.random.choice(["s", "t", *self.names])
        return {"data": self.random.choice(["id", "id", "a", "b"])} | (
            {"default": "d"} if self.chance(0.8) else {}
        )

    def condition(self, depth: int) -> Any:
        kind = self.random.choice(["exists", "equals", "less", *(["not", "all", "any"] if depth < 2 else [])])
        if kind == "exists":
            return {"exists": self.expression(0)}
        if kind == "not":
            return {"not": self.condition(depth + 1)}
        if kind in ("all", "any"):
            return {kind: [self.condition(depth + 1) for _ in range(self.random.randrange(3))]}
        return {kind: [self.expression(0), self.expression(0)]}

    def expression(self, depth: int) -> Any:
        kind = self.random.randrange(9 if depth < 2 else 6)
        if kind < 3:
            found = {"data": self.random.choice(["", "id", "a", "b", "a.b", ["a", "__proto__"], "__proto__"])}
            return found | ({"default": self.scalar()} if self.chance(0.2) else {})
        if kind == 3:
            return {"state": self.path()} | ({"default": self.scalar()} if self.chance(0.3) else {})
        if kind == 4:
            return self.scalar()
        if kind == 5:
            return {"const": self.value(1)} if self.chance(0.7) else {"meta": "a"}
        if kind == 6:
            return {"array": [self.expression(depth + 1) for _ in range(self.random.randrange(3))]}
        return {"object": {key: self.expression(depth + 1) for key in self.random.sample(FIELDS, 2)}}

    # -- events ----------------------------------------------------------------------------------------------

    def scalar(self) -> Any:
        return self.random.choice([None, True, False, 1, *self.names, *NUMBERS])

    def value(self, depth: int = 0) -> Any:
        kind = self.random.randrange(8)
        if kind == 0 and depth < 3:
            return [self.value(depth + 1) for _ in range(self.random.randrange(3))]
        if kind < 3 and depth < 3:
            return {key: self.value(depth + 1) for key in self.random.sample(FIELDS, 2)}
        return self.scalar()

    def event(self) -> Any:
        data: Any = {"id": self.random.choice(self.names)} if self.chance(0.9) else {}
        for name in ("a", "b", "__proto__"):
            if self.chance(0.6):
                data[name] = self.random.choice(self.names) if self.chance(0.4) else self.value()
        if self.chance(0.6):
            data["rank"] = self.random.choice([*NUMBERS, "m", "z"])
        payload: Any = {
            "schema": self.random.choice(SCHEMAS),
            "data": data if self.chance(0.95) else self.value(),
        }
        if self.chance(0.2):
            payload["meta"] = {"a": self.value()}
        return {"type": "event", "payload": payload}


def declared_histories(count: int, seed: int = 1) -> Iterator[bytes]:
    """Lines for `declared-vectors.mjs`."""
    for number in range(count):
        writer = ReducerWriter(seed * 1_000_003 + number)
        reducers = orjson.loads(canonical(writer.reducers()))
        declared, rules = DeclaredReducers(reducers), Rules()
        assert not declared.faults, (reducers, declared.faults)
        for rule in declared.rules:
            rules.add(rule)
        profile = SchemaProfile(None, rules, 1e9)
        profile.silence()
        model, whole = Model("random", 1, profile, TreeProfile()), PartitionState()
        state, events, outcomes, undos = whole.data, [], [], []
        for _ in range(writer.random.choice([2, 4, 8, 12])):
            event = orjson.loads(canonical(writer.event()))
            errors: Any = [error.field for error in profile.refusals(state, event)]
            try:
                if not errors:
                    undos.append(apply_watched(model, "canonical", whole, event))
                outcomes.append(errors or "applied")
            except RuleFailed:
                outcomes.append("failed")
            events.append(event)
        text = canonical(state.dump()).decode()
        line = {"reducers": reducers, "events": events, "outcomes": outcomes, "state": text}
        yield orjson.dumps(line | {"undos": [spelled(each, whole) for each in undos]}) + b"\n"
