"""A lake is a copy of one log, and a model is the one its log was judged by: nothing else is mixed in silence."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result
from pyspark.sql import SparkSession

from tests.commands import unisono
from tests.pipeline.history import append, make_store, require_exact
from tests.pipeline.outline import OUTLINE, make_outlines, shipped_outline
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.origin import LOG_EPOCH, LOG_ID, number
from unisono.lake.storage import LOG
from unisono.model.load import load_model
from unisono.pipeline.errors import Mismatch
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.export.job import export, plan
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.origin_check import adopt, origin_of
from unisono.store.cluster import ModelBundle
from unisono.store.sqlite.log import SqliteLog
from unisono.store.sqlite.restore import restore_log


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    return lake


@pytest.mark.req("DUR-08")
def test_a_restored_log_is_adopted_or_refused(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    make_store(tmp_path / "data", 400)
    store = sqlite_uri(tmp_path / "data")
    restore_log(tmp_path / "data", tmp_path / "backup")
    export(spark, store, lake)
    noted = lake.table(LOG)
    own = origin_of(store)
    assert (noted.read_note(LOG_ID), noted.read_note(LOG_EPOCH)) == (number(own.log.log_id), 1)
    restored = sqlite_uri(tmp_path / "backup")
    with pytest.raises(LakeUnusable, match=f"a copy of the log {own.log.log_id[:12]}.*export --adopt"):
        plan(restored, lake)
    assert plan(store, lake) == []
    with closing(SqliteLog.open(tmp_path / "backup")) as log:
        append(log, 100, seed=7)
    refused = unisono("lake", "export", "--store", restored, "--lake", lake.storage.location)
    assert (refused.exit_code, "is another one" in refused.stderr) == (2, True), refused.output
    assert lake.head() == 400
    assert adopt(restored, lake) == 400
    with pytest.raises(LakeUnusable, match="is another one"):
        plan(store, lake)
    export(spark, restored, lake)
    assert lake.head() == 500


@pytest.mark.req("DUR-08")
def test_histories_that_parted_are_not_joined(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """They part below the lake's head and meet again in its last event, which alone would not tell."""
    records = make_store(tmp_path / "data", 300)
    restore_log(tmp_path / "data", tmp_path / "backup")
    with closing(SqliteLog.open(tmp_path / "data")) as log:
        (first,) = append(log, 1, seed=5)
        last = append(log, 1, seed=6)
    export(spark, sqlite_uri(tmp_path / "data"), lake)
    with closing(SqliteLog.open(tmp_path / "backup")) as log:
        (other,) = append(log, 1, seed=9)
        log.begin([])
        log.commit(last)
        append(log, 50, seed=10)
        log.set_identity(origin_of(sqlite_uri(tmp_path / "data")).log)
    assert other.hash != first.hash
    assert plan(sqlite_uri(tmp_path / "backup"), lake), "with one identity they seem to be one"
    with closing(SqliteLog.open(tmp_path / "backup")) as log:
        log.new_epoch()
    with pytest.raises(Mismatch, match="event 301 differs between the log and the lake"):
        plan(sqlite_uri(tmp_path / "backup"), lake)
    with pytest.raises(Mismatch, match="event 301"):
        adopt(sqlite_uri(tmp_path / "backup"), lake)
    require_exact(lake, [*records, first, *last])


@pytest.mark.req("DUR-08")
def test_after_a_new_epoch_the_same_history_goes_on(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    make_store(tmp_path / "data", 200)
    store = sqlite_uri(tmp_path / "data")
    export(spark, store, lake)
    with closing(SqliteLog.open(tmp_path / "data")) as log:
        epoch = log.new_epoch().log_epoch
        append(log, 10, seed=3)
    export(spark, store, lake)
    assert (lake.head(), lake.table(LOG).read_note(LOG_EPOCH)) == (210, epoch)


def asked(command: str, lake: Lake, *arguments: str) -> Result:
    more = ("--from", "1") if command == "diff" else ()
    names = () if command == "snapshot" else ("--partition", "room-00000")
    return unisono("lake", command, "--lake", lake.storage.location, *names, *more, *arguments)


def edited(directory: Path) -> Path:
    """The sample model with one more comment: another content of its version."""
    shutil.copytree(OUTLINE, directory, ignore=shutil.ignore_patterns("__pycache__"))
    with (directory / "rules.py").open("a") as rules:
        rules.write("\n# edited\n")
    return directory


@pytest.mark.req("DUR-07")
@pytest.mark.parametrize("known_by", ["the log", "snapshots"])
def test_another_content_of_a_model_version_is_refused(
    spark: SparkSession, lake: Lake, tmp_path: Path, known_by: str
) -> None:
    make_outlines(tmp_path / "data", 200, 3)
    right, wrong = load_model(OUTLINE), load_model(edited(tmp_path / "edited"))
    if known_by == "the log":
        with closing(SqliteLog.open(tmp_path / "data")) as log:
            log.record_model(ModelBundle(1, right.digest, dict(right.files)))
    export(spark, sqlite_uri(tmp_path / "data"), lake)
    if known_by == "snapshots":
        snapshot(spark, lake, shipped_outline())
    for command in ("state", "diff", "snapshot"):
        told = asked(command, lake, "--model", str(tmp_path / "edited"))
        assert (told.exit_code, told.stdout) == (2, ""), told.output
        assert right.digest[:12] in told.stderr
        assert wrong.digest[:12] in told.stderr
    for command in ("state", "diff"):
        assert asked(command, lake, "--model", str(OUTLINE)).exit_code == 0


@pytest.mark.req("DUR-07", "DUR-08")
def test_a_model_is_not_picked_up_from_another_log_that_lies_near(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_outlines(tmp_path / "own", 200, 3)
    with closing(SqliteLog.open(tmp_path / "own")) as log:
        model = ShippedModel.of(load_model(OUTLINE))
        log.record_model(ModelBundle(model.version, model.digest, dict(model.files)))
    export(spark, sqlite_uri(tmp_path / "own"), lake)
    monkeypatch.chdir(tmp_path)
    make_store(tmp_path / "unisono-data", 500)  # without a model
    for command in ("state", "diff"):
        told = asked(command, lake)
        assert (told.exit_code, told.stdout) == (1, ""), told.output
        assert "a copy of another log" in told.stderr
    shutil.rmtree(tmp_path / "unisono-data")
    restore_log(tmp_path / "own", tmp_path / "unisono-data")
    told = asked("state", lake)
    assert (told.exit_code, told.stdout) == (2, ""), told.output
    assert "is another one" in told.stderr
    assert asked("state", lake, "--data", str(tmp_path / "own")).exit_code == 0
