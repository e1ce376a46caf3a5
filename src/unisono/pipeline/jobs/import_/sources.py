"""Finds the files to import and their formats, and describes their splits for tasks.

A split is a part of one file that a task reads by itself: bytes of JSON lines, row groups of Parquet, ids of SQLite.
Files that cannot be read from the middle (compressed lines, CSV, whose quotes may contain line breaks) are one split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from unisono.pipeline.errors import PipelineError
from unisono.pipeline.progress import Notify, silent

JSONL, PARQUET, CSV, INSIEME = "jsonl", "parquet", "csv", "insieme-sqlite"
FORMATS: Final = (JSONL, PARQUET, CSV, INSIEME)

ENDINGS: Final[Mapping[str, str]] = {
    ".jsonl": JSONL,
    ".ndjson": JSONL,
    ".jsonl.gz": JSONL,
    ".ndjson.gz": JSONL,
    ".parquet": PARQUET,
    ".csv": CSV,
    ".csv.gz": CSV,
    ".sqlite": INSIEME,
    ".sqlite3": INSIEME,
    ".db": INSIEME,
}
"""The format of a file by its name, without --format."""

FIELDS: Final = (
    "id",
    "client_id",
    "partitions",
    "partition",
    "committed_id",
    "status_updated_at",
    "event",
    "type",
    "payload",
    "schema",
    "data",
    "meta",
    "user_id",
    "claims",
    "author",
)
"""The fields of a row. Each may have another name in the source (--map)."""

SPLIT_BYTES: Final = 16 << 20
"""Bytes of JSON lines: some seconds of work, so that cores stay busy and a kill costs little."""

SPLIT_ROWS: Final = 50_000
"""Rows of Parquet and SQLite, for the same reason."""


NAMED_MAX: Final = 10
"""Skipped files of a directory that are named."""


class SourceFile(msgspec.Struct, frozen=True):
    """One file; `stamp` (size and modification time) shows whether it changed."""

    path: str
    format: str
    bytes: int
    stamp: int


class Split(msgspec.Struct, frozen=True):
    """The part of file number `file` that one task reads: `start` up to and without `end`.

    Bytes for JSON lines, row groups for Parquet, committed ids for SQLite; 0 and -1 are the whole file. `row` is the
    number of rows before it in the file, where it is known beforehand.
    """

    file: int
    path: str
    format: str
    start: int = 0
    end: int = -1
    row: int = 0


class FieldMapping(msgspec.Struct, frozen=True):
    """The name of each field in the source; a field that is not mapped keeps its own."""

    names: dict[str, str] = {}

    def column(self, field: str) -> str:
        return self.names.get(field, field)

    def chosen(self, field: str) -> bool:
        return field in self.names


def find(paths: Sequence[Path], format: str | None, notify: Notify = silent) -> list[SourceFile]:
    """All given files in order, those of a directory sorted by name; reports skipped files."""
    found: list[SourceFile] = []
    for path in paths:
        if path.is_dir():
            found += _in_directory(path, format, notify)
        elif path.is_file():
            found.append(_source(path, format or _required_format(path)))
        else:
            raise PipelineError(f"{path} is neither a file nor a directory")
    seen: set[str] = set()
    for source in found:
        if source.path in seen:
            raise PipelineError(f"{source.path} is named twice")
        seen.add(source.path)
    return found


def unchanged(source: SourceFile) -> bool:
    """Whether a file is unchanged since it was found."""
    try:
        return _stamped(Path(source.path), source.format) == source
    except OSError:
        return False


def _in_directory(path: Path, format: str | None, notify: Notify) -> list[SourceFile]:
    """Files with the ending of a known format, or of the requested one."""
    files = {file: _format(file) for file in _files(path)}
    chosen = [(file, own) for file, own in files.items() if own is not None and format in (None, own)]
    if not chosen:
        endings = [ending for ending, each in ENDINGS.items() if format in (None, each)]
        raise PipelineError(f"{path} holds nothing to import: files end in {', '.join(endings)}")
    others = [str(file.relative_to(path)) for file, own in files.items() if (file, own) not in chosen]
    if others:
        more = f" and {len(others) - NAMED_MAX} more" if len(others) > NAMED_MAX else ""
        notify(f"{path}: skipped because of their names: {', '.join(others[:NAMED_MAX])}{more}")
    return [_source(file, own) for file, own in chosen]


def _files(path: Path) -> list[Path]:
    """All files that are not hidden; of a Delta table its current files."""
    if (path / "_delta_log").is_dir():
        try:
            return sorted(Path(uri) for uri in DeltaTable(str(path)).file_uris())
        except DeltaError as error:
            raise PipelineError(f"{path} cannot be read as a Delta table: {error}") from error
    return [
        each
        for each in sorted(path.rglob("*"))
        if each.is_file() and not any(part.startswith(("_", ".")) for part in each.relative_to(path).parts)
    ]


def _format(path: Path) -> str | None:
    name = path.name.lower()
    return next((format for ending, format in ENDINGS.items() if name.endswith(ending)), None)


def _required_format(path: Path) -> str:
    format = _format(path)
    if format is None:
        raise PipelineError(f"what is {path}? Say --format {'|'.join(FORMATS)}")
    return format


def _source(path: Path, format: str) -> SourceFile:
    try:
        with path.open("rb") as file:
            start = file.read(2)
        source = _stamped(path, format)
    except OSError as error:
        raise PipelineError(f"{path} cannot be read: {error.strerror}") from error
    if format in (JSONL, CSV):
        _require_text(path, start)
    return source


def _stamped(path: Path, format: str) -> SourceFile:
    """An SQLite file that is in use grows by its write-ahead log."""
    states = [path.stat()]
    if format == INSIEME:
        with suppress(FileNotFoundError):
            states.append(path.with_name(f"{path.name}-wal").stat())
    size, changed = sum(each.st_size for each in states), max(each.st_mtime_ns for each in states)
    return SourceFile(str(path.resolve()), format, size, changed)


def _require_text(path: Path, start: bytes) -> None:
    """Refuse a file that would give unreadable rows only."""
    if start in (b"\xff\xfe", b"\xfe\xff"):
        raise PipelineError(f"{path} is UTF-16: make it UTF-8 (iconv -f UTF-16 -t UTF-8)")
    packed = start == b"\x1f\x8b"
    if start and packed != is_packed(str(path)):
        says = (
            "is gzip, and its name does not end in .gz" if packed else "is not gzip, though it is named .gz"
        )
        raise PipelineError(f"{path} {says}")


def is_packed(path: str) -> bool:
    """Whether a file is compressed, by its name."""
    return path.lower().endswith(".gz")
