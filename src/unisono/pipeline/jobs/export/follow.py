"""Exports as a stream: the lake follows the log, one micro-batch at a time, until stopped.

Spark's checkpoint has the planned batches; the lake's tables have the events they contain, and decide. A batch that
is replayed after a kill finds its events in the lake and adds nothing.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from unisono.lake.attempt_files import job_attempt
from unisono.lake.columns import LOG_SCHEMA
from unisono.lake.commit_retry import retry_on_conflict
from unisono.lake.digests import total
from unisono.lake.lake import Lake
from unisono.lake.storage import Storage
from unisono.lake.write import WrittenFiles, write_runs
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.compact.foreign_files import in_order
from unisono.pipeline.jobs.export.job import (
    BOTH,
    EVENTS_PER_FILE,
    ExportCommit,
    ExportResult,
    align_tables,
    commit,
    export,
    plan,
)
from unisono.pipeline.open_log import extent
from unisono.pipeline.origin_check import origin_of
from unisono.pipeline.spark.executors import rows_of
from unisono.pipeline.spark.source import EVENTS_PER_BATCH, UnisonoSource

EVERY_S: Final = 1.0
"""Interval between two polls of the log."""

_POLL_S: Final = 0.2

OnBatch = Callable[[ExportResult], None]
"""Called after each batch that added events."""


class Follower:
    """A running export stream.

    A batch and a stop exclude each other: `stop` waits for the current batch, and no batch begins after it.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: str,
        lake: Lake,
        checkpoint: Path,
        *,
        every_s: float = EVERY_S,
        events_per_batch: int = EVENTS_PER_BATCH,
        on_batch: OnBatch | None = None,
    ) -> None:
        self._spark = spark
        self._store = store
        self._lake = lake
        self._on_batch = on_batch or (lambda _: None)
        self._working = threading.Lock()
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        plan(store, lake)  # refuses the lake of another log
        head = align_tables(spark, store, lake)  # a stream alone does nothing until there are new events
        spark.dataSource.register(UnisonoSource)
        rows = (
            spark.readStream.format("unisono")
            .option("store", store)
            .option("from", head)
            .option("max_events_per_batch", events_per_batch)
            .load()
        )
        self._query = (
            rows.writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", str(resume_place(checkpoint, head)))
            .trigger(processingTime=f"{int(every_s * 1000)} milliseconds")
            .start()
        )

    def run(self, stop: threading.Event, upto: int | None = None) -> None:
        """Follow until `stop` is set, or the lake has reached `upto`; raises the error that ended the stream."""
        while not stop.wait(_POLL_S):
            if not self._query.isActive:
                raise self._failure or self._query.exception() or PipelineError("the stream ended")
            if upto is not None and self._lake.head() >= upto:
                break
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        with self._working:
            self._query.stop()

    def _batch(self, rows: DataFrame, _: int) -> None:
        while not self._working.acquire(timeout=_POLL_S):
            if self._stopping.is_set():
                raise PipelineError("stopping")  # not committed, so Spark plans this batch again
        try:
            if self._stopping.is_set():
                raise PipelineError("stopping")
            self._copy(rows)
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._working.release()

    def _copy(self, rows: DataFrame) -> None:
        """Add the events of this batch that the lake lacks; another export may have added some."""
        done = in_order(self._spark, self._lake, lambda: retry_on_conflict(lambda: self._add(rows)))
        if done is not None:
            self._on_batch(done)

    def _add(self, rows: DataFrame) -> ExportResult | None:
        began = time.monotonic()
        head = align_tables(self._spark, self._store, self._lake)
        with job_attempt(self._lake.storage) as storage:
            written = self._write(rows.where(f.col("committed_id") > head), storage)
            log = total([part.log for part in written])
            if log.rows == 0:
                return None
            if log.first > head + 1:  # the lake was restored to an earlier state: export the gap
                head = export(self._spark, self._store, self._lake, to=log.first - 1).upto
            commit(self._lake, ExportCommit(head, log.last, BOTH), written, origin_of(self._store))
        return ExportResult(head, log.last, log.rows, time.monotonic() - began, log)

    def _write(self, rows: DataFrame, storage: Storage) -> list[WrittenFiles]:
        writing = _Writing(storage, self._lake.view().buckets)
        stored = rows.select(*LOG_SCHEMA.names)  # the source has columns more
        found = rows_of(stored.mapInArrow(writing, "written BINARY"), "export.follow")
        return [msgspec.msgpack.decode(row.written, type=WrittenFiles) for row in found]


def follow_by_polling(
    spark: SparkSession,
    store: str,
    lake: Lake,
    stop: threading.Event,
    *,
    every_s: float = EVERY_S,
    events_per_batch: int = EVENTS_PER_BATCH,
    on_batch: OnBatch | None = None,
    upto: int | None = None,
) -> None:
    """Follow until `stop` is set, or the lake has reached `upto`, by one export after the other.

    For Spark Connect, where a stream's batches are handled on the server. The lake's tables are the only checkpoint.
    """
    while True:
        head = lake.head()
        if upto is not None and head >= upto:
            return
        if plan(store, lake):
            to = min(extent(store).head, head + events_per_batch)
            done = in_order(spark, lake, partial(export, spark, store, lake, to=to))
            if done.events and on_batch is not None:
                on_batch(done)
            if not stop.is_set():
                continue
        if stop.wait(every_s):
            return


class _Writing:
    """On an executor: writes the rows of one range to files."""

    def __init__(self, storage: Storage, buckets: int) -> None:
        self._storage = storage
        self._buckets = buckets

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (pa.RecordBatch.from_arrays(batch.columns, schema=LOG_SCHEMA) for batch in batches)
        written = write_runs(self._storage, rows, buckets=self._buckets, events_per_file=EVENTS_PER_FILE)
        encoded = pa.array([msgspec.msgpack.encode(written)], pa.binary())
        yield pa.RecordBatch.from_arrays([encoded], names=["written"])


def resume_place(checkpoint: Path, head: int) -> Path:
    """The directory of the stream's checkpoint: the last one, or a new one when it does not match the lake.

    A stream resumes at its checkpoint. If an export ran since, it would read events that the lake has, or that were
    pruned. If the lake was restored to an earlier state, it would skip the events between.
    """
    places = sorted(checkpoint.glob("from-*"), key=lambda place: place.stat().st_mtime)
    if places and _done(places[-1]) <= head <= _planned(places[-1]):
        return places[-1]
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    fresh = checkpoint / f"from-{head}"
    fresh.mkdir(parents=True, exist_ok=True)
    return fresh


def _planned(place: Path) -> int:
    """The committed_id at the end of the newest planned batch; -1 when unknown."""
    return _end_of(place, _newest(place / "offsets"))


def _done(place: Path) -> int:
    """The committed_id at the end of the newest finished batch, or at the start of the first; -1 when unknown."""
    newest = _newest(place / "commits")
    return int(place.name.removeprefix("from-")) if newest is None else _end_of(place, newest)


def _newest(folder: Path) -> int | None:
    return max((int(entry.name) for entry in folder.glob("*") if entry.name.isdigit()), default=None)


def _end_of(place: Path, batch: int | None) -> int:
    try:
        lines = (place / "offsets" / str(batch)).read_text("utf-8").splitlines()
        return int(json.loads(lines[-1])["committed_id"])
    except (ValueError, OSError, KeyError, IndexError, TypeError):
        return -1
