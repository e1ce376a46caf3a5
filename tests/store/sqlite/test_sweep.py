"""The index of partitions, from which the rows of pruned events are removed later."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.store.page_contract import NO_LIMIT
from tests.store.records import LAKE, append, append_many, make_record
from unisono.store.check import check_directory
from unisono.store.port import Pruned
from unisono.store.sqlite import log as sqlite_log
from unisono.store.sqlite import maintenance as sqlite_maintenance
from unisono.store.sqlite.log import SqliteLog, SqliteReader


@pytest.mark.req("DUR-06", "SYNC-01")
@pytest.mark.parametrize("rows", [3, 7, 1_000])
def test_what_has_left_counts_before_and_after_its_index_rows_are_gone(
    log: SqliteLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Readers answer the same before, within and after a sweep, whose steps are bounded also in a long partition."""
    monkeypatch.setattr(sqlite_maintenance, "SWEEP_ROWS", rows)
    names = ["long", *(f"n{number}" for number in range(20)), "young"]
    append(log, [["long", names[1 + number % 20]] for number in range(60)])
    append(log, [["young"], ["n7", "young"], ["long"]])
    log.set_archive(LAKE)
    while log.prune_batch(58):
        pass
    assert _index_rows(tmp_path) == 2 * 60 + 4

    def answers(reader: SqliteReader) -> list[object]:
        found: list[object] = [reader.partition_size(name, 100) for name in names]
        for name in names:
            for since in (0, 45, 58):
                try:
                    found.append(reader.page([name], since, 63, **NO_LIMIT))
                except Pruned as pruned:
                    found.append(pruned.upto)
            found.append(reader.newest_ids(name, 63, 100))
            try:
                found.append(reader.newest_page(name, 63, limit=100, bytes_max=1 << 20))
            except Pruned as pruned:
                found.append(pruned.upto)
        return found

    with closing(SqliteReader.open(tmp_path)) as reader:
        before, steps = answers(reader), 0
        assert check_directory(tmp_path).ok
        while (progress := log.reclaim()).sweeping:
            assert answers(reader) == before
            assert _index_rows(tmp_path) >= 2 * 60 + 4 - (steps := steps + 1) * rows
            assert check_directory(tmp_path).ok
        assert not progress.sweeping
        assert (steps > 10) == (rows < 10)
    assert _index_rows(tmp_path) == 4 + 2 * 2
    assert not log.reclaim().sweeping, "nothing has left since"


def test_a_sweep_waits_until_it_is_worthwhile_and_goes_on_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_maintenance, "SWEEP_ROWS", 10)
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 1_000)
        log.set_archive(LAKE)
        log.prune_batch(100)
        assert not log.reclaim().sweeping
        log.prune_batch(200)
        assert log.reclaim().sweeping
        assert _index_rows(tmp_path) == 990
    with closing(SqliteLog.open(tmp_path)) as log:
        log.prune_batch(201)  # leaves during the sweep, and stays listed until the next
        while log.reclaim().sweeping:
            pass
        assert _index_rows(tmp_path) == 800
        with pytest.raises(Pruned):
            log.page(["p"], 200, 1_000, **NO_LIMIT)
        assert log.page(["p"], 201, 1_000, **NO_LIMIT).records[0].committed_id == 202
    assert check_directory(tmp_path).ok


def test_few_pages_are_free_however_much_leaves(
    log: SqliteLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite searches the list of free pages for each page that it returns."""
    monkeypatch.setattr(sqlite_maintenance, "FREE_PAGES_MAX", 50)
    monkeypatch.setattr(sqlite_maintenance, "SWEEP_ROWS", 200)
    text = b'"%b"' % (b"x" * 3_000)
    for _ in range(20):
        head = log.begin([]).head
        names = [(f"{number:05}" * 20,) for number in range(head + 1, head + 101)]
        log.commit([make_record(head + n, name, event=text) for n, name in enumerate(names, 1)])
        log.maintain()
    log.set_archive(LAKE)
    pages = _count(log, "page_count")
    while log.prune_batch(1_900, limit=50):
        assert _count(log, "freelist_count") <= 50 + 3 * 50, "what one step frees"
        append(log, [["p"]])
    assert _count(log, "page_count") < pages / 2
    assert check_directory(tmp_path).ok
    swept = False
    while not (progress := log.reclaim()).done:
        assert progress.free_pages <= 50 + 3 * 50
        swept |= progress.sweeping
    assert swept
    assert progress.free_pages == 0
    assert check_directory(tmp_path).ok


def test_pruning_alone_reads_no_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that prunes opens the log for each step, and up to 131,072 ids may wait for their row."""
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 100)
        log.set_archive(LAKE)
    with monkeypatch.context() as patch:
        patch.delattr(sqlite_log, "EventIdWriter")
        for upto in (60, 100):  # also of events whose rows in the index of partitions wait
            with closing(SqliteLog.open(tmp_path, for_groups=False)) as log:
                assert log.prune_batch(upto, limit=100) > 0
                assert _index_rows(tmp_path) == 100
    assert check_directory(tmp_path).ok
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 10)
        assert log.head() == 110
        while not log.reclaim().done:
            pass
    assert check_directory(tmp_path).ok


def _index_rows(directory: Path) -> int:
    with closing(apsw.Connection(str(directory / "log.db"))) as connection:
        return int(connection.execute("SELECT count(*) FROM event_partitions").get)


def _count(log: SqliteLog, pages: str) -> int:
    return int(log._connection.pragma(pages))
