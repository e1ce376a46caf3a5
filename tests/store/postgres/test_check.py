"""`unisono check` on a shared log: every kind of damage is planted, found, and named with its event."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from tests.store.postgres.schema_file import FILE, made_schema
from tests.store.postgres.server import Postgres, database, postgres
from tests.store.records import START_MS, append, append_many, make_record
from unisono.protocol.tombstones import tombstone
from unisono.store.check import CheckReport, check_database
from unisono.store.cluster import ModelBundle
from unisono.store.maintenance import Tombstone
from unisono.store.port import Snapshot, StoreUnusable
from unisono.store.postgres import check as postgres_checking
from unisono.store.postgres import schema
from unisono.store.postgres.check import open_database
from unisono.store.postgres.connect import describe_dsn
from unisono.store.postgres.log import PostgresLog
from unisono.store.postgres.maintenance import PostgresMaintenance

__all__ = ["database", "postgres"]

EVENTS = 40
ODD = "a\0b\1\u2028é"


@pytest.fixture
def dsn(database: str) -> str:
    """A sound log of 40 events in partitions `p` and, for the even ones, `q`, with a snapshot."""
    with closing(PostgresLog.open(database, "a")) as log:
        append(log, [["p"] if n % 2 else ["p", "q"] for n in range(1, EVENTS + 1)])
        log.put_snapshots([Snapshot("q", 40, 1, b"{}", START_MS)])
        log.publish_model(ModelBundle(4, "d", {}))
    return database


def plant(dsn: str, *statements: str) -> None:
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        connection.execute("SET search_path = unisono")
        for statement in statements:
            connection.execute(statement.encode())


def prune(dsn: str, upto: int) -> None:
    with closing(PostgresMaintenance(dsn)) as owner:
        owner.set_archive("file:///lake")
        owner.prune_batch(upto)


def assert_found(report: CheckReport, kind: str, committed_id: int | None, message: str) -> None:
    assert any(
        f.kind == kind and f.committed_id == committed_id and message in f.message for f in report.findings
    ), f"{message}\n{report.text()}"


def test_the_list_of_what_migrations_make_is_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == made_schema(), (
        "run `python -m tests.store.postgres.schema_file`"
    )


def test_sound_logs_are_called_sound(dsn: str) -> None:
    assert check_database(dsn).text() == f"{describe_dsn(dsn)}: sound (40 events, head 40)"
    prune(dsn, 25)
    assert check_database(dsn).text() == f"{describe_dsn(dsn)}: sound (15 events, head 40, pruned to 25)"
    prune(dsn, 40)
    assert check_database(dsn).text() == f"{describe_dsn(dsn)}: sound (0 events, head 40, pruned to 40)"


def test_an_empty_log_is_sound(database: str) -> None:
    assert check_database(database).text() == f"{describe_dsn(database)}: sound (0 events, head 0)"


def test_names_of_any_kind_large_events_and_tombstones_are_sound(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_checking, "BATCH_BYTES_MAX", 10_000)
    with closing(PostgresLog.open(database, "a")) as log:
        log.begin([])
        large = b'"%b"' % (b"x" * 9_000)
        log.commit(
            [make_record(1, (ODD, 'q"\\\n\x7f', "\U0001f600"), id="n\0\1\u2028")]
            + [make_record(n, event=large) for n in range(2, 9)]
        )
        log.put_snapshots([Snapshot(ODD, 1, 1, b"{}", START_MS)])
    with closing(PostgresMaintenance(database)) as owner:
        owner.erase([Tombstone(5, tombstone(START_MS))])
    assert check_database(database).text() == f"{describe_dsn(database)}: sound (8 events, head 8)"
    prune(database, 1)
    assert check_database(database).ok


ROWS = {
    "event missing": ("DELETE FROM events WHERE committed_id = 7", "gap", 8, "7 is missing"),
    "events missing": ("DELETE FROM events WHERE committed_id IN (9, 10)", "gap", 11, "9 to 10 are missing"),
    "first event missing": ("DELETE FROM events WHERE committed_id = 1", "gap", 2, "1 is missing"),
    "empty id": ("UPDATE events SET id = '' WHERE committed_id = 12", "id", 12, "0 bytes"),
    "long id": ("UPDATE events SET id = repeat('é', 100) WHERE committed_id = 13", "id", 13, "200 bytes"),
    "id spelt as no node does": (
        "UPDATE events SET id = e'\\x01' || 'x' WHERE committed_id = 14",
        "index",
        14,
        "cannot be found by its id 'x'",
    ),
    "event not JSON": (
        "UPDATE events SET event = '{' WHERE committed_id = 15",
        "event",
        15,
        "cannot be read",
    ),
    "event not canonical": (
        'UPDATE events SET event = \'{"b":1,"a":2}\' WHERE committed_id = 16',
        "event",
        16,
        "canonical form",
    ),
    "event changed": (
        "UPDATE events SET event = '{\"a\":2}' WHERE committed_id = 17",
        "hash",
        17,
        "not that of its content",
    ),
    "hash changed": ("UPDATE events SET hash = sha256('x') WHERE committed_id = 18", "hash", 18, "not that"),
    "hash cut": ("UPDATE events SET hash = substr(hash, 2) WHERE committed_id = 19", "hash", 19, "not that"),
    "partitions not JSON": (
        "UPDATE events SET partitions = 'p' WHERE committed_id = 20",
        "partitions",
        20,
        "not valid",
    ),
    "partitions unsorted": (
        'UPDATE events SET partitions = \'["q","p"]\' WHERE committed_id = 22',
        "partitions",
        22,
        "not normalised",
    ),
    "not listed": (
        "DELETE FROM event_partitions WHERE partition = 'q' AND committed_id = 24",
        "index",
        24,
        "not listed under 'q'",
    ),
    "listed elsewhere": ("INSERT INTO event_partitions VALUES ('q', 25)", "index", 25, "it is not in"),
    "listed without an event": (
        "INSERT INTO event_partitions VALUES ('q', 99)",
        "index",
        99,
        "no such event",
    ),
    "listed under no name": (
        "INSERT INTO event_partitions VALUES (e'\\x01' || 'x', 26)",
        "index",
        26,
        "under '\\x01x', unknown",
    ),
    "time zero": (
        "UPDATE events SET status_updated_at = 0 WHERE committed_id = 27",
        "time",
        27,
        "not a time",
    ),
    "time goes back": (
        f"UPDATE events SET status_updated_at = {START_MS} WHERE committed_id = 29",
        "time",
        29,
        "the time of the event before it",
    ),
    "head with another time": ("UPDATE head SET status_updated_at = 7", "head", 40, "time 7"),
    "model gone": ("DELETE FROM models", "model", None, "the model in force is not"),
    "snapshot of the future": (
        "INSERT INTO snapshots VALUES ('p', 1, 41, 1, '')",
        "snapshot",
        41,
        "past the head",
    ),
    "snapshot of no partition": (
        "UPDATE snapshots SET partition = 'e\u0301' WHERE partition = 'q'",
        "snapshot",
        40,
        "not normalised",
    ),
}

SCHEMA = {
    "table not logged": ("ALTER TABLE models SET UNLOGGED", "models is not logged, and should be logged"),
    "sequence gone": ("DROP SEQUENCE epochs", "sequence epochs is missing"),
    "column of another type": (
        'ALTER TABLE events ALTER client_id TYPE varchar(99) COLLATE "C"',
        "events.client_id is character varying(99) COLLATE C NOT NULL, and should be text",
    ),
    "column nullable": (
        "ALTER TABLE events ALTER hash DROP NOT NULL",
        "column events.hash is bytea, and should be bytea NOT NULL",
    ),
    "index gone": ("DROP INDEX presence_by_node", "index presence_by_node is missing"),
    "index not unique": (
        "DROP INDEX events_by_id; CREATE INDEX events_by_id ON events (id)",
        "events_by_id is CREATE INDEX",
    ),
    "index invalid": (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'models_pkey'::regclass",
        "INVALID, and should be",
    ),
    "rule gone": ("ALTER TABLE head DROP CONSTRAINT head_check", "constraint head.head_check is missing"),
    "another migration": (
        "UPDATE db_version SET name = '0002_pre_other.sql' WHERE number = 2",
        "0002_pre_other.sql is said to be applied in the place of 0002_pre_keeping.sql",
    ),
    "table gone": ("DROP TABLE snapshots", "table snapshots is missing"),
}

REMEMBERED = {
    "forgotten": ("DELETE FROM pruned WHERE committed_id = 6", 6, "has left and is not remembered"),
    "several forgotten": ("DELETE FROM pruned WHERE committed_id > 17", 18, "to 20 have left and are not"),
    "remembered twice": ("UPDATE pruned SET committed_id = 9 WHERE committed_id = 8", 9, "two ids"),
    "gone too early": ("INSERT INTO pruned VALUES ('x', 30, 'c', 1, sha256('x'))", 30, "pruned to 20"),
    "no hash": ("UPDATE pruned SET hash = 'x' WHERE committed_id = 3", 3, "has 1 bytes"),
    "in both places": (
        "UPDATE pruned SET id = 'id-31' WHERE committed_id = 4",
        31,
        "in the log and remembered as gone",
    ),
    "a partition too far": (
        "UPDATE pruned_partitions SET committed_id = 33 WHERE partition = 'p'",
        33,
        "of 'p'",
    ),
    "a partition of no name": (
        "UPDATE pruned_partitions SET partition = 'e\u0301' WHERE partition = 'q'",
        20,
        "not normalised",
    ),
}


def test_damage_to_rows_is_found_and_named(dsn: str) -> None:
    """All of it planted in one log, each on an event of its own."""
    plant(dsn, *(sql for sql, *_ in ROWS.values()))
    report = check_database(dsn)
    for _, kind, committed_id, message in ROWS.values():
        assert_found(report, kind, committed_id, message)


def test_damage_to_the_schema_is_found_and_named(dsn: str) -> None:
    plant(dsn, *(sql for sql, _ in SCHEMA.values()))
    report = check_database(dsn)
    for _, message in SCHEMA.values():
        assert_found(report, "schema", None, message)


@pytest.mark.req("ORD-05")
def test_damage_to_what_is_remembered_is_found(dsn: str) -> None:
    prune(dsn, 20)
    assert check_database(dsn).ok
    plant(dsn, *(sql for sql, *_ in REMEMBERED.values()))
    report = check_database(dsn)
    for _, committed_id, message in REMEMBERED.values():
        assert_found(report, "pruned", committed_id, message)


def test_damage_to_the_head_is_found_and_named(dsn: str) -> None:
    for sql, kind, committed_id, message in (
        ("UPDATE head SET committed_id = 39", "head", 40, "the head is 39 but the last event is 40"),
        ("UPDATE head SET committed_id = 41", "head", 40, "the head is 41"),
        ("UPDATE head SET pruned_to = 1", "gap", 1, "still there, though the log is pruned to 1"),
        ("DELETE FROM pruned", "keeping", None, "events have left up to 1, and no archive is named"),
        ("DELETE FROM keeping", "keeping", None, "the row that names the archive is missing"),
        ("DELETE FROM events", "head", None, "there are no events"),
        ("DELETE FROM head", "head", None, "the head row is missing"),
    ):
        plant(dsn, sql)
        assert_found(check_database(dsn), kind, committed_id, message)


def test_damage_to_what_rows_are_found_by(dsn: str) -> None:
    plant(dsn, "DROP INDEX events_by_id", "UPDATE events SET id = 'id-3' WHERE committed_id = 9")
    report = check_database(dsn)
    assert_found(report, "schema", None, "the index events_by_id is missing")
    assert_found(report, "id", 3, "its id 'id-3' belongs to 2 events")
    # An index that looks whole and lacks two events, as a damaged one does.
    plant(
        dsn,
        "CREATE UNIQUE INDEX events_by_id ON events (id) WHERE committed_id NOT IN (9, 20)",
        "UPDATE pg_index SET indpred = NULL WHERE indexrelid = 'events_by_id'::regclass",
    )
    report = check_database(dsn)
    assert report.counts == {"id": 1, "index": 2}
    assert_found(report, "index", 9, "cannot be found by its id 'id-3'")
    assert_found(report, "index", 20, "cannot be found by its id 'id-20'")
    plant(dsn, "ALTER TABLE event_partitions DROP CONSTRAINT event_partitions_pkey")
    assert_found(check_database(dsn), "file", None, "found by event_partitions_pkey: mend the schema")


def test_a_damaged_page_is_found(postgres: Postgres, dsn: str) -> None:
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        ((path,),) = connection.execute("SELECT pg_relation_filepath('unisono.events')").fetchall()
    postgres.stop()
    try:
        with (postgres.data / path).open("r+b") as file:
            file.write(b"\xa5" * 4_000)
    finally:
        postgres.start()
    report = check_database(dsn)
    assert_found(report, "file", None, "reading stopped: invalid page in block 0")


def test_a_log_can_be_checked_while_nodes_write_and_events_leave(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_checking, "BATCH_ROWS", 50)
    told: list[tuple[int, int]] = []
    with closing(PostgresLog.open(dsn, "a")) as log, closing(PostgresMaintenance(dsn)) as owner:
        append_many(log, 1_000, ("p", "q"))
        owner.set_archive("file:///lake")

        def meanwhile(done: int, total: int) -> None:
            told.append((done, total))
            append(log, [["p", ODD]])
            log.put_snapshots([Snapshot("p", log.head(), 1, b"{}", START_MS)])
            owner.prune_batch(800, limit=60)

        report = check_database(dsn, meanwhile)
        assert log.extent().pruned_to == 800
    assert report.ok, report.text()
    assert report.head == EVENTS + 1_000
    assert told == sorted(told, key=lambda each: each[0])
    assert len(told) > 20
    assert told[-1][0] == told[-1][1]


def test_checking_writes_nothing_and_needs_no_more_than_a_node(dsn: str, postgres: Postgres) -> None:
    name = dsn.rsplit("/", 1)[1]
    postgres.execute("CREATE ROLE checking_node LOGIN", "CREATE ROLE nobodys LOGIN")
    try:
        schema.migrate(dsn, runtime_role="checking_node")
        assert check_database(postgres.dsn(name, user="checking_node")).ok
        with pytest.raises(StoreUnusable, match="permission denied"):
            check_database(postgres.dsn(name, user="nobodys"))
        postgres.execute("REVOKE SELECT ON unisono.pruned FROM checking_node", database=name)
        with pytest.raises(StoreUnusable, match="permission denied for table pruned"):
            check_database(postgres.dsn(name, user="checking_node"))
    finally:
        postgres.execute("DROP OWNED BY checking_node", database=name)
        postgres.execute("DROP ROLE checking_node", "DROP ROLE nobodys")
    with closing(open_database(dsn)) as opened, pytest.raises(StoreUnusable, match="read-only transaction"):
        opened._rows("set_archive", {"location": "x"})


def test_a_lost_database_is_not_called_damaged(dsn: str, postgres: Postgres) -> None:
    def cut(_done: int, _total: int) -> None:
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'unisono'"
        )

    with pytest.raises(StoreUnusable, match="was lost while it was checked"):
        check_database(dsn, cut)
