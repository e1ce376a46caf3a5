"""The same pipeline on a log shared by several nodes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.pipeline.history import append, require_exact
from tests.pipeline.test_source import ids, load
from tests.store.postgres_server import database, postgres  # noqa: F401 (fixtures)
from unisono.pipeline.errors import NoSuchStore
from unisono.pipeline.export import export
from unisono.pipeline.stores import Extent, extent, open_reader
from unisono.pipeline.verify import verify
from unisono.store.delta.lake import Lake
from unisono.store.postgres import PostgresLog


def test_source_and_export(
    spark: SparkSession,
    context: SparkContext,
    database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=4)
    with closing(PostgresLog.open(database, "node")) as log:
        assert extent(database) == Extent(0, 0)
        records = append(log, 700)
        assert ids(load(spark, database, events_per_task=200)) == list(range(1, 701))
        wanted = [record.committed_id for record in records if "room-007" in record.partitions]
        assert ids(load(spark, database, partitions="room-007")) == wanted
        export(context, database, lake, events_per_file=300)
        records += append(log, 50)
        export(context, database, lake)
    require_exact(lake, records)
    assert all(part.equal for part in verify(context, database, lake))


def test_no_database_there_and_no_password_told() -> None:
    with pytest.raises(NoSuchStore) as caught:
        open_reader("postgresql://someone:secret@127.0.0.1:1/nowhere")
    assert "secret" not in str(caught.value)
