"""What leaves the embedded log, what is erased in it, and the space it gives back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.store.contract import NO_LIMIT
from tests.store.records import append, append_many, make_record
from tests.waiting import until
from unisono.protocol.canonical import canonical
from unisono.protocol.tombstones import tombstone
from unisono.store import maintenance
from unisono.store.check import check_directory
from unisono.store.cluster import ModelBundle, ModelRefused
from unisono.store.maintenance import MaintenanceRefused, Tombstone
from unisono.store.port import LogExtent, Pruned, Record, Snapshot, StorageError
from unisono.store.sqlite import files as sqlite_files
from unisono.store.sqlite import maintenance as sqlite_maintenance
from unisono.store.sqlite.log import SqliteLog, SqliteReader
from unisono.store.statements import load_migrations

ROOT = Path(__file__).parents[3]
LAKE = "file:///lake"
STONE = tombstone(1_700_000_000_000)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    with closing(SqliteLog.open(tmp_path)) as log:
        yield log


def known(log: SqliteLog, *ids: str) -> dict[str, int]:
    found = {id: what.committed_id for id, what in log.begin(ids).known.items()}
    log.abandon()
    return found


def everything_in(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(directory.iterdir()))


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
    assert log.watermarks(1) == {"s1": 1, "s2": 2, "s3": 3, "s4": 4, "s5": 5}
    assert log.watermarks(2) == {"s1": 9}
    assert log.watermarks(3) == {}


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


# Erasing


def test_an_erased_event_keeps_its_place_and_its_hash(log: SqliteLog, tmp_path: Path) -> None:
    records = append(log, [["p"], ["q"], ["p", "r"], ["s"]])
    log.put_snapshots([Snapshot(name, 4, version, b"x", 1) for name in "pqrs" for version in (1, 2)])
    done = log.erase([Tombstone(3, STONE)], ["s", "unknown"])
    assert (done.events, sorted(done.partitions), done.erasures) == (1, ["p", "r", "s", "unknown"], 1)
    assert log.scan(2, 3, limit=1) == [
        Record(3, records[2].id, "client", ("p", "r"), STONE, records[2].hash, records[2].status_updated_at)
    ]
    assert known(log, records[2].id) == {records[2].id: 3}
    assert [log.snapshot(name, version) is not None for name in "pqrs" for version in (1, 2)] == [
        *(False, False),
        *(True, True),
        *(False, False),
        *(False, False),
    ]
    assert check_directory(tmp_path).ok
    again = log.erase([Tombstone(3, tombstone(5))])
    assert (again.events, again.erasures) == (0, 2)
    assert log.scan(2, 3, limit=1)[0].event == STONE, "the first erasure is the one that counts"


def test_what_cannot_be_erased(log: SqliteLog) -> None:
    append(log, [["p"]] * 5)
    log.set_archive(LAKE)
    log.prune_batch(2)
    assert log.erase([Tombstone(1, STONE), Tombstone(4, STONE)]).events == 1, "what has left is not here"
    for wrong, words in (
        ([Tombstone(6, STONE)], "there is no event 6"),
        ([Tombstone(0, STONE)], "there is no event 0"),
        ([Tombstone(3, b'{"type":"other"}')], "is no tombstone"),
        ([Tombstone(3, STONE)] * (maintenance.ERASE_EVENTS_MAX + 1), "too many"),
    ):
        with pytest.raises(MaintenanceRefused, match=words):
            log.erase(wrong)
    assert log.erasures() == 1
    assert log.scan(2, 3, limit=1)[0].event != STONE


def canary(n: int) -> bytes:
    return b"CANARY-%06d-" % n


def append_canaries(log: SqliteLog, chance: random.Random, count: int) -> None:
    head = log.begin([]).head
    records = []
    for n in range(head + 1, head + 1 + count):
        size = chance.choice([5, 60, 200, 900, 2_500, 9_000])
        event = canonical({"payload": {"text": canary(n).decode() + "y" * size}, "type": "note"})
        records.append(make_record(n, (f"room-{chance.randrange(12)}",), event=event))
    log.commit(records)
    for record in records[::5]:
        state = record.event * chance.randint(1, 4)
        log.put_snapshots([Snapshot(record.partitions[0], record.committed_id, 1, state, 1)])


def test_erased_text_is_in_no_file_after_reclaiming(tmp_path: Path) -> None:
    chance = random.Random(4)
    gone: set[int] = set()
    with closing(SqliteLog.open(tmp_path)) as log:
        log.set_archive(LAKE)
        for _ in range(8):
            append_canaries(log, chance, 100)
        for _ in range(12):
            pruned_to = log.extent().pruned_to
            chosen = chance.sample(range(pruned_to + 1, 801), 25)
            gone.update(chosen)
            log.erase([Tombstone(n, STONE) for n in chosen], [f"room-{n}" for n in range(12)])
            log.prune_batch(800, limit=chance.randint(1, 30))
        gone.update(range(1, log.extent().pruned_to + 1))
        assert any(canary(n) in everything_in(tmp_path) for n in gone), "the WAL still has it"
        while not log.reclaim().done:
            pass
        present = everything_in(tmp_path)
        assert not [n for n in gone if canary(n) in present]
        assert all(canary(n) in present for n in range(1, 801) if n not in gone)
        assert not log.reclaim().unclean
    report = check_directory(tmp_path)
    assert report.ok, report.text()


@pytest.mark.parametrize("length", ["short", "long"])
def test_copies_that_sqlite_left_where_rows_stood_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    """By this seed rows move before they are erased, and leave copies in pages that stay in use."""
    if length == "long":
        monkeypatch.setattr(sqlite_maintenance, "REWRITE_BYTES_MAX", 0)
    chance = random.Random(43)
    gone: set[int] = set()
    with closing(SqliteLog.open(tmp_path)) as log:
        log.set_archive(LAKE)
        for head in (0, 40, 80, 120):
            log.begin([])
            log.commit([make_canary(n, chance.randrange(600)) for n in range(head + 1, head + 41)])
            chosen = [n for n in range(1, head + 41) if chance.random() < 0.3]
            gone.update(chosen)
            log.erase([Tombstone(n, STONE) for n in chosen])
            upto = chance.randrange(head + 41)
            while log.prune_batch(upto):
                pass
        gone.update(range(1, log.extent().pruned_to + 1))
        while not (left := log.reclaim()).done:
            pass
        assert left.unclean == (length == "long")
        if left.unclean:
            assert any(canary(n) in everything_in(tmp_path) for n in gone), "or this test shows nothing"
            log.rewrite()
        present = everything_in(tmp_path)
        assert not [n for n in gone if canary(n) in present]
        assert not log.reclaim().unclean
    report = check_directory(tmp_path)
    assert report.ok, report.text()


def make_canary(committed_id: int, more: int) -> Record:
    text = canary(committed_id).decode() + "y" * more
    event = canonical({"payload": {"text": text}, "type": "note"})
    return make_record(committed_id, ("room",), event=event)


# Space


def test_a_new_log_gives_space_back_step_by_step(log: SqliteLog, tmp_path: Path) -> None:
    for _ in range(30):
        head = log.begin([]).head
        log.commit([make_record(head + n, event=b'"%b"' % (b"x" * 3_000)) for n in range(1, 101)])
        log.maintain()
    while not log.reclaim().done:
        pass
    full = (tmp_path / "log.db").stat().st_size
    assert (tmp_path / "log.db-wal").stat().st_size == 0
    log.set_archive(LAKE)
    while log.prune_batch(2_900):
        log.maintain()
    steps = 1
    free = log.reclaim().free_pages
    assert free > 1_000
    while not (left := log.reclaim()).done:
        assert left.free_pages >= free - 2 * sqlite_maintenance.RECLAIM_PAGES, "never all at once"
        free, steps = left.free_pages, steps + 1
        append(log, [["p"]])  # commits go on between two steps
    assert steps > 10
    assert (tmp_path / "log.db").stat().st_size < full / 5
    assert (tmp_path / "log.db-wal").stat().st_size == 0
    assert check_directory(tmp_path).ok


def test_a_reader_in_the_wal_only_delays(log: SqliteLog, tmp_path: Path) -> None:
    append_many(log, 10)
    with closing(sqlite_files.connect_reader(tmp_path)) as reader:
        reader.execute("BEGIN; SELECT * FROM head")
        append_many(log, 10)
        assert not log.reclaim().done
        append_many(log, 10)
        reader.execute("COMMIT")
    while not log.reclaim().done:
        pass
    assert (tmp_path / "log.db-wal").stat().st_size == 0
    append_many(log, 10)
    assert log.head() == 40


# A log of the version before


def make_version_1(directory: Path) -> list[Record]:
    """A log with data as the first version made it."""
    directory.mkdir(exist_ok=True)
    first = load_migrations("sqlite")[0]
    records = [make_record(n, ("p", "q") if n % 2 else ("p",)) for n in range(1, 301)]
    with closing(apsw.Connection(str(directory / "log.db"))) as connection:
        connection.pragma("journal_mode", "wal")
        connection.execute("BEGIN")
        connection.execute(first.script)
        connection.pragma("application_id", sqlite_files.APPLICATION_ID)
        connection.pragma("user_version", 1)
        connection.execute("INSERT INTO partitions VALUES (1, 'p'), (2, 'q')")
        for r in records:
            names = canonical(list(r.partitions)).decode()
            row = (r.committed_id, r.id, r.client_id, r.status_updated_at, r.hash, names, r.event)
            connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            connection.executemany(
                "INSERT INTO event_partitions VALUES (?, ?)",
                [(1 + "pq".index(name), r.committed_id) for name in r.partitions],
            )
        connection.execute("INSERT INTO snapshots VALUES (1, 1, 200, 5, x'0102')")
        connection.execute(
            "UPDATE head SET committed_id = 300, status_updated_at = ?", (records[-1].status_updated_at,)
        )
        connection.execute("COMMIT")
    return records


def test_a_log_of_version_1_opens_and_works(tmp_path: Path) -> None:
    records = make_version_1(tmp_path)
    with closing(SqliteLog.open(tmp_path)) as log:
        assert log.extent() == LogExtent(0, 300)
        assert list(log.scan(0, 300, limit=300)) == records
        assert log.snapshot("p", 1) == Snapshot("p", 200, 1, b"\1\2", 5)
        assert log.snapshot("p", 1, "some digest") is None, "nobody knows which content of the model made it"
        assert log.watermarks(1) == {"p": 200}
        assert log.watermarks(1, "some digest") == {}
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
