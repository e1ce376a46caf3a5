"""Which way of writing events a connection uses, settled once, at connect (PROF-*)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET

from unisono.protocol.errors import ProfileUnsupported
from unisono.protocol.messages import Connect
from unisono.vocabulary import JsonObject, LogIdentity

CANONICAL: Final = "canonical"
COMPATIBILITY: Final = "compatibility"
PROFILES: Final = (CANONICAL, COMPATIBILITY)
TREE_POLICY: Final = "strict"


def negotiate(connect: Connect, offered: Sequence[str], default: str = CANONICAL) -> str:
    """The profile of this connection, or ProfileUnsupported.

    A list that is not sent is `["canonical"]` (PROF-03); `default` stands in for it where no profile is named at all
    (PROF-02).
    """
    required = connect.required_profile
    if connect.supported_profiles is not UNSET:
        wanted = connect.supported_profiles
    else:
        wanted = [default] if required is UNSET else [CANONICAL]
    if required is not UNSET:
        wanted = [name for name in wanted if name == required]
    chosen = next((name for name in wanted if name in offered), None)
    if chosen is None:
        raise ProfileUnsupported(f"no common profile; this server offers {', '.join(offered)}", offered)
    policy = connect.required_tree_policy
    if chosen == COMPATIBILITY and policy is not UNSET and policy != TREE_POLICY:
        raise ProfileUnsupported(f"the only tree policy here is {TREE_POLICY!r}", offered)
    return chosen


def capabilities(
    profile: str,
    accepted_event_types: Sequence[str],
    *,
    snapshots: bool = False,
    extensions: Sequence[str] | None = None,
) -> JsonObject:
    """`connected.capabilities` (PROF-05, BCAST-06, SYNC-12, EXT-01)."""
    capabilities: JsonObject = {
        "profile": profile,
        "accepted_event_types": list(accepted_event_types),
        "ordered_delivery": True,
    }
    if profile == COMPATIBILITY:
        capabilities["tree_policy"] = TREE_POLICY
    if snapshots:
        capabilities["snapshots"] = True
    if extensions is not None:
        capabilities["extensions"] = list(extensions)
    return capabilities


def connected_fields(
    profile: str,
    *,
    accepted_event_types: Sequence[str],
    limits: JsonObject,
    model_version: int | None,
    model_digest: str = "",
    log: LogIdentity | None = None,
    snapshots: bool = False,
    extensions: Sequence[str] | None = None,
) -> JsonObject:
    """What `connected` says to every client that asked for the same (CONN-04)."""
    fields: JsonObject = {
        "capabilities": capabilities(
            profile, accepted_event_types, snapshots=snapshots, extensions=extensions
        ),
        "limits": limits,
    }
    if model_version is not None:
        fields["model_version"] = model_version
        fields["model_digest"] = model_digest
    if log is not None:
        fields["log_id"] = log.log_id
        fields["log_epoch"] = log.log_epoch
    return fields
