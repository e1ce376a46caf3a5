"""Recomputes the hashes of events from their content."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from unisono.protocol.canonical import canonical, content_hash
from unisono.protocol.tombstones import is_tombstone


def first_wrong_hash(table: str, batches: Iterable[pa.RecordBatch]) -> str | None:
    """The first event whose hash is not that of its content. A tombstone carries the hash of what was erased."""
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("committed_id", "partitions", "event", "hash"))
        for committed_id, partitions, event, stored_hash in zip(*columns, strict=True):
            text = event.encode()
            if content_hash(text, canonical(partitions)) != stored_hash and not is_tombstone(text):
                return (
                    f"the hash of event {committed_id} in the lake's table {table} does not match its content"
                )
    return None
