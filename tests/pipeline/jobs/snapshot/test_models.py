"""Snapshots of other models, other versions and other contents of one version."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.authority.models import write_model
from tests.lake.lakes import HERE
from tests.pipeline.equality import require_replay
from tests.pipeline.outline import OUTLINE, make_outlines
from unisono.cli.lake.info import lake_info
from unisono.lake.lake import Lake
from unisono.model.load import load_model
from unisono.model.pack import unpack
from unisono.pipeline.errors import ModelContentChanged, NoModel
from unisono.pipeline.job_model import ShippedModel, choose
from unisono.pipeline.jobs.compact.job import compact
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot.job import folded_to, latest, snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.store.maintenance import NO_MODEL_VERSION
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog


@pytest.mark.req("DUR-07")
def test_a_snapshot_of_another_model_version_is_never_used(lake: Lake, tmp_path: Path) -> None:
    records = _counted(tmp_path / "data", 60)
    export(HERE, sqlite_uri(tmp_path / "data"), lake)
    for version in (1, 2, 3):
        model = ShippedModel.of(load_model(write_model(tmp_path / "model", version)))
        assert snapshot(HERE, lake, model).since == 0
        for row in require_replay(lake, model, records).values():
            data = unpack(row.state)["data"]
            assert isinstance(data, dict)
            assert data["count"] == version * row.events
    assert snapshot(HERE, lake, ShippedModel.open()).model_version == NO_MODEL_VERSION
    require_replay(lake, ShippedModel.open(), records)
    compact(HERE, lake)
    assert [part.model_version for part in lake_info(lake).snapshots] == [2, 3], "the last two stay"


@pytest.mark.req("DUR-07")
def test_back_to_a_model_whose_snapshots_were_removed(lake: Lake, tmp_path: Path) -> None:
    """Nothing is left of how far they had got: what they held is folded again, not taken for done."""
    records = _counted(tmp_path / "data", 60)
    store = sqlite_uri(tmp_path / "data")
    export(HERE, store, lake, to=50)
    first, *later = (
        ShippedModel.of(load_model(write_model(tmp_path / f"model-{version}", version)))
        for version in (1, 2, 3)
    )
    for model in (first, *later):
        snapshot(HERE, lake, model)
    compact(HERE, lake)
    export(HERE, store, lake)
    assert folded_to(lake, first) == 0
    assert snapshot(HERE, lake, first).partitions == 7
    require_replay(lake, first, records)
    compact(HERE, lake)
    assert {part.model_version for part in lake_info(lake).snapshots} == {1, 3}, (
        "those that reach furthest stay"
    )
    assert folded_to(lake, first) == 60


def _counted(directory: Path, count: int) -> list[Record]:
    from unisono.protocol.canonical import canonical, content_hash

    event = canonical({"type": "event", "payload": {"schema": "counted", "data": {}}})
    records = [
        Record(number, f"e{number}", "c", (name,), event, content_hash(event, canonical([name])), number)
        for number in range(1, count + 1)
        for name in [f"p{number % 7}"]
    ]
    log = SqliteLog.open(directory)
    log.begin([])
    log.commit(records)
    log.close()
    return records


def test_another_content_of_the_same_version_is_noticed(lake: Lake, tmp_path: Path) -> None:
    records = _counted(tmp_path / "data", 40)
    export(HERE, sqlite_uri(tmp_path / "data"), lake)
    place = write_model(tmp_path / "model", 2)
    first = ShippedModel.of(load_model(place))
    snapshot(HERE, lake, first)
    (place / "rules.py").write_text((place / "rules.py").read_text().replace("VERSION = 2", "VERSION = 20"))
    second = ShippedModel.of(load_model(place))
    with pytest.raises(
        ModelContentChanged, match=r"model version 2 were folded by another content .* --rebuild"
    ):
        snapshot(HERE, lake, second)
    require_replay(lake, first, records)
    snapshot(HERE, lake, second, rebuild=True)
    assert all(unpack(row.state)["data"]["count"] == 20 * row.events for row in latest(lake, 2))  # type: ignore[index,call-overload]
    require_replay(lake, second, records)


def test_which_model(tmp_path: Path) -> None:
    assert choose("open", None) == ShippedModel.open()
    outline = choose(str(OUTLINE), None)
    assert (outline.version, outline.digest) == (1, load_model(OUTLINE).digest)
    assert outline.load() is outline.load()
    assert outline.load().digest == outline.digest
    with pytest.raises(NoModel, match="--model DIR, --model open"):
        choose(None, None)
    with pytest.raises(NoModel, match="is not a directory"):
        choose(str(tmp_path / "nowhere"), None)
    make_outlines(tmp_path / "data", 1)
    assert choose(None, sqlite_uri(tmp_path / "data")) == ShippedModel.open()
