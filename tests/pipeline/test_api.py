"""The Python API: what it costs to import, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.commands import unisono
from tests.lake.lakes import HERE
from tests.pipeline.history import make_store
from unisono import pipeline
from unisono.lake.lake import Lake
from unisono.pipeline import api
from unisono.pipeline.errors import NoModel, NoSuchPartition, NoSuchRange, NoSuchStore, PipelineError
from unisono.pipeline.jobs.export.job import export as export_job
from unisono.pipeline.jobs.snapshot.frames import SNAPSHOTS_SCHEMA
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.pipeline.open_log import sqlite_uri
from unisono.samples import sample_model
from unisono.store.port import Record

DOCS = Path(__file__).parents[2] / "docs" / "pipeline-python.md"


def test_importing_it_costs_nothing() -> None:
    code = (
        "import sys, unisono.pipeline\n"
        "assert 'states_at' in dir(unisono.pipeline)\n"
        "loaded = [name for name in ('pyspark', 'pyarrow', 'deltalake', 'pandas', 'numpy') if name in sys.modules]\n"
        "assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_all_of_it_is_documented() -> None:
    assert pipeline.__all__ == api.__all__
    text = DOCS.read_text("utf-8")
    assert [name for name in pipeline.__all__ if f"| `{name}(" not in text] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pipeline.nothing  # noqa: B018


def test_a_lake_without_snapshots_or_model(spark: SparkSession, store: str, tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    found = pipeline.snapshots(spark, lake, model="open")
    assert found.collect() == []
    export_job(HERE, store, lake, to=100)
    with pytest.raises(PipelineError, match="no snapshots: `unisono lake snapshot` folds its events"):
        pipeline.snapshots(spark, lake, model="open")
    assert found.columns == [column.split()[0] for column in SNAPSHOTS_SCHEMA.split(", ")]
    with pytest.raises(NoModel, match="no model given"):
        pipeline.states_at(spark, lake)
    pipeline.make_snapshots(HERE, lake, model="open")
    with pytest.raises(PipelineError, match="no snapshots of model version 1; there are those of 0"):
        pipeline.snapshots(spark, lake, model=str(sample_model()))


def test_directories_may_be_paths(spark: SparkSession, tmp_path: Path) -> None:
    make_store(tmp_path / "data", 20)
    lake = tmp_path / "lake"
    assert pipeline.export(spark, tmp_path / "data", lake).events == 20
    assert pipeline.read_log(spark, lake).count() == 20
    states = pipeline.states_at(spark, lake, model=sample_model()).collect()
    assert states == pipeline.states_at(spark, str(lake), model=str(sample_model())).collect() != []


def test_a_log_without_what_the_lake_needs_leaves_no_lake(tmp_path: Path) -> None:
    with pytest.raises(NoSuchStore, match="holds no log"):
        pipeline.export(HERE, f"sqlite:{tmp_path}/nothing", str(tmp_path / "lake"))
    with pytest.raises(PipelineError, match="events_per_file must be a whole number from 1 on, not -1"):
        pipeline.export(HERE, f"sqlite:{tmp_path}/nothing", str(tmp_path / "lake"), events_per_file=-1)
    make_store(tmp_path / "data", 20)
    with pytest.raises(NoSuchRange, match="to must be a committed_id, 0 or more, not -1"):
        pipeline.export(HERE, sqlite_uri(tmp_path / "data"), str(tmp_path / "lake"), to=-1)
    with pytest.raises(NoSuchRange, match="the log ends at 20, 21 is requested"):
        pipeline.export(HERE, sqlite_uri(tmp_path / "data"), str(tmp_path / "lake"), to=21)
    maintainer = open_maintainer(sqlite_uri(tmp_path / "data"))
    maintainer.set_archive("elsewhere")
    assert maintainer.prune_step(5)
    maintainer.close()
    error = "events 1 to 5 were pruned from the log and there is no lake at"
    with pytest.raises(NoSuchRange, match=error):
        pipeline.export(HERE, sqlite_uri(tmp_path / "data"), str(tmp_path / "lake"))
    for command in (["export"], ["run", "--cycles", "1"]):
        done = unisono("lake", *command, "--data", str(tmp_path / "data"), "--lake", str(tmp_path / "lake"))
        assert (done.exit_code, error in done.stderr) == (2, True), done.output
    assert not (tmp_path / "lake").exists()


def test_a_session_that_has_stopped_leaves_no_lake(tmp_path: Path) -> None:
    make_store(tmp_path / "data", 20)
    code = (
        "import sys\n"
        "from unisono import pipeline\n"
        "spark = pipeline.session('local[1]')\n"
        "spark.stop()\n"
        "pipeline.export(spark, *sys.argv[1:])\n"
    )
    place = [sqlite_uri(tmp_path / "data"), str(tmp_path / "lake")]
    done = subprocess.run([sys.executable, "-c", code, *place], capture_output=True, text=True)
    assert "PipelineError: the Spark session has stopped: make another one" in done.stderr
    assert not (tmp_path / "lake").exists()


def test_what_the_lake_does_not_have_is_refused(spark: SparkSession, store: str, tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    export_job(HERE, store, lake, to=100)
    for since, upto, error in (
        (0, 101, "ends at event 100, events up to 101 are requested"),
        (9, 5, r"\(9, 5\] is not a range"),
        (-1, 5, r"\(-1, 5\] is not a range"),
    ):
        with pytest.raises(NoSuchRange, match=error):
            pipeline.read_log(spark, lake, since, upto)
        with pytest.raises(NoSuchRange, match=error):
            pipeline.read_partitions(spark, lake, None, since, upto)


def test_a_partition_is_read_as_a_person_spells_it(spark: SparkSession, tmp_path: Path) -> None:
    records = make_store(tmp_path / "data", 200)
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    export_job(HERE, sqlite_uri(tmp_path / "data"), lake)
    name = "ünï-cødé"
    expected = [record.committed_id for record in records if name in record.partitions]
    for names in (unicodedata.normalize("NFD", name), [name, unicodedata.normalize("NFD", name)]):
        found = pipeline.read_partitions(spark, lake, names).select("committed_id").collect()
        assert sorted(row.committed_id for row in found) == expected != []
    with pytest.raises(NoSuchPartition, match="invalid partition name: a partition name must not be empty"):
        pipeline.read_partitions(spark, lake, "")
    assert pipeline.read_partitions(spark, lake, []).collect() == []


def test_a_sample_out_of_range_is_refused(tmp_path: Path) -> None:
    """It would replay no snapshot and say nothing of it."""
    lake = str(tmp_path / "lake")
    for sample in (-1, 1.5, True):
        with pytest.raises(PipelineError, match=f"sample must be a whole number from 0 on, not {sample}"):
            pipeline.audit(HERE, lake, sample=sample)  # type: ignore[arg-type]
    done = unisono("lake", "audit", "--lake", lake, "--sample", "-1")
    assert (done.exit_code, done.stderr) == (
        2,
        "unisono: sample must be a whole number from 0 on, not -1\n",
    )


def test_one_partition_by_its_name_alone(
    spark: SparkSession, store: str, records: list[Record], tmp_path: Path
) -> None:
    """A text is one name, not a sequence of letters that no partition has."""
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    export_job(HERE, store, lake, to=100)
    expected = sum("room-007" in record.partitions for record in records[:100])
    assert pipeline.read_partitions(spark, lake, "room-007").count() == expected > 0
    assert pipeline.make_snapshots(HERE, lake, model="open", partitions="room-007").partitions == 1
