"""Parquet and CSV: rows with columns.

`event`, `payload`, `data` and `meta` have JSON, as text or (in Parquet) as bytes or as nested values. `partitions` is
a JSON array or, in Parquet, a list. An empty cell of a CSV file is no value.
"""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import IO, Any, Final
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.import_.outcomes import RefusedRow
from unisono.pipeline.jobs.import_.rows import SourceRow, canonical_text, tree_text
from unisono.pipeline.jobs.import_.sources import (
    CSV,
    FIELDS,
    PARQUET,
    SPLIT_ROWS,
    FieldMapping,
    SourceFile,
    Split,
    open_parquet,
    open_source,
)
from unisono.protocol.canonical import canonical

BATCH_ROWS: Final = 64
BATCH_BYTES: Final = 8 << 20
"""Rows of Parquet read at a time, fewer where they are large on average, and bytes of them as Python values. A row
group does not say where its large rows stand, so the number bounds what is read: 64 MiB of the largest events."""

CELL_CHARACTERS_MAX: Final = 64 << 20
"""Characters of a CSV cell: a longer one is taken for a missing closing quote, and not kept in memory."""

NAMES: Final = ("id", "client_id", "partition", "schema", "type", "user_id", "author")
"""Fields that are texts; some programs write them as bytes or as UUIDs."""

_NO_VALUE: Final = (ValueError, OverflowError, LookupError, pa.ArrowException)
"""Errors of Arrow for a cell without a Python value: invalid UTF-8, a date out of range."""

_DAMAGED: Final = (pa.ArrowException, OSError, EOFError, zlib.error, csv.Error)

_one_value: Final = msgspec.json.Decoder(msgspec.Raw).decode

_NEEDED: Final = (("id",), ("partitions", "partition"), ("event", "schema", "type"))
"""One of each is needed, or no row could be an event."""

_OF_EVENT: Final = ("client_id", "committed_id", "status_updated_at", "user_id", "claims", "author")
_PARTS_OF_EVENT: Final = ("schema", "data", "meta", "type", "payload")
"""Fields that a row may lack, and which would be missed without notice."""


def parquet_splits(file: int, source: SourceFile, size: int = SPLIT_ROWS) -> list[Split]:
    """Whole row groups, about `size` rows in each split."""
    groups = _metadata(source)
    parts: list[Split] = []
    start = first = rows = before = 0
    for group in range(groups.num_row_groups):
        rows += groups.row_group(group).num_rows
        if rows >= size or group + 1 == groups.num_row_groups:
            parts.append(Split(file, source.path, source.format, start, group + 1, first, source.options))
            before += rows
            start, first, rows = group + 1, before, 0
    return parts


def _metadata(source: SourceFile) -> Any:
    try:
        with open_parquet(source.path, source.options) as file:
            return file.metadata
    except _DAMAGED as error:
        raise PipelineError(f"{source.path} cannot be read as Parquet: {error}") from error


def read_parquet(split: Split, mapped: FieldMapping) -> Iterator[SourceRow]:
    """The rows of some row groups; reads mapped columns only."""
    with open_parquet(split.path, split.options) as file:
        present = set(file.schema_arrow.names)
        columns = {field: mapped.column(field) for field in FIELDS if mapped.column(field) in present}
        number = split.row
        for batch in _batches(file, range(split.start, split.end), [*columns.values()]):
            for record in _records(batch):
                number += 1
                if isinstance(record, RefusedRow):
                    yield SourceRow(number, fault=record)
                else:
                    yield _parquet_row(number, {field: record[column] for field, column in columns.items()})


def _batches(file: pq.ParquetFile, groups: Iterable[int], columns: list[str]) -> Iterator[Any]:
    for group in groups:
        whole = file.metadata.row_group(group)
        rows = BATCH_BYTES * whole.num_rows // max(1, whole.total_byte_size)
        for batch in file.iter_batches(max(1, min(BATCH_ROWS, rows)), row_groups=[group], columns=columns):
            yield from _parts(batch)


def _parts(batch: Any) -> Iterator[Any]:
    """A batch in parts of BATCH_BYTES, or of one row."""
    if batch.num_rows == 1 or batch.nbytes <= BATCH_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _parts(batch.slice(0, half))
    yield from _parts(batch.slice(half))


def _records(batch: Any) -> Iterable[dict[str, Any] | RefusedRow]:
    """The rows of a batch; an unreadable cell costs its own row, not the batch."""
    try:
        records: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    except _NO_VALUE:
        return (_record(batch, place) for place in range(batch.num_rows))
    return records


def _record(batch: Any, place: int) -> dict[str, Any] | RefusedRow:
    record = {}
    for name in batch.schema.names:
        try:
            record[name] = batch.column(name)[place].as_py(maps_as_pydicts="strict")
        except _NO_VALUE as error:
            return RefusedRow("unreadable", f"no value can be had from column {name}: {error}", name)
    return record


def _parquet_row(number: int, found: dict[str, Any]) -> SourceRow:
    for field in NAMES:
        value = found.get(field)
        if isinstance(value, UUID):
            found[field] = str(value)
        elif isinstance(value, bytes):
            try:
                found[field] = value.decode()
            except UnicodeDecodeError:
                return SourceRow(number, fault=RefusedRow("unreadable", f"{field} is not UTF-8", field))
    return _row(number, found)


def read_csv(split: Split, mapped: FieldMapping) -> Iterator[SourceRow]:
    """The rows of a CSV file with a header; numbered by the line they end on. A last line that neither ends nor is a
    row shows that the file was cut short."""
    csv.field_size_limit(CELL_CHARACTERS_MAX)
    with _open(split.path, split.options) as file:
        lines = _Lines(file)
        reader = csv.reader(lines, strict=True)
        header: list[str] | None = None
        line = 1
        try:
            for cells in reader:
                line = reader.line_num + 1
                if header is None:
                    header = cells or None
                elif cells:
                    row = _csv_row(reader.line_num, header, cells, mapped)
                    if row.fault is not None and not lines.ended:
                        raise EOFError(
                            f"line {row.number}, the last one, has no line break and {row.fault.message}"
                        )
                    yield row
        except csv.Error as error:
            raise PipelineError(
                f"{split.path} is not CSV from line {line} on ({error}): where the next row begins would be a guess. "
                "Every quote must be closed, and quotes within a cell doubled"
            ) from error


class _Lines:
    """The lines of a file; `ended`: whether the one that was read last has a line break."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.ended = True

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            self.ended = line.endswith(("\n", "\r"))
            yield line


def require_columns(source: SourceFile, mapped: FieldMapping) -> None:
    """Refuse a file in which no row can be an event, or that lacks a mapped column."""
    present = _columns(source)
    if not present and source.format == CSV:
        return  # an empty file, which has no rows either
    shown = ", ".join(map(repr, present))
    for field, column in mapped.names.items():
        if column not in present:
            raise PipelineError(f"{source.path} has no column {column!r} for {field}; it has {shown}")
    for choices in _NEEDED:
        if not any(mapped.column(field) in present for field in choices):
            raise PipelineError(
                f"{source.path} has no column for {' or '.join(choices)}: name it with --map {choices[0]}=COLUMN; "
                f"it has {shown}"
            )
    for field in FIELDS:
        if present.count(mapped.column(field)) > 1:
            raise PipelineError(f"{source.path} has several columns {mapped.column(field)!r}")
    parts_of_event = () if mapped.column("event") in present else _PARTS_OF_EVENT
    for column in map(mapped.column, (*_OF_EVENT, *parts_of_event)):
        if column not in present and f"/{column}=" in source.path:
            raise PipelineError(
                f"{source.path} has {column} in the name of its directory only, as tables have that are partitioned "
                "by it: write it without partitions, and import that"
            )


def _columns(source: SourceFile) -> list[str]:
    try:
        if source.format == PARQUET:
            with open_parquet(source.path, source.options) as parquet:
                return list(parquet.schema_arrow.names)
        with _open(source.path, source.options) as file:
            return next(filter(None, csv.reader(file)), [])
    except _DAMAGED as error:
        raise PipelineError(f"{source.path} cannot be read as {source.format}: {error}") from error


def _open(path: str, options: dict[str, str]) -> IO[str]:
    content = open_source(path, options)
    return io.TextIOWrapper(content, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _csv_row(number: int, header: list[str], cells: list[str], mapped: FieldMapping) -> SourceRow:
    text = msgspec.json.encode([*map(_printable, cells)])
    if len(cells) != len(header):
        says = f"{len(cells)} cells, and the header has {len(header)}"
        return SourceRow(number, text=text, fault=RefusedRow("unreadable", says))
    if any(map(_broken, cells)):
        return SourceRow(number, text=text, fault=RefusedRow("unreadable", "not UTF-8"))
    record = dict(zip(header, cells, strict=True))
    text = msgspec.json.encode(record)
    return _row(number, {field: record.get(mapped.column(field)) or None for field in FIELDS}, text)


def _broken(value: str) -> bool:
    return not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)


def _printable(value: str) -> str:
    return value.encode("utf-8", "replace").decode()


def _row(number: int, found: dict[str, Any], text: bytes = b"") -> SourceRow:
    try:
        event = _event(found)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        fault = RefusedRow("bad_event", f"not a JSON value: {error}", "event")
        shown = text or msgspec.json.encode(found, enc_hook=str)
        return SourceRow(number, id=found.get("id"), text=shown, fault=fault)
    return SourceRow(
        number,
        found.get("id"),
        found.get("client_id"),
        found.get("partitions"),
        found.get("partition"),
        found.get("committed_id"),
        _moment(found.get("status_updated_at")),
        event,
        text or event or b"",
        user_id=found.get("user_id"),
        claims=found.get("claims"),
        author=found.get("author"),
    )


def _event(found: dict[str, Any]) -> bytes | None:
    if (event := found.get("event")) is not None:
        return _json(event)
    if (schema := found.get("schema")) is not None:
        return canonical_text(schema, _json(found.get("data")), _json(found.get("meta")))
    if (kind := found.get("type")) is not None:
        return tree_text(kind, _json(found.get("payload")))
    return None


def _json(value: Any) -> bytes | None:
    """JSON text stays as it is if it is one value; `canonical` parses it later."""
    if value is None:
        return None
    if not isinstance(value, bytes | str):
        return canonical(value)
    text = value.encode() if isinstance(value, str) else value
    return bytes(_one_value(text))


def _moment(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value
