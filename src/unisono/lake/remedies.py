"""What to do about a table whose rows are not those that were committed."""

from __future__ import annotations

from typing import Final

from unisono.lake.storage import BY_PARTITION, ERASURES, LOG, SNAPSHOTS

_REMEDIES: Final = {
    LOG: "restore the table from a backup of the lake, or, while the server's log has all events, remove the lake "
    "and export again",
    BY_PARTITION: f"remove the directory {BY_PARTITION}, and `unisono lake export` rebuilds it from {LOG}",
    SNAPSHOTS: f"remove the directory {SNAPSHOTS}, and `unisono lake snapshot` rebuilds it",
    ERASURES: "restore the table from a backup of the lake",
}


def remedy(table: str) -> str:
    return _REMEDIES[table]
