"""Which log a database holds (DUR-08), and whether its location changed since it was last opened.

The location is the identifier of the cluster, its timeline, the database and the table. A restore from a dump changes
the table or more; a point-in-time recovery and the promotion of a standby change the timeline. After each of them
events that clients have seen may be missing, so the log gets a new epoch. Parts that a role may not read are not
compared.

What cannot be noticed, such as a restored snapshot of the disk, has to be declared by `unisono db new-epoch`.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Final

import psycopg
from psycopg import Connection

from unisono.store.port import StorageError
from unisono.store.postgres import schema
from unisono.store.postgres.connect import SQL, connect, one_line, raise_unusable
from unisono.store.postgres.pipeline_connection import PipelineConnection
from unisono.store.postgres.rows import Row
from unisono.store.postgres.timeouts import Timeouts
from unisono.vocabulary import LogIdentity

UNKNOWN: Final = "-"

PARTS: Final = {
    "location_cluster": "the cluster",
    "location_timeline": "its timeline",
    "location_database": "the database",
    "location_table": "the table",
}
"""The queries for the parts of a location, and what each part is called."""

log = logging.getLogger("unisono.store")


def record_location(connection: Connection[Row]) -> None:
    """Compare the log's location with the recorded one, record it, and start a new epoch if it changed.

    A role without the right to record it changes nothing. The commit is asynchronous: a lost one is repeated by the
    next opening.
    """
    row = connection.execute(SQL["read_location"]).fetchone()
    if row is None:
        return  # no head row: reading it reports the error
    before: str | None = row[0]
    stored = {} if before is None else dict(zip(PARTS, before.split("/"), strict=False))
    found = {query: _part(connection, query) for query in PARTS}
    now = {q: stored.get(q, UNKNOWN) if part == UNKNOWN else part for q, part in found.items()}
    after = "/".join(now.values())
    if after == before:
        return
    moved = [what for query, what in PARTS.items() if stored.get(query, UNKNOWN) not in (UNKNOWN, now[query])]
    try:
        with connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = off")
            noted = connection.execute(
                SQL["change_location"], {"before": before, "after": after, "new": bool(moved)}
            ).fetchone()
    except psycopg.errors.InsufficientPrivilege as error:
        if moved:
            log.warning(
                "log location changed (%s), but this role may not record it: %s",
                " and ".join(moved),
                one_line(error),
                extra={"changed": list(moved), "error": one_line(error)},
            )
        return
    if moved and noted is not None:
        log.warning(
            "log location changed (%s): its history may differ, new log_epoch %d, clients start over from 0",
            " and ".join(moved),
            noted[0],
            extra={"changed": list(moved), "log_epoch": noted[0]},
        )


def read(pipeline: PipelineConnection) -> LogIdentity:
    """The identity of an open log."""
    rows = pipeline.ask("log_identity")
    if not rows:
        raise StorageError("the head row is missing")
    return LogIdentity(*rows[0])


def start_new_epoch(pipeline: PipelineConnection, known: LogIdentity) -> LogIdentity:
    """Committed events are missing: start a new epoch, unless another node did so since `known`."""
    found = read(pipeline)
    if found.log_id != known.log_id or found.log_epoch > known.log_epoch:
        return found
    pipeline.ask("new_epoch")
    return read(pipeline)


def new_epoch(dsn: str) -> tuple[LogIdentity, LogIdentity]:
    """Declare that the history of a log may have changed; its identity before and after. Raises StoreUnusable."""
    return _write(dsn, "new_epoch")


def set_identity(dsn: str, identity: LogIdentity) -> None:
    """Give a copy the identity of its source, or one of its own. Needs the owner's role."""
    _write(dsn, "set_identity", {"log_id": identity.log_id, "log_epoch": identity.log_epoch})


def _write(
    dsn: str, query: str, parameters: dict[str, str | int] | None = None
) -> tuple[LogIdentity, LogIdentity]:
    try:
        with closing(connect(dsn, Timeouts(), owner=True)) as connection:
            schema.refuse_other_versions(connection, dsn)
            with connection.transaction():
                before = _identity(connection, dsn)
                connection.execute(SQL[query], parameters)
                return before, _identity(connection, dsn)
    except psycopg.Error as error:
        raise_unusable(dsn, error)


def _identity(connection: Connection[Row], dsn: str) -> LogIdentity:
    row = connection.execute(SQL["log_identity"]).fetchone()
    if row is None:
        raise_unusable(dsn, StorageError("the head row is missing"))
    return LogIdentity(*row)


def _part(connection: Connection[Row], query: str) -> str:
    """One part of the location; unknown where this role, or this kind of server, cannot read it."""
    try:
        row = connection.execute(SQL[query]).fetchone()
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFunction) as error:
        log.debug(
            "log location: %s cannot be read: %s",
            PARTS[query],
            one_line(error),
            extra={"part": PARTS[query], "error": one_line(error)},
        )
        return UNKNOWN
    return UNKNOWN if row is None or row[0] is None else str(row[0])
