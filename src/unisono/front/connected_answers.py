"""The payload of `connected`: what is the same for many clients is encoded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unisono.config import Settings
from unisono.front.auth.verify import Identity
from unisono.ipc.messages import Offer
from unisono.protocol.codec import encode_connected, encode_payload, with_author
from unisono.protocol.profiles import connected_fields
from unisono.vocabulary import JsonObject

if TYPE_CHECKING:
    from unisono.front.connection import ClientConnection


class ConnectedAnswers:
    """The answers to clients that asked for the same, under the offer in force.

    Bounded: there are two profiles, and few sets of extensions.
    """

    def __init__(self, settings: Settings) -> None:
        self._limits: JsonObject = {
            "max_batch_size": settings.max_batch_size,
            "sync_limit_min": settings.sync_limit_min,
            "sync_limit_max": settings.sync_limit_max,
            "max_message_bytes": settings.max_message_bytes,
            "max_in_flight_drafts": settings.max_in_flight_drafts,
            "max_subscriptions": settings.max_subscriptions,
        }
        self._presence_limits: JsonObject = {
            "max_presence_bytes": settings.max_presence_bytes,
            "presence_per_s": settings.presence_per_s,
            "presence_ttl_ms": int(settings.presence_ttl_s * 1000),
        }
        self._offer: Offer | None = None
        self._encoded: dict[tuple[str, bool, tuple[str, ...] | None], bytes] = {}

    def payload(
        self, connection: ClientConnection, offer: Offer, identity: Identity, head: int, now: int
    ) -> bytes:
        """For a connection whose session has its profile."""
        if offer is not self._offer:
            self._offer = offer
            self._encoded.clear()
        profile = connection.session.profile
        assert profile is not None
        asked = (profile, connection.wants_snapshots, connection.extensions)
        fields = self._encoded.get(asked)
        if fields is None:
            limits = self._limits | (self._presence_limits if connection.sees_presence else {})
            fields = self._encoded[asked] = encode_payload(
                connected_fields(
                    profile,
                    accepted_event_types=offer.profiles[profile],
                    limits=limits,
                    model_version=offer.model_version,
                    model_digest=offer.model_digest,
                    log=offer.log,
                    snapshots=connection.wants_snapshots,
                    extensions=connection.extensions,
                )
            )
        payload = encode_connected(identity.client_id, now, head, fields)
        return with_author(payload, identity.author) if connection.sees_authors else payload
