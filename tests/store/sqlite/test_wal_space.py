"""Room for the WAL: zeros behind its end, appended while nobody commits, that change nothing in the log."""

from __future__ import annotations

import logging
import resource
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.simulation.disk import DiskFailed, simulated_disk
from tests.store.records import append_many
from unisono.store.port import StorageError
from unisono.store.sqlite import wal as sqlite_wal
from unisono.store.sqlite import wal_space
from unisono.store.sqlite.log import SqliteLog, SqliteReader
from unisono.store.sqlite.wal_space import WalSpace

FRAMES = 2_000
ROOM_BYTES = FRAMES * (4096 + 24)
"""More than one step between commits and several while nobody commits."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_wal, "PASS_FRAMES", FRAMES)
    monkeypatch.setattr(sqlite_wal, "FREE_BYTES_MIN", 0)
    monkeypatch.setattr(wal_space, "IDLE_S", 0.0)


def size_of_wal(directory: Path) -> int:
    return (directory / "log.db-wal").stat().st_size


def make_all_room(log: SqliteLog, directory: Path) -> None:
    while size_of_wal(directory) < ROOM_BYTES:
        before = size_of_wal(directory)
        log.maintain()
        assert before < size_of_wal(directory) <= before + wal_space.IDLE_STEP_BYTES


def ids_in(directory: Path) -> list[int]:
    with closing(SqliteReader.open(directory)) as reader:
        page = reader.page(["p"], 0, 1 << 40, limit=1000, bytes_max=1 << 30)
        return [record.committed_id for record in page.records]


def test_room_is_made_step_by_step_up_to_a_bound(tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 10)
        make_all_room(log, tmp_path)
        for _ in range(3):
            log.maintain()
        assert size_of_wal(tmp_path) == ROOM_BYTES


def test_steps_are_apart_however_often_there_is_time_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authority comes by after each message, also where nobody commits."""
    monkeypatch.setattr(wal_space, "IDLE_S", 3_600.0)
    with closing(SqliteLog.open(tmp_path)) as log:
        before = size_of_wal(tmp_path)
        for _ in range(5):
            log.maintain()
        assert size_of_wal(tmp_path) == before + wal_space.IDLE_STEP_BYTES


def test_commits_that_use_up_their_room_get_a_larger_step(tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 1)
        before = size_of_wal(tmp_path)
        assert wal_space.IDLE_STEP_BYTES < before < ROOM_BYTES
        append_many(log, 20, group=1)  # far less than there is
        assert size_of_wal(tmp_path) == before


@pytest.mark.req("DUR-02")
def test_commits_within_the_room_are_found_again_by_readers_and_after_a_crash(tmp_path: Path) -> None:
    here, crashed = tmp_path / "here", tmp_path / "crashed"
    with closing(SqliteLog.open(here)) as log:
        append_many(log, 10)
        make_all_room(log, here)
        append_many(log, 10, group=1)
        assert size_of_wal(here) == ROOM_BYTES
        assert ids_in(here) == list(range(1, 21))
        shutil.copytree(here, crashed)
    (crashed / "log.db-shm").unlink()  # its memory is gone with the process
    with closing(SqliteLog.open(crashed)) as log:
        assert log.head() == 20
        append_many(log, 5)
    assert ids_in(crashed) == list(range(1, 26))


def test_the_wal_starts_over_within_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_wal, "TAIL_FRAMES", FRAMES // 16)
    monkeypatch.setattr(sqlite_wal, "CAP_FRAMES", 2 * FRAMES)
    with closing(SqliteLog.open(tmp_path)) as log:
        make_all_room(log, tmp_path)
        rounds, before = 0, log.wal_bytes
        while rounds < 3:
            append_many(log, 20, group=1)
            rounds += log.wal_bytes < before
            before = log.wal_bytes
        head = log.head()
        assert head < 50_000
    with closing(SqliteLog.open(tmp_path)) as log:
        assert log.head() == head


def test_a_truncated_wal_gets_its_room_again(tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 10)
        make_all_room(log, tmp_path)
        while not log.reclaim().done:
            pass
        assert size_of_wal(tmp_path) == 0
        log.maintain()
        assert size_of_wal(tmp_path) > 0
        make_all_room(log, tmp_path)
        append_many(log, 10)
    assert ids_in(tmp_path) == list(range(1, 21))


@contextmanager
def limit(kind: int, soft: int) -> Iterator[None]:
    """A limit of this process, for a moment."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def expect_one_warning(caplog: pytest.LogCaptureFixture, why: str) -> None:
    (record,) = caplog.records
    assert "no room for the write-ahead log" in record.message
    assert why in record.message


def test_a_full_disk_is_logged_once_and_commits_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with simulated_disk(tmp_path) as disk, closing(SqliteLog.open(tmp_path)) as log:
        before, writes = size_of_wal(tmp_path), disk.calls

        def full_in_the_middle(operation: str, _name: str) -> None:
            if operation == "write" and disk.calls > writes + 3:
                raise apsw.FullError("the simulated disk is full")

        disk.fault = full_in_the_middle
        with caplog.at_level(logging.WARNING):
            log.maintain()
            log.maintain()
        assert size_of_wal(tmp_path) == before, "what was taken of the last space is given back"
        disk.repair()
        append_many(log, 10)
    expect_one_warning(caplog, "full")
    assert ids_in(tmp_path) == list(range(1, 11))


def test_a_disk_with_little_left_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_wal, "FREE_BYTES_MIN", 1 << 60)
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 10)
        before = size_of_wal(tmp_path)
        for _ in range(3):
            log.maintain()
        assert size_of_wal(tmp_path) == before


def test_a_quota_is_no_failing_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 10)
        make_all_room(log, tmp_path)
        while not log.reclaim().done:
            pass
        with limit(resource.RLIMIT_FSIZE, 300_000), caplog.at_level(logging.WARNING):
            log.maintain()
            assert size_of_wal(tmp_path) == 0
            append_many(log, 10)
    expect_one_warning(caplog, "disk I/O error")
    assert ids_in(tmp_path) == list(range(1, 21))


def test_without_a_file_descriptor_commits_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short_of_descriptors(*arguments: Any) -> WalSpace:
        with limit(resource.RLIMIT_NOFILE, 3):
            return WalSpace(*arguments)

    monkeypatch.setattr(sqlite_wal, "WalSpace", short_of_descriptors)
    with caplog.at_level(logging.WARNING), closing(SqliteLog.open(tmp_path)) as log:
        log.maintain()
        append_many(log, 10)
    expect_one_warning(caplog, "unable to open")


def test_a_log_whose_directory_was_moved_goes_on_with_its_own_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another log at its old path gets nothing of it."""
    here, moved = tmp_path / "here", tmp_path / "moved"
    with closing(SqliteLog.open(here)) as log:
        append_many(log, 10)
        here.rename(moved)
        with closing(SqliteLog.open(here)) as other:
            append_many(other, 3)
            before = size_of_wal(here), size_of_wal(moved)
            log.maintain()
            assert size_of_wal(here) == before[0]
            assert size_of_wal(moved) > before[1]
        shutil.rmtree(here)
        with caplog.at_level(logging.WARNING):
            log.maintain()
        append_many(log, 10)
        expect_one_warning(caplog, "No such file")
    assert ids_in(moved) == list(range(1, 21))


def test_the_log_may_be_a_link_to_another_disk(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    SqliteLog.open(there).close()
    here.mkdir()
    (here / "log.db").symlink_to(there / "log.db")
    with closing(SqliteLog.open(here)) as log:
        make_all_room(log, there)


def test_nothing_stays_open_or_behind(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 10)
        make_all_room(log, tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert not (tmp_path / "log.db-wal").exists()


def test_a_failed_sync_ends_the_log(tmp_path: Path) -> None:
    with simulated_disk(tmp_path) as disk, closing(SqliteLog.open(tmp_path)) as log:

        def no_sync(operation: str, _name: str) -> None:
            if operation == "sync":
                raise DiskFailed("the simulated disk fails")

        disk.fault = no_sync
        with pytest.raises(StorageError, match="checkpointing failed"):
            log.maintain()
        disk.repair()
        with pytest.raises(StorageError):
            log.begin(["a"])


def test_nothing_is_appended_while_another_program_writes(tmp_path: Path) -> None:
    with (
        closing(SqliteLog.open(tmp_path)) as log,
        closing(apsw.Connection(str(tmp_path / "log.db"))) as stranger,
    ):
        append_many(log, 10)
        before = size_of_wal(tmp_path)
        assert before < ROOM_BYTES
        stranger.execute("BEGIN IMMEDIATE")
        log.maintain()
        assert size_of_wal(tmp_path) == before
        stranger.execute("ROLLBACK")
        make_all_room(log, tmp_path)
