"""Tables in a catalog: `CREATE TABLE … USING unisono OPTIONS (…)`, and the command that makes them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.lake.lakes import HERE
from tests.pipeline.history import append, make_store
from unisono.lake.lake import Lake
from unisono.pipeline import create_tables
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.catalog import options_in, table_schema
from unisono.pipeline.spark.lake_source import SCHEMAS
from unisono.pipeline.views import require_lasting_catalog
from unisono.store.sqlite.log import SqliteLog

TABLES = [f"`{name}`" for name in SCHEMAS]


@pytest.fixture
def database(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    spark.sql(f"CREATE DATABASE lakes LOCATION '{tmp_path}/lakes'")
    yield "lakes"
    spark.sql("DROP DATABASE lakes CASCADE")


def count(spark: SparkSession, query: str) -> int:
    return int(spark.sql(f"SELECT count(*) FROM {query}").collect()[0][0])


def test_a_table_of_the_log_and_tables_of_a_lake(spark: SparkSession, database: str, tmp_path: Path) -> None:
    make_store(tmp_path / "data", 60)
    store, lake = sqlite_uri(tmp_path / "data"), Lake.at(str(tmp_path / "it's a lake"))
    lake.make(buckets=2)
    export(HERE, store, lake, to=40)
    spark.sql(f"CREATE TABLE lakes.log USING unisono OPTIONS (store '{store}', columns 'id, committed_id')")
    assert spark.table("lakes.log").columns == ["id", "committed_id"]
    assert count(spark, "lakes.log") == 60
    assert count(spark, "lakes.log WITH ('to' '7')") == 7
    with pytest.raises(PySparkException, match="choose among them in SELECT"):
        spark.sql("SELECT * FROM lakes.log WITH ('columns' 'committed_id')").collect()

    names = create_tables(spark, lake, database=database)
    assert names == [f"`lakes`.{name}" for name in TABLES]
    assert count(spark, "lakes.events") == 40
    with closing(SqliteLog.open(tmp_path / "data")) as log:
        append(log, 5)
    export(HERE, store, lake)
    snapshot(HERE, lake, ShippedModel.open())
    assert count(spark, "lakes.events") == 65, "a table shows the lake of now"
    assert count(spark, "lakes.states s JOIN lakes.partition_events e ON s.partition = e.partition") >= 65

    for kind in ("TABLE lakes.other_events USING parquet", "VIEW lakes.other_events"):
        for own in ("SELECT 1 AS one", "SELECT * FROM lakes.events"):
            spark.sql(f"CREATE {kind} AS {own}")
            with pytest.raises(PipelineError, match=r"`lakes`.`other_events` is a table of somebody else"):
                create_tables(spark, lake, database=database, prefix="other_")
            spark.sql(f"DROP {kind.split()[0]} lakes.other_events")
    with pytest.raises(PipelineError, match="holds a secret"):
        create_tables(spark, str(lake.storage.location), database=database, storage_options={"sas_key": "x"})
    assert count(spark, "lakes.events") == 65, "nothing was dropped for what is refused"
    spark.sql(f"CREATE TABLE lakes.bare (committed_id BIGINT) USING unisono OPTIONS (store '{store}')")
    with pytest.raises(PySparkException, match=r"OPTIONS .* without columns"):
        count(spark, "lakes.bare")
    with pytest.raises(PipelineError, match="this catalog is in memory"):
        require_lasting_catalog(spark)


def test_a_database_that_is_missing_is_made(spark: SparkSession, store: str, tmp_path: Path) -> None:
    """One command makes all tables, as on the first day of a catalog."""
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    export(HERE, store, lake, to=20)
    try:
        for _ in range(2):
            assert create_tables(spark, lake, database="new_lakes")[0] == "`new_lakes`.`events`"
        assert count(spark, "`new_lakes`.events") == 20
    finally:
        spark.sql("DROP DATABASE IF EXISTS `new_lakes` CASCADE")


@pytest.mark.parametrize(
    "options",
    [
        {"lake": "s3://a", "storage.aws_secret_access_key": "x"},
        {"lake": "s3://a", "storage.aws_session_token": "x"},
        {"lake": "az://a", "storage.azure_storage_account_key": "x"},
        {"lake": "az://a", "storage.azure_storage_sas_key": "x"},
        {"lake": "az://a", "storage.master_key": "x"},
        {"lake": "s3://a", "storage.aws_sse_customer_key_base64": "x"},
        {"lake": "s3://a", "storage.AWS_SECRET_ACCESS_KEY": "x"},
        {"lake": "gs://a", "storage.google_service_account_key": "x"},
        {"store": "postgresql://me:x@db/unisono"},
        {"store": "postgresql://db/unisono?user=me&password=x"},
    ],
)
def test_a_catalog_keeps_no_secret(options: dict[str, str]) -> None:
    with pytest.raises(PipelineError, match="holds a secret"):
        table_schema({"id": "STRING"}, options)


def test_options_travel_in_the_schema() -> None:
    options = {"lake": "s3://a", "storage.aws_region": "b"}
    assert options_in(table_schema({"id": "STRING", "n": "BIGINT"}, options)) == options


LASTING = """
import sys
from unisono.pipeline import create_tables, session
folder, lake = sys.argv[1:]
conf = {
    "spark.sql.catalogImplementation": "hive",
    "spark.sql.warehouse.dir": f"{folder}/warehouse",
    "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/catalog;create=true",
}
spark = session("local[1]", conf=conf, quick=True)
for _ in range(2 if lake else 0):  # the second replaces the first
    create_tables(spark, lake)
print(spark.sql("SELECT count(*) FROM events").collect()[0][0], len(spark.table("events").limit(50).collect()))
spark.table("events").show(2)
"""


@pytest.mark.soak
@pytest.mark.usefixtures("_quick_starts")
def test_a_lasting_catalog(tmp_path: Path, store: str) -> None:
    """A second process finds the tables without registering the source, and `limit` prints no traceback."""
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    export(HERE, store, lake)
    for given in (str(tmp_path / "lake"), ""):
        done = subprocess.run(
            [sys.executable, "-c", LASTING, str(tmp_path), given],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("3000 50\n")
        assert "Traceback" not in done.stderr
