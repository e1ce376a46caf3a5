"""The table of rejected rows: a Delta table with one part per import, replaced when the import runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.import_.large_texts import LargeTexts
from unisono.pipeline.jobs.import_.outcomes import CONTENT_CHARS_MAX, REJECT_SCHEMA, REJECTED
from unisono.pipeline.jobs.import_.verdicts import decided_rows

TABLE_SCHEMA: Final = pa.schema(
    [
        pa.field("import_id", pa.string()),
        pa.field("file", pa.string()),
        pa.field("line", pa.int64()),
        *(field for field in REJECT_SCHEMA if field.name not in ("file", "row")),
    ]
)

BATCH_ROWS: Final = 1_024
"""Rejected rows in memory at a time, with up to 64 KiB of each."""


def check_place(place: str) -> None:
    """Refuse a directory with other content, before any work is done."""
    path = Path(place)
    if path.is_dir() and any(path.iterdir()) and not DeltaTable.is_deltatable(place):
        raise PipelineError(
            f"{place} holds something else than a table of rejected rows: choose another --rejects"
        )


def write(place: str, key: str, rows: Iterator[Any], see: Callable[[Any], None]) -> None:
    """Replace the part of import `key` by `rows`, in batches; `see` is called with each batch."""

    def seen() -> Iterator[Any]:
        for batch in rows:
            see(batch)
            yield batch

    reader = pa.RecordBatchReader.from_batches(TABLE_SCHEMA, seen())
    try:
        if DeltaTable.is_deltatable(place):
            write_deltalake(place, reader, mode="overwrite", predicate=f"import_id = '{key}'")
        else:
            Path(place).mkdir(parents=True, exist_ok=True)
            write_deltalake(
                place, reader, partition_by=["import_id"], name="unisono rejected rows", mode="append"
            )
    except (DeltaError, OSError) as error:
        raise PipelineError(f"the rejected rows cannot be written to {place}: {error}") from error


def batches(key: str, files: Sequence[str], read: Path, decided: Path) -> Iterator[Any]:
    """Rows that could not be read, then rows that were rejected."""
    for path in sorted(read.glob("*.rejects.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield _named(key, files, batch)
    columns = {name: ds.field(name) for name in REJECT_SCHEMA.names if name != "content"}
    columns["content"] = ds.field("event")
    against = decided_rows(decided).to_batches(
        columns=columns,
        filter=(ds.field("outcome") == REJECTED) & (ds.field("place") == 0),
        batch_size=BATCH_ROWS,
    )
    with LargeTexts(read) as texts:
        for batch in against:
            if batch.num_rows:
                content = [
                    texts.text(event).decode()[:CONTENT_CHARS_MAX]
                    for event in batch.column("content").to_pylist()
                ]
                place = batch.schema.get_field_index("content")
                yield _named(key, files, batch.set_column(place, "content", pa.array(content, pa.string())))


def _named(key: str, files: Sequence[str], batch: Any) -> Any:
    named = pa.array([files[number] for number in batch.column("file").to_pylist()], pa.string())
    columns = [pa.array([key] * batch.num_rows, pa.string()), named, batch.column("row")]
    columns += [batch.column(name) for name in TABLE_SCHEMA.names[3:]]
    return pa.RecordBatch.from_arrays(columns, schema=TABLE_SCHEMA)
