"""The tables of a query over the lake (`sql.py`), and their columns."""

from __future__ import annotations

from typing import Final

SQL_TABLES: Final = {
    "events": "committed_id, id, client_id, partitions, type, schema, event, author, hash, status_updated_at, "
    "committed_at",
    "partition_events": "partition, and the columns of events",
    "snapshots": "partition, committed_id, model_version, events, skipped, state, created_at",
    "runs": "run_id, job, began_at, seconds, items, ok, note, error, document",
    "audit": "run_id, began_at, kind, meaning, warning, count, committed_ids",
}
