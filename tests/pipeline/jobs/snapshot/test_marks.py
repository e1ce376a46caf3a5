"""Up to where a model version is folded, when another program removed its snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.lake.lakes import HERE
from tests.pipeline.equality import require_replay
from tests.pipeline.outline import make_outlines, shipped_outline
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.storage import SNAPSHOTS
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.compact.job import compact
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot.frames import require_all_folded
from unisono.pipeline.jobs.snapshot.job import folded_to, snapshot
from unisono.pipeline.lake_tables import states_reach
from unisono.pipeline.open_log import sqlite_uri


@pytest.mark.parametrize("way", ["fold", "some first", "rebuild"])
def test_what_was_removed_is_folded_from_the_first_event(lake: Lake, tmp_path: Path, way: str) -> None:
    records, store = make_outlines(tmp_path / "data", 60, 5), sqlite_uri(tmp_path / "data")
    model, other = shipped_outline(), ShippedModel.open()
    for upto in (30, 40):
        export(HERE, store, lake, to=upto)
        for each in (other, model):
            snapshot(HERE, lake, each)
    delta = DeltaTable(lake.storage.table(SNAPSHOTS))
    delta.delete(f"model_version = {model.version}")
    with pytest.raises(LakeUnusable, match="another program changed the table"):
        snapshot(HERE, lake, model)
    delta.optimize.z_order(["state"])
    compact(HERE, lake)
    assert [lake.table(SNAPSHOTS).folded_upto(each.version) for each in (other, model)] == [0, 0]
    assert folded_to(lake, model) == states_reach(lake)[0] == 0
    with pytest.raises(PipelineError, match="the lake has no snapshots of model version 1"):
        require_all_folded(lake.table(SNAPSHOTS), model.version, lake.head())
    if way == "some first":
        snapshot(HERE, lake, model, partitions=["room-00001"])
        with pytest.raises(PipelineError, match="are of some partitions only"):
            require_all_folded(lake.table(SNAPSHOTS), model.version, lake.head())
    export(HERE, store, lake)
    done = snapshot(HERE, lake, model, rebuild=way == "rebuild")
    assert (done.since, done.upto) == (0, 60)
    require_replay(lake, model, records)
    assert snapshot(HERE, lake, other).since == 0
    require_replay(lake, other, records)


def test_a_deletion_of_some_states_is_noticed(lake: Lake, tmp_path: Path) -> None:
    """Also when the other program has put what it left into new files."""
    records, store = make_outlines(tmp_path / "data", 60, 5), sqlite_uri(tmp_path / "data")
    model = shipped_outline()
    for upto in (30, 60):
        export(HERE, store, lake, to=upto)
        snapshot(HERE, lake, model)
    delta = DeltaTable(lake.storage.table(SNAPSHOTS))
    delta.delete("partition = 'room-00001'")
    delta.optimize.compact()
    with pytest.raises(LakeUnusable, match="another program"):
        snapshot(HERE, lake, model)
    compact(HERE, lake)
    assert snapshot(HERE, lake, model).since == 0
    require_replay(lake, model, records)
