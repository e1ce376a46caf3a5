"""What one connection says of itself: checked, limited, and taken back when it ends (EXT-06, EXT-07)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from unisono.front.presence import MAX_OWN_PARTITIONS
from unisono.ipc.messages import PresenceChange
from unisono.protocol.canonical import NotCanonical, canonical_text
from unisono.protocol.errors import BadRequest, Forbidden, RateLimited, ValidationFailed
from unisono.protocol.messages import SetPresence
from unisono.protocol.partitions import PartitionError, normalise
from unisono.vocabulary import FieldError

if TYPE_CHECKING:
    from unisono.front.connection import ClientConnection

BURST: Final = 2
"""Seconds' worth of messages that a connection may send at once."""

FULL_RETRY_MS: Final = 5_000
"""Retry after, for a partition in which too many are present: somebody has to leave first."""


class OwnPresence:
    """The partitions in which a connection is present, or was until it expired. Made with its first message."""

    __slots__ = ("_allowance", "_allowed_at", "_partitions", "_per_s")

    def __init__(self, per_s: float, now: float) -> None:
        self._per_s = per_s
        self._allowance = BURST * per_s
        self._allowed_at = now
        self._partitions: dict[str, None] = {}

    def set(self, connection: ClientConnection, message: SetPresence) -> None:
        """Say something, or with `value: null` nothing more; a WireError changes nothing."""
        services, identity = connection.services, connection.identity
        assert identity is not None
        settings = services.settings
        self._take(services.loop.time())
        try:
            (partition,) = normalise([message.partition])
        except PartitionError as error:
            raise ValidationFailed([FieldError("partition", str(error))]) from None
        denied = services.access.denied_reading(identity, (partition,))
        if denied:
            raise Forbidden(denied)
        raw = b"null" if message.value is UNSET else bytes(message.value)
        if raw == b"null":
            self.leave(connection, (partition,))
            return
        try:
            value = canonical_text(raw, settings.max_presence_bytes)
        except NotCanonical as error:
            where = f"value.{error.field}" if error.field else "value"
            raise ValidationFailed([FieldError(where, error.reason)]) from None
        ttl_s = settings.presence_ttl_s
        if message.ttl_ms is not None:
            if message.ttl_ms <= 0:
                raise BadRequest("ttl_ms must be above 0")
            ttl_s = min(ttl_s, message.ttl_ms / 1000)
        if partition not in self._partitions and len(self._partitions) >= MAX_OWN_PARTITIONS:
            self._forget_expired(connection, identity.client_id)
            if len(self._partitions) >= MAX_OWN_PARTITIONS:
                raise RateLimited(f"present in more than {MAX_OWN_PARTITIONS} partitions", FULL_RETRY_MS)
        if not services.presence.room_for(partition, identity.client_id):
            raise RateLimited("too many are present in this partition", FULL_RETRY_MS)
        self._partitions[partition] = None
        services.presence.change(
            PresenceChange(
                partition, identity.client_id, str(connection.number), identity.user_id, value, ttl_s
            )
        )

    def leave(self, connection: ClientConnection, partitions: tuple[str, ...] | None = None) -> None:
        """Take back what was said in these partitions, or in all."""
        identity = connection.identity
        for partition in tuple(self._partitions) if partitions is None else partitions:
            if self._partitions.pop(partition, UNSET) is not UNSET and identity is not None:
                connection.services.presence.change(
                    PresenceChange(partition, identity.client_id, str(connection.number))
                )

    def _forget_expired(self, connection: ClientConnection, client_id: str) -> None:
        """What was not said again in time is gone, and another connection may speak for the client by now."""
        presence, owner = connection.services.presence, str(connection.number)
        self._partitions = {name: None for name in self._partitions if presence.says(owner, client_id, name)}

    @property
    def partitions(self) -> tuple[str, ...]:
        return tuple(self._partitions)

    def _take(self, now: float) -> None:
        """One message of the rate; RateLimited when there is none left."""
        level = min(BURST * self._per_s, self._allowance + (now - self._allowed_at) * self._per_s)
        self._allowed_at = now
        self._allowance = level - 1 if level >= 1 else level
        if level < 1:
            raise RateLimited(
                "too many presence messages per second", int((1 - level) / self._per_s * 1000) + 1
            )
