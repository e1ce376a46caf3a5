"""Who is connected: this node's connections with their details, and the clients of the other nodes."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec

from unisono.config import Settings
from unisono.vocabulary import JsonObject


def merged_connections(settings: Settings, own: Sequence[JsonObject], elsewhere: bytes) -> list[JsonObject]:
    """`elsewhere` is the authority's answer: the clients of all nodes, as the shared log has them."""
    name = settings.node_name or socket.gethostname()
    found = [{**each, "node": name} for each in own]
    known = {each["client_id"] for each in own}
    clients = msgspec.json.decode(elsewhere)["clients"] or ()
    return found + [{"client_id": who, "node": node} for who, node in clients if who not in known]
