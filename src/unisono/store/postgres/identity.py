"""Which log a database holds (DUR-08), and whether it is still where it was: noticed whenever it is opened.

A log's place is the cluster's own identifier, its timeline, the database and the table. A restore from a dump
changes the table or more, a recovery to a point in time and the promotion of a standby change the timeline. After
each of them events that were told to clients may be missing, so the log gets a new epoch. What a role may not ask is
not compared.

What cannot be noticed, such as a snapshot of the disk put back, is for `unisono db new-epoch` to say.
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
"""The queries that tell where a log is, and what each of them names."""

log = logging.getLogger("unisono.store")


def record_location(connection: Connection[Row]) -> None:
    """Compare where the log is with where it was, note it, and give the log a new epoch if it is elsewhere.

    Without the right to note it nothing changes. The disk is not waited for: what is lost is noticed again.
    """
    row = connection.execute(SQL["read_location"]).fetchone()
    if row is None:
        return  # no head row: whoever reads it says so
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
            log.warning("the log has moved (%s is another), which this role may not note: %s", moved, error)
        return
    if moved and noted is not None:
        log.warning(
            "%s is another than when this log was last open: its past may have changed, log_epoch is %d from now on "
            "and clients start over from 0",
            " and ".join(moved),
            noted[0],
        )


def read(pipeline: PipelineConnection) -> LogIdentity:
    """The identity of an open log."""
    rows = pipeline.ask("log_identity")
    if not rows:
        raise StorageError("the head row is missing")
    return LogIdentity(*rows[0])


def start_new_epoch(pipeline: PipelineConnection, known: LogIdentity) -> LogIdentity:
    """Events are gone that were told: give the log a new epoch, unless somebody did so since `known`."""
    found = read(pipeline)
    if found.log_id != known.log_id or found.log_epoch > known.log_epoch:
        return found
    pipeline.ask("new_epoch")
    return read(pipeline)


def new_epoch(dsn: str) -> tuple[LogIdentity, LogIdentity]:
    """Say that the past of a log may have changed; its identity before and after. Raises StoreUnusable."""
    return _write(dsn, "new_epoch")


def set_identity(dsn: str, identity: LogIdentity) -> None:
    """Of a copy: it is the log it was copied from, or a log of its own. By the owner."""
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
    """One part of the place; unknown where this role, or this kind of server, does not tell it."""
    try:
        row = connection.execute(SQL[query]).fetchone()
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFunction) as error:
        log.debug("%s is not told: %s", PARTS[query], one_line(error))
        return UNKNOWN
    return UNKNOWN if row is None or row[0] is None else str(row[0])
