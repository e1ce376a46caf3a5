"""A model as a whole: what events of either profile may be, and what they mean for a partition.

The same object serves the server's judge, a client's view and the fold of the history (TREE-11).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from unisono.model.authorship import UNKNOWN, Authorship
from unisono.model.partition import PartitionState
from unisono.model.policy import TreePolicy
from unisono.model.rules import RuleFailed
from unisono.model.schema import EVENT_TYPE, SchemaProfile
from unisono.model.tree import TreeProfile
from unisono.vocabulary import FieldError, Json, JsonObject

CANONICAL, COMPATIBILITY = "canonical", "compatibility"

_ANY_TREE = TreeProfile()
"""Replay asks whether an action fits the state, not whether today's policy would allow it."""


class Model(msgspec.Struct, frozen=True, eq=False):
    """One version of what events mean.

    `version` is None where no model was configured. `canonical` is None where canonical events have no
    meaning at all. `digest` tells one content of a model directory from another; `files` is that content. `claims` of
    tokens are stored with events, for rules.
    """

    name: str
    version: int | None
    canonical: SchemaProfile | None
    compatibility: TreeProfile
    policy: TreePolicy | None = None
    path: Path | None = None
    digest: str = ""
    files: Mapping[str, bytes] = {}
    claims: tuple[str, ...] = ()

    def shape(self, profile: str, event: JsonObject) -> list[FieldError]:
        """What is wrong with the event itself."""
        canonical = self.canonical
        if profile == CANONICAL and canonical is not None:
            return canonical.shape(event)
        if profile == COMPATIBILITY:
            return self.compatibility.shape(event)
        if canonical is None:
            return [FieldError("event.type", "this server has no model, so it takes no canonical events")]
        return self._canonical(profile).shape(event)

    def refusals(
        self, profile: str, state: PartitionState, event: JsonObject, by: Authorship = UNKNOWN
    ) -> list[FieldError]:
        """What keeps an event of the right shape from being applied to this state."""
        if profile == COMPATIBILITY:
            return self.compatibility.refusals(state.tree, event)
        return self._canonical(profile).refusals(state.data, event, by)

    def apply(self, profile: str, state: PartitionState, event: JsonObject, by: Authorship = UNKNOWN) -> None:
        """Change the state by an event nothing speaks against; `RuleFailed` and no change if a rule fails."""
        if profile == COMPATIBILITY:
            self.compatibility.apply(state.tree, event)
        else:
            self._canonical(profile).apply(state.data, event, by)

    def apply_committed(self, state: PartitionState, event: JsonObject, by: Authorship = UNKNOWN) -> bool:
        """Change the state by an event of the log, without judging it again.

        An event that cannot be applied (committed under another model, whose rules it does not fit) changes
        nothing, is counted in `state.skipped`, and gives False. Which ones these are depends on the model and
        the events before it alone. Whoever replays many events settles the state now and then. A `replayed` state
        takes the event for itself: a rule may leave it changed.
        """
        if self._replay(state, event, by) is None:
            return True
        state.skipped += 1
        return False

    def obstacle(self, state: PartitionState, event: JsonObject, by: Authorship = UNKNOWN) -> str | None:
        """As `apply_committed`; tells an operator what keeps the event from being applied, None if nothing does."""
        why = self._replay(state, event, by)
        if why is not None:
            state.skipped += 1
        return why

    def describe(self) -> JsonObject:
        """What the model consists of, to compare two of them and to show to a person."""
        registry = self.canonical.registry if self.canonical is not None else None
        return {
            "name": self.name,
            "model_version": self.version,
            "digest": self.digest,
            "schemas": None if registry is None else {name: self._describe(name) for name in registry.names},
            "tree": self._describe_tree(),
            "claims": list(self.claims),
        }

    @property
    def reads_commit_time(self) -> bool:
        """Whether a rule may read `event.committed_at`, which a draft does not know yet."""
        return self.canonical is not None and any(
            b"committed_at" in content for name, content in self.files.items() if name.endswith(".py")
        )

    def _canonical(self, profile: str) -> SchemaProfile:
        if profile != CANONICAL or self.canonical is None:
            raise ValueError(f"this model has no profile {profile!r}")
        return self.canonical

    def _replay(self, state: PartitionState, event: JsonObject, by: Authorship) -> str | None:
        if event.get("type") != EVENT_TYPE:
            errors = _ANY_TREE.replay(state.tree, event)
            return f"{errors[0].field}: {errors[0].message}" if errors else None
        payload = event.get("payload")
        if self.canonical is None:
            return "there is no model, so canonical events mean nothing"
        if (
            not isinstance(payload, dict)
            or not isinstance(payload.get("schema"), str)
            or "data" not in payload
        ):
            return "event.payload: is no object with a schema and data"
        try:
            self.canonical.replay(state.data, event, by, shared=not state.replayed)
        except RuleFailed as failed:
            return failed.inside
        return None

    def _describe(self, schema: str) -> Json:
        assert self.canonical is not None
        rules = self.canonical.rules
        reducer = rules.reducer(schema)
        return {
            "checks": [rule.name for rule in rules.checks(schema)],
            "reducer": None if reducer is None else reducer.name,
        }

    def _describe_tree(self) -> Json:
        targets = None if self.policy is None else self.policy.targets
        return {
            "init": "init" in self.compatibility.accepted_event_types,
            "targets": None
            if targets is None
            else {name: [*sorted(rule.actions)] for name, rule in sorted(targets.items())},
        }


def open_model(*, accept_init: bool = True) -> Model:
    """Any schema name, any data, any tree target; nothing is reduced. For trying things out."""
    return Model("open", None, SchemaProfile(None), TreeProfile(accept_init=accept_init))


def no_model(*, accept_init: bool = True) -> Model:
    """Tree actions only: canonical events have no meaning without a model."""
    return Model("none", None, None, TreeProfile(accept_init=accept_init))
