"""The file of a client's store: who may open it, its schema, whose it is.

    app.db, app.db-wal, app.db-shm   the SQLite database
    app.db.lock                      locked by the client that has the store open; death gives it up

The lock is SQLite's own, on a file with nothing in it: it works wherever SQLite does, holds between two clients
of one process too, and is not inherited by a forked child, which would keep it after its parent's death.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import apsw

from unisono.client.errors import StoreFailed, StoreForeign, StoreInUse, StoreTooNew
from unisono.client.store.checksums import FUNCTION, look_through, row_checksum, told

log = logging.getLogger("unisono.client")

MEMORY: Final = ":memory:"

APPLICATION_ID: Final = 0x554E4943
"""Marks a SQLite file as a client's store ("UNIC")."""

SCHEMA_VERSION: Final = 3

SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT: a draft_clock is never given twice, also after its draft is gone.
CREATE TABLE drafts (
    draft_clock INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    partitions  TEXT NOT NULL,
    event       BLOB NOT NULL,
    status      TEXT NOT NULL CHECK (status IN ('pending', 'rejected')),
    reason      TEXT,
    errors      TEXT,
    created_at  INTEGER NOT NULL,
    status_updated_at INTEGER,
    checksum    INTEGER
) STRICT;

CREATE TABLE events (
    committed_id      INTEGER PRIMARY KEY,
    id                TEXT NOT NULL UNIQUE,
    client_id         TEXT NOT NULL,
    partitions        TEXT NOT NULL,
    event             BLOB NOT NULL,
    status_updated_at INTEGER NOT NULL,
    checksum          INTEGER
) STRICT;

-- cursor: where the next sync starts. known: every event up to here is stored; it stays when a cursor goes back
-- to 0 for another model, so that the view has its history while it is fetched again. floor: events up to here are
-- not stored; the partition's base stands for them.
CREATE TABLE partitions (
    number INTEGER PRIMARY KEY,
    name   TEXT NOT NULL UNIQUE,
    cursor INTEGER NOT NULL DEFAULT 0,
    known  INTEGER NOT NULL DEFAULT 0,
    floor  INTEGER NOT NULL DEFAULT 0,
    checksum INTEGER
) STRICT;

CREATE TABLE event_partitions (
    partition    INTEGER NOT NULL,
    committed_id INTEGER NOT NULL,
    PRIMARY KEY (partition, committed_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE snapshots (
    partition     INTEGER PRIMARY KEY,
    committed_id  INTEGER NOT NULL,
    model_version TEXT NOT NULL,
    state         BLOB NOT NULL,
    checksum      INTEGER
) STRICT;
"""

BASES: Final = """
-- The state a server gave in place of the events up to the partition's floor.
CREATE TABLE bases (
    partition     INTEGER PRIMARY KEY,
    model_version TEXT NOT NULL,
    state         BLOB NOT NULL
) STRICT;
"""

BASES_CHECKSUM: Final = "ALTER TABLE bases ADD COLUMN checksum INTEGER;"

CHECKSUMS: Final = {
    "drafts": "draft_clock, id, partitions, event, status, reason, errors, created_at, status_updated_at",
    "events": "committed_id, id, client_id, partitions, event, status_updated_at",
    "snapshots": "partition, committed_id, model_version, state",
    "bases": "partition, model_version, state",
}
"""The columns a row's checksum is made of, by table."""

PLACE_CHECKSUM: Final = f"{FUNCTION}(name) + 3 * number + 5 * cursor + 7 * known + 11 * floor"
"""That of a partition; with every event a row of each moves, so it is changed by what its numbers change by."""

DRAFT_TRIGGERS: Final = "".join(
    f"CREATE TRIGGER drafts_{name} AFTER {event} ON drafts BEGIN UPDATE drafts"  # noqa: S608
    f" SET checksum = {FUNCTION}({CHECKSUMS['drafts']}) WHERE draft_clock = new.draft_clock; END;"
    for name, event in (("inserted", "INSERT"), ("updated", f"UPDATE OF {CHECKSUMS['drafts']}"))
)

PLACE_TRIGGERS: Final = f"""
CREATE TRIGGER partitions_inserted AFTER INSERT ON partitions BEGIN
    UPDATE partitions SET checksum = {PLACE_CHECKSUM} WHERE number = new.number;
END;

CREATE TRIGGER partitions_updated AFTER UPDATE OF cursor, known, floor ON partitions BEGIN
    UPDATE partitions SET checksum = checksum + 5 * (new.cursor - old.cursor) + 7 * (new.known - old.known)
        + 11 * (new.floor - old.floor) WHERE number = new.number;
END;
"""  # noqa: S608

TRIGGERS: Final = DRAFT_TRIGGERS + PLACE_TRIGGERS
"""Rows that are changed in place get a new checksum whoever changes them; the others are given it when inserted."""

MIGRATIONS: Final = {
    1: "ALTER TABLE partitions ADD COLUMN floor INTEGER NOT NULL DEFAULT 0;" + BASES,
    2: "ALTER TABLE drafts ADD COLUMN status_updated_at INTEGER;"  # noqa: S608
    + "".join(
        f"ALTER TABLE {table} ADD COLUMN checksum INTEGER;"  # noqa: S608
        f"UPDATE {table} SET checksum = {FUNCTION}({columns});"
        for table, columns in CHECKSUMS.items()
    )
    + "ALTER TABLE partitions ADD COLUMN checksum INTEGER;"
    + f"UPDATE partitions SET checksum = {PLACE_CHECKSUM};"  # noqa: S608
    + TRIGGERS,
}
"""From each earlier schema version to the next."""

CACHE_KIB: Final = 8_000
"""Enough for the upper levels of the indexes of a million events."""


class StoreFile:
    """An open store, held alone."""

    def __init__(self, path: str, client_id: str) -> None:
        self.path = path
        self._lock: apsw.Connection | None = None
        try:
            if path != MEMORY:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                self._lock = _locked(path)
            self.connection = apsw.Connection(path)
            self.connection.create_scalar_function(FUNCTION, row_checksum, deterministic=True)
            made = _is_ours(self.connection, path, client_id)
            _configure(self.connection)
            if made:
                look_through(self.connection, path)
                _migrate(self.connection)
            else:
                _make(self.connection, client_id)
        except apsw.NotADBError:
            self.close()
            raise StoreForeign(
                f"{path} is not a store of this library: give the client another file"
            ) from None
        except (apsw.Error, OSError, UnicodeDecodeError) as error:
            self.close()
            if isinstance(error, OSError):
                raise StoreFailed(f"{path} cannot be opened: {error}") from error
            raise told(path, "opening it", error) from error
        except BaseException:
            self.close()
            raise

    def close(self, *, failed: bool = False) -> None:
        """Let go of the file. After a failure it is left as it is: the next opening finds what is really there."""
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


def _locked(path: str) -> apsw.Connection:
    lock = apsw.Connection(f"{path}.lock")
    try:
        lock.execute("BEGIN EXCLUSIVE")
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
    """Whether a store is there already; one that is not ours to write is refused before anything is changed."""
    if connection.execute("SELECT count(*) FROM sqlite_schema").get == 0:
        return False
    if connection.pragma("application_id") != APPLICATION_ID:
        raise StoreForeign(f"{path} is not a store of this library: give the client another file")
    version = connection.pragma("user_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise StoreTooNew(
            f"{path} has schema version {version}, this library knows {SCHEMA_VERSION}: upgrade the library"
        )
    owner = connection.execute("SELECT value FROM meta WHERE key = 'client_id'").get
    if owner != client_id:
        raise StoreForeign(
            f"{path} belongs to client_id {owner!r}, not {client_id!r}: give each client a store of its own"
        )
    return True


def _make(connection: apsw.Connection, client_id: str) -> None:
    with connection:
        connection.execute(SCHEMA + BASES + BASES_CHECKSUM + TRIGGERS)
        connection.execute("INSERT INTO meta VALUES ('client_id', ?)", (client_id,))
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", SCHEMA_VERSION)


def _migrate(connection: apsw.Connection) -> None:
    version = connection.pragma("user_version")
    assert isinstance(version, int), "looked at before"
    with connection:
        for step in range(version, SCHEMA_VERSION):
            connection.execute(MIGRATIONS[step])
        connection.pragma("user_version", SCHEMA_VERSION)
