"""A connection as an operator sees it."""

from __future__ import annotations

from unisono.front.connection import ClientConnection
from unisono.vocabulary import JsonObject

SUBSCRIPTIONS_SHOWN_MAX = 20
"""Names of subscriptions in a report; their number is always there."""


def describe(connection: ClientConnection) -> JsonObject:
    identity = connection.identity
    return {
        "client_id": None if identity is None else identity.client_id,
        "user_id": None if identity is None else identity.user_id,
        "profile": connection.session.profile,
        "subscriptions": len(connection.subscriptions),
        "partitions": list(connection.subscriptions[:SUBSCRIPTIONS_SHOWN_MAX]),
        "syncing": connection.syncing,
        "lag": 0 if connection.catchup is None else connection.catchup.lag,
        "in_flight": connection.in_flight_items,
        "unsent_bytes": connection.unsent_bytes,
        "expires_at_s": None if identity is None else identity.expires_at_s,
    }
