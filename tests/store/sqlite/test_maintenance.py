"""What leaves the embedded log, what is erased in it, and the space it gives back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.store.page_contract import NO_LIMIT
from tests.store.records import LAKE, append, append_many, known, make_record
from tests.store.sqlite.old_logs import make_version_1
from tests.waiting import until
from unisono.store.check import check_directory
from unisono.store.cluster import ModelBundle, ModelRefused
from unisono.store.maintenance import MaintenanceRefused
from unisono.store.port import LogExtent, Pruned, Snapshot, StorageError
from unisono.store.sqlite import maintenance as sqlite_maintenance
from unisono.store.sqlite.log import SqliteLog, SqliteReader

ROOT = Path(__file__).parents[3]
# Pruning


@pytest.mark.req("DUR-05")
def test_nothing_leaves_before_an_archive_is_named(log: SqliteLog) -> None:
    append(log, [["p"]] * 3)
    assert log.extent() == LogExtent(0, 3)
    with pytest.raises(MaintenanceRefused, match="no archive is set"):
        log.prune_batch(3)
    with pytest.raises(MaintenanceRefused, match="needs a location"):
        log.set_archive(" ")
    assert log.extent() == LogExtent(0, 3)
    log.set_archive(LAKE)
    assert log.prune_batch(2) == 2
    assert log.extent() == LogExtent(2, 3, LAKE)
    assert append(log, [["p"]])[0].committed_id == 4  # what was refused did no harm


@pytest.mark.req("DUR-05", "ORD-01")
def test_the_oldest_leave_first_and_never_more_than_asked(log: SqliteLog) -> None:
    append_many(log, 100, ("p", "q"))
    log.set_archive(LAKE)
    assert [log.prune_batch(60, limit=25) for _ in range(4)] == [25, 25, 10, 0]
    assert log.prune_batch(50) == 0
    assert [r.committed_id for r in log.scan(60, 200, limit=200)] == list(range(61, 101))
    assert [r.committed_id for r in log.page(["q"], 60, 200, **NO_LIMIT).records] == list(range(61, 101))
    assert log.prune_batch(10**6) == 40  # not past the head
    assert log.extent() == LogExtent(100, 100, LAKE)
    assert append(log, [["p"]])[0].committed_id == 101


def test_a_step_is_bounded_in_bytes(log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_maintenance, "PRUNE_BYTES_MAX", 2_500)
    monkeypatch.setattr(sqlite_maintenance, "PRUNE_EVENT_BYTES", 5)  # so that 500 events have as many
    log.begin([])
    log.commit([make_record(n, event=b'"%b"' % (b"x" * 998)) for n in range(1, 6)])
    log.set_archive(LAKE)
    assert [log.prune_batch(5) for _ in range(4)] == [2, 2, 1, 0]
    log.begin([])
    log.commit([make_record(6, event=b'"%b"' % (b"x" * 5_000))])
    assert log.prune_batch(6) == 1, "one that is larger than the bound goes alone"


@pytest.mark.req("DUR-06")
def test_whoever_asks_for_what_has_left_is_told(log: SqliteLog, tmp_path: Path) -> None:
    append(log, [["p"], ["q"], ["p", "r"], ["q"], ["r"], ["p"]])
    log.set_archive(LAKE)
    log.prune_batch(3)
    with closing(SqliteReader.open(tmp_path)) as reader:
        for source in (log, reader):
            for since in (0, 2):
                with pytest.raises(Pruned) as told:
                    source.scan(since, 6, limit=10)
                assert told.value.upto == 3
            assert [r.committed_id for r in source.scan(3, 6, limit=10)] == [4, 5, 6]
            assert source.scan(2, 2, limit=10) == []
            for names in (["p"], ["r"], ["q", "p"], ["new", "r"]):
                for _ in range(2):  # by numbers looked up, and by numbers remembered
                    with pytest.raises(Pruned):
                        source.page(names, 0, 6, **NO_LIMIT)
            # Of q nothing after 2 has left, of a new partition nothing at all.
            assert [r.committed_id for r in source.page(["q"], 2, 6, **NO_LIMIT).records] == [4]
            assert not source.page(["new"], 0, 6, **NO_LIMIT).records
            with pytest.raises(Pruned):
                source.page([*(f"n{n}" for n in range(600)), "p"], 0, 6, **NO_LIMIT)


@pytest.mark.req("DUR-06", "SYNC-01")
def test_a_read_that_races_with_pruning_never_has_a_hole(log: SqliteLog, tmp_path: Path) -> None:
    append_many(log, 3_000)
    log.set_archive(LAKE)
    stop = threading.Event()
    wrong: list[list[int]] = []
    answers = {"whole": 0, "pruned": 0}

    def read(by_page: bool) -> None:
        with closing(SqliteReader.open(tmp_path)) as reader:
            since = 0
            while not stop.is_set():
                try:
                    records = (
                        reader.page(["p"], since, 3_000, limit=100, bytes_max=1 << 20).records
                        if by_page
                        else reader.scan(since, 3_000, limit=100)
                    )
                except Pruned as pruned:
                    answers["pruned"] += 1
                    since = pruned.upto
                    continue
                answers["whole"] += 1
                found = [record.committed_id for record in records]
                if found != list(range(since + 1, min(since + 100, 3_000) + 1)):
                    wrong.append(found)

    readers = [threading.Thread(target=read, args=(by_page,)) for by_page in (True, False)]
    for reader in readers:
        reader.start()
    steps = 0
    while log.prune_batch(2_500, limit=7):
        steps += 1
        if steps % 10 == 0:
            heard = dict(answers)
            until(lambda heard=heard: answers["whole"] > heard["whole"], "nobody reads")  # type: ignore[misc]
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert answers["pruned"] > 10
    assert answers["whole"] > 10


@pytest.mark.req("ORD-03", "ORD-04", "ORD-05")
def test_deduplication_knows_what_has_left(log: SqliteLog, tmp_path: Path) -> None:
    records = append(log, [["p"], ["q"], ["p"]])
    log.set_archive(LAKE)
    log.prune_batch(2)
    for _ in range(2):
        opening = log.begin([record.id for record in records] + ["never"])
        log.abandon()
        assert set(opening.known) == {record.id for record in records}
        for record in records:
            what = opening.known[record.id]
            assert (what.committed_id, what.hash, what.client_id, what.status_updated_at) == (
                record.committed_id,
                record.hash,
                record.client_id,
                record.status_updated_at,
            )
        log.close()
        log = SqliteLog.open(tmp_path)
    log.close()


def test_a_damaged_log_is_not_pruned_over(log: SqliteLog, tmp_path: Path) -> None:
    append_many(log, 20)
    log.set_archive(LAKE)
    with closing(apsw.Connection(str(tmp_path / "log.db"))) as connection:
        connection.execute("DELETE FROM events WHERE committed_id IN (1, 8)")
    with pytest.raises(MaintenanceRefused, match="event 1 is missing"):
        log.prune_batch(20)
    with closing(apsw.Connection(str(tmp_path / "log.db"))) as connection:
        connection.execute("UPDATE head SET pruned_to = 1")
    with pytest.raises(MaintenanceRefused, match="event 8 is missing"):
        log.prune_batch(20)
    assert log.prune_batch(7) == 6


def test_nothing_is_kept_within_a_group(log: SqliteLog) -> None:
    append_many(log, 3)
    log.set_archive(LAKE)
    log.begin([])
    for call in (
        lambda: log.prune_batch(3),
        lambda: log.set_archive("x"),
        lambda: log.erase([]),
        lambda: log.record_model(None),
        log.reclaim,
        log.rewrite,
    ):
        with pytest.raises(StorageError, match="a group is still open"):
            call()
    log.abandon()
    assert log.prune_batch(3) == 3


@pytest.mark.req("DUR-04")
def test_a_write_that_fails_ends_the_log(log: SqliteLog, tmp_path: Path) -> None:
    append_many(log, 10)
    log.set_archive(LAKE)
    with closing(apsw.Connection(str(tmp_path / "log.db"))) as connection:
        connection.execute(
            "CREATE TRIGGER no BEFORE UPDATE OF pruned_to ON head BEGIN SELECT RAISE(ABORT, 'made to fail'); END"
        )
    with pytest.raises(StorageError, match="pruning failed"):
        log.prune_batch(5)
    with pytest.raises(StorageError, match="is closed for all further work"):
        log.begin([])
    with closing(SqliteReader.open(tmp_path)) as reader:
        assert len(reader.scan(0, 10, limit=10)) == 10


@pytest.mark.req("DUR-02", "ORD-05")
def test_killed_while_events_leave(tmp_path: Path) -> None:
    """All of a step happened or nothing, wherever it was killed; the next process goes on."""
    chance = random.Random(8)
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 4_000, ("p", "q"), group=1_000)
        log.set_archive(LAKE)
    reached = 0
    for _ in range(10):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.appending", "prune", str(tmp_path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.03))
        process.send_signal(signal.SIGKILL)
        lines = [first, *process.stdout.readlines()]
        process.wait()
        process.stdout.close()
        told = [int(line) for line in lines if line.endswith(b"\n")]
        report = check_directory(tmp_path)
        assert report.ok, report.text()
        assert report.pruned_to >= told[-1] > reached
        reached = report.pruned_to
        if reached == 4_000:
            break
    with closing(SqliteLog.open(tmp_path)) as log:
        ids = chance.sample(range(1, 4_001), 500)
        assert known(log, *(f"id-{n}" for n in ids)) == {f"id-{n}": n for n in ids}


# Watermarks and models


@pytest.mark.req("DUR-07")
def test_watermarks_are_those_of_one_model_version(log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.store.sqlite.reader.WATERMARKS_READ_MAX", 2)
    append_many(log, 9)
    log.put_snapshots([Snapshot(f"s{n}", n, 1, b"x", 1) for n in range(1, 6)])
    log.put_snapshots([Snapshot("s1", 9, 2, b"x", 1)])
    assert dict(log.watermarks(1)) == {"s1": 1, "s2": 2, "s3": 3, "s4": 4, "s5": 5}
    assert dict(log.watermarks(2)) == {"s1": 9}
    assert dict(log.watermarks(3)) == {}


def test_the_model_in_force_is_noted(log: SqliteLog, tmp_path: Path) -> None:
    assert log.model_in_force() is None
    first = ModelBundle(3, "d3", {"model.toml": b"x", "rules.py": b"\0"})
    log.record_model(first)
    log.record_model(ModelBundle(4, "d4", {}))
    with closing(SqliteReader.open(tmp_path)) as reader:
        assert reader.model_in_force() == ModelBundle(4, "d4", {})
        log.record_model(first)  # a server may go back to an older one
        assert reader.model_in_force() == first
        changed = ModelBundle(3, "other", {"model.toml": b"y"})
        with pytest.raises(ModelRefused, match="raise model_version"):
            log.record_model(changed)
        assert reader.model_in_force() == first
        assert log.record_model(changed, replace=True) == "d3"
        assert reader.model_in_force() == changed
        log.record_model(None)
        assert reader.model_in_force() is None


def test_a_log_of_version_1_opens_and_works(tmp_path: Path) -> None:
    records = make_version_1(tmp_path)
    with closing(SqliteLog.open(tmp_path)) as log:
        assert log.extent() == LogExtent(0, 300)
        assert list(log.scan(0, 300, limit=300)) == records
        assert log.snapshot("p", 1) == Snapshot("p", 200, 1, b"\1\2", 5)
        assert log.snapshot("p", 1, "some digest") is None, "nobody knows which content of the model made it"
        assert dict(log.watermarks(1)) == {"p": 200}
        assert dict(log.watermarks(1, "some digest")) == {}
        append(log, [["p"], ["new"]])
        log.set_archive(LAKE)
        while log.prune_batch(250):
            pass
        assert known(log, "id-1", "id-250", "id-251", "id-302") == {
            "id-1": 1,
            "id-250": 250,
            "id-251": 251,
            "id-302": 302,
        }
        with pytest.raises(Pruned):
            log.page(["q"], 0, 302, **NO_LIMIT)
        while not log.reclaim().done:
            pass
        assert log.reclaim().free_pages > 0, "a file made before cannot shrink by steps"
        assert check_directory(tmp_path).ok
        size = (tmp_path / "log.db").stat().st_size
        log.rewrite()
        assert (tmp_path / "log.db").stat().st_size < size
        append_many(log, 500)
        log.prune_batch(800)
        assert log.reclaim().free_pages == 0 or not log.reclaim().done, "now it can"
    report = check_directory(tmp_path)
    assert report.ok, report.text()
    assert (report.head, report.pruned_to) == (802, 750)
    assert "SQLITE_TMPDIR" not in os.environ


@pytest.mark.req("DUR-06", "SYNC-01")
@pytest.mark.parametrize("upto", [40, 130])
def test_events_that_leave_between_two_pages_are_not_passed_over(
    log: SqliteLog, tmp_path: Path, upto: int
) -> None:
    """Their ids were found with the page before, or were about to be."""
    names = [f"n{number:02}" for number in range(30)]
    append(log, [[names[number % 30]] for number in range(300)])
    log.set_archive("/lake")
    reader = SqliteReader.open(tmp_path)
    with closing(reader):
        first = reader.page(names, 0, 300, limit=20, bytes_max=1 << 20)
        assert [each.committed_id for each in first.records] == [*range(1, 21)]
        while log.prune_batch(upto):
            pass
        with pytest.raises(Pruned):
            reader.page(names, 20, 300, limit=20, bytes_max=1 << 20)
        rest = reader.page(names, upto, 300, limit=500, bytes_max=1 << 20)
        assert [each.committed_id for each in rest.records] == [*range(upto + 1, 301)]
        # What has left does not count where histories start above it.
        snapshot_starts = dict.fromkeys(names, upto)
        assert (
            reader.page(names, 0, 300, limit=500, bytes_max=1 << 20, snapshot_starts=snapshot_starts) == rest
        )


@pytest.mark.req("EXT-22")
def test_a_page_backwards_ends_where_the_log_begins(log: SqliteLog) -> None:
    append(log, [["p"], ["q"], ["p"], ["r"], ["p"]])
    log.set_archive(LAKE)
    while log.prune_batch(3):
        pass
    page = log.newest_page("p", 9, limit=9, bytes_max=1 << 20)
    assert ([record.committed_id for record in page.records], page.has_more) == ([5], True)
    page = log.newest_page("r", 9, limit=9, bytes_max=1 << 20)
    assert ([record.committed_id for record in page.records], page.has_more) == ([4], False)
    for name in ("p", "q"):
        with pytest.raises(Pruned) as told:
            log.newest_page(name, 4, limit=9, bytes_max=1 << 20)
        assert told.value.upto == 3
