"""Starting a partition from the server's snapshot instead of its whole history: when, and from what (CLIENT-15).

What a snapshot spares a client is the events before it, so only a client that needs nothing of them but their state
asks for one:

- in the compatibility profile every client, because tree actions mean the same whatever the model is: of a snapshot
  of another model than its own it takes the half that tree actions made;
- in the canonical profile a client whose own model has the version and the digest of the server's. Without a model
  canonical events have no meaning here that a state could hold, and all of them are fetched.

A snapshot that is not right in every respect is not used, and the whole history is fetched in its place.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, UnsetType

from unisono.client.net.wire import BadMessage, ServerSnapshot, SyncResponse, decode_snapshots
from unisono.client.sync.inputs_effects import Received, StartState
from unisono.client.sync.state import SyncCycle
from unisono.model.model import COMPATIBILITY, Model
from unisono.model.pack import pack, unpack
from unisono.model.partition import PartitionState

TREE: Final = "tree"
"""What folds a state whose tree half alone counts: the same in every model."""


def label(profile: str, model: Model) -> str:
    """Which model folded a state: another name, version or content makes it void (DUR-07)."""
    return TREE if profile == COMPATIBILITY else f"{model.name}/{model.version}/{model.digest}"


def may_ask(profile: str, model: Model) -> bool:
    """Whether there can be a server whose snapshots are of use."""
    return profile == COMPATIBILITY or model.version is not None


def same(model: Model, version: int | UnsetType | None, digest: str | None) -> bool:
    """Whether this is the server's model; one that tells no digest is believed by its version."""
    return model.version == version and digest in (None, model.digest)


def fits(profile: str, model: Model, version: int | UnsetType | None, digest: str | None) -> bool:
    """Whether this model can go on from a state of the server's model."""
    return profile == COMPATIBILITY or (model.version is not None and same(model, version, digest))


def checked(
    told: SyncResponse,
    cycle: SyncCycle,
    profile: str,
    model: Model,
    version: int | UnsetType | None,
    digest: str | None,
) -> Received:
    """A page with its snapshots told apart: what can be started from, and what cannot."""
    if told.snapshots is UNSET:
        return Received(told)
    try:
        snapshots = decode_snapshots(told.snapshots)
    except BadMessage:
        return Received(told, unusable=cycle.partitions)
    bases: dict[str, StartState] = {}
    unusable: list[str] = []
    asked = cycle.snapshots and cycle.sync_to is None and fits(profile, model, version, digest)
    for each in snapshots:
        base = None
        of_it = each.model_version == version and each.model_digest in (None, digest)
        if asked and of_it and 0 < each.committed_id <= told.sync_to_committed_id:
            base = _base(each, tree_only=not same(model, version, digest))
        if base is None:
            unusable.append(each.partition)
        else:
            bases[each.partition] = base
    return Received(told, bases, tuple(unusable))


def _base(snapshot: ServerSnapshot, *, tree_only: bool) -> StartState | None:
    """What to start from, tried out; None when it is no state of a partition."""
    state = bytes(snapshot.state)
    try:
        value = unpack(state)
        if tree_only:
            value["data"] = {}
            state = pack(value)
        PartitionState.load(value)
    except (ValueError, TypeError):
        return None
    return StartState(snapshot.committed_id, state)
