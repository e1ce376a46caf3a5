"""The column `committed_at`: `status_updated_at` as a timestamp, computed where rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

COMMITTED_AT: Final = "committed_at"

_STORED: Final = "status_updated_at"
_TIMESTAMP: Final = pa.timestamp("us", "UTC")


def stored_columns(columns: Sequence[str]) -> list[str]:
    """The columns that must be read for these, each once."""
    return list(dict.fromkeys(_STORED if name == COMMITTED_AT else name for name in columns))


def with_times(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """These columns, from the stored ones."""
    return pa.RecordBatch.from_arrays([_column(batch, name) for name in columns], names=list(columns))


def _column(batch: pa.RecordBatch, name: str) -> Any:
    if name != COMMITTED_AT:
        return batch.column(name)
    return batch.column(_STORED).cast(pa.timestamp("ms", "UTC")).cast(_TIMESTAMP)
