"""The schema of the shared log: migrations that running nodes survive, and roles with no more than they need."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import psycopg
import pytest

from tests.store.postgres.server import Postgres, database, postgres
from tests.store.records import append
from unisono.store.cluster import ModelBundle
from unisono.store.port import Snapshot, StoreUnusable
from unisono.store.postgres import schema
from unisono.store.postgres.connect import connect
from unisono.store.postgres.log import PostgresLog, PostgresReader
from unisono.store.postgres.timeouts import Timeouts
from unisono.store.statements import Migration

__all__ = ["database", "postgres"]

PAGE = Path(__file__).parents[3] / "docs" / "operations-postgres.md"


@pytest.fixture
def empty(postgres: Postgres) -> Iterator[str]:
    dsn = postgres.create(template="template0")
    yield dsn
    postgres.drop(dsn)


FIRST = schema.known_migrations()
KNOWN = len(FIRST)
LATER = (
    *FIRST,
    Migration(KNOWN + 1, "9001_pre_colour.sql", "ALTER TABLE unisono.events ADD colour text"),
    Migration(KNOWN + 2, "9002_post_colour.sql", "ALTER TABLE unisono.events ALTER colour SET DEFAULT 'red'"),
    Migration(KNOWN + 3, "9003_pre_shape.sql", "ALTER TABLE unisono.events ADD shape text"),
)


def names(migrations: Sequence[Migration]) -> list[str]:
    return [migration.name for migration in migrations]


def can_serve(dsn: str, migrations: Sequence[Migration]) -> bool:
    with closing(connect(dsn, Timeouts())) as connection:
        try:
            schema.refuse_other_versions(connection, dsn, migrations)
        except StoreUnusable:
            return False
        return True


def test_init_makes_a_log_and_may_be_said_twice(empty: str) -> None:
    assert schema.initialise(empty) == names(FIRST)
    assert schema.initialise(empty) == []
    assert schema.migrate(empty) == []
    with closing(PostgresLog.open(empty, "a")) as log:
        append(log, [["p"]])
    assert schema.initialise(empty) == []
    assert schema.status(empty).head == 1


def test_init_in_a_schema_made_by_somebody_else(empty: str, postgres: Postgres) -> None:
    postgres.execute("CREATE SCHEMA unisono", database=empty.rsplit("/", 1)[1])
    assert schema.initialise(empty) == names(FIRST)


def test_migrating_needs_a_log(empty: str) -> None:
    with pytest.raises(StoreUnusable, match="unisono db init"):
        schema.migrate(empty)
    with pytest.raises(StoreUnusable, match="unisono db init"):
        schema.status(empty)


def test_two_who_migrate_at_once_do_it_once(empty: str) -> None:
    done: list[list[str]] = []
    threads = [threading.Thread(target=lambda: done.append(schema.initialise(empty))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(name for each in done for name in each) == names(FIRST)


def test_a_running_node_survives_a_pre_migration_and_keeps_a_post_one_back(database: str) -> None:
    with closing(PostgresLog.open(database, "old")) as old:
        append(old, [["p"]])
        assert schema.migrate(database, migrations=LATER) == ["9001_pre_colour.sql"]
        assert can_serve(database, FIRST)
        assert can_serve(database, LATER[: KNOWN + 1])
        assert not can_serve(database, LATER), "it lacks 9003"
        append(old, [["p"]])  # with statements prepared before
        with closing(PostgresLog.open(database, "old too")) as again:
            append(again, [["p"]])
        with pytest.raises(StoreUnusable, match=r"9002_post_colour.sql takes away what running nodes .* old"):
            schema.migrate(database, finish=True, migrations=LATER)
        append(old, [["p"]])
    assert schema.migrate(database, finish=True, migrations=LATER) == names(LATER[KNOWN + 1 :])
    assert schema.migrate(database, finish=True, migrations=LATER) == []
    assert can_serve(database, LATER)
    with pytest.raises(StoreUnusable, match=r"9002_post_colour.sql, which this program does not know"):
        PostgresReader.open(database)


def test_a_dead_node_does_not_keep_a_migration_back(database: str, postgres: Postgres) -> None:
    with closing(PostgresLog.open(database, "dead")):
        postgres.execute(
            "UPDATE unisono.nodes SET seen_at = now() - interval '2 minutes'",
            database=database.rsplit("/", 1)[1],
        )
        assert schema.migrate(database, finish=True, migrations=LATER) == names(LATER[KNOWN:])


def test_a_failed_migration_leaves_the_version_before(database: str) -> None:
    broken = (
        *FIRST,
        LATER[KNOWN],
        Migration(KNOWN + 2, "9002_pre_bad.sql", "ALTER TABLE unisono.events ADD x int; SELECT 1/0"),
    )
    with pytest.raises(StoreUnusable, match="division by zero"):
        schema.migrate(database, migrations=broken)
    status = schema.status(database)
    assert (status.applied, status.pending) == (KNOWN + 1, ())
    assert schema.migrate(database, migrations=LATER[: KNOWN + 2]) == []


def test_the_status_tells_how_it_stands(database: str) -> None:
    with closing(PostgresLog.open(database, "a")) as log:
        append(log, [["p"], ["q"]])
        log.claim("ann", 1)
        log.put_snapshots([Snapshot("p", 1, 1, b"x", 1)])
        log.publish_model(ModelBundle(4, "d", {}))
        status = schema.status(database)
    assert (status.head, status.pruned_to, status.presence, status.snapshots) == (2, 0, 1, 1)
    assert (status.model_version, status.pending) == (4, ())
    assert [(node.name, node.knows) for node in status.nodes] == [("a", len(FIRST))]
    assert status.nodes[0].silent_s < 60


# Roles


@pytest.fixture
def node_role(postgres: Postgres, empty: str) -> Iterator[str]:
    postgres.execute("CREATE ROLE node_role LOGIN")
    yield "node_role"
    postgres.execute("DROP OWNED BY node_role", "DROP ROLE node_role", database=empty.rsplit("/", 1)[1])


def test_the_role_of_a_node_can_serve_and_nothing_else(
    empty: str, postgres: Postgres, node_role: str
) -> None:
    name = empty.rsplit("/", 1)[1]
    as_node = postgres.dsn(name, user=node_role)
    schema.initialise(empty)
    with pytest.raises(StoreUnusable, match=r"permission denied.*--runtime-role"):
        PostgresLog.open(as_node, "a")
    assert schema.migrate(empty, runtime_role=node_role) == []
    with closing(PostgresLog.open(as_node, "a")) as log, closing(PostgresLog.open(as_node, "b")) as other:
        log.claim_many([("ann", 1), ("bob", 2)])
        other.claim("ann", 1)
        log.fence([("ann", 1), ("bob", 2)])
        assert list(log.begin(["x"]).replaced) == [1]
        log.abandon()
        append(log, [["p"]])
        log.put_snapshots([Snapshot("p", 1, 1, b"x", 1)])
        log.put_snapshots([Snapshot("p", 1, 1, b"y", 2)])
        log.publish_model(ModelBundle(1, "d", {}))
        log.release("bob", 2)
        log._heartbeat_at = 0.0
        log.maintain()
        told = other.catch_up(fresh=True)
        assert (len(told.records), told.model_version) == (1, 1)
        assert list(log.catch_up(fresh=True).replaced) == [1]
        with closing(PostgresReader.open(as_node)) as reader:
            assert len(reader.page(["p"], 0, 1, limit=10, bytes_max=100).records) == 1
    for statement in (
        "DROP TABLE unisono.events",
        "TRUNCATE unisono.events",
        "DELETE FROM unisono.events",
        "UPDATE unisono.events SET event = ''",
        "DELETE FROM unisono.head",
        "UPDATE unisono.head SET pruned_to = 0",
        "DELETE FROM unisono.event_partitions",
        "UPDATE unisono.models SET digest = ''",
        "INSERT INTO unisono.db_version VALUES (9, 'x')",
        "CREATE TABLE unisono.mine ()",
        "ALTER TABLE unisono.events ADD mine int",
    ):
        with (
            closing(psycopg.connect(as_node, autocommit=True)) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute(statement.encode())
    with pytest.raises(StoreUnusable, match="given by the owner"):
        schema.initialise(as_node, runtime_role="node_role")


def test_the_page_for_operators_grants_what_the_program_grants() -> None:
    grants = files("unisono.store").joinpath("sql", "postgres", "grants.sql").read_text("utf-8")
    wanted = {
        line for line in grants.replace("{role}", "unisono_node").splitlines() if line.startswith("GRANT")
    }
    assert len(wanted) == 7
    assert wanted <= set(PAGE.read_text(encoding="utf-8").splitlines())


def test_every_migration_says_what_it_is() -> None:
    for migration in schema.known_migrations():
        assert re.fullmatch(r"\d{4}_(pre|post)_\w+\.sql", migration.name)
