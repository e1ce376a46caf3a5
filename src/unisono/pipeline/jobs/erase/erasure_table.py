"""The table `erasures`: events are recorded before they are erased, so that a killed run can be completed.

Each event is recorded once, with the time in its tombstone. So log and lake get the same tombstone, however often and
in however many parts an erasure runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from unisono.lake.columns import ERASURE_SCHEMA
from unisono.lake.commit_retry import retry_on_conflict
from unisono.lake.lake import Lake
from unisono.lake.storage import ERASURES, Storage
from unisono.lake.table import Table
from unisono.lake.write import DataFile
from unisono.pipeline.jobs.erase.select import SelectedEvent

RECORDS_PER_FILE: Final = 1_000_000


class ErasureRecord(msgspec.Struct, frozen=True):
    """An event that is erased or will be: a row of the table."""

    committed_id: int
    id: str
    erased_at: int
    selected_by: str
    reason: str | None


def recorded(lake: Lake) -> dict[int, int]:
    """The time of erasure by committed_id; empty without erasures."""
    table = Table.open(lake.storage, ERASURES)
    return {} if table is None else _times(table)


def erasures(lake: Lake) -> list[ErasureRecord]:
    """All records, by committed_id."""
    table = Table.open(lake.storage, ERASURES)
    if table is None:
        return []
    rows = [row for file in table.files() for row in _read(lake.storage, file).to_pylist()]
    return msgspec.convert(sorted(rows, key=lambda row: row["committed_id"]), list[ErasureRecord])


def record(
    lake: Lake, events: Iterable[SelectedEvent], now_ms: int, selected_by: str, reason: str | None
) -> Mapping[int, int]:
    """Record the events that are not recorded yet; returns the time of each, by committed_id.

    A tombstone that is already in the log stays (it may come from another lake), so its time is used.
    """
    selected = list(events)

    def record_new() -> dict[int, int]:
        table = Table.make(lake.storage, ERASURES, 1)
        known = _times(table)
        rows = [
            ErasureRecord(event.committed_id, event.id, event.erased_at or now_ms, selected_by, reason)
            for event in selected
            if event.committed_id not in known
        ]
        if rows:
            table.record_erasures(_write(lake.storage, rows), {"events": len(rows), "by": selected_by})
        known.update((row.committed_id, row.erased_at) for row in rows)
        return known

    times = retry_on_conflict(record_new)
    return {event.committed_id: event.erased_at or times[event.committed_id] for event in selected}


def _times(table: Table) -> dict[int, int]:
    times: dict[int, int] = {}
    for file in table.files():
        rows = _read(table.storage, file, ["committed_id", "erased_at"])
        times.update(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return times


def _read(storage: Storage, file: DataFile, columns: list[str] | None = None) -> pa.Table:
    with storage.read(ERASURES, file.path) as source, storage.open_parquet(source) as parquet:
        return parquet.read(columns)


def _write(storage: Storage, rows: list[ErasureRecord]) -> list[DataFile]:
    files = []
    for start in range(0, len(rows), RECORDS_PER_FILE):
        part = rows[start : start + RECORDS_PER_FILE]
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.Table.from_pylist(msgspec.to_builtins(part), ERASURE_SCHEMA),
            sink,
            compression="zstd",
            write_statistics=["committed_id"],
            store_schema=False,
        )
        first, last = part[0].committed_id, part[-1].committed_id
        path = storage.new_name(first, last)
        content = sink.getvalue()
        storage.write(ERASURES, path, content)
        files.append(DataFile(ERASURES, path, content.size, len(part), first, last))
    return files
