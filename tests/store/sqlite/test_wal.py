"""The length of the embedded log's WAL: short under load, and longer only while a stranger holds it."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.store.records import append_many, make_record
from unisono.store.sqlite import files as sqlite_files
from unisono.store.sqlite import wal as sqlite_wal
from unisono.store.sqlite.log import SqliteLog, SqliteReader


@pytest.fixture
def short_wal(monkeypatch: pytest.MonkeyPatch) -> int:
    """The same rules at a sixteenth of the size; returns the cap in bytes."""
    for name in ("PASS_FRAMES", "TAIL_FRAMES", "CAP_FRAMES", "RETRY_FRAMES"):
        monkeypatch.setattr(sqlite_wal, name, getattr(sqlite_wal, name) // 16)
    return sqlite_wal.CAP_FRAMES * sqlite_files.PAGE_BYTES


GROUP_BYTES_MAX = 100 * 4096
"""More than any group of these tests adds to the WAL."""


@pytest.mark.req("DUR-01")
def test_the_wal_stays_short_under_load_with_readers(tmp_path: Path, short_wal: int) -> None:
    stop = threading.Event()
    body = b'{"x":"%b"}' % (b"y" * 2000)

    def read(reader: SqliteReader) -> None:
        while not stop.is_set():
            reader.page(["p"], 0, 1 << 40, limit=200, bytes_max=1 << 30)

    with closing(SqliteLog.open(tmp_path)) as log, closing(SqliteReader.open(tmp_path)) as reader:
        thread = threading.Thread(target=read, args=(reader,))
        thread.start()
        try:
            written = longest = 0
            while written < 4 * short_wal:
                head = log.begin([]).head
                log.commit([make_record(head + 1 + n, event=body) for n in range(20)])
                written += 20 * len(body)
                log.maintain()
                longest = max(longest, log.wal_bytes)
        finally:
            stop.set()
            thread.join()
    assert longest < short_wal + GROUP_BYTES_MAX


def test_a_stranger_who_holds_a_snapshot_delays_the_wal_but_not_the_log(
    tmp_path: Path, short_wal: int
) -> None:
    with (
        closing(SqliteLog.open(tmp_path)) as log,
        closing(apsw.Connection(str(tmp_path / "log.db"))) as stranger,
    ):
        append_many(log, 10)
        stranger.execute("BEGIN; SELECT * FROM head").fetchall()
        while log.wal_bytes < 2 * short_wal:
            append_many(log, 20, group=1)
        assert stranger.execute("SELECT committed_id FROM head").get == 10
        stranger.execute("ROLLBACK")
        while log.wal_bytes > 2 * short_wal // 3:
            append_many(log, 20, group=1)
        assert log.head() < 50_000


def test_close_joins_the_checkpoint_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    log = SqliteLog.open(tmp_path)
    (own,) = set(threading.enumerate()) - before
    log.close()
    assert not own.is_alive()
