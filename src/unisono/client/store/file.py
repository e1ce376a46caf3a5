"""The file of a client's store: its lock, its owner, its schema.

    app.db, app.db-wal, app.db-shm   the SQLite database
    app.db.lock                      locked by the client that has the store open; the lock ends with its process

The lock is SQLite's own, on an empty file: it works wherever SQLite does, also between two clients of one process,
and a forked child does not inherit it, which would keep the lock after its parent's death.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import apsw

from unisono.client.errors import StoreFailed, StoreForeign, StoreInUse, StoreTooNew
from unisono.client.store.checksums import FUNCTION, check_file, row_checksum, store_failure
from unisono.client.store.statements import MIGRATIONS, SCHEMA, SCHEMA_VERSION, SQL

log = logging.getLogger("unisono.client")

MEMORY: Final = ":memory:"

APPLICATION_ID: Final = 0x554E4943
"""Marks a SQLite file as a client's store ("UNIC")."""

CACHE_KIB: Final = 8_000
"""Enough for the upper levels of the indexes of a million events."""


class StoreFile:
    """An open store file, locked by this client."""

    def __init__(self, path: str, client_id: str) -> None:
        self.path = path
        self._lock: apsw.Connection | None = None
        try:
            if path != MEMORY:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                self._lock = _lock(path)
            self.connection = apsw.Connection(path)
            self.connection.create_scalar_function(FUNCTION, row_checksum, deterministic=True)
            exists = _is_ours(self.connection, path, client_id)
            _configure(self.connection)
            if exists:
                check_file(self.connection, path)
                _migrate(self.connection)
            else:
                _create(self.connection, client_id)
        except apsw.NotADBError:
            self.close()
            raise StoreForeign(
                f"{path} is not a store of this library: give the client another file"
            ) from None
        except (apsw.Error, OSError, UnicodeDecodeError) as error:
            self.close()
            if isinstance(error, OSError):
                raise StoreFailed(f"{path} cannot be opened: {error}") from error
            raise store_failure(path, "opening it", error) from error
        except BaseException:
            self.close()
            raise

    def close(self, *, failed: bool = False) -> None:
        """Close the file; after a failure without a checkpoint: the next opening reads what is on the disk."""
        connection: apsw.Connection | None = getattr(self, "connection", None)
        try:
            if connection is not None:
                if failed:
                    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                connection.close()
        except apsw.Error:
            log.warning("closing %s failed", self.path, exc_info=True)
        finally:
            if self._lock is not None:
                self._lock.close()
                self._lock = None


def _lock(path: str) -> apsw.Connection:
    lock = apsw.Connection(f"{path}.lock")
    try:
        lock.execute(SQL["lock"])
    except apsw.BusyError:
        lock.close()
        raise StoreInUse(
            f"{path} is in use by another client: close that one first, or give this one a store of its own"
        ) from None
    return lock


def _configure(connection: apsw.Connection) -> None:
    connection.pragma("cache_size", -CACHE_KIB)
    connection.pragma("temp_store", "memory")
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "normal")


def _is_ours(connection: apsw.Connection, path: str, client_id: str) -> bool:
    """Whether the file has a store already; one that this client may not write is refused before anything changes."""
    if connection.execute(SQL["table_count"]).get == 0:
        return False
    if connection.pragma("application_id") != APPLICATION_ID:
        raise StoreForeign(f"{path} is not a store of this library: give the client another file")
    version = connection.pragma("user_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise StoreTooNew(
            f"{path} has schema version {version}, this library knows {SCHEMA_VERSION}: upgrade the library"
        )
    owner = connection.execute(SQL["owner"]).get
    if owner != client_id:
        raise StoreForeign(
            f"{path} belongs to client_id {owner!r}, not {client_id!r}: give each client a store of its own"
        )
    return True


def _create(connection: apsw.Connection, client_id: str) -> None:
    with connection:
        connection.execute(SCHEMA)
        connection.execute(SQL["set_owner"], (client_id,))
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", SCHEMA_VERSION)


def _migrate(connection: apsw.Connection) -> None:
    version = connection.pragma("user_version")
    assert isinstance(version, int), "checked by _is_ours"
    with connection:
        for step in range(version, SCHEMA_VERSION):
            connection.execute(MIGRATIONS[step])
        connection.pragma("user_version", SCHEMA_VERSION)
