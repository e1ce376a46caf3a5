"""Opening the log from anywhere: on the driver to plan, on executors to read.

A store is named by a URI, `sqlite:DIRECTORY` (or the bare directory) and `postgresql://…`. Executors open it
again from that text, so nothing but the text travels.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from unisono.display import hide_credentials
from unisono.pipeline.errors import NoSuchRange, NoSuchStore
from unisono.store.port import LogExtent, LogReader, Pruned, Record, StoreUnusable
from unisono.store.sqlite.files import LOG_FILE
from unisono.store.sqlite.reader import SqliteReader

__all__ = [
    "LogExtent",
    "extent",
    "no_collection",
    "normal_uri",
    "open_reader",
    "read_partitions",
    "read_range",
    "require_range",
    "sqlite_directory",
    "sqlite_uri",
]

SQLITE: Final = "sqlite:"
POSTGRES: Final = ("postgresql://", "postgres://")

READ_BYTES: Final = 4 << 20
"""Aimed at in one read: long enough to be fast, short enough (milliseconds) that the WAL can start over."""

READ_ROWS_MAX: Final = 1_000
"""A read of this many events of the largest size a server takes stays below what an Arrow array holds."""

_READ_ROWS_FIRST: Final = 64


def sqlite_uri(directory: Path) -> str:
    """The URI of an embedded log, good in any working directory (links stay as they are)."""
    return f"{SQLITE}{os.path.abspath(directory)}"  # noqa: PTH100


def normal_uri(store: str) -> str:
    """`store` as a URI that means the same everywhere; a bare path is an embedded log."""
    if store.startswith(POSTGRES):
        return store
    path = store.removeprefix(SQLITE)
    if path.startswith("//"):
        path = path[2:]
    elif not store.startswith(SQLITE) and "://" in store:
        raise NoSuchStore(f"{hide_credentials(store)} is no store: use sqlite:DIRECTORY or postgresql://…")
    if not path:
        raise NoSuchStore("a store needs a place: sqlite:DIRECTORY or postgresql://…")
    return sqlite_uri(Path(path))


def sqlite_directory(uri: str) -> Path | None:
    """Where the embedded log of a normal URI is; None for any other store."""
    return Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None


def open_reader(uri: str) -> LogReader:
    """A reader of the log at `uri`; NoSuchStore says why there is none."""
    uri = normal_uri(uri)
    try:
        if (directory := sqlite_directory(uri)) is not None:
            return SqliteReader.open(directory)
        return _open_postgres(uri)
    except StoreUnusable as error:
        raise NoSuchStore(str(error)) from error


def _open_postgres(uri: str) -> LogReader:
    try:
        from unisono.store.postgres.log import PostgresReader
    except ImportError as error:
        raise NoSuchStore(
            f"a PostgreSQL log needs the driver: pip install 'unisono[postgres]' ({error})"
        ) from error
    reader: LogReader = PostgresReader.open(uri)
    return reader


def extent(uri: str) -> LogExtent:
    """The contiguous, durable stretch that the log at `uri` holds now."""
    reader = open_reader(uri)
    try:
        held = reader.extent()
    finally:
        reader.close()
    _settle(uri)
    return held


def _settle(uri: str) -> None:
    """Make what was just read durable, should its writer have died between writing and syncing it.

    A reader beside a living writer sees nothing that is not on disk. After a crash the last group may be in
    the kernel's cache only; without this a copy could keep what a power loss then takes from the log. Opening
    the WAL is safe in any process: SQLite holds its locks on the other files.
    """
    if (directory := sqlite_directory(normal_uri(uri))) is None:
        return
    try:
        descriptor = os.open(directory / f"{LOG_FILE}-wal", os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_range(uri: str, since: int, upto: int) -> None:
    """Refuse a range that the log does not hold whole."""
    held = extent(uri)
    if max(since, upto) > held.head:
        raise NoSuchRange(f"the log ends at {held.head}, {max(since, upto)} was asked for")
    if not 0 <= since <= upto:
        raise NoSuchRange(f"({since}, {upto}] is no range: 0 <= from <= to must hold")
    if since < min(upto, held.pruned_to):
        raise _gone(held.pruned_to, since)


def read_range(reader: LogReader, since: int, upto: int) -> Iterator[list[Record]]:
    """Every record of `(since, upto]`, ascending, in short reads; NoSuchRange at the first one missing.

    Stateless: the same range gives the same records, however often and wherever it is read.
    """
    reached, limit = since, _READ_ROWS_FIRST
    while reached < upto:
        try:
            records = list(reader.scan(reached, upto, limit=limit))
        except Pruned as pruned:
            raise _gone(pruned.upto, reached) from pruned
        expected = range(reached + 1, reached + 1 + len(records))
        if not records or records[-1].committed_id != expected[-1]:
            present = {record.committed_id for record in records}
            missing = next((id for id in expected if id not in present), reached + 1 + len(present))
            raise NoSuchRange(f"event {missing} is not in the log, though ({since}, {upto}] was to be read")
        yield records
        reached = records[-1].committed_id
        limit = _next_limit(records)


def read_partitions(
    reader: LogReader, partitions: tuple[str, ...], since: int, upto: int
) -> Iterator[list[Record]]:
    """Every record of `(since, upto]` in any of `partitions`, ascending, each once."""
    more = since < upto
    while more:
        try:
            page = reader.page(partitions, since, upto, limit=READ_ROWS_MAX, bytes_max=READ_BYTES)
        except Pruned as pruned:
            raise _gone(pruned.upto, since) from pruned
        if page.records:
            yield list(page.records)
            since = page.records[-1].committed_id
        more = page.has_more


@contextmanager
def no_collection() -> Iterator[None]:
    """Millions of small objects and no cycle among them: looking for cycles doubles the time of a read."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _gone(pruned_to: int, since: int) -> NoSuchRange:
    return NoSuchRange(
        f"events up to {pruned_to} have left the log, {since + 1} was asked for: the lake has them"
    )


def _next_limit(records: list[Record]) -> int:
    mean = 1 + sum(len(record.event) for record in records) // len(records)
    return max(1, min(READ_ROWS_MAX, READ_BYTES // mean))
