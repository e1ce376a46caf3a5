"""Which log a data directory holds (DUR-08), and whether log.db is the file that was last open there.

`log.identity` is written beside log.db at every opening: the log's identity and how often it was opened. A directory
that is copied or moved as a whole keeps both files and stays the same log. A log.db without that file, or with one of
a later opening, was restored from a backup: its history may differ, so the log gets a new epoch. A backup taken and
restored within one run of its server is not noticed; `unisono restore` and `unisono db new-epoch` declare it.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Final
from uuid import uuid4

import apsw
import msgspec

from unisono.store.statements import load_queries
from unisono.vocabulary import LogIdentity

IDENTITY_FILE: Final = "log.identity"

IDENTITY_SCHEMA_VERSION: Final = 3
"""The schema version since which logs have an identity."""

log = logging.getLogger("unisono.store")

_SQL = load_queries("sqlite")


class LastOpening(msgspec.Struct, frozen=True):
    """The content of `log.identity`."""

    log_id: str
    log_epoch: int
    opened: int


def check_restored(
    connection: apsw.Connection, directory: Path, version: int, given: LogIdentity | None = None
) -> None:
    """Compare the log with `log.identity`, and start a new epoch when it was restored from a backup.

    `version`: the schema version of the file when it was opened. `given`: the log's identity from now on. The caller
    has the directory's lock.
    """
    if given is not None:
        set_identity(connection, given)
    elif version >= IDENTITY_SCHEMA_VERSION and (why := _changed(connection, _seen(directory))) is not None:
        epoch = new_epoch(connection)
        log.warning(
            "log restored: %s; new log_epoch %d, clients start over from 0",
            why,
            epoch,
            extra={"reason": why, "log_epoch": epoch},
        )
    write_identity_file(connection)


def new_id() -> str:
    return uuid4().hex


def new_epoch(connection: apsw.Connection) -> int:
    """Start an epoch that this log never had before; returns it."""
    return int(connection.execute(_SQL["new_epoch"], (time.time_ns() // 1_000_000,)).get)


def set_identity(connection: apsw.Connection, identity: LogIdentity) -> None:
    connection.execute(_SQL["set_identity"], (identity.log_id, identity.log_epoch))


def _changed(connection: apsw.Connection, seen: LastOpening | None) -> str | None:
    if seen is None:
        return f"log.db has no {IDENTITY_FILE} beside it"
    ((log_id, _),) = connection.execute(_SQL["identity"]).fetchall()
    opened = int(connection.execute(_SQL["open_count"]).get)
    if seen.log_id != log_id:
        return f"log.db is another log than the one last open here ({log_id}, before {seen.log_id})"
    if seen.opened >= opened:  # this opening is already counted
        return "log.db is older than the one last open here"
    return None


def _seen(directory: Path) -> LastOpening | None:
    try:
        return msgspec.json.decode((directory / IDENTITY_FILE).read_bytes(), type=LastOpening)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_identity_file(connection: apsw.Connection) -> None:
    """Write `log.identity`.

    It names openings that log.db has already counted, so a crash in between is not mistaken for a restore.
    """
    rows = connection.execute(_SQL["identity"]).fetchall()
    log_id, log_epoch = msgspec.convert(rows[0], tuple[str, int])
    seen = LastOpening(log_id, log_epoch, int(connection.execute(_SQL["open_count"]).get))
    path = Path(connection.filename).parent / IDENTITY_FILE
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(msgspec.json.encode(seen))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
