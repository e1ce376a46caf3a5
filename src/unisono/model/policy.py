"""The operator's tree policy: which targets exist, what may be done to each, and what values look like.

In the model directory it is a TOML table:

    init = false                            # refuse `init`; allowed when left out

    [targets.explorer]
    actions = ["treePush", "treeUpdate"]    # all six when left out

    [targets.explorer.schema.treePush]      # JSON Schema 2020-12 for event.payload.value
    required = ["name"]

    [targets."settings.theme"]              # a dotted target is quoted

Without `targets` every target is allowed. With it, a tree action needs a target that is listed exactly;
`set` and `unset` may also go deeper than a listed target, under the rules of the longest one that leads
there. A schema then sees the value where it will be: `set settings.theme "dark"` is judged by a schema of
`settings` as `{"theme": "dark"}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

import msgspec

from unisono.model.registry import DATA, SchemaProblems, SchemaRegistry
from unisono.model.tree_actions import ACTIONS, split_target
from unisono.vocabulary import FieldError, Json, JsonObject

TARGET_ACTIONS = tuple(action for action in ACTIONS if action != "init")
WITH_VALUE = ("set", "treePush", "treeUpdate")
DEEPER = ("set", "unset")


class PolicyError(ValueError):
    """A policy that cannot be used; the message names the file and the key."""


class TargetRule(msgspec.Struct, frozen=True):
    """What may be done at one target."""

    actions: frozenset[str]
    schemas: Mapping[str, SchemaRegistry]


class TreePolicy(msgspec.Struct, frozen=True):
    """Which targets and actions are allowed; `targets` is None when every target is."""

    init: bool = True
    targets: Mapping[str, TargetRule] | None = None

    @classmethod
    def parse(cls, table: Mapping[str, object], where: str) -> TreePolicy:
        """The policy a parsed TOML or JSON table describes; `where` names its file in errors."""
        _only(table, ("init", "targets"), where, "")
        init = table.get("init", True)
        if not isinstance(init, bool):
            raise PolicyError(f"{where}: init: must be true or false")
        if "targets" not in table:
            return cls(init)
        targets = table["targets"]
        if not _is_table(targets):
            raise PolicyError(f"{where}: targets: must be a table")
        return cls(init, {name: _rule(name, rule, where) for name, rule in targets.items()})

    def complaints(self, event: JsonObject, target: tuple[str, ...]) -> list[FieldError]:
        """What this policy has against an event of the right shape."""
        if self.targets is None:
            return []
        action, payload = event["type"], event["payload"]
        assert isinstance(action, str)
        assert isinstance(payload, dict)
        shortest = 1 if action in DEEPER else len(target)
        for length in range(len(target), shortest - 1, -1):
            rule = self.targets.get(".".join(target[:length]))
            if rule is not None:
                return _judge(rule, action, payload, target[length:])
        return [FieldError("event.payload.target", "this target is not among those the server allows")]


def _judge(rule: TargetRule, action: str, payload: JsonObject, deeper: tuple[str, ...]) -> list[FieldError]:
    if action not in rule.actions:
        return [FieldError("event.type", f"{action} is not allowed at this target")]
    schema = rule.schemas.get(action)
    if schema is None:
        return []
    value: Json = payload["value"]
    for key in reversed(deeper):
        value = {key: value}
    return [FieldError(_field(error.field, deeper), error.message) for error in schema.errors(action, value)]


def _field(found: str, deeper: tuple[str, ...]) -> str:
    """The event's field for a place below DATA: its target as far as the target leads, then its value."""
    leading = ".".join((DATA, *deeper))
    if found == leading or found.startswith(f"{leading}."):
        return f"event.payload.value{found.removeprefix(leading)}"
    return "event.payload.target"


def _rule(name: str, rule: object, where: str) -> TargetRule:
    key = f"targets.{name}"
    wrong = split_target(name)
    if isinstance(wrong, str):
        raise PolicyError(f"{where}: {key}: the target {wrong}")
    if not _is_table(rule):
        raise PolicyError(f"{where}: {key}: must be a table")
    _only(rule, ("actions", "schema"), where, f"{key}.", 'a dotted target is quoted: [targets."a.b"]')
    actions = _actions(rule.get("actions", list(TARGET_ACTIONS)), where, f"{key}.actions")
    schemas = rule.get("schema", {})
    if not _is_table(schemas):
        raise PolicyError(f"{where}: {key}.schema: must be a table of one schema per action")
    return TargetRule(
        actions,
        {
            action: _schema(action, schemas[action], actions, where, f"{key}.schema.{action}")
            for action in schemas
        },
    )


def _actions(given: object, where: str, key: str) -> frozenset[str]:
    if not isinstance(given, list):
        raise PolicyError(f"{where}: {key}: must be an array of action names")
    for index, action in enumerate(given):
        if action not in TARGET_ACTIONS:
            known = ", ".join(TARGET_ACTIONS)
            raise PolicyError(f"{where}: {key}[{index}]: {action!r} is not an action; known are {known}")
    return frozenset(given)


def _schema(action: str, schema: object, actions: frozenset[str], where: str, key: str) -> SchemaRegistry:
    if action not in WITH_VALUE:
        raise PolicyError(f"{where}: {key}: only {', '.join(WITH_VALUE)} carry a value a schema can judge")
    if action not in actions:
        raise PolicyError(f"{where}: {key}: {action} is not among the actions of this target")
    if not _is_table(schema):
        raise PolicyError(f"{where}: {key}: must be a JSON Schema, as a table")
    try:
        return SchemaRegistry({f"{action}.json": schema})
    except SchemaProblems as found:
        problem = found.problems[0]
        place = f"{key}.{problem.place}" if problem.place else key
        raise PolicyError(f"{where}: {place}: {problem.message}") from found
    except ValueError as error:
        raise PolicyError(f"{where}: {key}: not a valid JSON Schema: {error}") from error


def _only(
    table: Mapping[str, object], known: tuple[str, ...], where: str, prefix: str, hint: str = ""
) -> None:
    for key in table:
        if key not in known:
            note = f"; {hint}" if hint else ""
            raise PolicyError(f"{where}: {prefix}{key}: unknown key; known are {', '.join(known)}{note}")


def _is_table(value: object) -> TypeGuard[dict[str, Json]]:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)
