"""Questions that the pipeline answers in Python on executors, beside the same ones in Spark SQL, in one session.

    python -m benchmarks.by_hand [--events 200000] [--rounds 3] [--cache DIR]

Equal ids, the log compared with both tables of the lake, and hashes computed again; then ids and hashes together, as
an audit asks them: by hand from one pass over the files. Contenders take turns; each line is the median of the
rounds, after one that does not count. The figures are in docs/decisions/0021-tasks-are-rows.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from benchmarks.scale.history import build
from unisono import pipeline
from unisono.lake.content_check import first_wrong_hash
from unisono.lake.lake import Lake, View
from unisono.lake.scan import RowRange, scan_file
from unisono.lake.storage import LOG, Storage
from unisono.lake.write import DataFile
from unisono.pipeline.compare import verify
from unisono.pipeline.jobs.audit.duplicate_ids import exchanges, find_shared_ids, split
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.row_fingerprints import batch_hashes
from unisono.pipeline.spark.executors import parallelism, run_on_executors, task_frame
from unisono.pipeline.spark.frames import read_log, read_partitions

_PAIRS = pa.schema([("home", pa.int32()), ("found", pa.binary())])


def equal_ids_by_hand(spark: SparkSession, view: View) -> int:
    return _found_by_hand(spark, view, _ids)


def _found_by_hand(
    spark: SparkSession, view: View, work: Callable[[Storage, int, int, DataFile], Iterator[pa.RecordBatch]]
) -> int:
    parts = exchanges(view.head, parallelism(spark))
    pairs = task_frame(
        spark, view.log_files, partial(work, view.storage, view.head, parts), "home INT, found BINARY"
    )
    met = pairs.repartitionById(parts, "home").mapInArrow(_met, "groups BIGINT")
    return int(met.agg(f.sum("groups")).collect()[0][0] or 0)


def _ids(storage: Storage, head: int, parts: int, file: DataFile) -> Iterator[pa.RecordBatch]:
    return _exchanged(scan_file(storage, file, RowRange(0, head), ("id", "committed_id")), parts)


def _exchanged(batches: Iterable[pa.RecordBatch], parts: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = list(
            split(batch_hashes(batch, ("id",))["id"], np.asarray(batch.column("committed_id")), parts)
        )
        yield pa.RecordBatch.from_arrays(
            [pa.array([home for home, _ in found], pa.int32()), pa.array([blob for _, blob in found])],
            schema=_PAIRS,
        )


def _met(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    blobs = [blob for batch in batches for blob in batch.column("found").to_pylist()]
    if blobs:
        yield pa.RecordBatch.from_pydict(
            {"groups": pa.array([len(find_shared_ids(blobs).groups)], pa.int64())}
        )


def equal_ids_by_sql(spark: SparkSession, view: View) -> int:
    return read_log(spark, view).groupBy("id").count().where("count > 1").count()


def copies_by_hand(spark: SparkSession, lake: Lake, store: str) -> int:
    return sum(not found.equal for found in verify(spark, store, lake))


def copies_by_sql(spark: SparkSession, view: View, store: str) -> int:
    log = (
        spark.read.format("unisono")
        .option("store", store)
        .load()
        .select("committed_id", "hash", "partitions")
    )
    ours = read_log(spark, view).select("committed_id", f.col("hash").alias("other"))
    events = log.join(ours, "committed_id", "full").where("hash IS DISTINCT FROM other").count()
    expected = log.select("committed_id", f.explode("partitions").alias("partition"), "hash")
    rows = read_partitions(spark, view).select("committed_id", "partition", f.col("hash").alias("other"))
    joined = expected.join(rows, ["committed_id", "partition"], "full")
    return events + joined.where("hash IS DISTINCT FROM other").count()


def hashes_by_hand(spark: SparkSession, view: View) -> int:
    tasks = [(view.storage, view.head, file) for file in view.log_files]
    return sum(found is not None for found in run_on_executors(spark, tasks, _wrong_hash))


def _wrong_hash(task: tuple[Storage, int, DataFile]) -> str | None:
    storage, head, file = task
    columns = ("committed_id", "partitions", "event", "hash")
    return first_wrong_hash(LOG, scan_file(storage, file, RowRange(0, head), columns))


def hashes_by_sql(spark: SparkSession, view: View) -> int:
    """Right only where names need no escapes in JSON."""
    text = f.concat(f.lit('{"event":'), "event", f.lit(',"partitions":'), f.to_json("partitions"), f.lit("}"))
    return read_log(spark, view).where(f.unhex(f.sha2(text, 256)) != f.col("hash")).count()


def both_by_hand(spark: SparkSession, view: View) -> int:
    return _found_by_hand(spark, view, _ids_and_hashes)


def _ids_and_hashes(storage: Storage, head: int, parts: int, file: DataFile) -> Iterator[pa.RecordBatch]:
    columns = ("id", "committed_id", "partitions", "event", "hash")
    for batch in scan_file(storage, file, RowRange(0, head), columns):
        assert first_wrong_hash(LOG, [batch]) is None
        yield from _exchanged([batch], parts)


def both_by_sql(spark: SparkSession, view: View) -> int:
    return equal_ids_by_sql(spark, view) + hashes_by_sql(spark, view)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = chosen.cache or Path(place)
        build(folder / "data", chosen.events)
        spark = pipeline.session("local[*]", "by hand")
        store, lake = sqlite_uri(folder / "data"), Lake.at(str(folder / "lake"))
        pipeline.export(spark, store, lake.storage.location)
        view = lake.view()
        pipeline.register(spark)
        contenders: dict[str, Callable[[], int]] = {
            "equal ids, by hand": lambda: equal_ids_by_hand(spark, view),
            "equal ids, Spark SQL": lambda: equal_ids_by_sql(spark, view),
            "log and lake, by hand": lambda: copies_by_hand(spark, lake, store),
            "log and lake, Spark SQL": lambda: copies_by_sql(spark, view, store),
            "hashes, by hand": lambda: hashes_by_hand(spark, view),
            "hashes, Spark SQL": lambda: hashes_by_sql(spark, view),
            "ids and hashes, by hand": lambda: both_by_hand(spark, view),
            "ids and hashes, Spark SQL": lambda: both_by_sql(spark, view),
        }
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(chosen.rounds + 1):
            for name, ask in contenders.items():
                began = time.perf_counter()
                found = ask()
                if number:
                    taken[name].append(time.perf_counter() - began)
                assert found == 0, (name, found)
        for name, seconds in taken.items():
            print(f"{name:26} {statistics.median(seconds):6.2f} s", flush=True)
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
