"""One partition, and one hour, out of a lake with other engines: DuckDB, Polars, pandas, delta-rs and our own reader.

    python -m benchmarks.engines [--events 1000000] [--partitions 10000] [--rounds 5] [--cache DIR]

The log and its lake are made once and kept in the cache; the lake is compacted. Every engine answers the same two
questions in turn, in each round: the events of one partition, and how many events of a tenth of the time there are by
kind. Answers are compared. Seconds are the median of the wall, in one process that has imported everything and asked
once. "whole" reads the table without the bucket or the files that the table's statistics name.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
from deltalake import DeltaTable

from benchmarks.snapshots import build
from unisono.lake.lake import Lake
from unisono.pipeline.duckdb_file import make_duckdb_file
from unisono.pipeline.jobs.compact.job import compact
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.session import session

ROWS_PER_FILE = 100_000
"""Small ones, so that a million events show how many files are passed over."""

Question = Callable[[], Any]


def made(cache: Path, events: int, partitions: int) -> Lake:
    data, lake = cache / f"data-{events}", Lake.at(str(cache / f"lake-{events}"))
    build(data, events, partitions, skewed=False)
    if not lake.exists() or lake.head() < events:
        spark = session("local[*]", "engines", quick=True)
        lake.make()
        for part in range(1, 11):
            export(spark, sqlite_uri(data), lake, to=events * part // 10)
        compact(spark, lake, ROWS_PER_FILE)
        spark.stop()
    return lake


def of_one_partition(lake: Lake, database: Path, name: str) -> dict[str, Question]:
    """The committed ids of a partition, ascending."""
    table = DeltaTable(lake.storage.table("by_partition"))
    own = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % lake.view().buckets
    wanted = [("bucket", "in", [-1, own]), ("partition", "=", name)]
    few, every = table.file_uris(file_pruning_predicate=wanted), table.file_uris()
    connection = duckdb.connect(str(database), read_only=True)

    def by_duckdb(files: list[str]) -> list[int]:
        query = "SELECT committed_id, event FROM read_parquet($files) WHERE partition = $name ORDER BY 1"
        return [row[0] for row in connection.execute(query, {"files": files, "name": name}).fetchall()]

    def by_view() -> list[int]:
        query = "SELECT committed_id, event FROM history($name)"
        return [row[0] for row in connection.execute(query, {"name": name}).fetchall()]

    def by_polars(files: list[str]) -> list[int]:
        rows = pl.scan_parquet(files, hive_partitioning=False).filter(pl.col("partition") == name)
        return rows.select("committed_id", "event").sort("committed_id").collect()["committed_id"].to_list()

    def by_pandas(files: list[str]) -> list[int]:
        columns, rows = ["committed_id", "event"], [("partition", "==", name)]
        parts = [pd.read_parquet(file, columns=columns, filters=rows, partitioning=None) for file in files]
        found: list[int] = pd.concat(parts).sort_values("committed_id").committed_id.to_list()
        return found

    def by_unisono() -> list[int]:
        found = lake.scan_arrow([name], columns=["committed_id", "event"])
        return [id for batch in found for id in batch.column("committed_id").to_pylist()]

    print(f"{name}: {len(few)} of {len(every)} files can have it")
    return {
        "duckdb, by bucket": lambda: by_duckdb(few),
        "duckdb, macro history()": by_view,
        "duckdb, whole": lambda: by_duckdb(every),
        "polars, by bucket": lambda: by_polars(few),
        "polars, whole": lambda: by_polars(every),
        "pandas, by bucket": lambda: by_pandas(few),
        "pandas, whole": lambda: by_pandas(every),
        "unisono, scan_arrow": by_unisono,
    }


def of_some_time(lake: Lake, database: Path) -> dict[str, Question]:
    """How many events of each kind a tenth of the time has."""
    connection = duckdb.connect(str(database), read_only=True)
    bounds = connection.execute(
        "SELECT min(status_updated_at), max(status_updated_at) FROM events"
    ).fetchall()
    first, last = bounds[0]
    low, high = first + (last - first) * 6 // 10, first + (last - first) * 7 // 10
    table = DeltaTable(lake.storage.table("log"))
    condition = f"status_updated_at >= {low} AND status_updated_at < {high}"
    few, uris = table.file_uris(file_pruning_predicate=condition), table.file_uris()
    print(f"a tenth of the time: {len(few)} of {len(uris)} files can have it")

    def by_duckdb(source: str, parameters: dict[str, Any]) -> list[Any]:
        query = f"SELECT type, count(*) FROM {source} WHERE {condition} GROUP BY 1 ORDER BY 1"
        return connection.execute(query, parameters).fetchall()

    def by_polars(files: list[str]) -> list[Any]:
        rows = pl.scan_parquet(files).filter(pl.col("status_updated_at").is_between(low, high, closed="left"))
        return rows.group_by("type").len().sort("type").collect().rows()

    def by_pandas(files: list[str]) -> list[Any]:
        wanted = [("status_updated_at", ">=", low), ("status_updated_at", "<", high)]
        parts = [pd.read_parquet(file, columns=["type"], filters=wanted) for file in files]
        return list(pd.concat(parts).groupby("type").size().sort_index().items())

    return {
        "duckdb, files by statistics": lambda: by_duckdb("read_parquet($files)", {"files": few}),
        "duckdb, view events": lambda: by_duckdb("events", {}),
        "polars, files by statistics": lambda: by_polars(few),
        "polars, whole": lambda: by_polars(uris),
        "pandas, files by statistics": lambda: by_pandas(few),
        "pandas, whole": lambda: by_pandas(uris),
    }


def measure(questions: dict[str, Question], rounds: int) -> None:
    answers = {what: ask() for what, ask in questions.items()}
    first = next(iter(answers.values()))
    assert all(answer == first for answer in answers.values()), "engines disagree"
    seconds: dict[str, list[float]] = {what: [] for what in questions}
    for _ in range(rounds):
        for what, ask in questions.items():
            began = time.perf_counter()
            ask()
            seconds[what].append(time.perf_counter() - began)
    for what, taken in seconds.items():
        print(f"  {what:30} {statistics.median(taken) * 1_000:8.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "unisono-engines")
    parser.add_argument("--make", action="store_true", help="make the lake and measure nothing")
    given = parser.parse_args()
    lake = made(given.cache, given.events, given.partitions)
    database = given.cache / f"lake-{given.events}.duckdb"
    make_duckdb_file(lake, database)
    if given.make:
        return
    name = next(iter(lake.scan_arrow(limit=500))).column("partitions")[-1][0].as_py()
    measure(of_one_partition(lake, database, name), given.rounds)
    measure(of_some_time(lake, database), given.rounds)


if __name__ == "__main__":
    main()
