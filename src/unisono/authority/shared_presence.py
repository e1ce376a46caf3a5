"""Presence on its way from one front to the others of this node, and to other nodes.

It is never stored and never waits for a commit. What cannot be sent is dropped: clients say it again before it
expires.
"""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from unisono.authority.cluster_view import ClusterView
from unisono.authority.outboxes import Outboxes
from unisono.ipc.channel import Channel
from unisono.ipc.messages import PresenceChange, PresenceChanges

MAX_WAITING: Final = 10_000
"""Changes that wait to be sent to other nodes, one for each connection and partition; the oldest are dropped."""


class SharedPresence:
    """Changes of this node's fronts that the other nodes have not been sent yet, the last of each connection.

    There a connection's number is not unique, so that it is named with a name of this node's own.
    """

    def __init__(self, cluster: ClusterView, outboxes: Outboxes) -> None:
        self._cluster = cluster
        self._out = outboxes
        self._node = secrets.token_hex(6)
        self._waiting: dict[tuple[str, str, str], PresenceChange] = {}

    def add(self, front: Channel, message: PresenceChanges) -> None:
        """Pass changes of a front to the others, and keep them for the other nodes."""
        for other in self._out.fronts:
            if other is not front:
                self._out.stage(other, message)
        if not self._cluster.shared:
            return
        for change in message.changes:
            key = change.partition, change.client_id, change.owner
            self._waiting.pop(key, None)
            self._waiting[key] = msgspec.structs.replace(change, owner=f"{self._node}/{change.owner}")
        while len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]

    def send(self) -> None:
        """Outside any group: tell the other nodes."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            self._cluster.tell_presence(tuple(waiting.values()))
