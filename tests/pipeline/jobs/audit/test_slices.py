"""Large files of `log` are checked in slices, by several tasks: nothing else is found, and nothing twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from tests.lake.lakes import HERE, export_to, spreading
from tests.pipeline.corruptions import GROUPS
from tests.pipeline.history import make_store
from tests.pipeline.lake_corruptions import BUCKETS, HALF, SPREAD_TO
from tests.pipeline.planting import Planter
from unisono.lake import write
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.lake.write import DataFile
from unisono.pipeline.jobs.audit import job
from unisono.pipeline.jobs.audit.balance import DIVIDED_BYTES_MIN, LogSlice, Part, divide
from unisono.pipeline.jobs.audit.job import AuditOptions, audit
from unisono.pipeline.jobs.audit.read_file import readable
from unisono.pipeline.jobs.audit.result import AuditReport
from unisono.pipeline.jobs.compact.job import ROWS_PER_FILE, compact_table
from unisono.pipeline.open_log import sqlite_uri


@pytest.mark.parametrize("group", ["events", "files"])
def test_the_report_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str) -> None:
    """Of a sound lake, and of one with damage of many kinds."""
    monkeypatch.setattr(write, "GROUP_ROWS", 64)
    lake, data, planted = Lake.at(str(tmp_path / "lake")), tmp_path / "data", GROUPS[group]
    make_store(data, 3_000)
    lake.make(BUCKETS)
    export_to(lake, data, HALF, SPREAD_TO, events_per_file=600)
    with spreading():
        compact_table(HERE, lake, BY_PARTITION, ROWS_PER_FILE)
    export_to(lake, data, events_per_file=600)
    if group == "events":
        assert require_same(lake, sqlite_uri(data), monkeypatch).sound
    planter = Planter(lake)
    for plant in planted.cases.values():
        plant(planter, data)
    if group != "files":
        planter.commit()
    assert not require_same(lake, sqlite_uri(data) if planted.with_store else None, monkeypatch).sound


def require_same(lake: Lake, store: str | None, monkeypatch: pytest.MonkeyPatch) -> AuditReport:
    found = []
    for count in (1, 3):
        monkeypatch.setattr(job, "divide", lambda parts, _, count=count: in_slices(parts, count))
        found.append(audit(HERE, lake, store, AuditOptions(sample=0)))
    whole, sliced = map(comparable, found)
    assert sliced == whole
    return found[0]


def in_slices(parts: Sequence[Part], count: int) -> Iterator[Part]:
    for part in parts:
        if isinstance(part, DataFile) and part.table == LOG and count > 1:
            yield from (LogSlice(part, number, count) for number in range(count))
        else:
            yield part


def comparable(report: AuditReport) -> dict[str, Any]:
    """All but how long it took."""
    found: dict[str, Any] = msgspec.to_builtins(report)
    del found["seconds"]
    for step in found["checked"]:
        step.pop("seconds", None)
    return found


def test_row_groups_are_in_one_slice_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "GROUP_ROWS", 64)
    lake = Lake.at(str(tmp_path / "lake"))
    make_store(tmp_path / "data", 300)
    export_to(lake, tmp_path / "data")
    (file,) = lake.view().log_files
    assert pq.ParquetFile(lake.storage.uri(LOG, file.path)).num_row_groups == 5
    for count in (1, 2, 5, 7):
        found = [
            rows.column("committed_id").to_pylist()
            for number in range(count)
            for rows in readable(lake.storage, file, ["committed_id"], number, count)
        ]
        assert [id for ids in found for id in ids] == list(range(1, 301))


def test_what_would_keep_one_core_busy_is_divided(tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    make_store(tmp_path / "data", 30)
    export_to(lake, tmp_path / "data")
    (made,) = lake.view().log_files

    def parts(*sizes: int) -> list[DataFile]:
        return [msgspec.structs.replace(made, bytes=size) for size in sizes]

    large = 10 * DIVIDED_BYTES_MIN
    alone = parts(large)
    assert list(divide(alone, 1)) == alone
    slices = list(divide(alone, 4))
    assert slices == [LogSlice(alone[0], number, 10) for number in range(10)]
    assert list(divide(parts(DIVIDED_BYTES_MIN), 64)) == parts(DIVIDED_BYTES_MIN), "not worth it"
    many = parts(*[large] * 100)
    assert list(divide(many, 64)) == many, "there is one for each core"
    assert list(divide([], 4)) == []
