"""Partitions filled for a sync, and the ids of its pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.behaviour.server.harness import Peer, item, set_event

EVENT = set_event("title", "Hello")


def fill(peer: Peer, partitions: Sequence[str], events: int) -> list[int]:
    """Commit so many events; their committed_ids."""
    ids: list[int] = []
    while len(ids) < events:
        size = min(100, events - len(ids))
        results = peer.submit(*(item(partitions, set_event("n", len(ids) + n)) for n in range(size)))
        ids += [result["committed_id"] for result in results]
    return ids


def ids_of(page: dict[str, Any]) -> list[int]:
    return [event["committed_id"] for event in page["events"]]
