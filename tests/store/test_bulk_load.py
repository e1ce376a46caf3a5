"""Bulk loading: a row that was judged with the time of its commit is stored with that time, or not at all."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.store.records import START_MS, append, make_record
from unisono.store.bulk_load import Loader, LogMovedOn, UnnumberedEvent
from unisono.store.port import CommitLog
from unisono.store.sqlite.log import SqliteLog


def row(number: int, time: int | None, committed_at: int | None) -> UnnumberedEvent:
    record = make_record(number)
    return UnnumberedEvent(
        record.id, record.client_id, record.partitions, record.event, record.hash, time, "", committed_at
    )


def loading(log: CommitLog) -> Loader:
    return Loader(log, base=1, rows=0, first_ms=1, now_ms=START_MS + 100, concerns=None)


def test_times_that_rows_were_judged_with(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path)
    (last,) = append(log, [["p"]])
    group = [row(2, 5, last.status_updated_at), row(3, None, START_MS + 60), row(4, START_MS + 70, None)]
    early = msgspec.structs.replace(group[1], committed_at=last.status_updated_at - 1)
    with pytest.raises(LogMovedOn, match=f"after {last.status_updated_at - 1}, the time of 'id-3'"):
        loading(log).add([group[0], early])
    assert log.head() == 1, "the group is not open any more, and nothing of it is stored"
    loader = loading(log)
    loader.add(group)
    stored = [record.status_updated_at for record in log.scan(1, 4, limit=3)]
    assert stored == [last.status_updated_at, START_MS + 60, START_MS + 70]
    assert loader.progress.moved_times == 1
    log.close()
