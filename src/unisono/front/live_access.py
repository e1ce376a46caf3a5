"""Access that changes while a connection is open: what is no longer allowed ends now (AUTHZ-09, AUTH-11)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from unisono.front.access import Acl, AclError
from unisono.front.auth.verify import Identity
from unisono.front.connecting import REVOKED
from unisono.front.connection import ClientConnection
from unisono.front.revocations import names_of
from unisono.front.services import FrontServices, now_ms
from unisono.ipc.messages import AccessChanged, AskAccess, RevokedName
from unisono.protocol.errors import AuthFailed, CloseCode, Forbidden, Revoked
from unisono.protocol.session import SessionState

log = logging.getLogger("unisono.front")


class AppliedChanges:
    """Tells the node when this front has applied a change of access."""

    def __init__(self, answer: Callable[[int], None]) -> None:
        self._answer = answer
        self._applied = 0
        self._asked: list[AskAccess] = []

    def ask(self, asked: AskAccess) -> None:
        self._asked.append(asked)
        self.applied(self._applied)

    def applied(self, number: int) -> None:
        self._applied = number
        for asked in [each for each in self._asked if each.number <= number]:
            self._asked.remove(asked)
            self._answer(asked.ticket)


def apply_access_change(
    services: FrontServices,
    connections: Iterable[ClientConnection],
    changed: AccessChanged,
    fields: Mapping[str, object],
) -> None:
    """Connections keep what they may still do; an ACL that cannot be read changes nothing. `fields`: of log lines."""
    services.revocations.replace(changed.revoked)
    if changed.reload_acl and services.settings.acl is not None:
        try:
            services.access.replace(Acl.load(services.settings.acl))
        except AclError as error:
            log.error("front %d: ACL not reloaded: %s", fields["front"], error, extra=dict(fields))
    for connection in connections:
        connection.guard(partial(access_changed, connection, changed.ended))


def access_changed(connection: ClientConnection, ended: RevokedName | None) -> None:
    """Keep what the connection may still do; `ended`: its connections end now, whether it is refused or not."""
    identity, services = connection.identity, connection.services
    if identity is None or connection.session.state is SessionState.CLOSED:
        return
    if services.revocations.refuses(identity, now_ms()):
        connection.fail(AuthFailed(REVOKED))
    elif ended is not None and (ended.kind, ended.name) in names_of(identity):
        connection.leave(CloseCode.GOING_AWAY, "ended by the operator")
    elif connection.session.state is SessionState.ACTIVE:
        connection.forget_access()
        _revoke_partitions(connection, identity)


def _revoke_partitions(connection: ClientConnection, identity: Identity) -> None:
    """Take out subscriptions and presence, and refuse the syncs that are under way."""
    access, catchup, presence = connection.services.access, connection.catchup, connection.own_presence
    own = () if presence is None else presence.partitions
    denied = access.denied_reading(identity, tuple(dict.fromkeys((*connection.subscriptions, *own))))
    if denied:
        if presence is not None:
            presence.leave(connection, tuple(denied))
        if catchup is not None:  # else there is nothing that it is subscribed to
            catchup.unsubscribe(denied)
        connection.fail(Revoked(denied))
    if connection.history is not None:
        connection.history.revoke(connection, partial(access.denied_reading, identity))
    if catchup is not None:
        for refused in catchup.revoke(partial(access.denied_reading, identity)):
            connection.fail(Forbidden(refused))
