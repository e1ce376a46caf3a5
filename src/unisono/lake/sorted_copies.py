"""Makes a file in order from the rows of another program's files, when a reader opens it (`rearranged.py`).

The copy is a temporary file without a name: it needs disk while it is open, and erased text does not outlive its
reader.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from unisono.lake.columns import PARTITION_SCHEMA, bucket_of
from unisono.lake.content_check import first_wrong_hash
from unisono.lake.errors import LakeUnusable
from unisono.lake.remedies import remedy
from unisono.lake.storage import LOG, Storage
from unisono.lake.write import (
    FILE_SCHEMAS,
    UNBUCKETED,
    DataFile,
    Sources,
    release_arrow_memory,
    row_group_ranges,
    writing_options,
)

BATCH_ROWS: Final = 4_096
BATCH_BYTES: Final = 8 << 20
"""Rows read at once: the events of another program's row group may take gigabytes."""


def open_source(storage: Storage, file: DataFile) -> Any:
    """A data file for random access: the stored one, or a sorted copy."""
    if file.sources is None:
        return storage.read(file.table, file.path)
    return _sorted_copy(storage, file, file.sources)


@release_arrow_memory()
def _sorted_copy(storage: Storage, file: DataFile, sources: Sources) -> Any:
    rows = _sorted_rows(storage, file, sources)
    descriptor, path = tempfile.mkstemp(prefix="unisono-", suffix=".parquet")
    try:
        os.close(descriptor)
        with pq.ParquetWriter(path, rows.schema, **writing_options(file.table)) as writer:
            sizes = np.asarray(pc.binary_length(rows.column("event")))
            for start, end in row_group_ranges(sizes):
                writer.write_table(rows.slice(start, end - start), row_group_size=end - start)
        return pa.OSFile(path)
    finally:
        os.unlink(path)  # noqa: PTH108


def _sorted_rows(storage: Storage, file: DataFile, sources: Sources) -> pa.Table:
    """The rows of a described file in the order of its table; LakeUnusable when an event was changed."""
    schema = FILE_SCHEMAS[file.table]
    rows = pa.Table.from_batches(list(_rows(storage, file, sources, schema.names)), schema)
    keys = ["committed_id"] if file.table == LOG else ["partition", "committed_id"]
    rows = rows.take(pc.sort_indices(rows, [(key, "ascending") for key in keys])).combine_chunks()
    uri = storage.table(file.table)
    if file.table == LOG:
        ids = np.asarray(rows.column("committed_id"))
        if not np.array_equal(ids, np.arange(file.first_id, file.last_id + 1)):
            raise LakeUnusable(
                f"{uri} does not have each event {file.first_id} to {file.last_id} once: another program changed the "
                f"table; {remedy(LOG)}"
            )
    if problem := first_wrong_hash(file.table, rows.to_batches()):
        raise LakeUnusable(f"{problem}: another program changed {uri}; {remedy(file.table)}")
    return rows


def _rows(storage: Storage, file: DataFile, sources: Sources, columns: list[str]) -> Iterator[pa.RecordBatch]:
    for path in sources.paths:
        for batch in raw_batches(storage, file.table, path, columns, file.first_id - 1, file.last_id):
            if file.bucket is None or file.bucket == UNBUCKETED:
                yield batch
                continue
            names = batch.column("partition").dictionary_encode()
            own = [bucket_of(name, sources.buckets) == file.bucket for name in names.dictionary.to_pylist()]
            yield batch if all(own) else batch.filter(pa.array(own, pa.bool_()).take(names.indices))


def plain_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the lake's column types: other programs write views, dictionaries or large strings."""
    return batch.cast(pa.schema([PARTITION_SCHEMA.field(name) for name in batch.schema.names]))


def raw_batches(
    storage: Storage, table: str, path: str, columns: Sequence[str], since: int = 0, upto: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a stored file with ids in `(since, upto]`, in any order, whatever its statistics say."""
    with storage.read(table, path) as source, storage.open_parquet(source) as parquet:
        for group in range(parquet.num_row_groups):
            ids = parquet.read_row_group(group, columns=["committed_id"]).column(0)
            if upto is not None and not pc.any(_within(ids, since, upto)).as_py():
                continue
            mean = max(1, parquet.metadata.row_group(group).total_byte_size // max(1, len(ids)))
            count = max(1, min(BATCH_ROWS, BATCH_BYTES // mean))
            for batch in parquet.iter_batches(count, row_groups=[group], columns=list(columns)):
                rows = plain_rows(batch.select(list(columns)))
                own = _within(rows.column("committed_id"), since, upto)
                yield rows if upto is None or pc.all(own).as_py() else rows.filter(own)


def _within(ids: Any, since: int, upto: int | None) -> Any:
    last = (1 << 62) if upto is None else upto
    return pc.and_(pc.greater(ids, since), pc.less_equal(ids, last))
