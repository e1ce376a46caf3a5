"""The shared log: the contract every log keeps, its settings, and the cost of a page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import psycopg
import pytest

from tests.store.contract import LogContract
from tests.store.page_contract import Place
from tests.store.postgres.server import Postgres, database, postgres
from tests.store.records import append, append_many, make_record
from tests.waiting import until
from unisono.store.port import CommitLog, LogReader, StorageError, StoreUnusable
from unisono.store.postgres.connect import SQL
from unisono.store.postgres.log import PostgresLog, PostgresReader
from unisono.store.postgres.rows import Texts
from unisono.store.postgres.timeouts import Timeouts

__all__ = ["database", "postgres"]


class Database:
    """A place in PostgreSQL (tests.store.contract.Place)."""

    def __init__(self, dsn: str, closing_stack: ExitStack) -> None:
        self.dsn = dsn
        self._stack = closing_stack

    def writer(self) -> CommitLog:
        return self._stack.enter_context(closing(PostgresLog.open(self.dsn, "test")))

    def reader(self) -> LogReader:
        return self._stack.enter_context(closing(PostgresReader.open(self.dsn)))


class TestPostgresLog(LogContract):
    @pytest.fixture
    def place(self, database: str) -> Iterator[Place]:
        with ExitStack() as stack:
            yield Database(database, stack)


@pytest.fixture
def log(database: str) -> Iterator[PostgresLog]:
    with closing(PostgresLog.open(database, "test")) as log:
        yield log


@contextmanager
def direct(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        yield connection


# Settings


@pytest.mark.req("DUR-02")
@pytest.mark.parametrize("weak", ["off", "local", "remote_write"])
def test_every_commit_waits_for_the_disk(database: str, weak: str) -> None:
    with direct(database) as connection:
        connection.execute(
            f"ALTER DATABASE \"{connection.info.dbname}\" SET synchronous_commit = '{weak}'".encode()
        )
    with closing(PostgresLog.open(database, "test")) as log:
        assert setting(log, "synchronous_commit") == "on"


@pytest.mark.req("DUR-02")
def test_a_stronger_promise_of_the_operator_is_kept(database: str) -> None:
    with closing(PostgresLog.open(f"{database}?options=-csynchronous_commit%3Dremote_apply", "test")) as log:
        assert setting(log, "synchronous_commit") == "remote_apply"


def test_every_wait_has_an_end(database: str) -> None:
    timeouts = Timeouts(lock_hold_s=2.5, lock_wait_s=7, statement_s=9, peer_s=12)
    with closing(PostgresLog.open(database, "test", timeouts=timeouts)) as log:
        assert setting(log, "idle_in_transaction_session_timeout") == "2500ms"
        assert setting(log, "lock_timeout") == "7s"
        assert setting(log, "statement_timeout") == "9s"
        assert setting(log, "client_connection_check_interval") == "1s"
        assert setting(log, "tcp_keepalives_idle") == "6"
        assert setting(log, "tcp_user_timeout") == "12000"
        parameters = log._pipeline.connection.info.get_parameters()
        assert (parameters["keepalives_idle"], parameters["tcp_user_timeout"]) == ("6", "12000")
        if log._pipeline.connection.info.server_version >= 170_000:
            assert setting(log, "transaction_timeout") == "18500ms"


def setting(log: PostgresReader, name: str) -> str:
    row = log._pipeline.connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.req("DUR-01")
def test_the_log_has_its_three_indexes(log: PostgresLog, database: str) -> None:
    append_many(log, 10)
    with direct(database) as connection:
        connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        for query in (
            "SELECT * FROM unisono.events WHERE committed_id = 5",
            "SELECT * FROM unisono.events WHERE id = 'id-5'",
            "SELECT * FROM unisono.event_partitions WHERE partition = 'p' AND committed_id > 5",
        ):
            plan = [row[0] for row in connection.execute(f"EXPLAIN {query}".encode())]
            assert "Index" in plan[0], plan
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute(
                "INSERT INTO unisono.events SELECT 99, 1, id, client_id, hash, '', '' FROM unisono.events LIMIT 1"
            )


def test_names_are_ordered_and_compared_by_bytes(database: str) -> None:
    with direct(database) as connection:
        rows = connection.execute(
            "SELECT table_name, column_name, collation_name FROM information_schema.columns "
            "WHERE table_schema = 'unisono' AND column_name IN ('id', 'client_id', 'partition', 'partitions')"
        ).fetchall()
    assert len(rows) == 9
    assert {collation for _, _, collation in rows} == {"C"}


# Opening


def test_what_is_not_a_log_is_refused(postgres: Postgres) -> None:
    empty = postgres.create(template="template0")
    for open_it in (open_log, PostgresReader.open):
        with pytest.raises(StoreUnusable, match="holds no log: make one with `unisono db init`"):
            open_it(empty)
        with pytest.raises(StoreUnusable, match="cannot be opened"):
            open_it("postgresql://postgres@127.0.0.1:1/nowhere")
        with pytest.raises(StoreUnusable, match="does not exist"):
            open_it(postgres.dsn("nowhere"))
        with pytest.raises(StoreUnusable, match="DSN of the store is not valid"):
            open_it("postgresql://localhost/x?colour=red")
    postgres.drop(empty)


def test_a_password_is_never_told(postgres: Postgres) -> None:
    for dsn in (
        "postgresql://me:hunter2@127.0.0.1:1/x",
        f"postgresql://me:hunter2@127.0.0.1:{postgres.port}/x",
    ):
        with pytest.raises(StoreUnusable) as caught:
            open_log(dsn)
        chain: BaseException | None = caught.value
        while chain is not None:
            assert "hunter2" not in str(chain)
            chain = chain.__cause__


@pytest.mark.req("DUR-02")
def test_a_server_that_does_not_sync_is_refused(postgres: Postgres, database: str) -> None:
    postgres.execute("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
    try:
        until(lambda: refused(database, "fsync=off"), "it is not refused")
    finally:
        postgres.execute("ALTER SYSTEM RESET fsync", "SELECT pg_reload_conf()")
    until(lambda: not refused(database, "fsync=off"), "it is refused")


@pytest.mark.req("ORD-02")
def test_a_database_that_takes_no_writes_is_refused(database: str) -> None:
    assert refused(f"{database}?options=-cdefault_transaction_read_only%3Don", "is read-only")


def test_another_encoding_is_refused(postgres: Postgres) -> None:
    postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    assert refused(postgres.dsn("latin"), "ENCODING 'UTF8'")
    postgres.drop(postgres.dsn("latin"))


def open_log(dsn: str) -> PostgresLog:
    return PostgresLog.open(dsn, "test")


def refused(dsn: str, why: str) -> bool:
    said = ""
    try:
        open_log(dsn).close()
    except StoreUnusable as error:
        said = str(error)
    return why in said


# The head


@pytest.mark.req("ORD-01")
def test_the_head_is_stored_not_derived_from_the_rows_that_remain(database: str) -> None:
    with closing(open_log(database)) as log:
        append_many(log, 5)
        time_of_last = log.last_status_updated_at()
    with direct(database) as connection:
        for statement in (
            "DELETE FROM unisono.events",
            "DELETE FROM unisono.event_partitions",
            "UPDATE unisono.head SET pruned_to = 5",
        ):
            connection.execute(statement)
    with closing(open_log(database)) as log:
        assert log.head() == 5
        assert log.last_status_updated_at() == time_of_last
        assert append(log, [["p"]])[0].committed_id == 6


@pytest.mark.req("ORD-01")
def test_ids_stay_below_two_to_the_53(database: str) -> None:
    with direct(database) as connection:
        connection.execute("UPDATE unisono.head SET committed_id = 9007199254740990")
    with closing(open_log(database)) as log:
        append(log, [["p"]])
        with pytest.raises(StorageError):
            append(log, [["p"]])


@pytest.mark.req("DUR-04", "ORD-05")
def test_an_id_is_stored_once_whatever_the_judge_says(database: str) -> None:
    with closing(open_log(database)) as log, closing(PostgresReader.open(database)) as reader:
        append(log, [["p"]])
        log.begin([])
        with pytest.raises(StorageError, match="duplicate key"):
            log.commit([make_record(2), make_record(3, id="id-1")])
        with pytest.raises(StorageError, match="duplicate key"):
            log.head()
        assert [record.id for record in reader.scan(0, 10, limit=10)] == ["id-1"]
        log.reopen()
        assert append(log, [["p"]])[0].committed_id == 2


# The cost of a page


@pytest.mark.req("SYNC-10")
def test_a_page_costs_the_same_however_long_the_log_and_sparse_the_partition(postgres: Postgres) -> None:
    many = [f"q{n}" for n in range(20)]
    asks = (["dense"], ["rare"], ["rare", "dense"], ["rare", "absent"], many, ["absent"])
    costs = []
    for events in (2_000, 30_000):
        dsn = postgres.create()
        with closing(open_log(dsn)) as log:
            stride = events // 100  # 100 rare ones, spread over the whole log
            sets = [["dense", "rare"] if n % stride == 0 else ["dense", f"q{n % 20}"] for n in range(events)]
            for start in range(0, events, 2_000):
                append(log, sets[start : start + 2_000])
            assert len(log.page(["rare"], events // 10, events, limit=50, bytes_max=1 << 20).records) == 50
            costs.append(
                [blocks(log, partitions, events) for partitions in asks]
                + [newest_blocks(log, name, events) for name in ("dense", "rare", "absent")]
            )
        postgres.drop(dsn)
    for short, long in zip(*costs, strict=True):
        assert 0 < short < 700
        assert long <= short * 1.5 + 8  # an index one level deeper


def blocks(log: PostgresLog, partitions: list[str], events: int) -> int:
    """Blocks that PostgreSQL touches for a page; no plan may walk through a whole table."""
    parameters = {
        "partitions": Texts(partitions),
        "since": events // 10,
        "upto": events,
        "limit": 50,
        "bytes_max": 1 << 20,
    }
    return touched(log, SQL["page"], parameters)


def newest_blocks(log: PostgresLog, partition: str, events: int) -> int:
    """As `blocks`, for a page that is read backwards."""
    parameters = {"partition": partition, "upto": events - 5, "limit": 50, "bytes_max": 1 << 20}
    return touched(log, SQL["newest_page"], parameters)


def touched(log: PostgresLog, query: bytes, parameters: dict[str, Any]) -> int:
    explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query
    for _ in range(2):  # the first touches more, to set hint bits
        row = log._pipeline.connection.execute(explain, parameters).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    assert "Seq Scan" not in str(plan)
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_a_page_reads_no_event_beyond_its_bytes(log: PostgresLog) -> None:
    opening = log.begin([])
    log.commit([make_record(opening.head + n, event=b'"%b"' % (b"x" * 500_000)) for n in range(1, 21)])
    page = log.page(["p"], 0, 100, limit=20, bytes_max=1_200_000)
    assert (len(page.records), page.has_more) == (2, True)
    row = log._pipeline.connection.execute(
        b"SELECT count(*) FROM (" + SQL["page"] + b") AS page",
        {
            "partitions": Texts(["p"]),
            "since": 0,
            "upto": 100,
            "limit": 20,
            "bytes_max": 1_200_000,
        },
    ).fetchone()
    assert row == (2,)


def test_a_group_larger_than_any_buffer(log: PostgresLog) -> None:
    event = b'"%b"' % (b"\x20" * 1_000_000)
    log.begin([])
    log.commit([make_record(n, event=event) for n in range(1, 81)])
    assert [len(record.event) for record in log.scan(0, 100, limit=100)] == [len(event)] * 80
