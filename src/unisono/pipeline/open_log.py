"""Opens the log from anywhere: on the driver to plan, on executors to read.

A store is named by a URI: `sqlite:DIRECTORY` (or the bare directory) or `postgresql://…`. Executors open it again
from that text; nothing else is shipped.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from unisono.display import hide_credentials
from unisono.extras import install_command
from unisono.pipeline.errors import NoSuchRange, NoSuchStore
from unisono.store.port import LogExtent, LogReader, Pruned, Record, StoreUnusable
from unisono.store.sqlite.files import LOG_FILE
from unisono.store.sqlite.reader import SqliteReader

__all__ = [
    "LogExtent",
    "event_ids",
    "extent",
    "gc_paused",
    "normal_uri",
    "open_reader",
    "read_partitions",
    "read_range",
    "readers_at_once",
    "require_range",
    "sqlite_directory",
    "sqlite_uri",
]

SQLITE: Final = "sqlite:"
POSTGRES: Final = ("postgresql://", "postgres://")

READ_BYTES: Final = 4 << 20
"""Event text of one read, but for its last event: large enough to be fast, short enough (milliseconds) that the WAL
can be reset."""

READ_ROWS_MAX: Final = 1_000
"""Events of one read."""


POSTGRES_READERS_MAX: Final = 32
"""Connections that the tasks of one job have to a PostgreSQL log at the same time, however many cores there are: its
server has 100 by default, and nodes need some."""


def readers_at_once(store: str) -> int | None:
    """How many tasks may read a log at the same time; None: any number."""
    return POSTGRES_READERS_MAX if store.startswith(POSTGRES) else None


def sqlite_uri(directory: Path) -> str:
    """The URI of an embedded log, valid in any working directory (symbolic links stay)."""
    path = os.path.abspath(directory)  # noqa: PTH100
    return f"{SQLITE}/{path.lstrip('/')}"  # of two slashes at the start, abspath leaves both


def normal_uri(store: str | os.PathLike[str]) -> str:
    """`store` as an absolute URI; a bare path is an embedded log, and so is `sqlite:///DIRECTORY`."""
    store = os.fspath(store)
    if store.startswith(POSTGRES):
        return store
    path = store.removeprefix(SQLITE)
    if "://" in store and not store.startswith(SQLITE):
        raise NoSuchStore(f"{hide_credentials(store)} is not a store: use sqlite:DIRECTORY or postgresql://…")
    if path in ("", "//"):
        raise NoSuchStore("the store is missing: use sqlite:DIRECTORY or postgresql://…")
    if store.startswith(f"{SQLITE}//") and not path.startswith("///"):
        named = path.lstrip("/")
        raise NoSuchStore(f"{store} may mean two directories: use sqlite:/{named} or sqlite:{named}")
    return sqlite_uri(Path(path))


def sqlite_directory(uri: str) -> Path | None:
    """The directory of an embedded log; None for any other store."""
    return Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None


def open_reader(uri: str) -> LogReader:
    """A reader of the log at `uri`; NoSuchStore when it cannot be opened."""
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
            f"a PostgreSQL log needs the driver: {install_command('postgres')} ({error})"
        ) from error
    reader: LogReader = PostgresReader.open(uri)
    return reader


def extent(uri: str) -> LogExtent:
    """The contiguous, durable range of the log at `uri`."""
    reader = open_reader(uri)
    try:
        log_extent = reader.extent()
    finally:
        reader.close()
    _sync_wal(uri)
    return log_extent


def event_ids(uri: str, committed_ids: Sequence[int]) -> list[str | None]:
    """The ids of these events; None for one that the log does not have, or no longer."""
    reader = open_reader(uri)
    try:
        return [_event_id(reader, committed_id) for committed_id in committed_ids]
    finally:
        reader.close()


def _event_id(reader: LogReader, committed_id: int) -> str | None:
    try:
        return next((record.id for record in reader.scan(committed_id - 1, committed_id, limit=1)), None)
    except Pruned:
        return None


def _sync_wal(uri: str) -> None:
    """Make what was just read durable, in case its writer died between writing and syncing.

    While a writer runs, readers see synced data only. After a crash the last group may be in the kernel's cache only;
    without this sync, a copy could have events that a power loss removes from the log. Opening the WAL is safe in any
    process: SQLite keeps its locks on the other files.
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
    """Refuse a range that the log does not have completely."""
    log_extent = extent(uri)
    if max(since, upto) > log_extent.head:
        raise NoSuchRange(f"the log ends at {log_extent.head}, {max(since, upto)} is requested")
    if not 0 <= since <= upto:
        raise NoSuchRange(f"({since}, {upto}] is not a range: 0 <= from <= to must hold")
    if since < min(upto, log_extent.pruned_to):
        raise _pruned_error(log_extent.pruned_to, since)


def read_range(reader: LogReader, since: int, upto: int) -> Iterator[list[Record]]:
    """Every record of `(since, upto]`, ascending, in short reads; NoSuchRange at the first missing one.

    Stateless: the same range always gives the same records.
    """
    reached = since
    while reached < upto:
        try:
            records = list(reader.scan(reached, upto, limit=READ_ROWS_MAX, bytes_max=READ_BYTES))
        except Pruned as pruned:
            raise _pruned_error(pruned.upto, reached) from pruned
        expected = range(reached + 1, reached + 1 + len(records))
        if not records or records[-1].committed_id != expected[-1]:
            present = {record.committed_id for record in records}
            missing = next((id for id in expected if id not in present), reached + 1 + len(present))
            raise NoSuchRange(f"event {missing} is not in the log: cannot read ({since}, {upto}]")
        yield records
        reached = records[-1].committed_id


def read_partitions(
    reader: LogReader, partitions: tuple[str, ...], since: int, upto: int
) -> Iterator[list[Record]]:
    """Every record of `(since, upto]` in any of `partitions`, ascending, each once."""
    more = since < upto
    while more:
        try:
            page = reader.page(partitions, since, upto, limit=READ_ROWS_MAX, bytes_max=READ_BYTES)
        except Pruned as pruned:
            raise _pruned_error(pruned.upto, since) from pruned
        if page.records:
            yield list(page.records)
            since = page.records[-1].committed_id
        more = page.has_more


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection: with millions of small objects and no cycles it doubles the time of a read."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _pruned_error(pruned_to: int, since: int) -> NoSuchRange:
    return NoSuchRange(
        f"events up to {pruned_to} have left the log, {since + 1} is requested: read it from the lake"
    )
