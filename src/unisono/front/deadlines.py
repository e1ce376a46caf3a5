"""The times by which a connection has to do something, or ends: connect, heartbeat, token, close."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from unisono.front.heartbeats import PING_FRAME, missed, ping_every
from unisono.front.services import FrontServices, now_ms
from unisono.front.timers import Timer
from unisono.protocol.errors import AuthFailed, CloseCode
from unisono.protocol.session import SessionState

if TYPE_CHECKING:
    from unisono.front.connection import ClientConnection


class Deadlines:
    """The timers of one connection. Nothing refers to it once it is closed (LIM-05).

    A callback returns its next time, or None.
    """

    __slots__ = ("_beat_by", "_connection", "_services", "_timers")

    def __init__(self, connection: ClientConnection, services: FrontServices) -> None:
        self._connection: ClientConnection | None = connection
        self._services = services
        self._timers: list[Timer] = []
        self._beat_by = 0.0
        self.beat()

    def beat(self) -> None:
        """The client is alive: the window starts again (HB-02)."""
        self._beat_by = self._services.loop.time() + self._services.settings.heartbeat_timeout_s

    def opened(self) -> None:
        settings, now = self._services.settings, self._services.loop.time()
        self._at(self._beat_by, self._heartbeat_due)
        if settings.heartbeat_any_message:
            self._at(now, self._ping_due)
        self._at(now + settings.handshake_timeout_s, self._handshake_due)

    def verified(self) -> None:
        self._at(self._services.loop.time(), self._expiry_due)

    def closing(self) -> None:
        """The client has `close_grace_s` to take what was sent, and to answer the close."""
        self._at(self._services.loop.time() + self._services.settings.close_grace_s, self._grace_over)

    def close(self) -> None:
        for timer in self._timers:
            self._services.timers.cancel(timer)
        self._timers.clear()
        self._connection = None

    def _at(self, when: float, call: Callable[[float], float | None]) -> None:
        if self._connection is not None:
            self._timers.append(self._services.timers.at(when, call))

    def _open(self) -> ClientConnection | None:
        connection = self._connection
        if connection is None or connection.session.state is SessionState.CLOSED:
            return None
        return connection

    def _heartbeat_due(self, now: float) -> float | None:
        connection = self._open()
        if connection is None:
            return None
        if self._beat_by > now:
            return self._beat_by
        connection.leave(CloseCode.TIMEOUT, missed(self._services.settings.heartbeat_timeout_s))
        return None

    def _ping_due(self, now: float) -> float | None:
        """Where any message counts as a heartbeat a pong does too: a client that sends nothing is pinged."""
        connection = self._open()
        if connection is None:
            return None
        connection.send(PING_FRAME)
        return now + ping_every(self._services.settings.heartbeat_timeout_s)

    def _handshake_due(self, now: float) -> None:  # noqa: ARG002
        connection = self._open()
        if connection is not None and connection.session.state is SessionState.AWAIT_CONNECT:
            connection.leave(CloseCode.TIMEOUT, "no connect")

    def _expiry_due(self, now: float) -> float | None:
        """AUTH-04: by the wall clock, so a timer that fires early waits for the rest.

        It never waits longer than for a heartbeat, so that a clock that is set forward is noticed.
        """
        connection, settings = self._open(), self._services.settings
        if connection is None or connection.identity is None:
            return None
        left_s = connection.identity.expires_at_s + settings.jwt_leeway_s - now_ms() / 1000
        if left_s > 0:
            return now + min(left_s, settings.heartbeat_timeout_s)
        connection.fail(AuthFailed("the token has expired; connect again with a new one"))
        return None

    def _grace_over(self, now: float) -> None:  # noqa: ARG002
        if self._connection is not None:
            self._connection.cut()
