"""A connect on its way: the token is verified, the profile settled, then the client_id is claimed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from unisono.front.auth.verify import Identity
from unisono.front.early_messages import EarlyMessages
from unisono.front.services import now_ms
from unisono.protocol.errors import AuthFailed, CloseCode, WireError
from unisono.protocol.messages import Connect
from unisono.protocol.profiles import negotiate
from unisono.protocol.session import SessionState

if TYPE_CHECKING:
    from unisono.front.connection import ClientConnection

NEW_CLAIMS: Final = "another model stores other claims; connect again"
"""The claims that are stored with events are taken from the token, which is not kept, at connect."""

REVOKED: Final = "access was revoked by the operator"


class Connecting:
    """One connection until it is connected. What the client sends meanwhile waits (CONN-02)."""

    __slots__ = ("_connection", "_early", "_profile", "_verifying")

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._verifying: asyncio.Task[None] | None = None
        self._early: EarlyMessages | None = None
        self._profile = ""

    def add_early(self, data: bytes) -> bool:
        """Keep a message until the client is connected; False when there are too many."""
        if self._early is None:
            self._early = EarlyMessages(self._connection.max_message_bytes)
        return self._early.add(data)

    def take_early(self) -> bytes | None:
        """The oldest of them; None when there is none."""
        return None if self._early is None else self._early.take()

    def start(self, connect: Connect) -> None:
        """Verify at once, or in a task where a key has to be fetched; raises what is wrong with the connect."""
        connection = self._connection
        stored = () if connection.owner.offer is None else connection.owner.offer.claims
        identity = connection.services.verifier.verify_now(
            connect.token, connect.client_id, now_ms() / 1000, stored
        )
        if identity is None:
            self._verifying = connection.owner.spawn(self._verify(connect, stored))
        else:
            self._accept(connect, identity, stored)

    def cancel(self) -> None:
        if self._verifying is not None:
            self._verifying.cancel()
            self._verifying = None

    async def _verify(self, connect: Connect, stored: tuple[str, ...]) -> None:
        connection = self._connection
        try:
            identity = await connection.services.verifier.verify(
                connect.token, connect.client_id, now_ms() / 1000, stored
            )
            if connection.session.state is SessionState.AWAIT_CONNECT:
                self._accept(connect, identity, stored)
        except WireError as error:
            connection.fail(error)
        except Exception:
            connection.log_unexpected("unexpected error while verifying its token")
            connection.fail()

    def _accept(self, connect: Connect, identity: Identity, stored: tuple[str, ...]) -> None:
        connection = self._connection
        services, settings, offer = connection.services, connection.services.settings, connection.owner.offer
        assert offer is not None, "a connection is closed when the offer is withdrawn"
        if services.revocations.refuses(identity, now_ms()):
            raise AuthFailed(REVOKED)
        if offer.claims != stored:
            connection.leave(CloseCode.GOING_AWAY, NEW_CLAIMS)
            return
        offered = [name for name in settings.profiles if name in offer.profiles]
        self._profile = negotiate(connect, offered, settings.default_profile)
        connection.claim(connect, identity, self._claimed)

    def _claimed(self, head: int) -> None:
        connection = self._connection
        try:
            if connection.identity is not None:
                connection.connected(connection.identity, self._profile, head)
        except Exception:
            connection.fail_unexpected()
