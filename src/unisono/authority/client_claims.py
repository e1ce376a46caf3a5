"""Which connection may submit for each client: the newest one, on whatever node it is (CONN-05)."""

from __future__ import annotations


class ClientClaims:
    """The connections of this node and the client_ids they have claimed."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._clients: dict[int, str] = {}

    def __len__(self) -> int:
        """The number of connections with a claim, replaced ones included."""
        return len(self._clients)

    def has(self, client_id: str, conn: int) -> bool:
        """Whether `conn` is the client's newest connection."""
        return self._newest.get(client_id) == conn

    def claim(self, client_id: str, conn: int) -> int | None:
        """Make `conn` the client's newest connection; returns the connection of this node that it replaces."""
        older = self._newest.get(client_id)
        self._newest[client_id] = conn
        self._clients[conn] = client_id
        return None if older == conn else older

    def replace(self, conn: int) -> None:
        """A connection of another node has replaced `conn`."""
        client_id = self._clients.get(conn)
        if client_id is not None and self.has(client_id, conn):
            del self._newest[client_id]

    def release(self, conn: int) -> str | None:
        """`conn` has ended; returns the client_id it had claimed."""
        self.replace(conn)
        return self._clients.pop(conn, None)
