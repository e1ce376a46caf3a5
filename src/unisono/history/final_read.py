"""Reads the log and the lake at the end of a history, when nobody writes any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from unisono.history.records import HistoryRecord, LakeEvent, LakeRead, LogEvent, LogRead
from unisono.lake.lake import Lake
from unisono.protocol.tombstones import is_tombstone
from unisono.store.port import LogReader

ROWS_PER_READ: Final = 1_000
COLUMNS: Final = ("committed_id", "id", "partitions", "event", "hash", "client_id")


def read_log(reader: LogReader) -> Iterator[HistoryRecord]:
    """Every event of a log, then its extent. Holes are left for the check to find."""
    extent = reader.extent()
    reached = extent.pruned_to
    while records := reader.scan(reached, extent.head, limit=ROWS_PER_READ):
        for record in records:
            digest = None if is_tombstone(record.event) else record.hash.hex()
            yield LogEvent(record.committed_id, record.id, record.partitions, digest, record.client_id)
        reached = records[-1].committed_id
    yield LogRead(extent.head, extent.pruned_to)


def read_lake(lake: Lake) -> Iterator[HistoryRecord]:
    """Every event of a lake, then its end."""
    view = lake.view()
    for batch in view.scan_arrow(columns=COLUMNS):
        for committed_id, id, partitions, event, digest, client_id in zip(
            *(batch.column(name).to_pylist() for name in COLUMNS), strict=True
        ):
            erased = is_tombstone(event.encode() if isinstance(event, str) else event)
            yield LakeEvent(committed_id, id, tuple(partitions), None if erased else digest.hex(), client_id)
    yield LakeRead(view.head)
