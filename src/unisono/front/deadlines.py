"""The times by which a connection has to do something, or ends: connect, heartbeat, token, close."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from unisono.front.heartbeats import PING_FRAME, missed, ping_every
from unisono.front.services import FrontServices, now_ms
from unisono.front.timers import Timer
from unisono.protocol.errors import AuthFailed, CloseCode
from unisono.protocol.session import SessionState

if TYPE_CHECKING:
    from unisono.front.connection import ClientConnection


class Deadlines:
    """The deadlines of one connection, behind one timer. Nothing refers to it once it is closed (LIM-05).

    Invariant: while there is a deadline there is a timer, which fires at the earliest one or before. A heartbeat only
    moves its deadline; the timer follows when it fires.
    """

    __slots__ = (
        "_beat_by",
        "_connect_by",
        "_connection",
        "_cut_at",
        "_fires_at",
        "_look_at_token",
        "_ping_at",
        "_services",
        "_timer",
    )

    def __init__(self, connection: ClientConnection, services: FrontServices) -> None:
        self._connection: ClientConnection | None = connection
        self._services = services
        self._timer: Timer | None = None
        self._fires_at = self._connect_by = self._ping_at = self._look_at_token = self._cut_at = inf
        self.beat()

    def beat(self) -> None:
        """The client is alive: the window starts again (HB-02)."""
        self._beat_by = self._services.loop.time() + self._services.settings.heartbeat_timeout_s

    def opened(self) -> None:
        settings, now = self._services.settings, self._services.loop.time()
        self._connect_by = now + settings.handshake_timeout_s
        if settings.heartbeat_any_message:
            self._ping_at = now
        self._set_timer()

    def verified(self) -> None:
        self._connect_by = inf
        self._look_at_token = self._next_look(self._services.loop.time())
        if self._look_at_token < self._fires_at:
            self._set_timer()

    def closing(self) -> None:
        """The client has `close_grace_s` to take what was sent, and to answer the close."""
        self._drop_all_but_cut()
        self._cut_at = min(self._cut_at, self._services.loop.time() + self._services.settings.close_grace_s)
        self._set_timer()

    def close(self) -> None:
        if self._timer is not None:
            self._services.timers.cancel(self._timer)
            self._timer = None
        self._connection = None

    def _set_timer(self) -> None:
        when = min(self._beat_by, self._connect_by, self._ping_at, self._look_at_token, self._cut_at)
        if self._connection is None or when >= self._fires_at or when == inf:
            return
        if self._timer is not None:
            self._services.timers.cancel(self._timer)
        self._fires_at = when
        self._timer = self._services.timers.at(when, self._fire)

    def _drop_all_but_cut(self) -> None:
        self._connect_by = self._ping_at = self._look_at_token = self._beat_by = inf

    def _fire(self, now: float) -> None:
        connection = self._connection
        self._timer, self._fires_at = None, inf
        if connection is None:
            return
        if self._cut_at <= now:
            self._cut_at = inf
            connection.cut()
        elif connection.session.state is SessionState.CLOSED:
            self._drop_all_but_cut()
        else:
            self._check(connection, now)
        self._set_timer()

    def _check(self, connection: ClientConnection, now: float) -> None:
        settings = self._services.settings
        if self._look_at_token <= now:
            self._look_at_token = self._next_look(now)
        if self._beat_by <= now:
            connection.leave(CloseCode.TIMEOUT, missed(settings.heartbeat_timeout_s))
        elif self._connect_by <= now:
            connection.leave(CloseCode.TIMEOUT, "no connect")
        elif self._look_at_token <= now:
            connection.fail(AuthFailed("the token has expired; connect again with a new one"))
        elif self._ping_at <= now:
            # Where any message counts as a heartbeat a pong does too: a client that sends nothing is pinged.
            connection.send(PING_FRAME)
            self._ping_at = now + ping_every(settings.heartbeat_timeout_s)

    def _next_look(self, now: float) -> float:
        """When to look at the token's end again; `now` once it has ended.

        AUTH-04: by the wall clock, so a timer that fires early waits for the rest. It never waits longer than for a
        heartbeat, so that a clock that is set forward is noticed.
        """
        connection, settings = self._connection, self._services.settings
        if connection is None or connection.identity is None:
            return inf
        left_s = connection.identity.expires_at_s + settings.jwt_leeway_s - now_ms() / 1000
        return now + max(0.0, min(left_s, settings.heartbeat_timeout_s))
