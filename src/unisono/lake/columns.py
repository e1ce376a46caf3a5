"""The columns of a committed event, in Arrow and in Spark, and how records of the log become rows.

`type` is `event.type`; `schema` is `event.payload.schema` of a canonical event (`type` is `event`) and null for
every other. Both are derived from `event`, which is stored whole. `author` is null for an event without one, and in
every row of a file that was written before there was this column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, Final

import msgspec
import pyarrow as pa

from unisono.store.port import Record

CANONICAL_TYPE: Final = "event"

LOG_SCHEMA: Final = pa.schema(
    [
        pa.field("committed_id", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("client_id", pa.string()),
        pa.field("partitions", pa.list_(pa.field("element", pa.string()))),
        pa.field("event", pa.string()),
        pa.field("type", pa.string()),
        pa.field("schema", pa.string()),
        pa.field("status_updated_at", pa.int64()),
        pa.field("hash", pa.binary()),
        pa.field("author", pa.string()),
    ]
)
"""One row per event: the Delta table `log`, and the data source."""

LATER_COLUMNS: Final = ("author",)
"""Columns that files of an older version lack; they are read as null."""

PARTITION_SCHEMA: Final = pa.schema([pa.field("partition", pa.string()), *LOG_SCHEMA])
"""One row per (partition, event): the files of the Delta table `by_partition`."""

SNAPSHOT_SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.string()),
        pa.field("committed_id", pa.int64()),
        pa.field("state", pa.binary()),
        pa.field("events", pa.int64()),
        pa.field("skipped", pa.int64()),
        pa.field("model_digest", pa.string()),
        pa.field("created_at", pa.int64()),
        pa.field("hash", pa.binary()),
    ]
)
"""One row per folded state of a partition: the files of the Delta table `snapshots`, each of one model version."""

ERASURE_SCHEMA: Final = pa.schema(
    [
        pa.field("committed_id", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("erased_at", pa.int64()),
        pa.field("selected_by", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
"""One row per erased event, written before the erasure: the Delta table `erasures`. `selected_by` is the kind of
selection only (`client`, `id`, `partition`): a name could itself be what was erased."""

SPARK_LOG_SCHEMA: Final = (
    "committed_id BIGINT, id STRING, client_id STRING, partitions ARRAY<STRING>, event STRING, "
    "type STRING, schema STRING, status_updated_at BIGINT, hash BINARY, author STRING"
)
SPARK_PARTITION_SCHEMA: Final = f"partition STRING, {SPARK_LOG_SCHEMA}"


class _Payload(msgspec.Struct):
    schema: Any = None


class _Event(msgspec.Struct):
    type: Any = None
    payload: _Payload | list[Any] | str | int | float | bool | None = None


_decode_event: Final = msgspec.json.Decoder(_Event).decode


def type_and_schema(event: bytes) -> tuple[str | None, str | None]:
    """`type` and `schema` of an event's JSON; None for what is missing or not a string.

    A damaged event is copied as it is; an audit reports it.
    """
    try:
        head = _decode_event(event)
    except msgspec.DecodeError:
        return None, None
    if not isinstance(head.type, str):
        return None, None
    if head.type != CANONICAL_TYPE or not isinstance(head.payload, _Payload):
        return head.type, None
    schema = head.payload.schema
    return head.type, schema if isinstance(schema, str) else None


def to_batch(records: Sequence[Record]) -> pa.RecordBatch:
    """The rows of `records`, in their order."""
    kinds = [type_and_schema(record.event) for record in records]
    offsets = list(accumulate((len(record.partitions) for record in records), initial=0))
    names = pa.array(chain.from_iterable(record.partitions for record in records), pa.string())
    partitions = pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), names, type=LOG_SCHEMA.field("partitions").type
    )
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.committed_id for record in records], pa.int64()),
            pa.array([record.id for record in records], pa.string()),
            pa.array([record.client_id for record in records], pa.string()),
            partitions,
            pa.array([record.event for record in records], pa.string()),
            pa.array([kind[0] for kind in kinds], pa.string()),
            pa.array([kind[1] for kind in kinds], pa.string()),
            pa.array([record.status_updated_at for record in records], pa.int64()),
            pa.array([record.hash for record in records], pa.binary()),
            pa.array([record.author or None for record in records], pa.string()),
        ],
        schema=LOG_SCHEMA,
    )


@lru_cache(maxsize=1 << 16)
def name_hash(partition: str) -> bytes:
    """SHA-256 of a partition's name."""
    return hashlib.sha256(partition.encode()).digest()


def bucket_of(partition: str, buckets: int) -> int:
    """The bucket of a partition in `by_partition`: the first four bytes of its name's SHA-256, modulo `buckets`.

    In Spark SQL: `cast(conv(substr(sha2(partition, 256), 1, 8), 16, 10) as bigint) % buckets`.
    """
    return int.from_bytes(name_hash(partition)[:4], "big") % buckets
