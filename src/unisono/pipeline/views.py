"""The lake's tables in SQL: temporary views of a session, and tables that stay in a Spark catalog.

`events`, `partition_events`, `states`, `items`, `runs` and `audit`, see `spark/lake_source.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from unisono.lake.lake import Lake
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.spark.catalog import options_in, require_no_secret
from unisono.pipeline.spark.lake_source import SCHEMAS, STORAGE
from unisono.pipeline.spark.private import is_connect
from unisono.pipeline.spark.source import UnisonoSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CATALOG: Final = "spark.sql.catalogImplementation"


def create_temporary_views(
    spark: SparkSession, location: str, options: Mapping[str, str], prefix: str
) -> list[str]:
    """Views of the lake as it is now, for this session; returns their names."""
    spark.dataSource.register(UnisonoSource)
    for table in SCHEMAS:
        reader = spark.read.format("unisono").options(**_options(location, options, table))
        reader.load().createOrReplaceTempView(f"{prefix}{table}")
    return [f"{prefix}{table}" for table in SCHEMAS]


def create_catalog_tables(
    spark: SparkSession, location: str, options: Mapping[str, str], database: str | None, prefix: str
) -> list[str]:
    """Tables that stay in the session's catalog and show the lake as it is at each query; returns their names.

    A database that is missing is made. A table of ours is made again; any other of the same name is refused before
    anything is changed.
    """
    Lake.at(location, options).view()  # refuses what is not a lake
    for table in SCHEMAS:
        require_no_secret(_options(location, options, table))
    spark.dataSource.register(UnisonoSource)
    if database is not None:
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(None, database)}")
    names = {table: _quoted(database, f"{prefix}{table}") for table in SCHEMAS}
    present = [name for name in names.values() if spark.catalog.tableExists(name)]
    for name in present:
        if not _is_ours(spark, name):
            raise PipelineError(
                f"{name} is a table of somebody else: choose another --prefix or --database, or drop it"
            )
    for name in present:
        spark.sql(f"DROP TABLE {name}")
    for table, name in names.items():
        given = ", ".join(
            f"{_text(key)} {_text(value)}" for key, value in _options(location, options, table).items()
        )
        spark.sql(f"CREATE TABLE {name} USING unisono OPTIONS ({given})")
    return list(names.values())


def require_lasting_catalog(spark: SparkSession) -> None:
    """Refuse a catalog that ends with this process."""
    if not is_connect(spark) and spark.conf.get(_CATALOG, "in-memory") == "in-memory":
        raise PipelineError(
            f"this catalog is in memory and ends with the command: --spark-conf {_CATALOG}=hive keeps it, as do a "
            "Spark Connect server (--master sc://…) and a DuckDB file (--duckdb FILE)"
        )


def _is_ours(spark: SparkSession, name: str) -> bool:
    """Whether a table of a catalog was made by us; what is made from one, a copy or a view, has its schema too."""
    if not options_in(spark.table(name).schema):
        return False
    facts = {row.col_name: row.data_type for row in spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()}
    return facts.get("Provider", UnisonoSource.name()) == UnisonoSource.name() and facts.get("Type") != "VIEW"


def _options(location: str, options: Mapping[str, str], table: str) -> dict[str, str]:
    storage = {f"{STORAGE}{name}": value for name, value in options.items()}
    return {"lake": location, "table": table, **storage}


def _quoted(database: str | None, name: str) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in (database, name) if part is not None)


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
