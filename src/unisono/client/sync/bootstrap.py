"""Starting a partition from the server's snapshot instead of its whole history: when, and from what (CLIENT-15).

A snapshot replaces the events before it. So only a client that needs nothing but their state asks for one:

- in the compatibility profile every client, because tree actions mean the same in every model: from a snapshot of
  another model than its own it takes the tree half only;
- in the canonical profile a client whose own model has the version and the digest of the server's. Without that model
  the client cannot interpret the state, so it fetches all events.

A snapshot with any fault is not used; the whole history is fetched instead.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, UnsetType

from unisono.client.sync.inputs_effects import Received, StartState
from unisono.client.sync.state import SyncCycle
from unisono.model.model import COMPATIBILITY, Model
from unisono.model.pack import pack, unpack
from unisono.model.partition import PartitionState
from unisono.protocol.client_codec import BadMessage, ServerSnapshot, SyncResponse, decode_snapshots

TREE: Final = "tree"
"""The label of a state whose tree half alone is used: the same in every model."""


def model_label(profile: str, model: Model) -> str:
    """Which model folded a state: another name, version or content invalidates it (DUR-07)."""
    return TREE if profile == COMPATIBILITY else f"{model.name}/{model.version}/{model.digest}"


def may_use_snapshots(profile: str, model: Model) -> bool:
    """Whether the snapshots of any server could be used."""
    return profile == COMPATIBILITY or model.version is not None


def is_same_model(model: Model, version: int | UnsetType | None, digest: str | None) -> bool:
    """Whether this is the server's model; without a digest from the server the version decides."""
    return model.version == version and digest in (None, model.digest)


def can_continue_from(
    profile: str, model: Model, version: int | UnsetType | None, digest: str | None
) -> bool:
    """Whether this model can continue from a state of the server's model."""
    return profile == COMPATIBILITY or (model.version is not None and is_same_model(model, version, digest))


def check_snapshots(
    page: SyncResponse,
    cycle: SyncCycle,
    profile: str,
    model: Model,
    version: int | UnsetType | None,
    digest: str | None,
) -> Received:
    """A page with its snapshots sorted into those to start from and those that cannot be used."""
    if page.snapshots is UNSET:
        return Received(page)
    try:
        snapshots = decode_snapshots(page.snapshots)
    except BadMessage:
        return Received(page, unusable=cycle.partitions)
    start_states: dict[str, StartState] = {}
    unusable: list[str] = []
    requested = (
        cycle.snapshots and cycle.sync_to is None and can_continue_from(profile, model, version, digest)
    )
    for each in snapshots:
        start = None
        of_model = each.model_version == version and each.model_digest in (None, digest)
        if requested and of_model and 0 < each.committed_id <= page.sync_to_committed_id:
            start = _start_state(each, tree_only=not is_same_model(model, version, digest))
        if start is None:
            unusable.append(each.partition)
        else:
            start_states[each.partition] = start
    return Received(page, start_states, tuple(unusable))


def _start_state(snapshot: ServerSnapshot, *, tree_only: bool) -> StartState | None:
    """The snapshot as a start state; None when it does not load as the state of a partition."""
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
