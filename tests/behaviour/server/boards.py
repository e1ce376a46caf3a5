"""A board of the sample model, on any server: people with tokens, and what they do."""

from __future__ import annotations

from typing import Any

from tests.behaviour.server.harness import Peer, Server, item
from unisono.samples import sample_model

BOARD = ("--model", str(sample_model("roles")))


def person(server: Server, user: str, device: str = "phone", **more: Any) -> Peer:
    """A device of a person, connected; `more` goes into `connect`."""
    peer = server.peer()
    client_id = f"{user}-{device}"
    token = server.token(client_id, user_id=user, claims={"name": user.title(), "secret": "kept out"})
    peer.connect(client_id, token, supported_profiles=["canonical"], **more)
    return peer


def event(schema: str, **data: Any) -> dict[str, Any]:
    return {"type": "event", "payload": {"schema": schema, "data": data}}


def does(peer: Peer, partition: str, schema: str, **data: Any) -> str:
    """What becomes of an event: `committed`, or the first complaint."""
    (result,) = peer.submit(item([partition], event(schema, **data)))
    return result["status"] if result["status"] == "committed" else str(result["errors"][0]["message"])
