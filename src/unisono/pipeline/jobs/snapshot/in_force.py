"""Which model version the tables `states` and `items` show: that of the log, not that of a candidate.

A note in the table `snapshots` names the version that was in force at the log when its snapshots were last brought
to the lake's head. It belongs to a version of the table, as the snapshots do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from unisono.lake.commit_retry import retry_on_conflict
from unisono.lake.lake import Lake
from unisono.lake.storage import SNAPSHOTS
from unisono.lake.table import Table
from unisono.lake.write import DataFile

IN_FORCE: Final = "unisono.model_in_force"


def record_in_force(lake: Lake, model_version: int) -> None:
    """Note that all partitions were folded by the model in force at the log; no commit if that is noted."""

    def record() -> None:
        table = lake.find(SNAPSHOTS)
        if table is not None and table.read_note(IN_FORCE) != model_version:
            table.write_notes({IN_FORCE: model_version})

    retry_on_conflict(record)


def shown_version(table: Table, files: Sequence[DataFile]) -> int:
    """The noted version, also while its snapshots are gone; the highest that has snapshots where none is noted."""
    noted = noted_version(table)
    return max((file.model_version or 0 for file in files), default=0) if noted is None else noted


def noted_version(table: Table) -> int | None:
    return table.read_note(IN_FORCE)
