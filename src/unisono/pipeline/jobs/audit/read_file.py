"""Reading a data file of the lake as far as it can be read: what cannot is a finding, and the rest goes on.

Also whether a file's own statistics are true, by which readers choose the row groups they open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from unisono.lake.row_groups import Footer
from unisono.lake.scan import BATCH_ROWS
from unisono.lake.storage import Storage
from unisono.lake.write import FILE_SCHEMAS, DataFile
from unisono.pipeline.jobs.audit.tasks import AuditOutcome, Scope, UnreadableRows

UNREADABLE: Final = (OSError, pa.ArrowException, DeltaError, UnicodeDecodeError)
"""What reading a damaged, truncated or missing file raises."""


def readable(storage: Storage, file: DataFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Whatever rows of a file can be read, by no statistics and with no complaint: those were made before."""
    try:
        with (
            storage.read(file.table, file.path) as source,
            storage.open_parquet(source) as parquet,
        ):
            for number in range(0 if _wrong(file, parquet) else parquet.num_row_groups):
                try:
                    yield from parquet.iter_batches(BATCH_ROWS, row_groups=[number], columns=list(columns))
                except UNREADABLE:
                    continue
    except UNREADABLE:
        return


class FileStatistics:
    """What a file turned out to hold, to be held against what is said of it."""

    def __init__(self) -> None:
        self.rows = 0
        self.ids: list[Any] = []
        self.times: list[Any] = []
        self.names: list[tuple[bytes, bytes]] = []
        self.complete = True


def batches(
    scope: Scope, file: DataFile, outcome: AuditOutcome, seen: FileStatistics
) -> Iterator[pa.RecordBatch]:
    """All rows that can be read, row group by row group; what cannot is a finding."""
    try:
        with (
            scope.storage.read(file.table, file.path) as source,
            scope.storage.open_parquet(source) as parquet,
        ):
            if (size := source.size()) != file.bytes:
                outcome.tally.add(
                    "statistics",
                    f"{file.path} has {size} bytes, the table says {file.bytes}",
                    file.first_id,
                )
            if not _has_columns(file, parquet, outcome):
                seen.complete = False
                return
            footer = Footer(parquet.metadata)
            for number in range(len(footer)):
                yield from _group(file, parquet, footer, number, outcome, seen)
    except UNREADABLE as error:
        seen.complete = False
        _cannot_read(file, file.first_id, file.last_id, error, outcome)


def _group(
    file: DataFile,
    parquet: pq.ParquetFile,
    footer: Footer,
    number: int,
    outcome: AuditOutcome,
    seen: FileStatistics,
) -> Iterator[pa.RecordBatch]:
    first, last = file.first_id, file.last_id
    extremes = _Extremes()
    try:
        said = _said(footer, number)
        if (ids := said.get("committed_id")) is not None:
            first, last = ids
        columns = FILE_SCHEMAS[file.table].names
        for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[number], columns=columns):
            extremes.add(batch)
            seen.rows += batch.num_rows
            yield batch
    except UNREADABLE as error:
        seen.complete = False
        _cannot_read(file, first, last, error, outcome, f"row group {number} of ")
        return
    for name, found in extremes.found.items():
        if (told := said.get(name)) is None:
            outcome.tally.add(
                "statistics", f"row group {number} of {file.path} has no statistics of {name}", file.first_id
            )
        elif told != found:
            outcome.tally.add(
                "statistics",
                f"row group {number} of {file.path} says {name} is {_span(told)}, and it is {_span(found)}",
                extremes.found["committed_id"][0],
            )


class _Extremes:
    """The least and the greatest value of the columns by which readers choose row groups."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[Any, Any]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        for name in ("committed_id", "partition"):
            if name in batch.schema.names and batch.column(name).null_count < batch.num_rows:
                column = batch.column(name)
                both = pc.min_max(column.cast(pa.binary()) if name == "partition" else column).as_py()
                low, high = self.found.get(name, (both["min"], both["max"]))
                self.found[name] = (min(low, both["min"]), max(high, both["max"]))


def _said(footer: Footer, group: int) -> dict[str, tuple[Any, Any]]:
    bounds = {name: footer.bounds(group, name) for name in ("committed_id", "partition")}
    return {name: (as_bytes(both[0]), as_bytes(both[1])) for name, both in bounds.items() if both is not None}


def _has_columns(file: DataFile, parquet: pq.ParquetFile, outcome: AuditOutcome) -> bool:
    wrong = _wrong(file, parquet)
    if wrong:
        message = f"{file.table}/{file.path} has no column {wrong[0]} of the right type"
        outcome.tally.add("file", message, file.first_id)
        outcome.blind.append(UnreadableRows(file, file.first_id, file.last_id))
    return not wrong


def _wrong(file: DataFile, parquet: pq.ParquetFile) -> list[str]:
    """The columns that a file should have and has not."""
    found = parquet.schema_arrow
    return [
        field.name
        for field in FILE_SCHEMAS[file.table]
        if field.name not in found.names or found.field(field.name).type != field.type
    ]


def _cannot_read(
    file: DataFile, first: int, last: int, error: Exception, outcome: AuditOutcome, part: str = ""
) -> None:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    outcome.tally.add(
        "file", f"{part}{file.table}/{file.path} (events {first} to {last}) cannot be read: {reason}", first
    )
    outcome.blind.append(UnreadableRows(file, first, last))


def as_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def shown(value: Any) -> str:
    return repr(value.decode(errors="replace")) if isinstance(value, bytes) else str(value)


def _span(both: tuple[Any, Any]) -> str:
    return f"{shown(both[0])} to {shown(both[1])}"
