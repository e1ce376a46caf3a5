"""Which files are imported, in which format, and how they are cut into splits for tasks.

A split is a stretch of one file that a task reads by itself: bytes of JSON lines, row groups of Parquet, ids of
SQLite. What cannot be entered in the middle (compressed lines, CSV, whose quotes may hold line breaks) is one split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from unisono.pipeline.errors import PipelineError

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
"""What a file is when --format does not say."""

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
)
"""What a row can have. Any of them may stand under another name in the source (--map)."""

SPLIT_BYTES: Final = 16 << 20
"""Of JSON lines: some seconds of work, so that cores stay busy to the end and a kill costs little."""

SPLIT_ROWS: Final = 50_000
"""Of Parquet and SQLite, for the same reason."""


class Source(msgspec.Struct, frozen=True):
    """One file; `stamp` (size and time of change) tells whether it is still the one that was read before."""

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


class Mapped(msgspec.Struct, frozen=True):
    """Under which name each field stands in the source; a field that is not named keeps its own."""

    names: dict[str, str] = {}

    def column(self, field: str) -> str:
        return self.names.get(field, field)

    def chosen(self, field: str) -> bool:
        return field in self.names


def find(paths: Sequence[Path], format: str | None) -> list[Source]:
    """Every file that was meant, in the order given; those of a directory by name."""
    found: list[Source] = []
    for path in paths:
        if path.is_dir():
            files = [each for each in sorted(path.rglob("*")) if each.is_file() and _named(each)]
            files = [each for each in files if not each.name.startswith(("_", "."))]
            if not files:
                raise PipelineError(f"{path} holds nothing to import: files end in {', '.join(ENDINGS)}")
            found += [_source(each, format or _ending(each)) for each in files]
        elif path.is_file():
            found.append(_source(path, format or _ending(path)))
        else:
            raise PipelineError(f"{path} is neither a file nor a directory")
    seen: set[str] = set()
    for source in found:
        if source.path in seen:
            raise PipelineError(f"{source.path} is named twice")
        seen.add(source.path)
    return found


def _named(path: Path) -> bool:
    return any(path.name.endswith(ending) for ending in ENDINGS)


def _ending(path: Path) -> str:
    for ending, format in ENDINGS.items():
        if path.name.endswith(ending):
            return format
    raise PipelineError(f"what is {path}? Say --format {'|'.join(FORMATS)}")


def _source(path: Path, format: str) -> Source:
    try:
        state = path.stat()
        with path.open("rb"):
            pass
    except OSError as error:
        raise PipelineError(f"{path} cannot be read: {error.strerror}") from error
    return Source(str(path.resolve()), format, state.st_size, state.st_mtime_ns)
