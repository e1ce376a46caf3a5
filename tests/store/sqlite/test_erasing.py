"""Events erased from a log: their place and hash stay, their text is in no file, and space is given back."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from tests.store.records import LAKE, append, append_many, known, make_record
from unisono.protocol.canonical import canonical
from unisono.protocol.tombstones import tombstone
from unisono.store import maintenance
from unisono.store.check import check_directory
from unisono.store.maintenance import MaintenanceRefused, Tombstone
from unisono.store.port import Record, Snapshot
from unisono.store.sqlite import files as sqlite_files
from unisono.store.sqlite import maintenance as sqlite_maintenance
from unisono.store.sqlite.log import SqliteLog

STONE = tombstone(1_700_000_000_000)


def everything_in(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(directory.iterdir()))


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


@pytest.mark.req("AUTH-10")
def test_the_author_is_erased_with_the_text(tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path)) as log:
        log.begin([])
        log.commit([make_record(n, author=f'{{"user_id":"canary-{n}"}}') for n in range(1, 21)])
        log.erase([Tombstone(n, STONE) for n in range(1, 11)])
        while not log.reclaim().done:
            pass
        assert [record.author for record in log.scan(0, 12, limit=12)][8:] == [
            "", "", '{"user_id":"canary-11"}', '{"user_id":"canary-12"}',
        ]  # fmt: skip
        present = everything_in(tmp_path)
        assert [n for n in range(1, 21) if b'canary-%d"' % n in present] == list(range(11, 21))
    assert check_directory(tmp_path).ok


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
    chance = random.Random(8)
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
