"""The lake's files as Spark DataFrames.

In a directory Spark reads the Parquet itself. In an object store it would need jars that PySpark does not bring
and credentials of its own; there executors read through delta-rs, as they write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from unisono.pipeline.columns import LOG_SCHEMA, PARTITION_SCHEMA
from unisono.pipeline.runs import DataFile
from unisono.pipeline.scanning import Span, scan_file
from unisono.pipeline.storage import LOG, Storage

_GLOB = re.compile(r"([\\{}\[\]*?])")


def frame_of(
    spark: SparkSession, storage: Storage, files: Sequence[DataFile], schema: str, since: int, upto: int
) -> DataFrame:
    """The rows of `files` with committed ids in `(since, upto]`."""
    if not files:
        return spark.createDataFrame([], schema)
    if storage.is_local:
        paths = [_GLOB.sub(r"\\\1", storage.uri(file.table, file.path)) for file in files]
        rows = spark.read.schema(schema).parquet(*paths)
        return rows.where((f.col("committed_id") > since) & (f.col("committed_id") <= upto))
    places = spark.range(len(files), numPartitions=len(files))
    return places.mapInArrow(_reading(storage, tuple(files), Span(since, upto)), schema)


def _reading(
    storage: Storage, files: tuple[DataFile, ...], span: Span
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(places: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in places:
            for place in batch.column("id").to_pylist():
                file = files[place]
                columns = (LOG_SCHEMA if file.table == LOG else PARTITION_SCHEMA).names
                yield from scan_file(storage, file, span, columns)

    return read
