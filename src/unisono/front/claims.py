"""Which connection has a client_id: the newest one (CONN-05).

Several fronts, and the nodes of a cluster, ask the authority. The only front of a log settles it here: a connect
then wakes no other process. The authority is told in either case, before anything that the connection asks of it, and
drops what a replaced connection has left in its queue.
"""

from __future__ import annotations

from collections.abc import Callable

from unisono.ipc.link import Link
from unisono.ipc.messages import Claim, Claimed, Offer, Release


class Claims:
    """Claims of one front's connections.

    Invariants: a callback is called at most once, and stays here no longer than its connection. `_newest` has the
    connections with a client_id of their own, if this front is the only one, and is empty otherwise.
    """

    authority: Link

    def __init__(self) -> None:
        self._sole_front = False
        self._waiting: dict[int, Callable[[int], None]] = {}
        self._newest: dict[str, int] = {}
        self.head = 0
        """The last event that the authority has told: whatever anybody was answered is not above it."""

    def offered(self, offer: Offer) -> None:
        self._sole_front = offer.sole_front
        self.head = offer.head

    def claim(
        self, conn: int, client_id: str, replace: Callable[[int], None], on_claimed: Callable[[int], None]
    ) -> None:
        """Claim a client_id for a connection; `on_claimed` gets the head of the log, at once or later.

        `replace` is called for the connection that has it no more, before that; otherwise the authority tells.
        """
        claim = Claim(conn, client_id)
        if not self._sole_front:
            self._waiting[conn] = on_claimed
            self.authority.send(claim)
            return
        older = self._newest.get(client_id)
        self._newest[client_id] = conn
        self.authority.send_later(claim)
        if older is not None:
            replace(older)
        on_claimed(self.head)

    def release(self, conn: int, client_id: str) -> None:
        """A connection gives up the client_id that it has claimed."""
        release = Release(conn)
        if not self._sole_front:
            self.authority.send(release)
            return
        if self._newest.get(client_id) == conn:
            del self._newest[client_id]
        self.authority.send_later(release)

    def claimed(self, message: Claimed) -> None:
        if (on_claimed := self._waiting.pop(message.conn, None)) is not None:
            on_claimed(message.head)

    def forget(self, conn: int) -> None:
        """The connection is gone."""
        self._waiting.pop(conn, None)

    def drop_requests(self) -> None:
        """The authority has dropped every claim it had not answered."""
        self._waiting.clear()
