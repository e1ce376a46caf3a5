"""The index of partitions, from which the rows of pruned events are removed later."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.store.page_contract import NO_LIMIT
from tests.store.records import LAKE, append, append_many
from unisono.store.check import check_directory
from unisono.store.port import Pruned
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


def _index_rows(directory: Path) -> int:
    with closing(apsw.Connection(str(directory / "log.db"))) as connection:
        return int(connection.execute("SELECT count(*) FROM event_partitions").get)
