"""States that an erasure replaces while another run changes the lake's snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lake.lakes import HERE
from tests.pipeline.equality import require_replay
from tests.pipeline.outline import make_outlines, shipped_outline
from unisono.lake.lake import Lake
from unisono.lake.storage import SNAPSHOTS
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.erase.job import _refold
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot import drop
from unisono.pipeline.jobs.snapshot import job as snapshots
from unisono.pipeline.jobs.snapshot.frames import require_all_folded
from unisono.pipeline.jobs.snapshot.job import latest, snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.executors import run_on_executors
from unisono.store.port import Record

ERASED = "room-00001"
MODEL = shipped_outline()
STEPS = [pytest.param(drop, id="drop"), pytest.param(snapshots, id="fold")]


@pytest.fixture
def records(tmp_path: Path) -> list[Record]:
    return make_outlines(tmp_path / "data", 60, 5)


@pytest.fixture
def lake(tmp_path: Path, records: list[Record]) -> Lake:
    made = Lake.at(str(tmp_path / "lake"))
    made.make(buckets=2)
    export(HERE, sqlite_uri(tmp_path / "data"), made)
    snapshot(HERE, made, MODEL)
    return made


def once_beside(monkeypatch: pytest.MonkeyPatch, step: Any, act: Callable[[], Any]) -> None:
    """Something that happens while an executor first works on this step."""
    waiting = [act]

    def run(spark: Any, tasks: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
        done: list[Any] = run_on_executors(spark, tasks, work)
        while waiting:
            waiting.pop()()
        return done

    monkeypatch.setattr(step, "run_on_executors", run)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("removal", ["rebuild", "clear"])
def test_others_were_removed_meanwhile(
    lake: Lake, records: list[Record], monkeypatch: pytest.MonkeyPatch, step: Any, removal: str
) -> None:
    """A rebuild that has just begun, or a compaction of a rearranged table: only what was erased is folded."""

    def remove() -> None:
        if removal == "rebuild":
            snapshots._remove(lake, MODEL.version)
        else:
            lake.table(SNAPSHOTS).clear_snapshots({})

    once_beside(monkeypatch, step, remove)
    _refold(HERE, lake, MODEL, [ERASED])
    assert [row.partition for row in latest(lake, MODEL.version)] == [ERASED]
    with pytest.raises(PipelineError, match="are of some partitions only"):
        require_all_folded(lake.table(SNAPSHOTS), MODEL.version, lake.head())
    snapshot(HERE, lake, MODEL)
    require_replay(lake, MODEL, records)


@pytest.mark.parametrize("step", STEPS)
def test_others_were_only_added_meanwhile(
    lake: Lake, records: list[Record], monkeypatch: pytest.MonkeyPatch, step: Any
) -> None:
    """All partitions are folded up to where they were, and the next run starts there."""
    once_beside(monkeypatch, step, lambda: snapshot(HERE, lake, ShippedModel.open()))
    _refold(HERE, lake, MODEL, [ERASED])
    assert lake.table(SNAPSHOTS).folded_upto(MODEL.version) == lake.head()
    require_replay(lake, MODEL, records)
