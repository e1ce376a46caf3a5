"""The tables of `spark/lake_source.py` without Spark: their columns, and their rows as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from unisono.lake.lake import Lake
from unisono.lake.storage import SNAPSHOTS
from unisono.pipeline.jobs.snapshot.in_force import noted_version, shown_version
from unisono.pipeline.spark.lake_source import SCHEMAS, LakeReader, LakeTableRead
from unisono.pipeline.spark.options import chosen_columns, column_types

_TYPES: Final = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "BINARY": pa.binary(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "ARRAY<STRING>": pa.list_(pa.string()),
    "ARRAY<BIGINT>": pa.list_(pa.int64()),
}


def arrow_schema(table: str) -> pa.Schema:
    return pa.schema([(name, _TYPES[kind]) for name, kind in column_types(SCHEMAS[table]).items()])


def table_rows(lake: Lake, table: str, upto: int | None = None) -> pa.RecordBatchReader:
    """All rows of a table, one batch at a time; of events up to an id."""
    schema = arrow_schema(table)
    columns = chosen_columns(SCHEMAS[table], None)
    reader = LakeTableRead.now(lake, table, columns, upto=upto).reader()
    return pa.RecordBatchReader.from_batches(schema, _batches(reader, schema))


def states_reach(lake: Lake) -> tuple[int, int]:
    """The event up to which the tables `states` and `items` have every partition, 0 without snapshots, and the model
    version that they show."""
    table = lake.find(SNAPSHOTS)
    if table is None:
        return 0, 0
    version = shown_version(table, table.readable_files())
    return table.folded_upto(version), version


def has_states(lake: Lake) -> bool:
    """Whether the lake has snapshots, or has had those of the model in force."""
    table = lake.find(SNAPSHOTS)
    return table is not None and (bool(table.listed_files()) or noted_version(table) is not None)


def _batches(reader: LakeReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for part in reader.partitions():
        for batch in reader.read(part):
            yield batch.cast(schema)
