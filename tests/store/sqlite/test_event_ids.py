"""Ids are found in the log wherever they are: waiting in memory, in the table, or remembered after pruning."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.store.records import LAKE, append_many, known, make_record
from tests.store.sqlite.old_logs import make_version_1
from unisono.store.bulk_load import SqliteIds
from unisono.store.check import check_directory
from unisono.store.sqlite import event_ids, waiting_rows
from unisono.store.sqlite import log as sqlite_log
from unisono.store.sqlite.event_ids import id_keys
from unisono.store.sqlite.log import SqliteLog


def rows_in_table(directory: Path) -> int:
    with closing(apsw.Connection(str(directory / "log.db"))) as connection:
        return int(connection.execute("SELECT count(*) FROM event_ids").get)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the index of ids small enough that a short log uses all of it."""

    def shrink(waiting: int) -> None:
        monkeypatch.setattr(event_ids, "WAITING_MIN", waiting)
        monkeypatch.setattr(event_ids, "WAITING_MAX", waiting)
        monkeypatch.setattr(event_ids, "READER_WAITING_MAX", 3 * waiting)
        monkeypatch.setattr(waiting_rows, "ROWS_MIN", 3)
        monkeypatch.setattr(event_ids, "READ_ROWS", 7)

    return shrink


@pytest.mark.req("ORD-03", "ORD-05", "DUR-01")
@pytest.mark.parametrize("key_bits", [64, 4, 0])
@pytest.mark.parametrize("seed", range(3))
def test_every_id_is_found_through_any_history(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small: Callable[[int], None],
    key_bits: int,
    seed: int,
) -> None:
    """With groups of all sizes, pruning, reopening, and keys that many ids share."""
    small(20)

    def short_keys(ids: Sequence[str]) -> tuple[int, ...]:
        return tuple(key >> (64 - key_bits) << (64 - key_bits) if key_bits else 0 for key in id_keys(ids))

    for module in (event_ids, sqlite_log):
        monkeypatch.setattr(module, "id_keys", short_keys)
    source = random.Random(f"{seed}/{key_bits}")
    expected: dict[str, int] = {}
    log = SqliteLog.open(tmp_path)
    log.set_archive(LAKE)
    reader = SqliteIds(tmp_path)
    for _ in range(150):
        chance = source.random()
        if chance < 0.06:
            log.close()
            log = SqliteLog.open(tmp_path)
        elif chance < 0.12:
            log.prune_batch(len(expected) - source.randint(0, 60), limit=50)
        else:
            ids = [f"{source.random()}" for _ in range(source.choice((1, 1, 2, 5, 40)))]
            head = log.begin(ids).head
            log.commit([make_record(head + n, id=id) for n, id in enumerate(ids, 1)])
            expected |= {id: head + n for n, id in enumerate(ids, 1)}
        asked = source.sample(list(expected), min(30, len(expected)))
        wanted = {id: expected[id] for id in asked}
        assert known(log, *asked, "unknown") == wanted
        found = reader.known([*asked, "unknown"])
        assert {id: what.committed_id for id, what in found.items()} == wanted
    assert known(log, *expected) == expected
    reader.close()
    log.close()
    assert rows_in_table(tmp_path) > 0
    report = check_directory(tmp_path)
    assert report.ok, report.text()


def test_no_group_writes_many_more_rows_than_it_has_events(
    tmp_path: Path, small: Callable[[int], None]
) -> None:
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 2_000)
    assert rows_in_table(tmp_path) == 0
    small(20)
    written = []
    with closing(SqliteLog.open(tmp_path)) as log:
        for _ in range(10):
            append_many(log, 5)
            written.append(rows_in_table(tmp_path))
    assert written[0] > 0
    assert max(b - a for a, b in zip([0, *written], written, strict=False)) <= 2 * 5 + 3 + 30


def test_rows_that_a_killed_process_wrote_are_not_in_the_way(
    tmp_path: Path, small: Callable[[int], None]
) -> None:
    """The table may be further than `ids_indexed_to` says."""
    small(20)
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 300, group=30)
    with closing(apsw.Connection(str(tmp_path / "log.db"))) as connection:
        connection.execute("UPDATE head SET ids_indexed_to = 0")
    with closing(SqliteLog.open(tmp_path)) as log:
        append_many(log, 700, group=30)
        assert known(log, "id-1", "id-300", "id-1000") == {"id-1": 1, "id-300": 300, "id-1000": 1000}
    assert check_directory(tmp_path).ok


def test_a_log_of_the_first_version_gets_its_index(tmp_path: Path) -> None:
    records = make_version_1(tmp_path)
    with closing(SqliteLog.open(tmp_path)) as log:
        assert known(log, *(r.id for r in records)) == {r.id: r.committed_id for r in records}
    assert rows_in_table(tmp_path) == len(records)
    assert check_directory(tmp_path).ok
