"""What happens when PostgreSQL, a node or the network goes away in the middle of things.

Nothing is acknowledged without proof; who is cut off hears StoreLost, can reopen, and finds the whole group or
nothing of it; who is left goes on within a bounded time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from tests.store.postgres.cut_connection import Proxy
from tests.store.postgres.nodes import query
from tests.store.postgres.server import Postgres, database, postgres
from tests.store.records import append, append_many, make_record
from tests.waiting import PATIENCE_S, in_a_window, until
from unisono.store.cluster import StoreLost
from unisono.store.port import StorageError, StoreUnusable
from unisono.store.postgres.log import PostgresLog, PostgresReader
from unisono.store.postgres.timeouts import Timeouts

__all__ = ["database", "postgres"]

processes = multiprocessing.get_context("spawn")


@pytest.fixture
def log(database: str) -> Iterator[PostgresLog]:
    with closing(PostgresLog.open(database, "a")) as log:
        yield log


def cut(dsn: str, log: PostgresReader) -> None:
    query(dsn, f"SELECT pg_terminate_backend({log._pipeline.connection.info.backend_pid}, 5000)")


# The server


@pytest.mark.req("DUR-02", "DUR-04")
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restarted_server_is_found_again_with_everything_acknowledged(
    postgres: Postgres, database: str, log: PostgresLog, mode: str
) -> None:
    with closing(PostgresReader.open(database)) as reader:
        append(log, [["p"]] * 3)
        log.claim("ann", 7)
        assert reader.head() == 3
        log.begin([])
        postgres.stop(mode)
        with pytest.raises(StoreLost):
            log.commit([make_record(4, id="never")])
        with pytest.raises(StoreLost):
            reader.head()
        for call in (log.head, log.catch_up, log.maintain, log.reopen, lambda: log.begin([])):
            with pytest.raises(StoreLost):
                call()
        with pytest.raises(StoreLost):
            reader.reopen()
        postgres.start()
        log.reopen()
        reader.reopen()
        assert reader.head() == log.head() == 3
        log.fence([("ann", 7)])
        opening = log.begin(["never", "id-3"])
        assert (set(opening.known), list(opening.replaced), list(opening.foreign)) == ({"id-3"}, [], [])
        log.commit([make_record(4)])
        assert reader.head() == 4


@pytest.mark.req("DUR-02")
def test_a_crash_of_the_server_loses_nothing_acknowledged(
    postgres: Postgres, database: str, log: PostgresLog
) -> None:
    acknowledged = 0

    def write() -> None:
        nonlocal acknowledged
        with suppress(StoreLost):
            while True:
                acknowledged = append(log, [["p"], ["q"]])[-1].committed_id

    writing = threading.Thread(target=write)
    writing.start()
    until(lambda: acknowledged > 20, "nothing is written")
    postgres.kill()
    writing.join(PATIENCE_S)
    restart_after_crash(postgres)
    log.reopen()
    assert acknowledged <= log.head() <= acknowledged + 2
    records = log.scan(0, 10**6, limit=10**6)
    assert [record.committed_id for record in records] == list(range(1, log.head() + 1))
    # A group that was durable though its answer was lost comes as news, so that it can be broadcast.
    assert [record.committed_id for record in log.catch_up().records] == list(
        range(acknowledged + 1, log.head() + 1)
    )


def restart_after_crash(postgres: Postgres) -> None:
    """Orphaned backends of a killed server have to end before another can start."""

    def started() -> bool:
        try:
            postgres.start()
        except RuntimeError:
            return False
        return True

    until(started, "PostgreSQL does not start again")


@pytest.mark.req("DUR-02", "ORD-02")
def test_failover_to_a_promoted_standby(postgres: Postgres) -> None:
    dsn = postgres.create()
    standby = postgres.standby()
    name = dsn.rsplit("/", 1)[1]
    both = f"host=127.0.0.1,127.0.0.1 port={postgres.port},{standby.port} user=postgres dbname={name}"
    try:
        with pytest.raises(StoreUnusable, match="is a standby"):
            PostgresReader.open(standby.dsn(name))
        with closing(PostgresLog.open(both, "a", timeouts=Timeouts(connect_s=2))) as log:
            postgres.execute("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
            append_many(log, 20, group=4)
            log.claim("ann", 7)
            postgres.stop("immediate")
            with pytest.raises(StoreLost):
                append(log, [["p"]])
            with pytest.raises(StoreLost):
                log.reopen()  # nobody is the primary now
            standby.promote()
            log.reopen()
            assert log._pipeline.connection.info.port == standby.port
            assert log.head() == 20
            log.fence([("ann", 7)])
            assert list(log.begin(["id-20"]).replaced) == []
            log.commit([make_record(21)])
    finally:
        standby.dispose()
        with suppress(RuntimeError):
            postgres.start()
        postgres.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        postgres.drop(dsn)


@pytest.mark.req("DUR-02")
def test_a_commit_its_standby_has_not_confirmed_is_not_acknowledged(postgres: Postgres) -> None:
    def unconfirmed(window_s: float) -> None:
        dsn = postgres.create()
        with closing(PostgresLog.open(dsn, "a", timeouts=Timeouts(answer_s=4 * window_s))) as log:
            append(log, [["p"]])
            postgres.execute(
                "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"
            )
            try:
                time.sleep(window_s)  # until PostgreSQL's own processes have all heard of it
                log.begin([])
                cancelling = threading.Thread(target=cancel_the_wait, args=(dsn,))
                cancelling.start()
                # PostgreSQL gives up waiting, warns, and says COMMIT all the same.
                with pytest.raises(
                    StoreLost,
                    match="not confirmed by the standby: canceling wait for synchronous replication",
                ):
                    log.commit([make_record(2)])
                cancelling.join()
                # Nobody cancels, and PostgreSQL would wait for ever: the log is out of reach meanwhile.
                with pytest.raises(StoreLost):
                    log.reopen()
            finally:
                postgres.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
            log.reopen()
            opening = log.begin(["id-2"])
            log.abandon()
            assert ([record.committed_id for record in opening.foreign], set(opening.known)) == (
                [2],
                {"id-2"},
            )
        postgres.drop(dsn)

    in_a_window(unconfirmed, 0.5, 3.0, 10.0)


def cancel_the_wait(dsn: str) -> None:
    """As soon as a commit waits for its standby."""
    waiting = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
        " WHERE wait_event = 'SyncRep' AND datname = current_database()"
    )
    with suppress(AssertionError):
        until(lambda: query(dsn, waiting), "no commit waits", 10.0)


@pytest.mark.req("ORD-01")
@pytest.mark.parametrize("how", ["shorter", "other events", "another log"])
def test_a_log_that_went_back_is_not_taken_for_the_one_left(
    database: str, log: PostgresLog, how: str
) -> None:
    append(log, [["p"]] * 5)
    cut(database, log)
    match how:
        case "shorter":
            query(database, "DELETE FROM unisono.events WHERE committed_id > 3")
            query(database, "UPDATE unisono.head SET committed_id = 3")
        case "other events":
            query(database, "UPDATE unisono.events SET id = 'of-another-node' WHERE committed_id = 5")
        case "another log":
            query(database, "UPDATE unisono.head SET log_id = gen_random_uuid()")
    with pytest.raises(StoreLost):
        log.last_status_updated_at()
    with pytest.raises(StorageError, match=r"committed events are missing|another log") as caught:
        log.reopen()
    assert not isinstance(caught.value, StoreLost)
    with pytest.raises(StorageError, match=r"committed events are missing|another log"):
        log.begin([])


def test_what_is_not_expected_is_not_to_be_tried_again(database: str, log: PostgresLog) -> None:
    query(database, "ALTER TABLE unisono.event_partitions RENAME TO gone")
    with pytest.raises(StorageError, match="does not exist") as caught:
        append(log, [["p"]])
    assert not isinstance(caught.value, StoreLost)


# The connection


@pytest.mark.req("DUR-04")
def test_a_connection_cut_before_commit_leaves_nothing(database: str, log: PostgresLog) -> None:
    append(log, [["p"]])
    log.begin([])
    cut(database, log)
    with pytest.raises(StoreLost):
        log.commit([make_record(2, id="lost")])
    log.reopen()
    assert "lost" not in log.begin(["lost"]).known
    log.commit([make_record(2)])


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever(database: str) -> None:
    with closing(PostgresReader.open(database, timeouts=Timeouts(answer_s=0.5))) as reader:
        backend = reader._pipeline.connection.info.backend_pid
        os.kill(backend, signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises(StoreLost):
                reader.head()
            assert time.monotonic() - started > 0.4
        finally:
            os.kill(backend, signal.SIGCONT)
        reader.reopen()
        assert reader.head() == 0


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[Proxy]:
    with closing(Proxy(postgres.port)) as proxy:
        yield proxy


@pytest.mark.req("DUR-03", "DUR-04", "ORD-03")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_without_an_answer_is_not_acknowledged_and_found_by_its_retry(
    postgres: Postgres, database: str, proxy: Proxy, when: str
) -> None:
    name = database.rsplit("/", 1)[1]
    dsn = postgres.dsn(name, port=proxy.port)
    with closing(PostgresLog.open(dsn, "a")) as log, closing(PostgresReader.open(database)) as reader:
        append(log, [["p"]] * 2)
        opening = log.begin(["mine"])
        mine = make_record(opening.head + 1, id="mine")
        proxy.cut = when
        with pytest.raises(StoreLost):
            log.commit([mine])
        proxy.cut = None
        log.reopen()
        committed = when == "after"
        opening = log.begin(["mine"])
        log.abandon()
        assert set(opening.known) == ({"mine"} if committed else set())
        assert list(opening.foreign) == ([mine] if committed else [])
        assert reader.head() == opening.head == (3 if committed else 2)


@pytest.mark.req("CONN-05")
def test_a_takeover_while_cut_off_is_told_after_reopening(database: str, log: PostgresLog) -> None:
    log.claim_many([("ann", 7), ("bob", 8)])
    cut(database, log)
    with closing(PostgresLog.open(database, "b")) as other:
        other.claim("ann", 1)
        append(other, [["p"]])
        query(database, "DELETE FROM unisono.replacements")  # the answer that held it was lost
        with pytest.raises(StoreLost):
            log.catch_up()
        log.reopen()
        told = log.catch_up()
        assert (list(told.replaced), len(told.records)) == ([7], 1)
        assert list(log.catch_up().replaced) == []


# Another node


def hold_the_head(dsn: str, told: Any, go_on: Any, hold_s: float) -> None:
    with closing(PostgresLog.open(dsn, "holder", timeouts=Timeouts(lock_hold_s=hold_s))) as log:
        opening = log.begin([])
        told.put(os.getpid())
        go_on.wait(PATIENCE_S)
        try:
            log.commit([make_record(opening.head + 1, id="late")])
        except StoreLost:
            told.put("lost")


@pytest.mark.req("DUR-04", "ORD-02")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_gone_with_the_head_locked_does_not_stop_the_others(
    database: str, log: PostgresLog, how: signal.Signals
) -> None:
    told, go_on = processes.Queue(), processes.Event()
    # Killed: its socket closes. Stopped, as a machine that vanished: the server ends its session.
    hold_s = 600.0 if how == signal.SIGKILL else 1.5
    holder = processes.Process(target=hold_the_head, args=(database, told, go_on, hold_s))
    holder.start()
    pid = told.get(timeout=PATIENCE_S)
    os.kill(pid, how)
    opening = log.begin(["late"])
    assert (opening.head, set(opening.known)) == (0, set())
    log.commit([make_record(1)])
    if how == signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)
        go_on.set()
        assert told.get(timeout=PATIENCE_S) == "lost"
    holder.join(PATIENCE_S)
    holder.close()
    assert log.head() == 1


@pytest.mark.req("DUR-04")
def test_a_judge_too_slow_loses_the_lock_and_commits_nothing(postgres: Postgres) -> None:
    def too_slow(hold_s: float) -> None:
        dsn = postgres.create()
        with (
            closing(PostgresLog.open(dsn, "slow", timeouts=Timeouts(lock_hold_s=hold_s))) as slow,
            closing(PostgresLog.open(dsn, "quick")) as quick,
        ):
            opening = slow.begin([])
            append(quick, [["p"]])  # waits, and then goes on
            with pytest.raises(StoreLost, match="judging took"):
                slow.commit([make_record(opening.head + 1, id="late")])
            slow.reopen()
            assert [record.id for record in slow.catch_up().records] == ["id-1"]
            assert append(slow, [["p"]])[0].committed_id == 2
            assert slow.times.committed_s > 0
        postgres.drop(dsn)

    in_a_window(too_slow, 0.3, 2.0, 8.0)


def test_waiting_for_the_head_has_an_end(database: str, log: PostgresLog) -> None:
    with closing(PostgresLog.open(database, "b", timeouts=Timeouts(lock_wait_s=0.2))) as other:
        log.begin([])
        with pytest.raises(StoreLost, match="lock timeout"):
            other.begin([])
        log.commit([make_record(1)])
        other.reopen()
        assert append(other, [["p"]])[0].committed_id == 2
