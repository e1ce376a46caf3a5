"""The embedded log: the contract, its files and settings, and the cost of a page."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.store.contract import LogContract
from tests.store.page_contract import NO_LIMIT, Place
from tests.store.records import append, append_many
from unisono.store.port import CommitLog, LogReader, StorageError, StoreUnusable
from unisono.store.sqlite import files as sqlite_files
from unisono.store.sqlite import pages as sqlite_pages
from unisono.store.sqlite import recent_partitions, wire_pages
from unisono.store.sqlite.log import SqliteLog, SqliteReader


class Directory:
    """A place on disk (tests.store.contract.Place)."""

    def __init__(self, path: Path, closing_stack: ExitStack) -> None:
        self.path = path
        self._stack = closing_stack

    def writer(self) -> CommitLog:
        return self._stack.enter_context(closing(SqliteLog.open(self.path)))

    def reader(self) -> LogReader:
        return self._stack.enter_context(closing(SqliteReader.open(self.path)))


class TestSqliteLog(LogContract):
    @pytest.fixture(params=[0, 20, recent_partitions.WAITING_MAX])
    def place(
        self, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Place]:
        """With all but the newest rows in the index of partitions, with some, and with none."""
        monkeypatch.setattr(recent_partitions, "WAITING_MAX", request.param)
        with ExitStack() as stack:
            yield Directory(tmp_path / "data", stack)


@contextmanager
def direct(directory: Path) -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(str(directory / "log.db"))) as connection:
        yield connection


# Settings


@pytest.mark.req("DUR-02")
def test_every_writing_connection_syncs_fully(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[apsw.Connection] = []
    monkeypatch.setattr(apsw, "connection_hooks", [opened.append])
    with closing(SqliteLog.open(tmp_path)):
        assert len(opened) == 2  # the writer and its checkpoints
        for connection in opened:
            assert connection.pragma("journal_mode") == "wal"
            assert connection.pragma("synchronous") == 2
            assert connection.pragma("wal_autocheckpoint") == 0
            assert connection.pragma("page_size") == 4096


@pytest.mark.req("DUR-02")
def test_a_setting_that_does_not_take_is_refused(tmp_path: Path) -> None:
    with (
        closing(apsw.Connection(":memory:")) as connection,
        pytest.raises(StoreUnusable, match="durable log"),
    ):
        sqlite_files.configure(connection, 1000)  # a memory database has no WAL


@pytest.mark.req("DUR-01")
def test_the_log_has_its_three_indexes(log: SqliteLog, tmp_path: Path) -> None:
    append_many(log, 10)
    with direct(tmp_path) as connection:
        for query in (
            "SELECT * FROM events WHERE committed_id = 5",
            "SELECT * FROM event_ids WHERE key = 5",
            "SELECT * FROM event_partitions WHERE partition = 1 AND committed_id > 5",
        ):
            plan = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")]
            assert all(step.startswith("SEARCH") for step in plan), plan


# Opening


def test_opening_makes_the_directory_and_the_wal(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    with closing(SqliteLog.open(directory)):
        assert {file.name for file in directory.iterdir()} == {
            "log.db", "log.db-wal", "log.db-shm", "log.identity", "lock",
        }  # fmt: skip
        assert (directory / "log.db-wal").stat().st_size > 0
        assert (directory / "lock").read_text() == f"{os.getpid()}\n"
    assert {file.name for file in directory.iterdir()} == {"log.db", "log.identity", "lock"}


def test_a_log_in_use_names_its_holder(log: SqliteLog, tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=f"in use by process {os.getpid()}"):
        SqliteLog.open(tmp_path, lock_wait_s=0.05)


def test_opening_waits_for_a_predecessor_that_is_exiting(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    leaving = threading.Timer(0.2, os.close, (descriptor,))
    leaving.start()
    with closing(SqliteLog.open(tmp_path)) as log:
        assert log.head() == 0
    leaving.join()


def test_what_is_not_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnusable, match="cannot be opened"):
        SqliteLog.open(tmp_path / "file")
    with pytest.raises(StoreUnusable, match="holds no log"):
        SqliteReader.open(tmp_path)
    (tmp_path / "log.db").write_bytes(b"not a database " * 1000)
    with pytest.raises(StoreUnusable, match="not a SQLite database"):
        SqliteLog.open(tmp_path)
    (tmp_path / "log.db").unlink()
    with direct(tmp_path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    for open_it in (SqliteLog.open, SqliteReader.open):
        with pytest.raises(StoreUnusable, match="not a Unisono log"):
            open_it(tmp_path)


def test_an_opening_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    SqliteLog.open(tmp_path).close()
    with closing(apsw.Connection(str(tmp_path / "log.db"))) as connection:
        connection.execute("DROP TABLE events")
    threads, descriptors = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(StoreUnusable, match="no such table"):
        SqliteLog.open(tmp_path)
    assert threading.active_count() == threads
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    SqliteLog.open(tmp_path).close()
    with direct(tmp_path) as connection:
        connection.pragma("user_version", 999)
    for open_it in (SqliteLog.open, SqliteReader.open):
        with pytest.raises(StoreUnusable, match="written by a newer Unisono"):
            open_it(tmp_path)
    with direct(tmp_path) as connection:
        assert connection.pragma("user_version") == 999


def test_a_reader_asks_for_an_upgrade_of_an_older_schema(tmp_path: Path) -> None:
    SqliteLog.open(tmp_path).close()
    with direct(tmp_path) as connection:
        connection.pragma("user_version", 0)
    with pytest.raises(StoreUnusable, match="start the server on it once"):
        SqliteReader.open(tmp_path)


# The head


@pytest.mark.req("ORD-01")
def test_the_head_is_stored_not_derived_from_the_rows_that_remain(tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 5)
        time = log.last_status_updated_at()
    with direct(tmp_path) as connection:
        connection.execute("DELETE FROM events; DELETE FROM event_partitions; UPDATE head SET pruned_to = 5")
    with closing(SqliteLog.open(tmp_path)) as log:
        assert log.head() == 5
        assert log.last_status_updated_at() == time
        assert append(log, [["p"]])[0].committed_id == 6


@pytest.mark.req("ORD-01")
def test_ids_stay_below_two_to_the_53(tmp_path: Path) -> None:
    SqliteLog.open(tmp_path).close()
    with direct(tmp_path) as connection:
        connection.execute(f"UPDATE head SET committed_id = {2**53 - 2}")
    with closing(SqliteLog.open(tmp_path)) as log:
        append(log, [["p"]])
        with pytest.raises(StorageError):
            append(log, [["p"]])


def test_partition_numbers_outlive_a_full_cache(log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_pages, "NUMBERS_MAX", 4)
    for n in range(30):
        append(log, [[f"n{n}", "p"], ["p", f"x{n % 3}"]])
    assert len(log.page(["p"], 0, 100, **NO_LIMIT).records) == 60
    assert len(log.page(["x0", "x1"], 0, 100, **NO_LIMIT).records) == 20


# The cost of a page


class Effort:
    """Counts SQLite's virtual machine steps and full-scan steps of every connection made from now on."""

    def __init__(self) -> None:
        self.steps = 0
        self.scanned = 0

    def watch(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._finished)

    def _finished(self, event: dict[str, Any]) -> None:
        self.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]
        self.scanned += event["stmt_status"]["SQLITE_STMTSTATUS_FULLSCAN_STEP"]

    def of_page(self, reader: SqliteReader, partitions: list[str], events: int) -> tuple[int, int]:
        self.steps = self.scanned = 0
        reader.page(partitions, events // 10, events, limit=50, bytes_max=1 << 20)
        return self.steps, self.scanned


@pytest.mark.req("SYNC-10")
@pytest.mark.parametrize("waiting", [0, 100])
def test_a_page_costs_the_same_however_long_the_log_and_sparse_the_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    monkeypatch.setattr(recent_partitions, "WAITING_MAX", waiting)
    effort = Effort()
    many = [f"q{n}" for n in range(20)]
    costs = []
    for name, events in (("short", 1_000), ("long", 50_000)):
        with closing(SqliteLog.open(tmp_path / name)) as log:
            stride = events // 100  # 100 rare ones, spread over the whole log
            sets = [["dense", "rare"] if n % stride == 0 else ["dense", f"q{n % 20}"] for n in range(events)]
            for start in range(0, events, events // 20):
                append(log, sets[start : start + events // 20])
        with monkeypatch.context() as patch:
            patch.setattr(apsw, "connection_hooks", [effort.watch])
            reader = SqliteReader.open(tmp_path / name)
        with closing(reader):
            assert len(reader.page(["rare"], events // 10, events, limit=50, bytes_max=1 << 20).records) == 50
            asks = (["dense"], ["rare"], ["rare", "dense"], ["rare", "absent"], many, ["absent"])
            for partitions in asks:  # once to learn the partitions' numbers, once to measure
                effort.of_page(reader, partitions, events)
            costs.append([effort.of_page(reader, partitions, events) for partitions in asks])
    for (short, short_scanned), (long, long_scanned) in zip(*costs, strict=True):
        assert 0 < short < 10_000
        assert long <= short * 1.1
        assert short_scanned == long_scanned == 0


@pytest.mark.req("SYNC-10")
@pytest.mark.parametrize("limit", [50, 1000])
def test_a_page_of_a_thousand_partitions_costs_its_events_and_a_probe_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    effort = Effort()
    names = [f"n{number:03}" for number in range(1000)]
    with closing(SqliteLog.open(tmp_path)) as log:
        for start in range(0, 20_000, 2_000):
            append(log, [[names[(start + n) % 500]] for n in range(2_000)])
    with monkeypatch.context() as patch:
        patch.setattr(apsw, "connection_hooks", [effort.watch])
        reader = SqliteReader.open(tmp_path)
    with closing(reader):
        reader.page(names, 0, 20_000, limit=1, bytes_max=1 << 20)  # to learn the partitions' numbers
        effort.steps = effort.scanned = 0
        first = reader.page(names, 0, 20_000, limit=limit, bytes_max=1 << 20)
        assert effort.steps < 200 * (1000 + limit)
        assert effort.scanned == 0
        whole, effort.steps = effort.steps, 0
        second = reader.page(names, limit, 20_000, limit=limit, bytes_max=1 << 20)
        assert effort.steps < (whole / 4 if limit == 50 else whole), (
            "half of them have nothing, the others enough"
        )
        assert [r.committed_id for r in (*first.records, *second.records)] == [*range(1, 2 * limit + 1)]


@pytest.mark.req("SYNC-10")
@pytest.mark.parametrize("statement", [sqlite_pages._page_sql, wire_pages._wire_page_sql])
@pytest.mark.parametrize("partitions", [1, 2, 64])
def test_a_page_is_all_index_searches(
    log: SqliteLog, tmp_path: Path, partitions: int, statement: Callable[[int], str]
) -> None:
    names = [f"n{n}" for n in range(partitions)]
    append(log, [[name] for name in names])
    with direct(tmp_path) as connection:
        query = f"EXPLAIN QUERY PLAN {statement(partitions)}"
        plan = [str(row[3]) for row in connection.execute(query, (0, 9, 9, *range(partitions)))]
    assert sum(step.startswith("SEARCH event_partitions USING PRIMARY KEY") for step in plan) == partitions
    assert sum(step.startswith("SEARCH events USING INTEGER PRIMARY KEY") for step in plan) == 1
    assert [step for step in plan if step.startswith("SCAN")] in ([], ["SCAN ids"])
    assert not any("TEMP B-TREE" in step for step in plan)


@pytest.mark.req("EXT-21")
def test_a_page_backwards_is_all_index_searches(log: SqliteLog, tmp_path: Path) -> None:
    append(log, [["p"], ["q"], ["p"]])
    with direct(tmp_path) as connection:
        query = f"EXPLAIN QUERY PLAN {sqlite_pages._SQL['newest_page']}"
        plan = [str(row[3]) for row in connection.execute(query, (1, 9, 9))]
    assert sum(step.startswith("SEARCH event_partitions USING PRIMARY KEY") for step in plan) == 1
    assert sum(step.startswith("SEARCH events USING INTEGER PRIMARY KEY") for step in plan) == 1
    assert [step for step in plan if step.startswith("SCAN")] in ([], ["SCAN ids"])
    assert not any("TEMP B-TREE" in step for step in plan)
