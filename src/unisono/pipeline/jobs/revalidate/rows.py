"""The rows behind the counts, written by tasks: events that either model refuses or skips, and partitions whose
states differ.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from unisono.pipeline.errors import PipelineError

ROWS_PER_GROUP: Final = 8_192

EVENTS: Final = pa.schema(
    [
        pa.field("partition", pa.string()),
        pa.field("committed_id", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("client_id", pa.string()),
        pa.field("type", pa.string()),
        pa.field("schema", pa.string()),
        pa.field("rejected_before", pa.bool_()),
        pa.field("rejected_now", pa.bool_()),
        pa.field("refused_here", pa.bool_()),
        pa.field("skipped_before", pa.bool_()),
        pa.field("skipped_now", pa.bool_()),
        pa.field("stage", pa.string()),
        pa.field("field", pa.string()),
        pa.field("message", pa.string()),
    ]
)
"""`refused_here`: the new model refuses it in this partition, not only in another one. `stage`, `field`, `message`:
why, under the new model.
"""

PARTITIONS: Final = pa.schema([pa.field("partition", pa.string())])


def events_file(out: Path, number: int) -> Path:
    """Where the task of this number writes the events it finds."""
    return out / "events" / f"part-{number:05d}.parquet"


def partitions_file(out: Path, number: int) -> Path:
    return out / "partitions" / f"part-{number:05d}.parquet"


RESULT: Final = ("result.json", "index.html")


def clear(out: Path) -> None:
    """Remove the results of an earlier run."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        rows = [path for folder in ("events", "partitions") for path in (out / folder).glob("part-*.parquet")]
        for path in [*rows, *(out / name for name in RESULT)]:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise PipelineError(f"cannot write the result to {out}: {error.strerror or error}") from error


class Rows:
    """A file of rows that appears when it is closed; without a path, nothing is written."""

    def __init__(self, path: Path | None, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._rows: list[dict[str, Any]] = []
        self._writer: pq.ParquetWriter | None = None

    def add(self, **row: Any) -> None:
        if self._path is None:
            return
        self._rows.append(row)
        if len(self._rows) >= ROWS_PER_GROUP:
            self._flush()

    def close(self) -> list[str]:
        """Finish the file and name it; none without rows, then a file of an earlier attempt is removed."""
        if self._path is None:
            return []
        self._flush()
        if self._writer is None:
            self._path.unlink(missing_ok=True)
            return []
        self._writer.close()
        self._unfinished().replace(self._path)
        return [str(self._path)]

    def abandon(self) -> None:
        """Discard the file."""
        if self._writer is not None:
            self._writer.close()
            self._unfinished().unlink(missing_ok=True)

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._writer is None:
            self._unfinished().parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._unfinished(), self._schema, compression="zstd")
        self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema))
        self._rows.clear()

    def _unfinished(self) -> Path:
        assert self._path is not None
        return self._path.with_name(f".{self._path.name}.{os.getpid()}.unfinished")
