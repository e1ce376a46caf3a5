"""Finds the files to import and their formats, and describes their splits for tasks.

A split is a part of one file that a task reads by itself: bytes of JSON lines, row groups of Parquet, ids of SQLite.
Files that cannot be read from the middle (compressed lines, CSV, whose quotes may contain line breaks) are one split.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.import_ import delta_files, remote_files
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


class SourceFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file; `stamp` (size and modification time) shows whether it changed.

    `options`: of the object store, for a URL. They may hold keys, and are no part of what identifies an import.
    """

    path: str
    format: str
    bytes: int
    stamp: int
    options: dict[str, str] = {}

    def identity(self) -> SourceFile:
        return msgspec.structs.replace(self, options={})


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
    options: dict[str, str] = {}


class FieldMapping(msgspec.Struct, frozen=True):
    """The name of each field in the source; a field that is not mapped keeps its own."""

    names: dict[str, str] = {}

    def column(self, field: str) -> str:
        return self.names.get(field, field)

    def chosen(self, field: str) -> bool:
        return field in self.names


def find(
    paths: Sequence[str | Path],
    format: str | None,
    notify: Notify = silent,
    storage_options: Mapping[str, str] = {},
) -> list[SourceFile]:
    """All given files in order, those of a directory sorted by name; reports skipped files.

    A path may be the URL of a file, or of what would be a directory, in an object store with these options.
    """
    found: list[SourceFile] = []
    for name in map(str, paths):
        path = Path(unquote(urlsplit(name).path) if name.startswith("file://") else name)
        if not name.startswith("file://") and remote_files.is_remote(name):
            found += _at_url(name, format, remote_files.store_options(name, storage_options), notify)
        elif path.is_dir():
            _require_whole(path)
            found += _in_directory(path, format, notify)
        elif path.is_file():
            _require_whole(path)
            found.append(_source(path, format or _required_format(str(path))))
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
    if source.options:
        file = remote_files.found(source.path, source.options)
        return file is not None and (file.bytes, file.modified_ns) == (source.bytes, source.stamp)
    try:
        return _stamped(Path(source.path), source.format) == source
    except OSError:
        return False


def open_source(path: str, options: dict[str, str]) -> IO[bytes]:
    """The content of a file, unpacked where its name says so."""
    if not options:
        return gzip.open(path, "rb") if is_packed(path) else Path(path).open("rb")  # type: ignore[return-value]
    file = remote_files.open_bytes(path, options)
    return gzip.GzipFile(fileobj=file) if is_packed(path) else file  # type: ignore[return-value]


def open_parquet(path: str, options: dict[str, str]) -> pq.ParquetFile:
    if not options:
        return pq.ParquetFile(path)
    return pq.ParquetFile(remote_files.open_native(path, options), pre_buffer=True)


def _at_url(url: str, format: str | None, options: dict[str, str], notify: Notify) -> list[SourceFile]:
    file = None if url.endswith("/") else remote_files.found(url, options)
    files = [] if file is not None else remote_files.files_below(url, options)
    remote_files.require_whole(url, options)
    if file is not None:
        return [_remote_source(file, format or _required_format(url), options)]
    if not files:
        raise PipelineError(f"{url} is neither a file nor does it hold any")
    formats = {file.url: _format(file.url) for file in files}
    chosen = _chosen(url, formats, format, notify)
    return [_remote_source(file, chosen[file.url], options) for file in files if file.url in chosen]


def _remote_source(file: remote_files.RemoteFile, format: str, options: dict[str, str]) -> SourceFile:
    if format == INSIEME:
        raise PipelineError(
            f"{file.url}: SQLite cannot read from an object store: copy the file to a directory"
        )
    if format in (JSONL, CSV):
        with remote_files.open_bytes(file.url, options) as content:
            _require_text(file.url, content.read(2))
    return SourceFile(file.url, format, file.bytes, file.modified_ns, options)


def _require_whole(path: Path) -> None:
    """Refuse a part of a Delta table."""
    for above in path.resolve().parents:
        if (above / delta_files.LOG).is_dir():
            raise delta_files.part_of_table(str(path), str(above))


def _in_directory(path: Path, format: str | None, notify: Notify) -> list[SourceFile]:
    """Files with the ending of a known format, or of the requested one."""
    files = {str(file): _format(file.name) for file in _files(path)}
    chosen = _chosen(str(path), files, format, notify)
    return [_source(Path(file), own) for file, own in chosen.items()]


def _chosen(
    place: str, files: Mapping[str, str | None], format: str | None, notify: Notify
) -> dict[str, str]:
    """The files to import of those in a place, with their formats."""
    chosen = {file: own for file, own in files.items() if own is not None and format in (None, own)}
    if not chosen:
        endings = [ending for ending, each in ENDINGS.items() if format in (None, each)]
        raise PipelineError(f"{place} holds nothing to import: files end in {', '.join(endings)}")
    others = [file.removeprefix(place).lstrip("/") for file in files if file not in chosen]
    if others:
        more = f" and {len(others) - NAMED_MAX} more" if len(others) > NAMED_MAX else ""
        notify(f"{place}: skipped because of their names: {', '.join(others[:NAMED_MAX])}{more}")
    return chosen


def _files(path: Path) -> list[Path]:
    """All files that are not hidden; of a Delta table, also of one below, its current files."""
    tables = [each.parent for each in sorted(path.rglob(delta_files.LOG)) if each.is_dir()]
    found = [
        each
        for each in path.rglob("*")
        if each.is_file() and not _hidden(each, path) and not any(map(each.is_relative_to, tables))
    ]
    for table in tables:
        if not _hidden(table, path):
            found += map(Path, _current_files(table))
    return sorted(found)


def _hidden(file: Path, within: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in file.relative_to(within).parts)


def _current_files(table: Path) -> list[str]:
    try:
        return delta_files.current_files(str(table))
    except DeltaError as error:
        raise PipelineError(f"{table} cannot be read as a Delta table: {error}") from error


def _format(path: str) -> str | None:
    name = path.lower()
    return next((format for ending, format in ENDINGS.items() if name.endswith(ending)), None)


def _required_format(path: str) -> str:
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
        _require_text(str(path), start)
    return source


def _stamped(path: Path, format: str) -> SourceFile:
    """An SQLite file that is in use grows by its write-ahead log."""
    states = [path.stat()]
    if format == INSIEME:
        with suppress(FileNotFoundError):
            states.append(path.with_name(f"{path.name}-wal").stat())
    size, changed = sum(each.st_size for each in states), max(each.st_mtime_ns for each in states)
    return SourceFile(str(path.resolve()), format, size, changed)


def _require_text(path: str, start: bytes) -> None:
    """Refuse a file that would give unreadable rows only."""
    if start in (b"\xff\xfe", b"\xfe\xff"):
        raise PipelineError(f"{path} is UTF-16: make it UTF-8 (iconv -f UTF-16 -t UTF-8)")
    packed = start == b"\x1f\x8b"
    if start and packed != is_packed(path):
        says = (
            "is gzip, and its name does not end in .gz" if packed else "is not gzip, though it is named .gz"
        )
        raise PipelineError(f"{path} {says}")


def is_packed(path: str) -> bool:
    """Whether a file is compressed, by its name."""
    return path.lower().endswith(".gz")
