from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from tests.pipeline.history import append, make_store
from unisono.pipeline.errors import NoSuchRange, NoSuchStore
from unisono.pipeline.open_log import (
    LogExtent,
    extent,
    normal_uri,
    open_reader,
    read_partitions,
    read_range,
    require_range,
    sqlite_uri,
)
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog


def prune(directory: Path, upto: int) -> None:
    """What retention leaves: the head stays, the rows go."""
    connection = apsw.Connection(str(directory / "log.db"))
    connection.execute(f"DELETE FROM events WHERE committed_id <= {upto}")
    connection.execute(f"DELETE FROM event_partitions WHERE committed_id <= {upto}")
    connection.execute(f"UPDATE head SET pruned_to = {upto}")
    connection.close()


def test_uris_mean_the_same_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    expected = f"sqlite:{tmp_path}/data"
    for text in ("data", "sqlite:data", f"sqlite://{tmp_path}/data", str(tmp_path / "data"), "./data/"):
        assert normal_uri(text) == expected
    for text in (f"/{tmp_path}/data", f"sqlite:////{tmp_path}/data", sqlite_uri(Path(f"/{tmp_path}/data"))):
        assert normal_uri(text) == expected, "two slashes at the start of a path mean one"
    with pytest.raises(NoSuchStore, match=r"use sqlite:/srv/x or sqlite:srv/x"):
        normal_uri("sqlite://srv/x")
    assert normal_uri("postgresql://h/db") == "postgresql://h/db"
    for text in ("mysql://user:secret@h/db", "sqlite:", "sqlite://", ""):
        with pytest.raises(NoSuchStore) as caught:
            normal_uri(text)
        assert "secret" not in str(caught.value)


def test_no_store_there(tmp_path: Path) -> None:
    with pytest.raises(NoSuchStore, match=r"holds no log .*is it the right directory"):
        open_reader(f"sqlite:{tmp_path}")


def test_every_record_once_in_order(store: str, records: list[Record]) -> None:
    reader = open_reader(store)
    assert extent(store) == LogExtent(0, len(records))
    for since, upto in ((0, 3000), (17, 18), (999, 2001), (5, 5)):
        seen = [record for some in read_range(reader, since, upto) for record in some]
        assert seen == records[since:upto]
    names = ("plain", "room-001")
    wanted = [record for record in records[10:2500] if set(names) & set(record.partitions)]
    assert [r for some in read_partitions(reader, names, 10, 2500) for r in some] == wanted
    reader.close()


def test_a_gap_is_an_error_not_a_shorter_answer(tmp_path: Path) -> None:
    make_store(tmp_path, 300)
    connection = apsw.Connection(str(tmp_path / "log.db"))
    connection.execute("DELETE FROM events WHERE committed_id IN (150, 300)")
    connection.close()
    reader = open_reader(str(tmp_path))
    with pytest.raises(NoSuchRange, match="event 150 is not in the log"):
        list(read_range(reader, 0, 300))
    with pytest.raises(NoSuchRange, match="event 300 is not in the log"):
        list(read_range(reader, 200, 300))
    assert sum(len(some) for some in read_range(reader, 150, 299)) == 149
    reader.close()


def test_ranges_that_are_not_there(tmp_path: Path) -> None:
    make_store(tmp_path, 300)
    prune(tmp_path, 100)
    uri = sqlite_uri(tmp_path)
    assert extent(uri) == LogExtent(100, 300)
    require_range(uri, 100, 300)
    require_range(uri, 50, 50)
    for since, upto, words in (
        (0, 301, "ends at 300"),
        (99, 200, "up to 100 have left"),
        (7, 3, "is not a range"),
    ):
        with pytest.raises(NoSuchRange, match=words):
            require_range(uri, since, upto)


def test_a_wholly_pruned_log_has_an_extent(tmp_path: Path) -> None:
    make_store(tmp_path, 30)
    prune(tmp_path, 30)
    assert extent(sqlite_uri(tmp_path)) == LogExtent(30, 30)


def test_reading_holds_nothing_that_the_writer_waits_for(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path)
    append(log, 3_000)
    reader = open_reader(str(tmp_path))
    reading = read_range(reader, 0, 3_000)
    first = next(reading)  # a reader that pauses here for as long as it likes
    append(log, 10)
    beside = apsw.Connection(str(tmp_path / "log.db"))
    beside.execute("SELECT 1 FROM head").fetchall()
    assert beside.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE) == (0, 0), "the WAL starts over"
    assert sum(len(some) for some in reading) + len(first) == 3_000
    beside.close()
    reader.close()
    log.close()
