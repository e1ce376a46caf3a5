"""The same pipeline on a log shared by several nodes."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.history import append, require_exact
from tests.pipeline.spark.test_source import ids, load
from tests.store.postgres.server import database, postgres  # noqa: F401 (fixtures)
from unisono.lake.lake import Lake
from unisono.pipeline.compare import verify
from unisono.pipeline.errors import NoSuchStore
from unisono.pipeline.jobs.export.follow import Follower
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.retain.job import RetentionPolicy
from unisono.pipeline.open_log import LogExtent, extent, open_reader
from unisono.pipeline.service.stages import ServiceOptions, stages
from unisono.store.port import Pruned
from unisono.store.postgres.log import PostgresLog


@pytest.mark.soak
def test_source_export_and_follow(
    spark: SparkSession,
    database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=4)
    with closing(PostgresLog.open(database, "node")) as log:
        assert extent(database) == LogExtent(0, 0)
        records = append(log, 700)
        assert ids(load(spark, database, events_per_task=200)) == list(range(1, 701))
        wanted = [record.committed_id for record in records if "room-007" in record.partitions]
        assert ids(load(spark, database, partitions="room-007")) == wanted
        assert ids(load(spark, database, push_down="true").where("committed_id > 690")) == list(
            range(691, 701)
        )
        export(spark, database, lake, events_per_file=300)
        records += append(log, 50)
        export(spark, database, lake)
        following = Follower(spark, database, lake, tmp_path / "at", every_s=0.1)
        records += append(log, 50)
        following.run(threading.Event(), upto=800)
    require_exact(lake, records)
    assert all(part.equal for part in verify(spark, database, lake))


@pytest.mark.soak
@pytest.mark.req("DUR-05")
def test_every_stage_of_the_service(
    spark: SparkSession,
    database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=4)
    wanted = ServiceOptions(keep=RetentionPolicy(events=200, newest=10), out=tmp_path / "out")
    with closing(PostgresLog.open(database, "node")) as log:
        records = append(log, 900)
        for stage in stages(spark, database, lake, wanted):
            assert stage.work().items > 0 or stage.name == "compact", stage.name
        assert log.extent() == LogExtent(700, 900, lake.storage.location)
        assert list(log.scan(700, 900, limit=1_000)) == records[700:]
        with pytest.raises(Pruned):
            log.scan(0, 900, limit=1)
        known = log.begin([records[0].id]).known
        log.abandon()
        assert known[records[0].id].committed_id == 1
        append(log, 100)
    require_exact(lake, records)
    for stage in stages(spark, database, lake, wanted):
        if stage.name in ("export", "snapshot", "publish", "retain"):
            stage.work()
    assert extent(database) == LogExtent(800, 1_000, lake.storage.location)


def test_no_database_there_and_no_password_told() -> None:
    with pytest.raises(NoSuchStore) as caught:
        open_reader("postgresql://someone:secret@127.0.0.1:1/nowhere")
    assert "secret" not in str(caught.value)
