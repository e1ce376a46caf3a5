"""Who is refused although its token is good: tokens by their id, clients, users (AUTH-11)."""

from __future__ import annotations

from collections.abc import Iterable

from unisono.front.auth.verify import Identity
from unisono.ipc.messages import RevokedName


class Revocations:
    """Those in force, as the log has them."""

    def __init__(self) -> None:
        self._until_ms: dict[tuple[str, str], int] = {}

    def replace(self, revoked: Iterable[RevokedName]) -> None:
        self._until_ms = {(each.kind, each.name): each.until_ms for each in revoked}

    def refuses(self, identity: Identity, now_ms: int) -> bool:
        until = self._until_ms
        return bool(until) and any(until.get(name, 0) > now_ms for name in names_of(identity))


def names_of(identity: Identity) -> list[tuple[str, str]]:
    """What a revocation can name an identity by."""
    names = [("client", identity.client_id), ("client", identity.principal)]
    names += [("user", identity.user_id)] if identity.user_id is not None else []
    return names + ([("jti", identity.jti)] if identity.jti else [])
