"""Tables in a catalog: `CREATE TABLE … USING unisono OPTIONS (…)`.

Spark 4.3 gives a Python data source the options of such a table when the table is made, and none when it is read. It
does give the table's schema, with the metadata of its columns, which a catalog keeps. So the options travel in the
metadata of the first column. Only those of a table do: the schema of a DataFrame goes into every Parquet file that is
written from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs, urlsplit

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from unisono.pipeline.errors import PipelineError

KEY: Final = "unisono.options"

_TYPES: Final[Mapping[str, DataType]] = {
    "BIGINT": LongType(),
    "INT": IntegerType(),
    "DOUBLE": DoubleType(),
    "BOOLEAN": BooleanType(),
    "STRING": StringType(),
    "BINARY": BinaryType(),
    "TIMESTAMP": TimestampType(),
    "ARRAY<STRING>": ArrayType(StringType()),
    "ARRAY<BIGINT>": ArrayType(LongType()),
}
"""The types of our columns. PySpark's own parser of types needs Java, which a worker that makes sources has not."""

_CATALOG: Final = "option."
_MANAGED: Final = frozenset(("path", "is_managed_location", "serialization.format"))
_SECRET: Final = re.compile(
    r"secret|password|token|credential|signature|(access|account|service|master|sas|customer).*key"
)


def given_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that a person gave, by lower-case name: without what a catalog adds to those of its tables."""
    given = {name.lower(): value for name, value in options.items()}
    named = {name[len(_CATALOG) :]: value for name, value in given.items() if name.startswith(_CATALOG)}
    if named:
        return named
    return {name: value for name, value in given.items() if name not in _MANAGED}


def is_of_table(options: Mapping[str, str]) -> bool:
    """Whether these are the options of a table that is being made in a catalog."""
    return any(name.lower().startswith(_CATALOG) for name in options)


def table_schema(columns: Mapping[str, str], options: Mapping[str, str]) -> StructType:
    """The schema of a new table, which carries the options; PipelineError where they hold a secret."""
    require_no_secret(options)
    carried = {KEY: msgspec.json.encode(dict(options)).decode()}
    fields = [StructField(name, _TYPES[kind]) for name, kind in columns.items()]
    return StructType([StructField(fields[0].name, fields[0].dataType, True, carried), *fields[1:]])


def require_no_secret(options: Mapping[str, str]) -> None:
    """Refuse options that must not stay in a catalog."""
    for name, value in options.items():
        if _SECRET.search(name.lower()) or (name == "store" and _has_password(value)):
            raise PipelineError(
                f"option {name} holds a secret, and a catalog keeps the options of its tables: leave it to the "
                "environment (AWS_…, PGPASSWORD, a password file), or use CREATE TEMPORARY VIEW … USING unisono"
            )


def _has_password(store: str) -> bool:
    parts = urlsplit(store)
    return bool(parts.password) or any("password" in name for name in parse_qs(parts.query))


def options_in(schema: StructType) -> dict[str, str]:
    """The options that a table's schema carries; none without them."""
    for field in schema.fields:
        if KEY in field.metadata:
            return msgspec.json.decode(field.metadata[KEY], type=dict[str, str])
    return {}
