"""Data files as actions of a Delta commit: added with their statistics, listed with them, or removed."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from deltalake.transaction import AddAction, RemoveAction

from unisono.lake.write import DataFile


def add_action(file: DataFile, *, data_change: bool) -> AddAction:
    low: dict[str, Any] = {"committed_id": file.first_id}
    high: dict[str, Any] = {"committed_id": file.last_id}
    if file.first_partition is not None:
        low["partition"], high["partition"] = file.first_partition, file.last_partition
    if file.times is not None:
        low["status_updated_at"], high["status_updated_at"] = file.times
    if file.clients is not None:
        low["client_id"], high["client_id"] = file.clients
    if file.model_digest is not None:
        low["model_digest"] = high["model_digest"] = file.model_digest
    stats = {"numRecords": file.rows, "minValues": low, "maxValues": high, "nullCount": dict.fromkeys(low, 0)}
    now = time.time_ns() // 1_000_000
    return AddAction(
        file.path,
        file.bytes,
        _partition_values(file),
        now,
        data_change,
        json.dumps(stats, ensure_ascii=False),
    )


def listed_file(table: str, action: Mapping[str, Any]) -> DataFile:
    """A file as the Delta log names it; 0 for missing statistics."""
    return DataFile(
        table,
        action["path"],
        action["size_bytes"],
        action.get("num_records") or 0,
        action.get("min.committed_id") or 0,
        action.get("max.committed_id") or 0,
        action.get("partition.bucket"),
        action.get("min.partition"),
        action.get("max.partition"),
        action.get("partition.model_version"),
        action.get("min.model_digest"),
        stated_bounds(action, "status_updated_at"),
        stated_bounds(action, "client_id"),
    )


def stated_bounds(action: Mapping[str, Any], column: str) -> Any:
    """The smallest and the largest value of a column that a table states of a file; None without them."""
    both = action.get(f"min.{column}"), action.get(f"max.{column}")
    return None if None in both else both


def remove_actions(files: Sequence[DataFile], *, data_change: bool) -> list[RemoveAction]:
    now = time.time_ns() // 1_000_000
    return [RemoveAction(file.path, data_change, now, file.bytes, _partition_values(file)) for file in files]


def _partition_values(file: DataFile) -> dict[str, str | None]:
    values = {"model_version": file.model_version, "bucket": file.bucket}
    return {name: str(value) for name, value in values.items() if value is not None}
