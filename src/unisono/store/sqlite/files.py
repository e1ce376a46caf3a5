"""The data directory of the embedded log: who may open it, how its connections are set, its schema version.

    log.db, log.db-wal, log.db-shm   the SQLite database
    log.identity                     which log was open here last, see `identity.py`
    lock                             flock of the writer while it runs; contains its process id

In a process that has log.db open, nothing but SQLite may open it: closing any descriptor of a file drops all
POSIX locks the process has on it, SQLite's own included.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import apsw

from unisono.store.port import LogInUse, StoreUnusable
from unisono.store.sqlite import identity
from unisono.store.sqlite.event_ids import register_functions
from unisono.store.statements import load_migrations, load_queries
from unisono.vocabulary import LogIdentity

LOG_FILE = "log.db"
LOCK_FILE = "lock"

APPLICATION_ID = 0x554E4953
"""Marks a SQLite file as a Unisono log ("UNIS")."""

PAGE_BYTES = 4096
"""One page is one file-system block, so a commit writes no more than it changed."""

INCREMENTAL = 2
"""auto_vacuum: free pages can be given back to the file system some at a time."""

WRITER_CACHE_KIB = 16_000
"""For the upper levels of the two indexes and the pages that a group changes. SQLite walks its whole cache at the end
of a transaction that split a page, so a large one makes commits slower (decision 35)."""

CHECK_CACHE_KIB = 200_000
"""A check looks up every event in every index."""

READER_CACHE_KIB = 16_000
"""A page of history is mostly leaves read once; the operating system caches the rest."""

READER_MMAP_BYTES = 1 << 30
"""Readers look straight into the operating system's cache, which made pages at least 1.2 times as fast."""

WRITER_BUSY_TIMEOUT_MS = 50
"""How long the writer waits for readers to leave the WAL, for each try; they need a page, a few milliseconds."""

READER_BUSY_TIMEOUT_MS = 5_000
"""A reader meets a lock only while a crashed log is being recovered, or closed by its last user."""

LOCK_WAIT_S = 5.0
"""A killed predecessor may still be exiting when its successor starts."""

_LOCK_POLL_S = 0.02


class DirectoryLock:
    """The right to write to a data directory; at most one process has it, and its end releases it."""

    def __init__(self, directory: Path, wait_s: float = LOCK_WAIT_S) -> None:
        self._descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._acquire(directory, time.monotonic() + wait_s)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _acquire(self, directory: Path, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
                    raise LogInUse(
                        f"{directory} is in use by process {holder or '(unknown)'}: stop it first, "
                        "or give this server a data directory of its own"
                    ) from None
                time.sleep(_LOCK_POLL_S)
            else:
                break
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Unlock the directory; the file stays, since removing it would let two processes lock two files."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def prepare_directory(directory: Path) -> None:
    """Make the directory if it is missing, and its name durable."""
    if directory.is_dir():
        return
    missing = [directory, *(parent for parent in directory.parents if not parent.exists())]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for made in missing:
        sync_directory(made.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable: a file whose entry is lost is lost."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def connect_writer(directory: Path, given: LogIdentity | None = None) -> apsw.Connection:
    """Open log.db for writing, making or upgrading it; on return everything in it is durable.

    The caller has the directory's lock. `given`: the identity of the log from now on.
    """
    path = directory / LOG_FILE
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(WRITER_BUSY_TIMEOUT_MS)
        register_functions(connection)
        refuse_other_files(connection, path)
        configure(connection, WRITER_CACHE_KIB)
        version = schema_version(connection)
        _migrate(connection)
        _sync_recovered(connection)
        identity.check_restored(connection, directory, version, given)
        sync_directory(directory)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(directory: Path) -> apsw.Connection:
    """Open log.db for reading only, beside a writer or without one."""
    path = directory / LOG_FILE
    if not path.is_file():
        raise StoreUnusable(f"{directory} holds no log ({LOG_FILE} is missing): is it the right directory?")
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(READER_BUSY_TIMEOUT_MS)
        register_functions(connection)
        connection.pragma("cache_size", -READER_CACHE_KIB)
        connection.pragma("temp_store", "memory")
    except BaseException:
        connection.close()
        raise
    return connection


def configure(connection: apsw.Connection, cache_kib: int) -> None:
    """Apply the settings durability rests on, and read them back: SQLite ignores what it cannot do.

    What is deleted is overwritten with zeros, so that erased text is gone from pages that are free or half empty.
    """
    connection.pragma("page_size", PAGE_BYTES)
    connection.pragma("auto_vacuum", INCREMENTAL)  # of a new file; one that has pages keeps what it has
    connection.pragma("secure_delete", True)
    connection.pragma("cache_size", -cache_kib)
    connection.pragma("temp_store", "memory")
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.pragma("fullfsync", True)
    connection.pragma("checkpoint_fullfsync", True)
    connection.pragma("wal_autocheckpoint", 0)
    wanted = {"journal_mode": "wal", "synchronous": 2, "wal_autocheckpoint": 0, "secure_delete": 1}
    settings = {name: connection.pragma(name) for name in wanted}
    if settings != wanted:
        raise StoreUnusable(f"SQLite did not accept the settings a durable log needs, it reports {settings}")


def schema_version(connection: apsw.Connection) -> int:
    """The schema version in the file; 0 is an empty file."""
    return int(connection.pragma("user_version"))


def refuse_other_versions(connection: apsw.Connection, directory: Path) -> None:
    """Readers read one version only: the one this code writes."""
    refuse_other_files(connection, directory / LOG_FILE)
    version, newest = schema_version(connection), len(load_migrations("sqlite"))
    if version < newest:
        raise StoreUnusable(
            f"{directory / LOG_FILE} has schema version {version} and this program reads {newest}: "
            "start the server on it once, which upgrades it"
        )


def refuse_other_files(connection: apsw.Connection, path: Path) -> None:
    version, newest = schema_version(connection), len(load_migrations("sqlite"))
    application = int(connection.pragma("application_id"))
    is_new = version == 0 and not connection.execute(load_queries("sqlite")["any_object"]).fetchall()
    if application != APPLICATION_ID and not (is_new and application == 0):
        raise StoreUnusable(f"{path} is a SQLite database but not a Unisono log")
    if version > newest:
        raise StoreUnusable(
            f"{path} has schema version {version} and this program knows {newest}: "
            "it was written by a newer Unisono, use that one or a later one"
        )


def _migrate(connection: apsw.Connection) -> None:
    """Bring the schema to the newest version, one transaction per step: a crash leaves a whole version."""
    for migration in load_migrations("sqlite")[schema_version(connection) :]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(migration.script)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", migration.number)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def _sync_recovered(connection: apsw.Connection) -> None:
    """Make durable what recovery found, and prove that the log can be written.

    A process killed between writing and syncing its last group leaves it readable in the kernel's cache only.
    Answers to retries depend on it from now on (DUR-03), so it is checkpointed and synced. If a reader prevents
    that, the commit below still syncs the WAL that contains it.
    """
    try:
        connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_PASSIVE)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(load_queries("sqlite")["increment_open_count"])
    connection.execute("COMMIT")
