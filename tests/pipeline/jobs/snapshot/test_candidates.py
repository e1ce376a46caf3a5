"""A long fold by one model beside short folds by another, as of a candidate beside `unisono lake run`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lake.lakes import HERE
from tests.pipeline.equality import require_replay
from tests.pipeline.outline import make_outlines, shipped_outline
from unisono.lake.errors import CommitConflict
from unisono.lake.lake import Lake
from unisono.lake.storage import SNAPSHOTS
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.erase.snapshots import drop_states
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot import job as snapshots
from unisono.pipeline.jobs.snapshot.job import latest, snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.executors import run_on_executors

EVENTS = 1_000


class Beside:
    """Something that happens each time while a wave of one model is folded, after its states were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: ShippedModel, act: Callable[[], Any]) -> None:
        self.waves = 0
        self._run = run_on_executors
        self._model, self._act = model, act
        monkeypatch.setattr(snapshots, "run_on_executors", self)
        monkeypatch.setattr(snapshots, "WAVE_ROWS_PER_CORE", 300)
        monkeypatch.setattr("unisono.pipeline.task_planning.FEW_EVENTS", 100)

    def __call__(self, spark: Any, tasks: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
        done: list[Any] = self._run(spark, tasks, work)
        if tasks[0].model == self._model:
            self.waves += 1
            self._act()
        return done


def test_a_candidate_is_folded_while_the_model_in_force_is(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, store = make_outlines(tmp_path / "data", EVENTS, 25), sqlite_uri(tmp_path / "data")
    model, candidate = ShippedModel.open(), shipped_outline()
    export(HERE, store, lake, to=800)
    heads = itertools.count(801)

    def cycle() -> None:
        """Of the service: there is always something new."""
        export(HERE, store, lake, to=next(heads))
        snapshot(HERE, lake, model)

    beside = Beside(monkeypatch, candidate, cycle)
    done = snapshot(HERE, lake, candidate)
    assert beside.waves == 2, "no wave is folded again"
    assert (done.upto, done.partitions) == (800, 25)
    assert done.events == sum(len(record.partitions) for record in records[:800])
    assert lake.table(SNAPSHOTS).folded_upto(candidate.version) == 800
    assert lake.table(SNAPSHOTS).folded_upto(model.version) == 802
    require_replay(lake, candidate, records[:800])
    assert len(list(latest(lake, model.version))) == 25


def test_states_that_an_erasure_has_overtaken_are_not_committed(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the erasure had no states of this model to drop."""
    make_outlines(tmp_path / "data", EVENTS, 25)
    export(HERE, sqlite_uri(tmp_path / "data"), lake)
    snapshot(HERE, lake, ShippedModel.open())
    beside = Beside(monkeypatch, shipped_outline(), lambda: drop_states(HERE, lake, ["room-00001", "nobody"]))
    with pytest.raises(CommitConflict):
        snapshot(HERE, lake, shipped_outline())
    assert beside.waves > 20, "it was tried again each time"
    assert not list(latest(lake, shipped_outline().version))
