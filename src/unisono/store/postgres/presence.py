"""Which node has which client connected, and which nodes are alive.

Every start of a node gets a new node_id, so a claim of an earlier run is never mistaken for one of this run. A claim
is one statement and one durable commit. Releases are collected, since a claim by another node overrides them anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from unisono.store.postgres.pipeline_connection import PipelineConnection
from unisono.store.postgres.rows import Integers, Row, Texts, escape

RELEASES_WAITING_MAX: Final = 500
"""Releases collected before they are sent; every heartbeat and every `catch_up` sends them too."""

DEAD_AFTER_S: Final = 600.0
"""After so long without a heartbeat a node's claims are removed. They do no harm until then."""

EXPIRE_ROWS_MAX: Final = 1_000
"""Claims of dead nodes removed by one statement: a few milliseconds."""


class Presence:
    """The claims of one run of one node.

    Invariant: `_claims` maps conn → client_id for every claim of this run that was neither released nor found
    replaced by another node.
    """

    def __init__(self, name: str, knows: int) -> None:
        self.name = name
        self.node_id: int | None = None
        self._knows = knows
        self._claims: dict[int, str] = {}
        self._releases: list[tuple[str, int]] = []

    @property
    def channel(self) -> str:
        """The notification channel for replaced connections of this run."""
        return f"unisono_node_{self.node_id}"

    def register(self, pipeline: PipelineConnection) -> None:
        """Insert this node, or refresh its row after a reconnect.

        The commit is durable on purpose: a log that cannot commit is not usable.
        """
        parameters = {"node_id": self.node_id, "name": self.name, "knows": self._knows}
        ((self.node_id,),) = pipeline.ask("register_node", parameters)

    def claim(self, pipeline: PipelineConnection, claims: Sequence[tuple[str, int]]) -> list[int]:
        """Make each (client_id, conn) the only connection of its client; returns their epochs."""
        epochs: list[int] = []
        for batch in _distinct(claims):
            clients, conns = _columns(batch)
            parameters = {"node_id": self.node_id, "clients": clients, "conns": conns}
            found = {client_id: epoch for client_id, epoch, _ in pipeline.ask("claim", parameters)}
            epochs += [found[escape(client_id)] for client_id, _ in batch]
            self._claims.update((conn, client_id) for client_id, conn in batch)
        return epochs

    def release(self, client_id: str, conn: int) -> bool:
        """Collect a release; True when it is time to call `send_releases`."""
        self._claims.pop(conn, None)
        self._releases.append((client_id, conn))
        return len(self._releases) >= RELEASES_WAITING_MAX

    def send_releases(self, pipeline: PipelineConnection) -> None:
        if not self._releases:
            return
        clients, conns = _columns(self._releases)
        parameters = {"node_id": self.node_id, "clients": clients, "conns": conns}
        pipeline.execute_async_commit("release", parameters)
        self._releases.clear()

    def replaced(self, holders: Sequence[tuple[str, int]], rows: Sequence[Row]) -> tuple[int, ...]:
        """The connections of `holders` that `rows` (client_id, node_id, conn) no longer name."""
        present = {client_id: (node_id, conn) for client_id, node_id, conn in rows}
        return tuple(
            conn for client_id, conn in holders if present.get(escape(client_id)) != (self.node_id, conn)
        )

    def drop_claims(self, conns: Sequence[int]) -> None:
        """Forget claims that were replaced."""
        for conn in conns:
            self._claims.pop(conn, None)

    def lost_claims(self, pipeline: PipelineConnection) -> list[int]:
        """Compare all claims with the database; drops and returns those that are not in force."""
        if not self._claims:
            return []
        clients, conns = _columns([(client_id, conn) for conn, client_id in self._claims.items()])
        parameters = {"node_id": self.node_id, "clients": clients, "conns": conns}
        lost = [conn for (conn,) in pipeline.ask("lost_claims", parameters)]
        self.drop_claims(lost)
        return lost

    def heartbeat(self, pipeline: PipelineConnection) -> bool:
        """Refresh this node's row; False when the node was expired, and its claims with it."""
        return bool(pipeline.execute_async_commit("heartbeat", {"node_id": self.node_id}))

    def expire_dead_nodes(self, pipeline: PipelineConnection) -> None:
        """Remove nodes without a heartbeat for DEAD_AFTER_S, and their claims."""
        parameters: dict[str, float | int] = {"dead_after_s": DEAD_AFTER_S, "limit": EXPIRE_ROWS_MAX}
        pipeline.execute_async_commit("expire_presence", parameters)
        pipeline.execute_async_commit("expire_nodes", {"dead_after_s": DEAD_AFTER_S})
        pipeline.execute_async_commit("expire_replacements")

    def unregister(self, pipeline: PipelineConnection) -> None:
        """Remove every row of this run."""
        for query in ("remove_presence", "take_replacements", "remove_node"):
            pipeline.execute_async_commit(query, {"node_id": self.node_id})


def _columns(pairs: Sequence[tuple[str, int]]) -> tuple[Texts, Integers]:
    return Texts(escape(client_id) for client_id, _ in pairs), Integers([conn for _, conn in pairs])


def _distinct(claims: Sequence[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    """`claims` in batches that name each client once: one statement cannot update a row twice."""
    batch: list[tuple[str, int]] = []
    seen: set[str] = set()
    for client_id, conn in claims:
        if client_id in seen:
            yield batch
            batch, seen = [], set()
        batch.append((client_id, conn))
        seen.add(client_id)
    if batch:
        yield batch
