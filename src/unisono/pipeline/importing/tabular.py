"""Parquet and CSV: rows with columns.

`event`, `payload`, `data` and `meta` hold JSON, as text or (in Parquet) as bytes or as nested values. `partitions` is
a list in Parquet and a JSON array in CSV. An empty cell of a CSV file is no value.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from unisono.pipeline.errors import PipelineError
from unisono.pipeline.importing.outcomes import Refused
from unisono.pipeline.importing.rows import Row
from unisono.pipeline.importing.sources import FIELDS, SPLIT_ROWS, Mapped, Source, Split
from unisono.protocol.canonical import canonical

BATCH_ROWS: Final = 1_000
"""Rows of Parquet held as Python values at a time."""

CELL_BYTES_MAX: Final = 8 << 20
"""Of one cell of a CSV file, as of one line of JSON."""

_one_value: Final = msgspec.json.Decoder(msgspec.Raw).decode

_NEEDED: Final = (("id",), ("partitions", "partition"), ("event", "schema", "type"))
"""One of each is needed, or no row could be an event."""


def parquet_splits(file: int, source: Source, size: int = SPLIT_ROWS) -> list[Split]:
    """Whole row groups, about `size` rows in each split."""
    groups = _metadata(source.path)
    parts: list[Split] = []
    start = first = rows = before = 0
    for group in range(groups.num_row_groups):
        rows += groups.row_group(group).num_rows
        if rows >= size or group + 1 == groups.num_row_groups:
            parts.append(Split(file, source.path, source.format, start, group + 1, first))
            before += rows
            start, first, rows = group + 1, before, 0
    return parts


def _metadata(path: str) -> Any:
    try:
        return pq.read_metadata(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise PipelineError(f"{path} cannot be read as Parquet: {error}") from error


def read_parquet(split: Split, mapped: Mapped) -> Iterator[Row]:
    """The rows of some row groups; only columns that are asked for are read."""
    with pq.ParquetFile(split.path) as file:
        present = set(file.schema_arrow.names)
        columns = {field: mapped.column(field) for field in FIELDS if mapped.column(field) in present}
        groups = range(split.start, split.end)
        number = split.row
        for batch in file.iter_batches(
            batch_size=BATCH_ROWS, row_groups=list(groups), columns=[*columns.values()]
        ):
            for record in batch.to_pylist():
                number += 1
                yield _row(number, {field: record[column] for field, column in columns.items()})


def read_csv(split: Split, mapped: Mapped) -> Iterator[Row]:
    """The rows of a CSV file with a header; numbered by the line they end on."""
    csv.field_size_limit(CELL_BYTES_MAX)
    with _open(split.path) as file:
        reader = csv.DictReader(_clean(file), strict=True)
        while True:
            try:
                record = next(reader, None)
            except csv.Error as error:
                yield Row(reader.line_num, fault=Refused("unreadable", f"not CSV from here on: {error}"))
                return
            if record is None:
                return
            yield _csv_row(reader.line_num, record, mapped)


def require_columns(source: Source, mapped: Mapped) -> None:
    """Refuse a file in which no row could be an event, or that lacks a column that was named."""
    present = _columns(source)
    for field, column in mapped.names.items():
        if column not in present:
            raise PipelineError(f"{source.path} has no column {column!r} for {field}: {', '.join(present)}")
    for choices in _NEEDED:
        if not any(mapped.column(field) in present for field in choices):
            raise PipelineError(
                f"{source.path} has no column for {' or '.join(choices)}: name it with --map {choices[0]}=COLUMN"
            )


def _columns(source: Source) -> list[str]:
    if source.format == "parquet":
        return list(pq.read_schema(source.path).names)
    with _open(source.path) as file:
        return list(next(csv.reader(_clean(file)), []))


def _open(path: str) -> IO[str]:
    if path.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")
    return Path(path).open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def _clean(file: IO[str]) -> Iterator[str]:
    """Lines without U+0000, which the CSV reader takes for the end of everything."""
    return (line.replace("\0", "�") for line in file)


def _csv_row(number: int, record: dict[str | Any, Any], mapped: Mapped) -> Row:
    text = msgspec.json.encode(
        {str(key): _printable(value) for key, value in record.items() if value is not None}
    )
    if None in record:
        return Row(number, text=text, fault=Refused("unreadable", "more cells than the header has"))
    if any(_broken(value) for value in record.values() if value):
        return Row(number, text=text, fault=Refused("unreadable", "not UTF-8"))
    found = {field: record.get(mapped.column(field)) or None for field in FIELDS}
    if found["partitions"] is not None:
        try:
            found["partitions"] = msgspec.json.decode(found["partitions"])
        except msgspec.DecodeError:
            fault = Refused(
                "bad_partitions", "partitions must be a JSON array; for one name map partition", "partitions"
            )
            return Row(number, id=found["id"], text=text, fault=fault)
    return _row(number, found, text)


def _broken(value: str) -> bool:
    return not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)


def _printable(value: Any) -> Any:
    if isinstance(value, list):
        return [_printable(each) for each in value]
    return value.encode("utf-8", "replace").decode()


def _row(number: int, found: dict[str, Any], text: bytes = b"") -> Row:
    try:
        event = _event(found)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        fault = Refused("bad_event", f"not a JSON value: {error}", "event")
        return Row(number, id=found.get("id"), text=text, fault=fault)
    return Row(
        number,
        found.get("id"),
        found.get("client_id"),
        found.get("partitions"),
        found.get("partition"),
        found.get("committed_id"),
        _moment(found.get("status_updated_at")),
        event,
        text or event or b"",
    )


def _event(found: dict[str, Any]) -> bytes | None:
    if (event := found.get("event")) is not None:
        return _json(event)
    if (schema := found.get("schema")) is not None:
        meta = b"" if found.get("meta") is None else b',"meta":%b' % _json(found["meta"])
        data = b"null" if found.get("data") is None else _json(found["data"])
        return b'{"type":"event","payload":{"schema":%b,"data":%b%b}}' % (
            msgspec.json.encode(schema),
            data,
            meta,
        )
    if (kind := found.get("type")) is not None:
        payload = b"" if found.get("payload") is None else b',"payload":%b' % _json(found["payload"])
        return b'{"type":%b%b}' % (msgspec.json.encode(kind), payload)
    return None


def _json(value: Any) -> bytes:
    """JSON text stays as it is, if it is one value: what it says is looked at once, by `canonical`."""
    if not isinstance(value, bytes | str):
        return canonical(value)
    text = value.encode() if isinstance(value, str) else value
    return bytes(_one_value(text))


def _moment(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value
