"""The lake's files as Spark DataFrames.

In a directory Spark reads the Parquet files, and verifies page checksums whatever the session's settings: a DataFrame
has the lake's rows, or reading fails. For an object store Spark would need jars that PySpark lacks, and its own
credentials; there executors read through delta-rs, as they write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from unisono.lake.columns import (
    LOG_SCHEMA,
    PARTITION_SCHEMA,
    SPARK_LOG_SCHEMA,
    SPARK_PARTITION_SCHEMA,
)
from unisono.lake.file_checks import open_checked
from unisono.lake.lake import Lake, View
from unisono.lake.scan import RowRange, files_with, scan_file
from unisono.lake.storage import LOG, Storage
from unisono.lake.write import DataFile
from unisono.pipeline.fold import normalise_names
from unisono.pipeline.lake_range import end_of_range
from unisono.pipeline.spark.executors import task_frame

READING: Final[Mapping[str, str]] = {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
}
"""Options of each read, because the session may be foreign: damaged and missing files are errors."""

_GLOB = re.compile(r"([\\{}\[\]*?])")


def read_log(spark: SparkSession, lake: Lake | View, since: int = 0, upto: int | None = None) -> DataFrame:
    """Events of `(since, upto]`, in the columns of the data source; NoSuchRange unless the lake has them all."""
    view = _view(lake)
    last = end_of_range(view.storage.location, view.head, since, upto)
    files = [file for file in view.log_files if file.last_id > since and file.first_id <= last]
    return frame_of(spark, view.storage, files, SPARK_LOG_SCHEMA, since, last)


def read_partitions(
    spark: SparkSession,
    lake: Lake | View,
    names: str | Sequence[str] | None = None,
    since: int = 0,
    upto: int | None = None,
) -> DataFrame:
    """Rows (partition, event) of `(since, upto]` for these partitions, or for all of them (None)."""
    view = _view(lake)
    last = end_of_range(view.storage.location, view.head, since, upto)
    if names is None:
        files = [file for file in view.partition_files if file.last_id > since and file.first_id <= last]
        return frame_of(spark, view.storage, files, SPARK_PARTITION_SCHEMA, since, last)
    given = [names] if isinstance(names, str) else list(names)
    wanted = list(normalise_names(given)) if given else []
    files = files_with(view.partition_files, view.buckets, wanted, since, last)
    rows = frame_of(spark, view.storage, files, SPARK_PARTITION_SCHEMA, since, last)
    return rows.where(f.col("partition").isin(wanted))


def _view(lake: Lake | View) -> View:
    return lake.view() if isinstance(lake, Lake) else lake


def frame_of(
    spark: SparkSession, storage: Storage, files: Sequence[DataFile], schema: str, since: int, upto: int
) -> DataFrame:
    """The rows of `files` with committed ids in `(since, upto]`."""
    if not files:
        return spark.createDataFrame([], schema)
    if storage.is_local and all(file.sources is None for file in files):
        paths = [_GLOB.sub(r"\\\1", storage.uri(file.table, file.path)) for file in files]
        for file in files:
            with open_checked(storage, file):
                pass  # checks the footer, which has no checksum and by which Spark skips row groups
        rows = spark.read.schema(schema).options(**READING).parquet(*paths)
        return rows.where((f.col("committed_id") > since) & (f.col("committed_id") <= upto))
    return task_frame(spark, files, partial(_read, storage, RowRange(since, upto)), schema)


def _read(storage: Storage, span: RowRange, file: DataFile) -> Iterator[pa.RecordBatch]:
    """On an executor: the rows of one file."""
    columns = (LOG_SCHEMA if file.table == LOG else PARTITION_SCHEMA).names
    return scan_file(storage, file, span, columns)
