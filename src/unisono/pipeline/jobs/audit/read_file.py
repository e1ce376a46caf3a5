"""Reads a data file of the lake as far as possible; unreadable parts are findings.

What a store refuses to give is no finding: nothing is known of it, and the audit ends. Also checks the statistics in
the file, by which readers select row groups.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from unisono.lake.columns import LATER_COLUMNS
from unisono.lake.errors import one_line
from unisono.lake.file_checks import has_own_name
from unisono.lake.row_groups import Footer
from unisono.lake.scan import BATCH_ROWS
from unisono.lake.storage import LOG, Storage
from unisono.lake.write import FILE_SCHEMAS, DataFile
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.audit.tasks import AuditOutcome, Scope, UnreadableRows

UNREADABLE: Final = (OSError, pa.ArrowException, DeltaError, UnicodeDecodeError)
"""Errors of reading a damaged, truncated or missing file."""

_REFUSED: Final = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of this machine that say nothing about a file."""

_READ_BYTES: Final = 8 << 20


def has_statistics(file: DataFile) -> bool:
    """Whether the table says how many rows a file has and, but for `log`, of which partitions."""
    return file.rows > 0 and (file.table == LOG or file.first_partition is not None)


def require_given(storage: Storage, files: Iterable[DataFile]) -> None:
    """After an error of reading them: PipelineError if their bytes cannot be had, so that it may not be damage."""
    for file in files:
        try:
            with storage.read(file.table, file.path) as source:
                while source.read(_READ_BYTES):
                    pass
        except FileNotFoundError as error:
            folder = storage.table(file.table)  # the driver has listed it
            if storage.is_local and not Path(folder).is_dir():
                raise PipelineError(
                    f"an executor does not see {folder}, so nothing is known of it: a lake on a cluster needs shared "
                    "storage"
                ) from error
        except OSError as error:
            if not storage.is_local or error.errno in _REFUSED:
                place = storage.uri(file.table, file.path)
                raise PipelineError(
                    f"{place} cannot be read, so nothing is known of it: {one_line(error)} (executors need the "
                    "permissions and credentials that the driver has)"
                ) from error


def readable(
    storage: Storage, file: DataFile, columns: Sequence[str], number: int = 0, count: int = 1
) -> Iterator[pa.RecordBatch]:
    """All readable rows of a file, or of slice `number` of `count` of its row groups; without statistics and without
    findings, which are added elsewhere."""
    try:
        with (
            storage.read(file.table, file.path) as source,
            storage.open_parquet(source) as parquet,
        ):
            groups = 0 if _missing_columns(file, parquet) else parquet.num_row_groups
            for group in range(groups * number // count, groups * (number + 1) // count):
                try:
                    yield from parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=list(columns))
                except UNREADABLE:
                    require_given(storage, [file])
    except UNREADABLE:
        require_given(storage, [file])


SELECTING: Final = ("committed_id", "partition")
"""Columns by whose smallest and largest values readers select row groups; our files state them in every one."""

SKIPPING: Final = ("status_updated_at", "client_id")
"""Columns by which searches and other engines skip row groups and files, where these are stated."""


class FileStatistics:
    """The actual content of a file, to compare with its statistics."""

    def __init__(self) -> None:
        self.rows = 0
        self.bounds: dict[str, tuple[Any, Any]] = {}
        self.ids: list[Any] = []
        self.times: list[Any] = []
        self.names: list[tuple[bytes, bytes]] = []
        self.complete = True


def batches(
    scope: Scope, file: DataFile, outcome: AuditOutcome, statistics: FileStatistics
) -> Iterator[pa.RecordBatch]:
    """All readable rows, by row group; unreadable parts are findings."""
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
                statistics.complete = False
                return
            footer = Footer(parquet.metadata)
            for number in range(len(footer)):
                yield from _group(scope, file, parquet, footer, number, outcome, statistics)
    except UNREADABLE as error:
        require_given(scope.storage, [file])
        statistics.complete = False
        _report_unreadable(file, file.first_id, file.last_id, error, outcome)


def _group(
    scope: Scope,
    file: DataFile,
    parquet: pq.ParquetFile,
    footer: Footer,
    number: int,
    outcome: AuditOutcome,
    statistics: FileStatistics,
) -> Iterator[pa.RecordBatch]:
    first, last = file.first_id, file.last_id
    extremes = _Extremes()
    try:
        all_stated = _stated_bounds(footer, number)
        if (ids := all_stated.get("committed_id")) is not None:
            first, last = ids
        columns = FILE_SCHEMAS[file.table].names
        for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[number], columns=columns):
            extremes.add(batch)
            statistics.rows += batch.num_rows
            yield batch
        extremes.merge_into(statistics.bounds)
    except UNREADABLE as error:
        require_given(scope.storage, [file])
        statistics.complete = False
        _report_unreadable(file, first, last, error, outcome, f"row group {number} of ")
        return
    for name, found in extremes.found.items() if has_own_name(file) else ():
        stated = all_stated.get(name)
        if stated is None and name in SELECTING:
            outcome.tally.add(
                "statistics", f"row group {number} of {file.path} has no statistics of {name}", file.first_id
            )
        elif stated is not None and stated != found:
            outcome.tally.add(
                "statistics",
                f"row group {number} of {file.path} says {name} is {_span(stated)}, and it is {_span(found)}",
                extremes.found["committed_id"][0],
            )


class _Extremes:
    """The smallest and largest value of the columns by which readers select row groups, texts as bytes."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[Any, Any]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        for name in (*SELECTING, *SKIPPING):
            if name in batch.schema.names and batch.column(name).null_count < batch.num_rows:
                column = batch.column(name)
                both = pc.min_max(column.cast(pa.binary()) if pa.types.is_string(column.type) else column)
                _widen(self.found, name, (both["min"].as_py(), both["max"].as_py()))

    def merge_into(self, bounds: dict[str, tuple[Any, Any]]) -> None:
        for name, both in self.found.items():
            _widen(bounds, name, both)


def _widen(bounds: dict[str, tuple[Any, Any]], name: str, both: tuple[Any, Any]) -> None:
    low, high = bounds.get(name, both)
    bounds[name] = min(low, both[0]), max(high, both[1])


def _stated_bounds(footer: Footer, group: int) -> dict[str, tuple[Any, Any]]:
    bounds = {name: footer.bounds(group, name) for name in (*SELECTING, *SKIPPING)}
    return {name: (as_bytes(both[0]), as_bytes(both[1])) for name, both in bounds.items() if both is not None}


def _has_columns(file: DataFile, parquet: pq.ParquetFile, outcome: AuditOutcome) -> bool:
    wrong = _missing_columns(file, parquet)
    if wrong:
        message = f"{file.table}/{file.path} has no column {wrong[0]} of the right type"
        outcome.tally.add("file", message, file.first_id)
        outcome.unreadable.append(UnreadableRows(file, file.first_id, file.last_id))
    return not wrong


def _missing_columns(file: DataFile, parquet: pq.ParquetFile) -> list[str]:
    """The required columns that a file lacks."""
    found = parquet.schema_arrow
    return [
        field.name
        for field in FILE_SCHEMAS[file.table]
        if not (field.name in LATER_COLUMNS and field.name not in found.names)
        and (field.name not in found.names or found.field(field.name).type != field.type)
    ]


def _report_unreadable(
    file: DataFile, first: int, last: int, error: Exception, outcome: AuditOutcome, part: str = ""
) -> None:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    outcome.tally.add(
        "file", f"{part}{file.table}/{file.path} (events {first} to {last}) cannot be read: {reason}", first
    )
    outcome.unreadable.append(UnreadableRows(file, first, last))


def as_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def value_text(value: Any) -> str:
    return repr(value.decode(errors="replace")) if isinstance(value, bytes) else str(value)


def _span(both: tuple[Any, Any]) -> str:
    return f"{value_text(both[0])} to {value_text(both[1])}"
