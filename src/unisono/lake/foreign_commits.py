"""Reads a table that another program rearranged: from the newest version before that is all ours.

OPTIMIZE and Z-order of any Delta writer keep the rows of a table and lose their order. Its former files stay until a
vacuum, and have the same rows. Without them the new files are read, and sorted (`rearranged.py`).
`jobs/compact/foreign_files.py` puts the new files in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from unisono.lake.errors import ForeignFiles, LakeUnusable
from unisono.lake.rearranged import described_files
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.lake.write import DataFile

if TYPE_CHECKING:
    from unisono.lake.table import Table

FOREIGN_COMMITS_MAX: Final = 64
"""Commits of other programs that readers look behind, some milliseconds each."""


def files_in_order(table: Table) -> list[DataFile] | None:
    """Files in order with the rows of this version; None when there are none."""
    before = files_before_foreign(table)
    if before is not None or table.name not in (LOG, BY_PARTITION):
        return before
    return described_files(table)


def files_before_foreign(table: Table) -> list[DataFile] | None:
    """The files of that version; None when the table's rows changed since, or a file is gone."""
    if table.rows is None or sum(file.rows for file in table.listed_files()) != table.rows:
        return None
    last = table.version - 1
    for version in range(last, max(-1, last - FOREIGN_COMMITS_MAX), -1):
        try:
            earlier = _at(table, version)
            if _content(earlier) != _content(table):
                return None
            files = earlier.files()
        except ForeignFiles:
            continue
        except (DeltaError, OSError, ValueError, LakeUnusable):
            return None
        return files if table.storage.has_all(table.name, [file.path for file in files]) else None
    return None


def _at(table: Table, version: int) -> Table:
    options = table.storage.options or None
    delta = DeltaTable(table.storage.table(table.name), version, storage_options=options)
    return type(table)(table.storage, table.name, delta)


def _content(table: Table) -> tuple[int, int | None, int]:
    """What our own commits count: equal for two versions with the same rows."""
    return table.head, table.rows, table.snapshot_commits
