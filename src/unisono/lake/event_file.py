"""Parquet files of the lake, also those that were written before a column was added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from unisono.lake.columns import LATER_COLUMNS, PARTITION_SCHEMA


class EventFile(pq.ParquetFile):  # type: ignore[misc]
    """A file whose readers get every column they ask for: one that it lacks is null in all rows."""

    def read_row_group(self, i: int, columns: Sequence[str] | None = None, **options: Any) -> pa.Table:
        return _completed(super().read_row_group(i, columns=columns, **options), columns)

    def iter_batches(
        self, batch_size: int = 65536, *, columns: Sequence[str] | None = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        for batch in super().iter_batches(batch_size, columns=columns, **options):
            yield _completed(batch, columns)


def _completed(rows: Any, columns: Sequence[str] | None) -> Any:
    for name in LATER_COLUMNS:
        if columns is not None and name in columns and name not in rows.schema.names:
            field = PARTITION_SCHEMA.field(name)
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows
