"""Admin commands about access: refuse somebody, read the ACL again, list who is refused and who is connected."""

from __future__ import annotations

import logging
import time
from typing import Literal

import msgspec

from unisono.authority.replica import Replica
from unisono.ipc.messages import AccessChanged, ListConnections, ListedConnections, RevokedName
from unisono.store.port import CommitLog, Revocation
from unisono.vocabulary import JsonObject

logger = logging.getLogger("unisono.authority")


class AccessRequest(msgspec.Struct, frozen=True):
    """What an operator asks for. Without a `kind`: read the ACL again. `for_s` 0: end the connections, refuse nobody,
    and no longer refuse who was refused before."""

    kind: Literal["jti", "client", "user"] | None = None
    name: str = ""
    for_s: float = 0.0


class AccessCommands:
    """Changes access on this node, and tells the others."""

    def __init__(self, store: CommitLog | None) -> None:
        self._store = store

    def change(self, replica: Replica, body: bytes) -> JsonObject:
        asked = msgspec.json.decode(body, type=AccessRequest)
        if asked.kind is None:
            change = AccessChanged((), reload_acl=True)
        else:
            assert self._store is not None
            now_ms = time.time_ns() // 1_000_000
            until_ms = now_ms + int(asked.for_s * 1000)
            self._store.revoke(Revocation(asked.kind, asked.name, until_ms), now_ms)
            change = AccessChanged((), ended=RevokedName(asked.kind, asked.name, until_ms))
            logger.warning(
                "%s ended by the operator, refused for %g s",
                asked.kind,
                asked.for_s,
                extra={"kind": asked.kind, "for_s": asked.for_s},
            )
        replica.change_access(change)
        replica.cluster.tell(change)
        return {"changed": True, "number": replica.access_changes}

    def listed(self) -> JsonObject:
        assert self._store is not None
        return {"revocations": [msgspec.to_builtins(each) for each in self._store.revocations()]}

    def tell(self, replica: Replica, body: bytes) -> JsonObject:
        """Send the other nodes what this node's own process asks them, or answers."""
        replica.cluster.tell(msgspec.msgpack.decode(body, type=ListConnections | ListedConnections))
        return {"sent": True}

    def clients(self, replica: Replica, limit: int) -> JsonObject:
        """The clients of all nodes; null where there is one node only, whose fronts know better."""
        clients = replica.cluster.connected_clients(limit)
        return {"clients": None if clients is None else [list(each) for each in clients]}
