"""What commit() returned for is on disk: processes killed, power lost, writes and syncs that fail."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.simulation.disk import FileImage, SimulatedDisk, no_fault, restore, simulated_disk
from tests.store.records import append, append_many
from tests.waiting import PATIENCE_S
from unisono.protocol.tombstones import tombstone
from unisono.store.check import check_directory
from unisono.store.maintenance import Tombstone
from unisono.store.port import StorageError
from unisono.store.sqlite import event_ids, recent_partitions
from unisono.store.sqlite import maintenance as sqlite_maintenance
from unisono.store.sqlite import wal as sqlite_wal
from unisono.store.sqlite.log import SqliteLog, SqliteReader

ROOT = Path(__file__).parents[3]


def start(mode: str, directory: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.store.appending", mode, str(directory)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def assert_sound(directory: Path, acknowledged: int) -> int:
    """Nothing acknowledged is lost, nothing is half there; returns the head."""
    report = check_directory(directory)
    assert report.ok, report.text()
    assert report.head >= acknowledged
    with closing(SqliteReader.open(directory)) as reader:
        records = reader.scan(report.pruned_to, report.head, limit=report.head + 1, bytes_max=1 << 40)
        for name in reader.partition_names():
            page = reader.page([name], report.pruned_to, report.head, limit=10**9, bytes_max=1 << 40)
            assert list(page.records) == [record for record in records if name in record.partitions]
    return report.head


@pytest.mark.req("DUR-02", "DUR-03", "ORD-01")
def test_a_killed_process_loses_nothing_it_was_told_is_durable(tmp_path: Path) -> None:
    chance = random.Random(5)
    acknowledged = 0
    for _ in range(6):
        process = start("kill", tmp_path)
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        assert first, process.stderr.read().decode()
        time.sleep(chance.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        lines = [first, *process.stdout.readlines()]
        process.wait()
        process.stdout.close()
        process.stderr.close()
        heads = [int(line) for line in lines if line.endswith(b"\n")]
        assert heads[0] == acknowledged + 3  # no id skipped or given twice
        with closing(SqliteLog.open(tmp_path)) as log:
            acknowledged = assert_sound(tmp_path, heads[-1])
            known = log.begin([f"id-{n}" for n in range(1, acknowledged + 2)]).known
            log.abandon()
            assert {what.committed_id for what in known.values()} == set(range(1, acknowledged + 1))


@pytest.mark.req("DUR-02")
def test_power_loss_at_any_moment_loses_nothing_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_wal, "PASS_FRAMES", 120)
    monkeypatch.setattr(sqlite_wal, "TAIL_FRAMES", 20)
    monkeypatch.setattr(event_ids, "WAITING_MIN", 16)
    monkeypatch.setattr(event_ids, "WAITING_MAX", 16)
    monkeypatch.setattr(recent_partitions, "WAITING_MAX", 16)
    chance = random.Random(3)
    losses: list[tuple[dict[str, FileImage], int]] = []
    acknowledged = 0
    with simulated_disk(tmp_path) as disk:
        log = SqliteLog.open(tmp_path / "data")

        def maybe(operation: str, name: str) -> None:
            likely = {"write": 0.02, "sync": 0.08, "truncate": 0.5}[operation] * (
                4 if name == "log.db" else 1
            )
            if len(losses) < 60 and chance.random() < likely:
                count = acknowledged  # before the image: the checkpoint's thread comes here too
                losses.append((disk.image(), count))

        disk.fault = maybe
        for _ in range(150):
            acknowledged = append(log, [["p", "q"], [f"r{chance.randrange(40)}"]])[-1].committed_id
            log.maintain()
        log.close()
    assert len(losses) > 30
    assert len({count for _, count in losses}) > 20
    for number, (image, count) in enumerate(losses):
        directory = tmp_path / str(number)
        restore(image, directory, chance)
        with closing(SqliteLog.open(directory)) as log:
            assert_sound(directory, count)
            append(log, [["p"]])


@pytest.mark.req("DUR-02", "ORD-05")
def test_power_loss_while_events_leave_and_space_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_wal, "PASS_FRAMES", 120)
    monkeypatch.setattr(sqlite_wal, "TAIL_FRAMES", 20)
    monkeypatch.setattr(sqlite_maintenance, "RECLAIM_PAGES", 5)
    monkeypatch.setattr(event_ids, "WAITING_MIN", 16)
    monkeypatch.setattr(event_ids, "WAITING_MAX", 16)
    monkeypatch.setattr(recent_partitions, "WAITING_MAX", 16)
    chance = random.Random(6)
    losses: list[tuple[dict[str, FileImage], tuple[int, int]]] = []
    reached = (0, 0)
    with simulated_disk(tmp_path) as disk:
        log = SqliteLog.open(tmp_path / "data")
        log.set_archive("file:///lake")

        def maybe(operation: str, name: str) -> None:
            likely = {"write": 0.01, "sync": 0.05, "truncate": 0.5}[operation] * (
                4 if name == "log.db" else 1
            )
            if len(losses) < 40 and chance.random() < likely:
                before = reached
                losses.append((disk.image(), before))

        disk.fault = maybe
        for _ in range(60):
            head = append(log, [["p", "q"], [f"r{chance.randrange(40)}"]] * 4)[-1].committed_id
            reached = (head, reached[1])
            log.prune_batch(head - 20, limit=chance.randint(1, 20))
            reached = (head, log.extent().pruned_to)
            log.erase([Tombstone(chance.randint(1, head), tombstone(5))])
            log.reclaim()
            log.maintain()
        log.close()
    assert len({before for _, before in losses}) > 15
    for number, (image, (head, pruned_to)) in enumerate(losses):
        directory = tmp_path / str(number)
        restore(image, directory, chance)
        with closing(SqliteLog.open(directory)) as log:
            assert_sound(directory, head)
            held = log.extent()
            assert held.pruned_to >= pruned_to
            ids = [f"id-{n}" for n in range(1, held.head + 1)]
            assert set(log.begin(ids).known) == set(ids)
            log.abandon()
            append(log, [["p"]])


@pytest.mark.req("DUR-02")
def test_commit_returns_after_the_sync_of_everything_it_wrote(tmp_path: Path) -> None:
    with simulated_disk(tmp_path) as disk, closing(SqliteLog.open(tmp_path)) as log:
        for _ in range(5):
            append(log, [["p"], ["q"]])
            assert disk.files[tmp_path / "log.db-wal"].unsynced == []


@pytest.mark.req("DUR-02", "DUR-03")
def test_what_recovery_finds_is_synced_before_anything_rests_on_it(tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path / "old")) as log:
        append(log, [["p"]])
        # As a killed predecessor leaves it: readable, but perhaps only in the kernel's cache.
        new = tmp_path / "new"
        new.mkdir()
        for name in ("log.db", "log.db-wal"):
            copy = subprocess.run(["cp", str(tmp_path / "old" / name), str(new)])
            assert copy.returncode == 0
    with simulated_disk(tmp_path) as disk:
        for name in ("log.db", "log.db-wal"):
            disk.forget_sync(new / name)
        with closing(SqliteLog.open(new)) as log:
            assert log.head() == 1
            restore(disk.image(), tmp_path / "after", random.Random(1))
    assert assert_sound(tmp_path / "after", 1) == 1


@pytest.mark.req("DUR-04")
def test_a_full_disk_is_the_end_of_the_log_and_harms_nothing(tmp_path: Path) -> None:
    process = start("full", tmp_path)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err.decode()
    result = json.loads(out)
    assert len(result["said"]) == 5
    assert all("the log is closed for all further work" in text for text in result["said"])
    assert assert_sound(tmp_path, 0) == result["acknowledged"]
    with closing(SqliteLog.open(tmp_path)) as log:
        assert append(log, [["p"]])[0].committed_id == result["acknowledged"] + 1


def fail_at(disk: SimulatedDisk, operation: str, name: str) -> None:
    """The next such operation fails, once, as a disk that recovers would."""

    def fault(what: str, where: str) -> None:
        if (what, where) == (operation, name):
            disk.fault = no_fault
            raise apsw.IOError("disk I/O error (made)")

    disk.fault = fault


@pytest.mark.req("DUR-04")
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_after_a_failed_write_or_sync_the_log_refuses_work(tmp_path: Path, operation: str) -> None:
    with simulated_disk(tmp_path) as disk:
        log = SqliteLog.open(tmp_path / "data")
        append_many(log, 10)
        fail_at(disk, operation, "log.db-wal")
        with pytest.raises(StorageError, match="committing a group failed"):
            append(log, [["p"], ["p"]])
        for _ in range(2):
            with pytest.raises(StorageError, match="is closed for all further work"):
                append(log, [["p"]])
        image = disk.image()
        log.close()
    # All of the failed group or none of it, whether the machine stayed up or not.
    restore(image, tmp_path / "power", random.Random(2))
    for directory in (tmp_path / "data", tmp_path / "power"):
        with closing(SqliteLog.open(directory)) as log:
            assert assert_sound(directory, 10) in (10, 12)
            assert len(log.scan(0, 100, limit=100)) == log.head()


@pytest.mark.req("DUR-04")
def test_readers_never_see_a_group_whose_commit_failed(tmp_path: Path) -> None:
    with simulated_disk(tmp_path) as disk:
        log = SqliteLog.open(tmp_path)
        append_many(log, 10)
        fail_at(disk, "sync", "log.db-wal")
        with pytest.raises(StorageError):
            append(log, [["p"]])
        seen = subprocess.run(
            [sys.executable, "-c", READ_HEAD, str(tmp_path)], capture_output=True, text=True, env=os.environ
        )
        log.close()
    assert seen.stdout == "10\n", seen.stderr


READ_HEAD = """
import pathlib, sys
from unisono.store.sqlite.log import SqliteReader
print(SqliteReader.open(pathlib.Path(sys.argv[1])).head())
"""


@pytest.mark.req("DUR-04")
def test_a_failed_checkpoint_is_the_end_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_wal, "PASS_FRAMES", 50)
    monkeypatch.setattr(sqlite_wal, "TAIL_FRAMES", 5)
    acknowledged = 0
    with simulated_disk(tmp_path) as disk:
        log = SqliteLog.open(tmp_path)
        fail_at(disk, "write", "log.db")
        with pytest.raises(StorageError, match="checkpointing failed"):  # noqa: PT012 - when is up to the thread
            for _ in range(2_000):
                acknowledged = append(log, [["p"]])[-1].committed_id
                log.maintain()
        with pytest.raises(StorageError):
            log.begin([])
        log.close()
    assert assert_sound(tmp_path, acknowledged) == acknowledged


def test_a_damaged_file_is_a_storage_error_for_readers(tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 2_000)
    with (tmp_path / "log.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 20)
    with closing(SqliteReader.open(tmp_path)) as reader, pytest.raises(StorageError):
        reader.page(["p"], 0, 2_000, limit=1_000, bytes_max=1 << 30)
