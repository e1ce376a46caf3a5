"""Who holds which client in the cluster, and which nodes are alive.

Every start of a node has a number of its own, so a claim of an earlier run is never taken for one of this run. A
claim is one statement and one durable commit; a release may wait, since a claim elsewhere overrides it anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from unisono.store.postgres.pipeline_connection import PipelineConnection
from unisono.store.postgres.rows import Integers, Row, Texts, escape

RELEASES_WAITING_MAX: Final = 500
"""Releases collected before they are sent; also at every heartbeat and before any look at the cluster."""

DEAD_AFTER_S: Final = 600.0
"""A node silent for so long has its claims removed. They do no harm till then, so there is no hurry."""

EXPIRE_ROWS_MAX: Final = 1_000
"""Claims of dead nodes removed at a time: some milliseconds."""


class Presence:
    """The claims of one run of one node.

    Invariant: `_claims` has every claim of this run, conn → client_id, that was neither released nor found to be
    replaced elsewhere.
    """

    def __init__(self, name: str, knows: int) -> None:
        self.name = name
        self.node_id: int | None = None
        self._knows = knows
        self._claims: dict[int, str] = {}
        self._releases: list[tuple[str, int]] = []

    @property
    def channel(self) -> str:
        """Where this run is woken when a connection of its own was replaced."""
        return f"unisono_node_{self.node_id}"

    def register(self, pipeline: PipelineConnection) -> None:
        """Be known as alive; under the same number when it was known before.

        A durable commit, on purpose: a log that cannot make one is not open.
        """
        parameters = {"node_id": self.node_id, "name": self.name, "knows": self._knows}
        ((self.node_id,),) = pipeline.ask("register_node", parameters)

    def claim(self, pipeline: PipelineConnection, claims: Sequence[tuple[str, int]]) -> list[int]:
        """Make each (client_id, conn) the one connection of its client; their epochs."""
        epochs: list[int] = []
        for batch in _distinct(claims):
            clients, conns = _columns(batch)
            parameters = {"node_id": self.node_id, "clients": clients, "conns": conns}
            found = {client_id: epoch for client_id, epoch, _ in pipeline.ask("claim", parameters)}
            epochs += [found[escape(client_id)] for client_id, _ in batch]
            self._claims.update((conn, client_id) for client_id, conn in batch)
        return epochs

    def release(self, client_id: str, conn: int) -> bool:
        """Note that a claim is given up; True when it is time to send what was noted."""
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
        """Of `holders`, the connections that `rows` (client_id, node_id, conn) say are not the one any more."""
        present = {client_id: (node_id, conn) for client_id, node_id, conn in rows}
        return tuple(
            conn for client_id, conn in holders if present.get(escape(client_id)) != (self.node_id, conn)
        )

    def drop_claims(self, conns: Sequence[int]) -> None:
        """These were replaced: they are no claims of ours any more."""
        for conn in conns:
            self._claims.pop(conn, None)

    def lost_claims(self, pipeline: PipelineConnection) -> list[int]:
        """Look through all claims: which of them are not in force. Forgets them."""
        if not self._claims:
            return []
        clients, conns = _columns([(client_id, conn) for conn, client_id in self._claims.items()])
        parameters = {"node_id": self.node_id, "clients": clients, "conns": conns}
        lost = [conn for (conn,) in pipeline.ask("lost_claims", parameters)]
        self.drop_claims(lost)
        return lost

    def heartbeat(self, pipeline: PipelineConnection) -> bool:
        """A sign of life; False when this node had been taken for dead, and its claims with it."""
        return bool(pipeline.execute_async_commit("heartbeat", {"node_id": self.node_id}))

    def expire_dead_nodes(self, pipeline: PipelineConnection) -> None:
        """Remove what nodes long dead have left behind."""
        parameters: dict[str, float | int] = {"dead_after_s": DEAD_AFTER_S, "limit": EXPIRE_ROWS_MAX}
        pipeline.execute_async_commit("expire_presence", parameters)
        pipeline.execute_async_commit("expire_nodes", {"dead_after_s": DEAD_AFTER_S})
        pipeline.execute_async_commit("expire_replacements")

    def unregister(self, pipeline: PipelineConnection) -> None:
        """Go in order: nothing of this run is left behind."""
        for query in ("remove_presence", "take_replacements", "remove_node"):
            pipeline.execute_async_commit(query, {"node_id": self.node_id})


def _columns(pairs: Sequence[tuple[str, int]]) -> tuple[Texts, Integers]:
    return Texts(escape(client_id) for client_id, _ in pairs), Integers([conn for _, conn in pairs])


def _distinct(claims: Sequence[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    """`claims` in stretches that name each client once: one statement cannot take a row twice."""
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
