"""A store with drafts and events."""

from __future__ import annotations

from pathlib import Path

from unisono.client.store.outbox import DraftRecord
from unisono.client.store.store import Store


def opened(path: Path, client_id: str = "me", *partitions: str) -> Store:
    store = Store(str(path), client_id)
    for name in partitions or ("p",):
        store.follow(name)
    return store


def draft(store: Store, id: str, *partitions: str) -> DraftRecord:
    made = DraftRecord(store.outbox.next_clock(), id, partitions or ("p",), b'{"type":"unset"}', created_at=5)
    store.outbox.add([made])
    return made


def held(store: Store, partition: str = "p") -> list[int]:
    return [each.committed_id for each in store.events(partition, 0)]
