"""Puts tombstones into the lake's tables: rewrites the files that have erased events.

Rows keep their position, ids, partitions, times, hashes and row groups, so every digest of the table stays the same.
A commit replaces some files or nothing. It fails when a compaction came first, and the files are read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.attempt_files import job_attempt
from unisono.lake.columns import LOG_SCHEMA, PARTITION_SCHEMA
from unisono.lake.commit_retry import retry_on_conflict
from unisono.lake.digests import Digest, digest, total
from unisono.lake.file_checks import open_checked
from unisono.lake.lake import Lake
from unisono.lake.row_groups import Footer
from unisono.lake.scan import NameIndex
from unisono.lake.sections import section_of
from unisono.lake.storage import LOG, Storage
from unisono.lake.table import Table
from unisono.lake.write import DataFile, FileWriter
from unisono.pipeline.errors import Mismatch
from unisono.pipeline.spark.executors import run_on_executors
from unisono.protocol.tombstones import ERASED_TYPE, tombstone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES_PER_COMMIT: Final = 64
"""Files rewritten per commit: what a kill can cost."""


class TombstoneTimes(msgspec.Struct, frozen=True):
    """Events and the times of their tombstones, by committed_id: two arrays of one length."""

    ids: Any
    times: Any

    @classmethod
    def of(cls, times: Mapping[int, int]) -> TombstoneTimes:
        ids = np.array(sorted(times), np.int64)
        return cls(ids, np.array([times[number] for number in ids.tolist()], np.int64))

    def within(self, first: int, last: int) -> TombstoneTimes:
        """Those from `first` to `last`."""
        start, end = np.searchsorted(self.ids, [first, last + 1])
        return TombstoneTimes(self.ids[start:end], self.times[start:end])

    def places(self, committed_ids: Any) -> tuple[Any, Any]:
        """The mask of rows with one of these events, and the index of the event for each of those rows."""
        spots = np.minimum(np.searchsorted(self.ids, committed_ids), len(self.ids) - 1)
        mask = self.ids[spots] == committed_ids
        return mask, spots[mask]

    def __len__(self) -> int:
        return len(self.ids)


class RewriteTask(msgspec.Struct, frozen=True):
    """One file that may hold erased events."""

    storage: Storage
    file: DataFile
    erased: TombstoneTimes


class RewriteResult(msgspec.Struct, frozen=True):
    """The file that replaces one; None when nothing had to change."""

    old: DataFile
    new: DataFile | None
    rows: int
    read: Digest = Digest()
    written: Digest = Digest()


def rewrite(
    spark: SparkSession, lake: Lake, name: str, erased: TombstoneTimes, partitions: Mapping[str, int]
) -> int:
    """Replace the content of these events in one table by tombstones; returns the number of changed rows.

    `partitions`: all their partitions. Safe beside exports, compactions and readers.
    """
    changed = 0
    clean: set[str] = set()
    index = NameIndex(partitions, lake.table(name).description().buckets)

    def rewrite_all() -> None:
        nonlocal changed
        while True:
            table = lake.table(name)
            jobs = [job for job in _jobs(table, erased, index) if job.file.path not in clean]
            if not jobs:
                return
            with job_attempt(lake.storage) as storage:
                own = [msgspec.structs.replace(job, storage=storage) for job in jobs[:FILES_PER_COMMIT]]
                done = run_on_executors(spark, own, rewrite_file)
                changed += _commit(table, done)
            clean.update(part.old.path if part.new is None else part.new.path for part in done)

    retry_on_conflict(rewrite_all)
    return changed


def _jobs(table: Table, erased: TombstoneTimes, index: NameIndex) -> list[RewriteTask]:
    jobs = []
    for file in table.files():
        mine = erased.within(file.first_id, file.last_id)
        if len(mine) and (table.name == LOG or index.in_file(file)):
            jobs.append(RewriteTask(table.storage, file, mine))
    return jobs


def _commit(table: Table, done: list[RewriteResult]) -> int:
    fresh = [part for part in done if part.new is not None]
    if not fresh:
        return 0
    read, written = total([part.read for part in fresh]), total([part.written for part in fresh])
    if read != written:
        raise Mismatch(
            f"files of {table.name} had {read} before and {written} after the rewrite: nothing is replaced"
        )
    new = [part.new for part in fresh if part.new is not None]
    rows = sum(part.rows for part in fresh)
    notes = {"erased": rows, "digest": msgspec.to_builtins(written)}
    table.replace([part.old for part in fresh], new, notes, same_rows=False)
    return rows


def rewrite_file(job: RewriteTask) -> RewriteResult:
    """On an executor: rewrite the file by row group; no new file when no row changes."""
    file = job.file
    names = (LOG_SCHEMA if file.table == LOG else PARTITION_SCHEMA).names
    with open_checked(job.storage, file) as parquet:
        footer = Footer(parquet.metadata)
        groups = range(len(footer))
        if not any(differing(parquet.read_row_group(number, columns=["committed_id", "event"]), job.erased)
                   for number in groups if touched(footer, number, job.erased)):  # fmt: skip
            return RewriteResult(file, None, 0)
        writer = FileWriter(job.storage, file.table, file.bucket, section=section_of(file))
        read, changed = Digest(), 0
        for number in groups:
            rows = parquet.read_row_group(number, columns=names)
            read += digest(rows)
            rows, count = with_tombstones(rows, job.erased)
            writer.add(rows)
            changed += count
    return RewriteResult(file, writer.close(), changed, read, writer.digest)


def with_tombstones(rows: pa.Table, erased: TombstoneTimes) -> tuple[pa.Table, int]:
    """The rows with tombstones for these events, and the number of rows changed."""
    mask, spots = erased.places(np.asarray(rows.column("committed_id")))
    changed = len(differing(rows, erased))
    if not changed:
        return rows, 0
    texts = pa.array([tombstone(time) for time in erased.times[spots].tolist()], pa.string())
    here = pa.array(mask)
    columns = {
        "event": pc.replace_with_mask(rows.column("event").combine_chunks(), here, texts),
        "type": pc.if_else(here, pa.scalar(ERASED_TYPE), rows.column("type")),
        "schema": pc.if_else(here, pa.scalar(None, pa.string()), rows.column("schema")),
        "author": pc.if_else(here, pa.scalar(None, pa.string()), rows.column("author")),
    }
    for name, column in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(name), column)
    return rows, changed


def differing(rows: pa.Table | pa.RecordBatch, erased: TombstoneTimes) -> list[tuple[int, bytes]]:
    """The id and the text of each row of these events whose text is not their tombstone."""
    mask, spots = erased.places(np.asarray(rows.column("committed_id")))
    texts = rows.column("event").filter(pa.array(mask)).to_pylist()
    ids, times = erased.ids[spots].tolist(), erased.times[spots].tolist()
    return [
        (id, text.encode())
        for id, text, time in zip(ids, texts, times, strict=True)
        if text.encode() != tombstone(time)
    ]


def touched(footer: Footer, group: int, erased: TombstoneTimes) -> bool:
    """Whether a row group may have any of these events: it may where its file has no statistics."""
    ids = footer.bounds(group, "committed_id")
    return ids is None or len(erased.within(*ids)) > 0
