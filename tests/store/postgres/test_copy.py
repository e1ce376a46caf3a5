"""Moving a log between the embedded and the shared store, both ways."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import psycopg
import pytest

from tests.store.postgres.server import Postgres, database, postgres
from tests.store.records import append, append_many, make_record
from unisono.store import copy as copying
from unisono.store.check import check_directory
from unisono.store.copy import CopyRefused, copy_log
from unisono.store.port import (
    CommitLog,
    LogExtent,
    LogReader,
    Pruned,
    Record,
    Revocation,
    Snapshot,
    StorageError,
    StoreUnusable,
)
from unisono.store.postgres.log import PostgresLog, PostgresReader
from unisono.store.sqlite.log import SqliteLog, SqliteReader

__all__ = ["database", "postgres"]

ODD = "a\0b\1\u2028é"


def fill(log: CommitLog) -> None:
    append(log, [["p", "q"], ["p"], ["q", "r"]] * 10)
    opening = log.begin([])
    log.commit(
        [make_record(opening.head + 1, (ODD,), id=ODD, client_id=ODD, event=b'{"\\u0000":"\xc3\xa9"}')]
    )
    append_many(log, 120, ("p",), group=30)
    log.put_snapshots(
        [Snapshot("p", 20, 1, b"\0state", 5), Snapshot("p", 9, 2, b"", 6), Snapshot(ODD, 31, 1, b"x", 7)]
    )
    for revocation in REVOKED:
        log.revoke(revocation, 0)


REVOKED = [Revocation("client", ODD, 99), Revocation("jti", "t1", 10**15), Revocation("user", "ann", 10**15)]


def everything(reader: LogReader) -> tuple[list[Record], list[Snapshot | None]]:
    snapshots = [reader.snapshot("p", 1), reader.snapshot("p", 2), reader.snapshot(ODD, 1)]
    return list(reader.scan(0, 10**6, limit=10**6)), snapshots


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "READ_RECORDS", 7)
    monkeypatch.setattr(copying, "BATCH_RECORDS_MAX", 20)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with closing(SqliteLog.open(tmp_path / "data")) as log:
        fill(log)
    return tmp_path / "data"


@pytest.mark.req("ORD-01", "ORD-05")
def test_a_log_moves_to_postgres_and_back(directory: Path, database: str, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    done = copy_log(directory, database, lambda *step: told.append(step))
    assert (done.events, done.present, done.snapshots, done.head, done.behind) == (151, 0, 3, 151, 0)
    assert {what for what, _, _ in told} == {"copy", "snapshots", "verify"}
    assert told[-1] == ("verify", 151, 151)
    back = copy_log(database, f"sqlite:{tmp_path / 'back'}")
    assert (back.events, back.digest) == (151, done.digest)
    with (
        closing(SqliteReader.open(directory)) as source,
        closing(PostgresReader.open(database)) as middle,
        closing(SqliteReader.open(tmp_path / "back")) as end,
    ):
        assert everything(source) == everything(middle) == everything(end)
        assert middle.page([ODD], 0, 999, limit=9, bytes_max=999).records[0].id == ODD
    assert check_directory(tmp_path / "back").ok
    with closing(PostgresLog.open(database, "a")) as log, closing(SqliteLog.open(directory)) as sqlite:
        assert log.last_status_updated_at() == sqlite.last_status_updated_at()
        assert set(log.begin([ODD, "id-9"]).known) == {ODD, "id-9"}
        log.commit([make_record(152)])


def test_a_copy_goes_on_where_it_was_broken_off(
    directory: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(what: str, done: int, _total: int) -> None:
        if what == "copy" and done >= 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_log(directory, database, break_off)
    done = copy_log(directory, database)
    assert (done.present, done.events) == (60, 91)
    again = copy_log(directory, database)
    assert (again.present, again.events, again.digest) == (151, 0, done.digest)


def test_a_copy_follows_a_log_in_use(directory: Path, database: str) -> None:
    with closing(SqliteLog.open(directory)) as log:
        grown = False

        def grow(what: str, *_: int) -> None:
            nonlocal grown
            if not grown:
                append(log, [["p"]] * 4)
                grown = True

        done = copy_log(directory, database, grow)
        assert (done.head, done.behind) == (151, 4)
        done = copy_log(directory, database)
        assert (done.head, done.events, done.behind) == (155, 4, 0)


def test_shared_to_shared(directory: Path, database: str, postgres: Postgres) -> None:
    other = postgres.create()
    first = copy_log(directory, database)
    assert copy_log(database, other).digest == first.digest
    postgres.drop(other)


@pytest.mark.req("ORD-01")
def test_a_pruned_log_keeps_its_head(directory: Path, database: str, tmp_path: Path) -> None:
    with closing(SqliteLog.open(directory)) as log:
        log.set_archive("file:///lake")
        assert log.prune_batch(100) == 100
    done = copy_log(directory, database)
    assert (done.events, done.head) == (51, 151)
    copy_log(database, tmp_path / "back")
    with closing(PostgresLog.open(database, "a")) as log, closing(SqliteLog.open(tmp_path / "back")) as end:
        assert log.head() == end.head() == 151
        assert log.extent() == end.extent() == LogExtent(100, 151, "file:///lake")
        assert (
            log.scan(100, 1000, limit=1)[0].committed_id
            == end.scan(100, 1000, limit=1)[0].committed_id
            == 101
        )
        known = log.begin([ODD, "id-5", "id-140"]).known
        assert known == end.begin([ODD, "id-5", "id-140"]).known
        assert sorted(known) == sorted([ODD, "id-5", "id-140"])
        log.abandon()
        end.abandon()
        for copy in (log, end):
            for name in ("p", ODD):  # left in part, and wholly
                with pytest.raises(Pruned):
                    copy.page([name], 0, 151, limit=10, bytes_max=1000)
            assert not copy.page(["r", "new"], 30, 151, limit=10, bytes_max=1000).records
    assert check_directory(tmp_path / "back").ok


@pytest.mark.req("ORD-05")
def test_what_is_remembered_must_arrive(directory: Path, tmp_path: Path) -> None:
    with closing(SqliteLog.open(directory)) as log:
        log.set_archive("file:///lake")
        log.prune_batch(100)
    copy_log(directory, tmp_path / "back")
    with closing(apsw.Connection(str(tmp_path / "back" / "log.db"))) as connection:
        connection.execute("DELETE FROM pruned WHERE committed_id = 50")
    with pytest.raises(CopyRefused, match="remembers 99 of the events that left and the source 100"):
        copy_log(directory, tmp_path / "back")


def test_events_that_leave_during_a_copy_end_it(directory: Path, tmp_path: Path) -> None:
    with closing(SqliteLog.open(directory)) as log:
        log.set_archive("file:///lake")

        def prune(what: str, done: int, _total: int) -> None:
            if what == "copy" and done >= 40:
                log.prune_batch(100)

        with pytest.raises(CopyRefused, match="have left the log while it was copied"):
            copy_log(directory, tmp_path / "back", prune)


def test_another_log_is_refused_and_left_alone(directory: Path, database: str) -> None:
    with closing(PostgresLog.open(database, "a")) as log:
        append(log, [["mine"]])
        with pytest.raises(CopyRefused, match=r"event 1 in PostgreSQL database .* is another log"):
            copy_log(directory, database)
        assert log.head() == 1
        append_many(log, 200)
    with pytest.raises(CopyRefused, match="holds 201 events and the source only 151"):
        copy_log(directory, database)


def test_a_difference_in_the_middle_is_found(directory: Path, database: str) -> None:
    copy_log(directory, database)
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        connection.execute("UPDATE unisono.events SET client_id = 'mallory' WHERE committed_id = 77")
    with pytest.raises(CopyRefused, match="event 77 in PostgreSQL"):
        copy_log(directory, database)
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        connection.execute("UPDATE unisono.events SET client_id = 'client' WHERE committed_id = 77")
        connection.execute("DELETE FROM unisono.event_partitions WHERE committed_id = 77")
    with pytest.raises(CopyRefused, match="the copy is not the source"):
        copy_log(directory, database)


def test_somebody_else_writing_to_the_target_stops_the_copy(directory: Path, database: str) -> None:
    with closing(PostgresLog.open(database, "a")) as other:

        def meddle(what: str, *_: int) -> None:
            append(other, [["mine"]])

        with pytest.raises(CopyRefused, match="another process wrote to"):
            copy_log(directory, database, meddle)


def test_a_source_with_a_gap_is_refused(directory: Path, database: str) -> None:
    with closing(apsw.Connection(str(directory / "log.db"))) as connection:
        connection.execute("DELETE FROM events WHERE committed_id = 100")
    with pytest.raises((CopyRefused, StorageError), match=r"gap"):
        copy_log(directory, database)


def test_places_that_cannot_be(directory: Path, database: str, tmp_path: Path, postgres: Postgres) -> None:
    with pytest.raises(CopyRefused, match="the same"):
        copy_log(directory, f"sqlite:{directory}")
    with pytest.raises(CopyRefused, match="the same"):
        copy_log(database, database)
    with pytest.raises(StoreUnusable, match="holds no log"):
        copy_log(tmp_path / "nothing", database)
    with pytest.raises(StoreUnusable, match="unisono db init"):
        copy_log(directory, postgres.dsn("template1"))
    with closing(SqliteLog.open(tmp_path / "used")), pytest.raises(StoreUnusable, match="in use"):
        copy_log(database, tmp_path / "used")


@pytest.mark.req("AUTH-11")
def test_who_is_refused_is_refused_by_the_copy(directory: Path, database: str, tmp_path: Path) -> None:
    copy_log(directory, database)
    copy_log(database, tmp_path / "back")
    with (
        closing(PostgresLog.open(database, "node")) as shared,
        closing(SqliteLog.open(tmp_path / "back")) as log,
    ):
        assert shared.revocations() == log.revocations() == REVOKED
        # What was revoked since goes with the next run.
        with closing(SqliteLog.open(directory)) as source:
            source.revoke(Revocation("user", "ben", 10**15), 0)
    copy_log(directory, database)
    with closing(PostgresLog.open(database, "node")) as shared:
        assert shared.revocations() == [*REVOKED, Revocation("user", "ben", 10**15)]
