"""Reports on events of a megabyte: in bounded memory, and with the same figures as on small ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake.lakes import export_to
from tests.pipeline.jobs.report.by_hand import START_MS, store_of
from unisono.lake.lake import Lake
from unisono.pipeline.jobs.report import place_sums
from unisono.pipeline.jobs.report.job import report
from unisono.pipeline.jobs.report.tables import HistoryReport
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import Record
from unisono.vocabulary import Json


def test_only_sizes_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place_sums, "MEMORY_MAX", "40MB")
    large, small = made(tmp_path / "large", 1_000_000), made(tmp_path / "small", 1)
    assert large.totals.bytes > 120_000_000
    assert large.contests == small.contests
    assert large.contests.contested == 80


def made(place: Path, length: int) -> HistoryReport:
    """Three clients edit forty notes one after the other."""
    records = []
    for number in range(1, 121):
        data: Json = {"id": f"n{number % 40}", "text": "x" * length}
        event = canonical({"type": "event", "payload": {"schema": "note.edited", "data": data}})
        digest = content_hash(event, canonical(["p"]))
        client, at = f"c{number % 3}", START_MS + number
        records.append(Record(number, f"e{number}", client, ("p",), event, digest, at))
    lake = Lake.at(str(place / "lake"))
    export_to(lake, store_of(place / "data", records))
    return report(None, lake)
