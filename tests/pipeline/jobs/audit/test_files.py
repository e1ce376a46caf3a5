"""The audit of histories in other places: a log shared by several nodes, a lake in an object store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg
import pyarrow.fs as pa_fs
import pytest
from deltalake.fs import DeltaStorageHandler
from pyspark.sql import SparkSession

from tests.lake.lakes import HERE
from tests.lake.s3 import object_store
from tests.pipeline.history import append
from tests.store.postgres.server import database, postgres  # noqa: F401 (fixtures)
from unisono.lake.lake import Lake
from unisono.lake.storage import LOG
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.audit.job import AuditOptions, audit
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot.job import latest, snapshot
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.store.port import Snapshot
from unisono.store.postgres.log import PostgresLog


def test_a_shared_log(spark: SparkSession, database: str, tmp_path: Path) -> None:  # noqa: F811
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=4)
    with closing(PostgresLog.open(database, "node")) as log:
        append(log, 700)
    export(HERE, database, lake)
    snapshot(HERE, lake, ShippedModel.open())
    rows = list(latest(lake, 0))
    with closing(open_maintainer(database)) as maintainer:
        maintainer.put_snapshots([Snapshot(row.partition, row.committed_id, 0, row.state, 1) for row in rows])
        maintainer.set_archive(lake.storage.location)
        while maintainer.prune_step(200):
            pass
    report = audit(spark, lake, database, AuditOptions(sample=None))
    assert report.sound, report.text()
    assert {one.what: one.count for one in report.checked} == {
        "events by themselves, their ids and their order": 700,
        "rows of by_partition against log": sum(row.events for row in rows),
        "hashes recomputed": 700,
        "the log against the lake": 500,
        "what the log remembers of pruned events, against the lake": 200,
        "snapshots against their hashes": len(rows),
        "snapshots of model version 0 against a replay": 2 * len(rows),
    }
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE unisono.pruned SET client_id = 'x' WHERE committed_id = 150")
        connection.execute("ALTER TABLE unisono.events DISABLE TRIGGER USER")
        connection.execute("UPDATE unisono.events SET client_id = 'x' WHERE committed_id = 250")
    report = audit(spark, lake, database, AuditOptions(sample=0))
    found = {(finding.kind, finding.committed_id) for finding in report.findings}
    assert found == {("pruned", 150), ("copy", 250)}
    assert "secret" not in report.text()


@pytest.mark.soak
def test_a_lake_in_an_object_store(spark: SparkSession, store: str) -> None:
    with object_store() as options:
        lake = Lake.at("s3://lake/history", options)
        lake.make(buckets=4)
        export(HERE, store, lake, to=600, events_per_file=200)
        snapshot(HERE, lake, ShippedModel.open())
        report = audit(spark, lake, store)
        assert report.sound, report.text()
        lost = lake.view().log_files[1]
        handler = DeltaStorageHandler(lake.storage.table(LOG), options)
        pa_fs.PyFileSystem(handler).delete_file(lost.path)
        report = audit(spark, lake, store)
        assert {(finding.kind, finding.committed_id) for finding in report.findings} == {
            ("file", lost.first_id)
        }
