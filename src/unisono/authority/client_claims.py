"""Which connection speaks for each client: the newest, on whatever node it is (CONN-05)."""

from __future__ import annotations


class ClientClaims:
    """The connections of this node's clients, as their claims came in."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._clients: dict[int, str] = {}

    def has(self, client_id: str, conn: int) -> bool:
        """Whether `conn` may speak for the client."""
        return self._newest.get(client_id) == conn

    def claim(self, client_id: str, conn: int) -> int | None:
        """Let `conn` speak for the client from now on; the connection of this node that did before."""
        older = self._newest.get(client_id)
        self._newest[client_id] = conn
        self._clients[conn] = client_id
        return None if older == conn else older

    def replaced(self, conn: int) -> None:
        """A newer connection on another node speaks for its client."""
        client_id = self._clients.get(conn)
        if client_id is not None and self.has(client_id, conn):
            del self._newest[client_id]

    def release(self, conn: int) -> str | None:
        """`conn` is gone; the client it had claimed."""
        self.replaced(conn)
        return self._clients.pop(conn, None)
