"""The files that a Delta table holds now; those of before may have what was deleted or erased since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from unisono.pipeline.errors import PipelineError

LOG: Final = "_delta_log"
"""The folder that makes a directory a table."""

_BEYOND_FILES: Final = frozenset(("deletionVectors", "columnMapping"))
"""Features with which files alone do not tell a table's rows and columns."""

_MAPPING: Final = "delta.columnMapping.mode"


def current_files(uri: str, options: Mapping[str, str] | None = None) -> list[str]:
    """Their names; PipelineError where reading them would bring back deleted rows."""
    table = DeltaTable(uri, storage_options=dict(options) if options else None)
    features = {*(table.protocol().reader_features or ())}
    if table.metadata().configuration.get(_MAPPING, "none") != "none":
        features.add("columnMapping")  # in version 2 of the protocol, which names no features
    if used := sorted(_BEYOND_FILES & features):
        raise PipelineError(
            f"{uri} uses {' and '.join(used)} of Delta, so its files have rows that were deleted, or other names: "
            "write what it holds to Parquet files with the engine that made it, and import these"
        )
    # `file_uris` has the table's own name encoded, too, which no file system takes.
    names = map(unquote, pa.table(table.get_add_actions()).column("path").to_pylist())
    return sorted(name if "://" in name else f"{uri}/{name}" for name in names)


def part_of_table(place: str, table: str) -> PipelineError:
    """For a place inside of a table, whose own log alone says which of its files count."""
    return PipelineError(
        f"{place} is a part of the Delta table {table}, which may have deleted or replaced what is in it: import "
        f"{table} instead"
    )
