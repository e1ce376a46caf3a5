"""Writing events into the lake's files, on executors.

A *run* is a range of committed ids written by one task: one file of the table `log`, and the same events, one row per
(partition, event), in files of the table `by_partition`. Runs never overlap, so reading them one after the other
gives committed_id order; compaction joins neighbours into longer runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from unisono.lake.columns import LOG_SCHEMA, PARTITION_SCHEMA, SNAPSHOT_SCHEMA, bucket_of
from unisono.lake.digests import Digest, digest
from unisono.lake.sections import Section
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS, Storage

UNBUCKETED: Final = -1
"""The bucket of runs too small to be split: one file with all partitions, until it is compacted."""

UNBUCKETED_ROWS_MAX: Final = 16_384
"""Below this, a run split into buckets would have about a thousand rows in each file."""

RUN_BYTES_MAX: Final = 112 << 20
"""Event bytes in memory for one run; larger ranges become several runs."""

GROUP_ROWS: Final = 8_192
GROUP_BYTES: Final = 8 << 20
"""A row group, which a reader fetches to find one event; a few hundred kilobytes compressed."""

_DICTIONARY: Final = ("client_id", "partitions.list.element", "type", "schema", "author", "partition")
_DELTAS: Final = ("committed_id", "status_updated_at")

FILE_SCHEMAS: Final = {LOG: LOG_SCHEMA, BY_PARTITION: PARTITION_SCHEMA, SNAPSHOTS: SNAPSHOT_SCHEMA}
"""The columns of each table's data files; columns that a table is partitioned by are in no file."""

_WRITING_SNAPSHOTS: Final[dict[str, Any]] = {
    "use_dictionary": ["model_digest"],
    "column_encoding": dict.fromkeys(
        ("committed_id", "events", "skipped", "created_at"), "DELTA_BINARY_PACKED"
    ),
    "compression": dict.fromkeys(SNAPSHOT_SCHEMA.names, "zstd") | {"hash": "none"},
    "compression_level": dict.fromkeys((name for name in SNAPSHOT_SCHEMA.names if name != "hash"), 1),
    "write_statistics": ["partition", "committed_id"],
    "write_page_checksum": True,
    "store_schema": False,
    "version": "2.6",
}


def writing_options(table: str) -> dict[str, Any]:
    """How a table's files are written; figures are of 100,000 events of 300 bytes."""
    if table == SNAPSHOTS:
        return _WRITING_SNAPSHOTS
    own = ("partition",) if table == BY_PARTITION else ()
    dictionary = [name for name in _DICTIONARY if name != "partition" or own]
    compressed = [*dictionary, *_DELTAS, "id", "event"]
    return {
        "use_dictionary": dictionary,
        "column_encoding": dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
        # Level 3 makes files 3 % smaller and takes a third longer. Hashes do not compress.
        "compression": dict.fromkeys(compressed, "zstd") | {"hash": "none"},
        "compression_level": dict.fromkeys(compressed, 1),
        "write_statistics": [*own, *_DELTAS, "client_id", "type", "schema"],
        "write_page_index": True,  # lets Spark and DataFusion skip pages within a row group
        "write_page_checksum": True,  # pruned events exist only here: damage must be noticed
        "store_schema": False,  # the table's schema applies, not a copy in each file
        "version": "2.6",
    }


@contextmanager
def release_arrow_memory() -> Iterator[None]:
    """Return Arrow's freed memory after a task: it keeps 100 MB after a run, and workers may be idle for hours."""
    try:
        yield
    finally:
        pa.default_memory_pool().release_unused()


class Sources(msgspec.Struct, frozen=True):
    """Where the rows of a file are that is made when it is opened (`rearranged.py`): files of other programs, which
    have them among others and in any order, of a table with so many buckets."""

    paths: tuple[str, ...]
    buckets: int


class DataFile(msgspec.Struct, frozen=True):
    """One Parquet file of a table: its path and statistics.

    `sources`: None for a file that is stored under its path. `times` and `clients`: the smallest and largest
    `status_updated_at` and `client_id` of its events, by which other engines skip files; None in files of snapshots
    and of older versions.
    """

    table: str
    path: str
    bytes: int
    rows: int
    first_id: int
    last_id: int
    bucket: int | None = None
    first_partition: str | None = None
    last_partition: str | None = None
    model_version: int | None = None
    model_digest: str | None = None
    times: tuple[int, int] | None = None
    clients: tuple[str, str] | None = None
    sources: Sources | None = None


class WrittenFiles(msgspec.Struct, frozen=True):
    """The output of a task: files that no table names yet, and digests of their rows."""

    files: list[DataFile]
    log: Digest
    by_partition: Digest


class FileWriter:
    """Writes one data file, row group by row group, in memory; `close` stores it."""

    def __init__(
        self,
        storage: Storage,
        table: str,
        bucket: int | None = None,
        *,
        model_version: int | None = None,
        model_digest: str | None = None,
        section: Section | None = None,
    ) -> None:
        self._storage = storage
        self._table = table
        self._bucket = bucket
        self._section = section
        self._model_version = model_version
        self._model_digest = model_digest
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, FILE_SCHEMAS[table], **writing_options(table))
        self._extremes: list[tuple[Any, Any]] = []
        self._names: list[tuple[str, str]] = []
        self._times: list[tuple[int, int]] = []
        self._clients: list[tuple[str, str]] = []
        self.rows = 0
        self.digest = Digest()

    def add(self, rows: pa.Table) -> None:
        """Append one row group; rows must follow the earlier ones in the table's order."""
        ids = pc.min_max(rows.column("committed_id")).as_py()
        self._extremes.append((ids["min"], ids["max"]))
        if self._table != LOG:
            names = rows.column("partition")
            self._names.append((names[0].as_py(), names[-1].as_py()))
        if self._table != SNAPSHOTS:
            self._times.append(_bounds(rows.column("status_updated_at")))
            self._clients.append(_bounds(rows.column("client_id")))
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self.digest += digest(rows)
        self.rows += rows.num_rows

    @property
    def bytes_made(self) -> int:
        """Compressed bytes so far."""
        return int(self._sink.tell())

    def close(self) -> DataFile:
        self._writer.close()
        content = self._sink.getvalue()
        first_id = min(low for low, _ in self._extremes)
        last_id = max(high for _, high in self._extremes)
        folder = "" if self._model_version is None else f"model_version={self._model_version}/"
        folder += "" if self._bucket is None else f"bucket={self._bucket}/"
        folder += "" if self._section is None else self._section.folder
        path = f"{folder}{self._storage.new_name(first_id, last_id)}"
        self._storage.write(self._table, path, content)
        return DataFile(
            self._table,
            path,
            content.size,
            self.rows,
            first_id,
            last_id,
            self._bucket,
            self._names[0][0] if self._names else None,
            self._names[-1][1] if self._names else None,
            self._model_version,
            self._model_digest,
            _widest(self._times),
            _widest(self._clients),
        )


def _bounds(column: Any) -> tuple[Any, Any]:
    """The smallest and the largest value; None for both when there is a null, which only a damaged row has."""
    both = pc.min_max(column, skip_nulls=False).as_py()
    return both["min"], both["max"]


def _widest(bounds: list[tuple[Any, Any]]) -> tuple[Any, Any] | None:
    if not bounds or any(None in both for both in bounds):
        return None
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def write_runs(
    storage: Storage,
    batches: Iterable[pa.RecordBatch],
    *,
    buckets: int,
    events_per_file: int,
    tables: frozenset[str] = frozenset((LOG, BY_PARTITION)),
) -> WrittenFiles:
    """Write rows in committed_id order as runs of at most `events_per_file` events."""
    files: list[DataFile] = []
    log, by_partition = Digest(), Digest()
    for run in _runs(batches, events_per_file):
        if LOG in tables:
            writer = FileWriter(storage, LOG)
            for group in row_groups(run):
                writer.add(group)
            files.append(writer.close())
            log += writer.digest
        if BY_PARTITION in tables:
            for bucket, rows in _rows_by_bucket(run, buckets):
                writer = FileWriter(storage, BY_PARTITION, bucket)
                for group in rows:
                    writer.add(group)
                files.append(writer.close())
                by_partition += writer.digest
    return WrittenFiles(files, log, by_partition)


def _runs(batches: Iterable[pa.RecordBatch], events_per_file: int) -> Iterator[pa.Table]:
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if pending and (rows + batch.num_rows > events_per_file or size + batch.nbytes > RUN_BYTES_MAX):
            yield _concatenate(pending)
            rows = size = 0
        if batch.num_rows:
            pending.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
    if pending:
        yield _concatenate(pending)


def _concatenate(batches: list[pa.RecordBatch]) -> pa.Table:
    """One table with contiguous columns, from which rows are taken quickly; clears `batches`."""
    table = pa.Table.from_batches(batches).combine_chunks()
    batches.clear()
    return table


def row_groups(run: pa.Table) -> Iterator[pa.Table]:
    """Rows in row groups of a bounded size."""
    sizes = np.asarray(pc.binary_length(run.column("event")))
    for start, end in row_group_ranges(sizes):
        yield run.slice(start, end - start)


def _rows_by_bucket(run: pa.Table, buckets: int) -> Iterator[tuple[int, Iterator[pa.Table]]]:
    """The rows of `by_partition` for a run, bucket by bucket, sorted by partition and committed_id."""
    lists = run.column("partitions").chunk(0)
    parents = np.asarray(pc.list_parent_indices(lists))
    encoded = pc.list_flatten(lists).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    homes = [UNBUCKETED if len(parents) < UNBUCKETED_ROWS_MAX else bucket_of(name, buckets) for name in names]
    placed = sorted(range(len(names)), key=lambda number: (homes[number], names[number].encode()))
    ranks = np.empty(len(names), np.int32)
    ranks[placed] = np.arange(len(names), dtype=np.int32)
    keys = ranks[np.asarray(encoded.indices)]
    order = np.argsort(keys, kind="stable")  # stable: committed_id stays ascending within a partition
    sizes = np.asarray(pc.binary_length(run.column("event")))[parents[order]]
    bucket_by_rank = np.array([homes[number] for number in placed])[keys[order]]
    edges = [0, *(np.flatnonzero(np.diff(bucket_by_rank)) + 1).tolist(), len(order)]
    for start, end in itertools.pairwise(edges):
        yield (
            int(bucket_by_rank[start]),
            _take_rows(run, encoded, parents, order[start:end], sizes[start:end]),
        )


def _take_rows(run: pa.Table, names: Any, parents: Any, order: Any, sizes: Any) -> Iterator[pa.Table]:
    for start, end in row_group_ranges(sizes):
        places = order[start:end]
        partition = names.take(pa.array(places)).dictionary_decode()
        rows = run.take(pa.array(parents[places]))
        yield rows.add_column(0, PARTITION_SCHEMA.field("partition"), partition)


def row_group_ranges(sizes: Any) -> Iterator[tuple[int, int]]:
    """(start, end) of row groups for events of these sizes: bounded in rows and in bytes, at least one row each."""
    ends = np.cumsum(sizes)
    start, total = 0, len(sizes)
    while start < total:
        before = int(ends[start - 1]) if start else 0
        full = int(np.searchsorted(ends, before + GROUP_BYTES, side="right"))
        end = min(max(full, start + 1), start + GROUP_ROWS, total)
        yield start, end
        start = end
