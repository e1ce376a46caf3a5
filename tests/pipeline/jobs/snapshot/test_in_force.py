"""Which model version the tables `states` and `items` show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.authority.models import write_model
from tests.commands import unisono
from tests.lake.lakes import HERE
from tests.pipeline.history import make_store
from unisono import pipeline
from unisono.lake.errors import LakeError
from unisono.lake.lake import Lake
from unisono.lake.storage import SNAPSHOTS
from unisono.model.load import load_model
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.compact.job import compact
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot.job import _remove
from unisono.pipeline.lake_tables import states_reach, table_rows
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.service.stages import ServiceOptions, stages
from unisono.pipeline.spark.lake_source import LakeTableRead
from unisono.store.cluster import ModelBundle
from unisono.store.sqlite.log import SqliteLog


def test_a_candidate_is_not_shown_until_it_is_in_force(lake: Lake, tmp_path: Path) -> None:
    data, store = tmp_path / "data", sqlite_uri(tmp_path / "data")
    make_store(data, 60)
    export(HERE, store, lake)
    models = [
        ShippedModel.of(load_model(write_model(tmp_path / f"model-{version}", version))) for version in (1, 2)
    ]
    for model in models:
        pipeline.make_snapshots(HERE, lake, model=model)
    assert _shown(lake) == {2}, "of versions that were never in force the highest"
    _put_in_force(data, models[0])
    pipeline.make_snapshots(HERE, lake, store=store, partitions="room-007")
    assert _shown(lake) == {2}, "one partition is not all"
    pipeline.make_snapshots(HERE, lake, store=store)
    assert _shown(lake) == {1}
    before = LakeTableRead.now(lake, "states", ("model_version",))
    pipeline.make_snapshots(HERE, lake, model=models[1])
    views = ["lake", "views", "--lake", lake.storage.location, "--delta", str(tmp_path / "copies")]
    assert unisono(*views).stdout.endswith("of events up to 60 by model version 1\n")

    _put_in_force(data, models[1])
    done = unisono("lake", "snapshot", "--data", str(data), "--lake", lake.storage.location)
    assert done.exit_code == 0, done.output
    assert _shown(lake) == {2}, "nothing was left to fold"
    reader = before.reader()
    rows = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert {version for batch in rows for version in batch.column(0).to_pylist()} == {1}, (
        "a view stays as it is"
    )


def test_without_the_snapshots_in_force_no_others_and_no_empty_table_are_shown(
    lake: Lake, tmp_path: Path
) -> None:
    data, store = tmp_path / "data", sqlite_uri(tmp_path / "data")
    make_store(data, 60)
    lake.make()
    assert table_rows(lake, "states").read_all().num_rows == 0, "there is nothing to fold"
    export(HERE, store, lake)
    models = [
        ShippedModel.of(load_model(write_model(tmp_path / f"model-{version}", version)))
        for version in (1, 2, 3)
    ]
    _refused(lake, models[0], "the lake has no snapshots")
    _put_in_force(data, models[0])
    pipeline.make_snapshots(HERE, lake, store=store)
    for model in models[1:]:
        pipeline.make_snapshots(HERE, lake, model=model)
    compact(HERE, lake)
    assert _shown(lake) == {1}, "a compaction drops older candidates, and not what is in force"
    _remove(lake, 1)  # as a fold from nothing begins
    _refused(lake, models[0], "no snapshots of model version 1")
    pipeline.make_snapshots(HERE, lake, model=models[0], partitions="room-007")
    _refused(lake, models[0], "of some partitions only", named=False)
    named = LakeTableRead.now(lake, "states", ("partition",), names=("room-007",)).reader()
    assert sum(batch.num_rows for part in named.partitions() for batch in named.read(part)) == 1


def test_a_model_of_another_log_is_not_taken(lake: Lake, tmp_path: Path) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    make_store(here, 60)
    make_store(other, 30, seed=9)
    model = ShippedModel.of(load_model(write_model(tmp_path / "model", 9)))
    _put_in_force(other, model)
    export(HERE, sqlite_uri(here), lake)
    fold = next(
        stage for stage in stages(HERE, sqlite_uri(other), lake, ServiceOptions()) if stage.name == "snapshot"
    )
    for work in (fold.work, lambda: pipeline.make_snapshots(HERE, lake, store=other)):
        with pytest.raises(LakeError, match="another log"):
            work()
    assert lake.find(SNAPSHOTS) is None


def test_the_service_records_the_model_in_force(lake: Lake, tmp_path: Path) -> None:
    data, store = tmp_path / "data", sqlite_uri(tmp_path / "data")
    make_store(data, 60)
    export(HERE, store, lake)
    models = [
        ShippedModel.of(load_model(write_model(tmp_path / f"model-{version}", version))) for version in (1, 2)
    ]
    fold = next(stage for stage in stages(HERE, store, lake, ServiceOptions()) if stage.name == "snapshot")
    for model in models:
        _put_in_force(data, model)
        fold.work()
        pipeline.make_snapshots(HERE, lake, model=models[1])
        assert _shown(lake) == {model.version}
        table = lake.find(SNAPSHOTS)
        fold.work()
        after = lake.find(SNAPSHOTS)
        assert table is not None
        assert after is not None
        assert after.version == table.version, "what is noted is not committed again"


def _shown(lake: Lake) -> set[int]:
    (found,) = {states_reach(lake)[1]}
    rows = table_rows(lake, "states").read_all()
    assert set(rows.column("model_version").to_pylist()) == {found}
    return {found}


def _refused(lake: Lake, model: ShippedModel, why: str, *, named: bool = True) -> None:
    """For all partitions, and for named ones."""
    for names in (None, ("room-007",)) if named else (None,):
        with pytest.raises(PipelineError, match=why):
            LakeTableRead.now(lake, "items", ("id",), names=names).reader().partitions()
    with pytest.raises(PipelineError, match=why):
        pipeline.snapshots(HERE, lake, model=model)


def _put_in_force(data: Path, model: ShippedModel) -> None:
    log = SqliteLog.open(data)
    log.record_model(ModelBundle(model.version, model.digest, dict(model.files)))
    log.close()
