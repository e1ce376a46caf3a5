"""Databases of every earlier version are brought to this one, with all that is in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tests.store.postgres.server import Postgres, postgres
from tests.store.records import append, make_record
from unisono.protocol.canonical import canonical
from unisono.store.check import check_database
from unisono.store.port import Record, StoreUnusable
from unisono.store.postgres import schema
from unisono.store.postgres.log import PostgresLog

__all__ = ["postgres"]

KNOWN = schema.known_migrations()


@pytest.fixture
def empty(postgres: Postgres) -> Iterator[str]:
    dsn = postgres.create(template="template0")
    yield dsn
    postgres.drop(dsn)


def make_version(dsn: str, version: int) -> list[Record]:
    """A log with data as that version left it: its own migrations, and no later one."""
    records = [make_record(number, ("p", "q") if number % 2 else ("p",)) for number in range(1, 51)]
    with psycopg.connect(dsn, autocommit=True) as connection, connection.transaction():
        connection.execute("CREATE SCHEMA unisono")
        for migration in KNOWN[:version]:
            connection.execute(migration.script.encode(), prepare=False)
            connection.execute(
                "INSERT INTO unisono.db_version (number, name) VALUES (%s, %s)",
                (migration.number, migration.name),
            )
            if migration.number == 1:
                _fill(connection, records)
    return records


def _fill(connection: psycopg.Connection[tuple[object, ...]], records: list[Record]) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO unisono.events (committed_id, status_updated_at, id, client_id, hash, partitions, event)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s)",
            [
                (r.committed_id, r.status_updated_at, r.id, r.client_id, r.hash, _names(r), r.event)
                for r in records
            ],
        )
        cursor.executemany(
            "INSERT INTO unisono.event_partitions VALUES (%s, %s)",
            [(name, r.committed_id) for r in records for name in r.partitions],
        )
        cursor.execute(
            "UPDATE unisono.head SET committed_id = %s, status_updated_at = %s",
            (len(records), records[-1].status_updated_at),
        )


def _names(record: Record) -> str:
    return canonical(list(record.partitions)).decode()


@pytest.mark.req("DUR-01")
@pytest.mark.parametrize("version", range(1, len(KNOWN) + 1))
def test_a_database_of_an_earlier_version_is_served(empty: str, version: int) -> None:
    records = make_version(empty, version)
    if any("_pre_" in migration.name for migration in KNOWN[version:]):
        with pytest.raises(StoreUnusable, match="unisono db migrate"):
            PostgresLog.open(empty, "node")
    done = schema.migrate(empty, finish=True)
    assert done == [migration.name for migration in KNOWN[version:]]
    with closing(PostgresLog.open(empty, "node")) as log:
        assert list(log.scan(0, 50, limit=50)) == records
        append(log, [("p",)])
        known = log.begin([records[0].id]).known
        assert known[records[0].id].committed_id == 1, "a retry of an old event is known"
        log.abandon()
    report = check_database(empty)
    assert report.ok, report.text()
    assert report.head == 51
