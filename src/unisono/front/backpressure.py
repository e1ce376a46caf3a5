"""Counts the requests that a front has sent to the authority and that are not answered yet (LIM-05)."""

from __future__ import annotations

from collections import deque

from unisono.protocol.errors import RateLimited

RETRY_MS = 250
"""Retry after: a group takes milliseconds, so a quarter of a second later the queue has moved."""


class Queued:
    """Items and bytes of requests that the authority has not answered.

    A request counts until it is answered, also when its connection is gone: closing a connection makes no room. The
    authority answers each request once, and those of a connection in order.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._requests: dict[int, tuple[int, int] | deque[tuple[int, int]]] = {}
        """Items and bytes of each connection's requests, oldest first. One alone, as most are, needs no deque."""
        self.items = 0
        self.bytes = 0

    def check(self, items: int, size: int) -> None:
        """Refuse what would overfill the queue."""
        if self.items + items > self._max_items or self.bytes + size > self._max_bytes:
            raise RateLimited("the server is busy", RETRY_MS)

    def add(self, conn: int, items: int, size: int) -> None:
        waiting = self._requests.get(conn)
        if waiting is None:
            self._requests[conn] = (items, size)
        elif isinstance(waiting, deque):
            waiting.append((items, size))
        else:
            self._requests[conn] = deque((waiting, (items, size)))
        self.items += items
        self.bytes += size

    def answered(self, conn: int) -> int:
        """The oldest request of this connection is answered; its items, 0 when all requests were dropped before."""
        requests = self._requests
        waiting = requests.get(conn)
        if waiting is None:
            return 0
        if isinstance(waiting, deque):
            items, size = waiting.popleft()
            if not waiting:
                del requests[conn]
        else:
            items, size = waiting
            del requests[conn]
        self.items -= items
        self.bytes -= size
        return items

    def unanswered(self) -> dict[int, int]:
        """How many requests of each connection wait for their answer."""
        return {
            conn: len(waiting) if isinstance(waiting, deque) else 1
            for conn, waiting in self._requests.items()
        }

    def void(self) -> None:
        """The authority has dropped every request."""
        self._requests.clear()
        self.items = self.bytes = 0
