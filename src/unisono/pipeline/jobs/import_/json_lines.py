"""JSON lines, plain and gzip: one row in each line.

A task owns the lines that begin within its bytes. Lines are numbered from 1 as an editor does, blank ones too; blank
lines are no rows. A last line that neither ends nor is a row shows that the file was cut short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import IO, Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.import_.outcomes import RefusedRow
from unisono.pipeline.jobs.import_.rows import SourceRow, canonical_text, tree_text
from unisono.pipeline.jobs.import_.sources import (
    FIELDS,
    SPLIT_BYTES,
    FieldMapping,
    SourceFile,
    Split,
    is_packed,
    open_source,
)

LINE_BYTES_MAX: Final = 8 << 20
"""Eight times the largest event a server accepts; a longer row is refused without reading it into memory."""

COUNT_BYTES: Final = 1 << 20

_RAW: Final = frozenset(("event", "payload", "data", "meta"))
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def splits(file: int, source: SourceFile, size: int = SPLIT_BYTES) -> list[Split]:
    """Even parts of at most `size` bytes; a compressed file is one."""
    if is_packed(source.path):
        return [Split(file, source.path, source.format, options=source.options)]
    parts = max(1, -(-source.bytes // size))
    edges = [source.bytes * part // parts for part in range(parts + 1)]
    return [
        Split(file, source.path, source.format, start, end, options=source.options)
        for start, end in pairwise(edges)
    ]


def count_lines(split: Split) -> int:
    """How many lines begin within a split: one after each line break before its last byte."""
    if split.end < 0:
        return 0
    lines = 1 if split.start == 0 else 0
    with open_source(split.path, split.options) as file:
        left = split.end - 1
        position = max(0, split.start - 1)
        file.seek(position)
        while position < left:
            chunk = file.read(min(COUNT_BYTES, left - position))
            if not chunk:
                break
            lines += chunk.count(b"\n")
            position += len(chunk)
    return lines


def read(split: Split, mapped: FieldMapping) -> Iterator[SourceRow]:
    """The rows of a split."""
    decode = _decoder(tuple(sorted(mapped.names.items())))
    for number, line in _lines(split):
        if line is None:
            says = f"the line has more than {LINE_BYTES_MAX} bytes"
            yield SourceRow(number, fault=RefusedRow("unreadable", says))
        elif stripped := line.strip():
            row = _row(number, stripped, decode)
            if row.fault is not None and not line.endswith(b"\n"):
                raise EOFError(f"line {number}, the last one, has no line break and is {row.fault.message}")
            yield row


def _lines(split: Split) -> Iterator[tuple[int, bytes | None]]:
    """Number and text of each line; None for one that is too long."""
    with open_source(split.path, split.options) as file:
        position = split.start
        if split.start > 0:
            file.seek(split.start - 1)
            position = split.start - 1 + _skip(file)
        number = split.row
        while split.end < 0 or position < split.end:
            line: bytes | None = file.readline(LINE_BYTES_MAX + 1)
            if not line:
                return
            number += 1
            size = len(line)
            if size > LINE_BYTES_MAX:
                size += 0 if line.endswith(b"\n") else _skip(file)
                line = None
            elif position == 0:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            position += size
            yield number, line


def _skip(file: IO[bytes]) -> int:
    """Pass over the rest of a line; how many bytes that were."""
    skipped = 0
    while chunk := file.readline(COUNT_BYTES):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped


@lru_cache(maxsize=8)
def _decoder(names: tuple[tuple[str, str], ...]) -> Callable[[bytes], Any]:
    """Decodes the fields of a line, whose columns are renamed; a column of several fields once for each of them."""
    columns = {field: field for field in FIELDS} | dict(names)
    first = {column: field for field, column in reversed(columns.items())}
    others = [(field, column) for field, column in columns.items() if first[column] != field]
    # Fields that are set afterwards: what a line has under these names does not matter.
    decode = _struct(columns | {field: f"{field} of {column}" for field, column in others}).decode
    if not others:
        return decode
    again = [(field, _struct({field: column}).decode) for field, column in others]

    def decode_all(line: bytes) -> Any:
        found = decode(line)
        for field, other in again:
            setattr(found, field, getattr(other(line), field))
        return found

    return decode_all


def _struct(columns: Mapping[str, str]) -> msgspec.json.Decoder[Any]:
    kinds = [
        (field, Raw | UnsetType if field in _RAW else Any, UNSET if field in _RAW else None)
        for field in columns
    ]
    try:
        return msgspec.json.Decoder(msgspec.defstruct("Line", kinds, rename=dict(columns)))
    except ValueError as error:
        raise PipelineError(f"--map names a column that JSON lines cannot have here: {error}") from error


def _row(number: int, line: bytes, decode: Callable[[bytes], Any]) -> SourceRow:
    try:
        found = decode(line)
        event = event_text(found)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return SourceRow(number, text=line, fault=RefusedRow("unreadable", f"not a JSON object: {error}"))
    return SourceRow(
        number,
        found.id,
        found.client_id,
        found.partitions,
        found.partition,
        found.committed_id,
        found.status_updated_at,
        event,
        line,
        user_id=found.user_id,
        claims=found.claims,
        author=found.author,
    )


def event_text(found: Any) -> bytes | None:
    """The event of a line: given whole, or as schema and data, or as type and payload."""
    if (event := _given(found.event)) is not None:
        # An event is an object, so a text can only be the JSON of one, as databases write their columns.
        return msgspec.json.decode(event, type=str).encode() if event.startswith(b'"') else event
    if found.schema is not None:
        return canonical_text(found.schema, _given(found.data), _given(found.meta))
    if found.type is not None:
        return tree_text(found.type, _given(found.payload))
    return None


def _given(raw: Raw | UnsetType) -> bytes | None:
    """JSON of a field; null is no value, as in the other formats."""
    text = None if raw is UNSET else bytes(raw)
    return None if text == b"null" else text
