"""The schema of the shared log: making it, migrating it while nodes run, and telling how it stands.

The policy of `pre` and `post` migrations stands at the top of sql/postgres/0001_pre_log.sql.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.resources import files
from typing import Final

import msgspec
import psycopg
from psycopg import Connection, sql

from unisono.store.port import StoreUnusable
from unisono.store.postgres.connect import SQL, connect, describe_dsn, one_line, raise_unusable
from unisono.store.postgres.rows import Row
from unisono.store.postgres.timeouts import Timeouts
from unisono.store.statements import Migration, load_migrations

ALIVE_S: Final = 60.0
"""A node with a heartbeat within this time may still write."""

NO_LOG: Final = "holds no log: make one with `unisono db init`"


class NodeStatus(msgspec.Struct, frozen=True):
    """One running node, as the database has it."""

    node_id: int
    name: str
    knows: int
    silent_s: float
    up_s: float


class SchemaStatus(msgspec.Struct, frozen=True):
    """The state of a log. `pending`: migrations of this program that are not applied yet."""

    database: str
    server_version: str
    applied: int
    pending: tuple[str, ...]
    head: int
    pruned_to: int
    status_updated_at: int
    model_version: int | None
    log_id: str
    log_epoch: int
    presence: int
    snapshots: int
    log_bytes: int
    standbys: str
    nodes: tuple[NodeStatus, ...]


def newest_known(migrations: Sequence[Migration] | None = None) -> int:
    return len(known_migrations() if migrations is None else migrations)


def known_migrations() -> tuple[Migration, ...]:
    """The migrations of this program; each has `pre` or `post` in its name."""
    migrations = load_migrations("postgres")
    for migration in migrations:
        if _kind(migration.name) not in ("pre", "post"):
            raise ValueError(f"sql/postgres/{migration.name} is neither pre nor post")
    return migrations


def initialise(dsn: str, *, runtime_role: str | None = None) -> list[str]:
    """Create the log in an empty database; the names of the applied migrations, none when it exists."""
    return _as_owner(dsn, lambda connection: _migrate(connection, runtime_role, new=True, finish=True))


def migrate(
    dsn: str,
    *,
    finish: bool = False,
    runtime_role: str | None = None,
    migrations: Sequence[Migration] | None = None,
) -> list[str]:
    """Apply what is pending: up to the first `post` file, or with `finish` everything."""
    return _as_owner(
        dsn,
        lambda connection: _migrate(
            connection, runtime_role, new=False, finish=finish, migrations=migrations
        ),
    )


def status(dsn: str) -> SchemaStatus:
    """The state of the log at `dsn`; raises StoreUnusable."""
    try:
        with closing(connect(dsn, Timeouts(), owner=True)) as connection:
            applied = _applied(connection, dsn)
            row = connection.execute(SQL["status"]).fetchone()
            assert row is not None
            head, pruned_to, time, model_version, log_id, log_epoch, *rest = row
            presence, snapshots, size, version, standbys = rest
            return SchemaStatus(
                describe_dsn(dsn),
                version,
                len(applied),
                tuple(m.name for m in known_migrations()[len(applied) :]),
                head,
                pruned_to,
                time,
                model_version,
                log_id,
                log_epoch,
                presence,
                snapshots,
                size,
                standbys,
                tuple(NodeStatus(*row) for row in connection.execute(SQL["nodes"])),
            )
    except psycopg.Error as error:
        raise_unusable(dsn, error)


def refuse_other_versions(
    connection: Connection[Row], dsn: str, migrations: Sequence[Migration] | None = None
) -> None:
    """Refuse a log that lacks a `pre` migration of this program, or has a `post` one that it does not know."""
    mine = known_migrations() if migrations is None else migrations
    applied = _applied(connection, dsn)
    missing = [m.name for m in mine[len(applied) :] if _kind(m.name) == "pre"]
    if missing:
        waiting = [m.name for m in mine[len(applied) :] if m.name < missing[0]]
        how = (
            "`unisono db migrate --finish`, with no older node running" if waiting else "`unisono db migrate`"
        )
        raise StoreUnusable(f"{describe_dsn(dsn)} lacks {', '.join(missing)}: run {how}")
    unknown = [name for name in applied[len(mine) :] if _kind(name) != "pre"]
    if unknown:
        raise StoreUnusable(
            f"{describe_dsn(dsn)} has {', '.join(unknown)}, which this program does not know: "
            "it was finished for a newer Unisono, use that one or a later one"
        )


def grant(connection: Connection[Row], role: str) -> None:
    """Grant the role of the nodes the rights they need."""
    warnings: list[str] = []
    connection.add_notice_handler(lambda notice: warnings.append(notice.message_primary or ""))
    text = files("unisono.store").joinpath("sql", "postgres", "grants.sql").read_text("utf-8")
    for statement in _statements(text):
        connection.execute(sql.SQL(statement).format(role=sql.Identifier(role)))
    if warnings:  # PostgreSQL only warns when it grants nothing
        raise StoreUnusable(f"{'; '.join(warnings)}: grants are given by the owner of the log")


def _migrate(
    connection: Connection[Row],
    runtime_role: str | None,
    *,
    new: bool,
    finish: bool,
    migrations: Sequence[Migration] | None = None,
) -> list[str]:
    """Apply migrations, each in a transaction that locks and reads the version first."""
    mine = known_migrations() if migrations is None else migrations
    done: list[str] = []
    while True:
        with connection.transaction():
            connection.execute(SQL["lock_migrations"])
            applied = _prepare(connection, new=new)
            step = mine[len(applied)] if len(applied) < len(mine) else None
            if step is None or (_kind(step.name) == "post" and not finish):
                if runtime_role is not None:
                    grant(connection, runtime_role)
                return done
            if _kind(step.name) == "post":
                _refuse_while_needed(connection, step)
            connection.execute(step.script.encode(), prepare=False)
            connection.execute(SQL["record_version"], {"number": step.number, "name": step.name})
            done.append(step.name)


def _prepare(connection: Connection[Row], *, new: bool) -> list[str]:
    row = connection.execute(SQL["schema_exists"]).fetchone()
    assert row is not None
    has_schema, has_log = row
    if has_log:
        return [name for _, name in connection.execute(SQL["versions"])]
    if not new:
        raise StoreUnusable(f"the database {NO_LOG}")
    if not has_schema:
        connection.execute("CREATE SCHEMA unisono")
    return []


def _refuse_while_needed(connection: Connection[Row], step: Migration) -> None:
    parameters = {"number": step.number, "dead_after_s": ALIVE_S}
    names = [name for (name,) in connection.execute(SQL["older_nodes"], parameters)]
    if names:
        raise StoreUnusable(
            f"{step.name} takes away what running nodes of an older version need: {', '.join(names)}. "
            f"Upgrade or stop them; a node counts as running for {ALIVE_S:.0f} s after its last heartbeat"
        )


def _applied(connection: Connection[Row], dsn: str) -> list[str]:
    row = connection.execute(SQL["schema_exists"]).fetchone()
    assert row is not None
    if not row[1]:
        raise StoreUnusable(f"{describe_dsn(dsn)} {NO_LOG}")
    return [name for _, name in connection.execute(SQL["versions"])]


def _as_owner(dsn: str, work: Callable[[Connection[Row]], list[str]]) -> list[str]:
    try:
        with closing(connect(dsn, Timeouts(), owner=True)) as connection:
            return work(connection)
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreUnusable(
            f"{describe_dsn(dsn)}: {one_line(error)}: migrations are run by the owner of the log"
        ) from error
    except psycopg.Error as error:
        raise_unusable(dsn, error)


def _statements(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("--")]
    return [statement.strip() for statement in "\n".join(lines).split(";") if statement.strip()]


def _kind(name: str) -> str:
    """`pre` or `post`, from NNNN_kind_what.sql."""
    return name.split("_")[1]
