"""A report on the history, beside the same questions by DuckDB, Polars and plain Python on the same files.

    python -m benchmarks.reporting [--events 1000000] [--rounds 3] [--cache DIR] [--skip TEXT]

The questions: totals; events, bytes, clients and partitions by hour; kinds, by hour too; the busiest partitions and
clients, with how many of the others each has; sizes; time from draft to commit; and edits of one item by two clients
within five seconds, by hour and by item. "by hand" is what a data engineer would write for them, without the checks
of files that a report makes. All come to the same numbers, which is checked. Contenders take turns; each line is the
median of the rounds, and each is in a process of its own with what it needs already imported and started.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.scale.history import build
from unisono.lake.lake import Lake
from unisono.pipeline.jobs.report.job import report
from unisono.pipeline.open_log import gc_paused, sqlite_uri

HOUR_MS = 3_600_000
WITHIN_MS = 5_000
UUID7 = "^[0-9a-f]{8}-[0-9a-f]{4}-7"

DUCKDB = (
    "SELECT count(*), sum(strlen(event)), count(DISTINCT client_id), min(status_updated_at), max(status_updated_at) "
    "FROM log",
    "SELECT status_updated_at // 3600000 AS hour, count(*), sum(strlen(event)), count(DISTINCT client_id) "
    "FROM log GROUP BY 1",
    "SELECT type, schema, count(*), sum(strlen(event)), max(strlen(event)) FROM log GROUP BY 1, 2 ORDER BY 3 DESC",
    "SELECT status_updated_at // 3600000 AS hour, type, schema, count(*) FROM log GROUP BY 1, 2, 3",
    "SELECT client_id, count(*), sum(strlen(event)), min(status_updated_at), max(status_updated_at) FROM log "
    "GROUP BY 1 ORDER BY 2 DESC LIMIT 20",
    "SELECT strlen(event) // 10, count(*) FROM log GROUP BY 1",
    "SELECT (status_updated_at - ('0x' || id[1:8] || id[10:13])::BIGINT) // 10, count(*) FROM log "
    f"WHERE regexp_matches(id, '{UUID7}') GROUP BY 1",
    "SELECT client_id, count(DISTINCT partition) FROM places GROUP BY 1",
    "SELECT partition, count(*), sum(strlen(event)), count(DISTINCT client_id) FROM places GROUP BY 1 "
    "ORDER BY 2 DESC LIMIT 20",
    "SELECT clients, count(*) FROM (SELECT count(DISTINCT client_id) AS clients FROM places GROUP BY partition) "
    "GROUP BY 1",
    "SELECT status_updated_at // 3600000 AS hour, count(DISTINCT partition) FROM places GROUP BY 1",
    "CREATE TEMP TABLE contested AS SELECT * FROM (SELECT partition, item, status_updated_at AS at_ms, client_id, "
    "lag(client_id) OVER w AS other, status_updated_at - lag(status_updated_at) OVER w AS gap FROM ("
    "SELECT *, CASE WHEN type = 'event' "
    "THEN regexp_replace(schema, '[.][^.]*$', '') || '/' || (event->>'$.payload.data.id') "
    "WHEN type = 'treePush' THEN 'tree/' || (event->>'$.payload.value.id') "
    "ELSE 'tree/' || (event->>'$.payload.options.id') END AS item FROM places) "
    "WINDOW w AS (PARTITION BY partition, item ORDER BY committed_id)) "
    f"WHERE other <> client_id AND gap BETWEEN 0 AND {WITHIN_MS}",
    "SELECT at_ms // 3600000, count(*) FROM contested GROUP BY 1",
    "SELECT partition, item, count(*), min(gap) FROM contested GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 20",
)

Answer = tuple[int, int, int]
"""Events, partitions written by the first client, contested edits: enough to see that questions are the same."""


def files_of(lake: Lake) -> tuple[list[str], list[str]]:
    view = lake.view()
    log, places = view.log_files, view.partition_files
    return (
        [view.storage.uri(file.table, file.path) for file in log],
        [view.storage.uri(file.table, file.path) for file in places],
    )


def by_duckdb(lake: Lake) -> Answer:
    import duckdb

    log, places = files_of(lake)
    with duckdb.connect() as connection:
        connection.read_parquet(log).create_view("log")
        connection.read_parquet(places, hive_partitioning=False).create_view("places")
        for sql in DUCKDB:
            connection.execute(sql).fetchall()
        ((events,),) = connection.execute("SELECT count(*) FROM log").fetchall()
        ((contested,),) = connection.execute("SELECT count(*) FROM contested").fetchall()
        ((partitions,),) = connection.execute(
            "SELECT count(DISTINCT partition) FROM places WHERE client_id = 'client-1'"
        ).fetchall()
    return events, partitions, contested


def by_polars(lake: Lake) -> Answer:
    import polars as pl

    log_files, place_files = files_of(lake)
    size, hour = pl.col("event").str.len_bytes(), (pl.col("status_updated_at") // HOUR_MS).alias("hour")
    log = pl.scan_parquet(log_files).with_columns(size.alias("size"), hour)
    places = pl.scan_parquet(place_files, hive_partitioning=False).with_columns(size.alias("size"), hour)
    at = pl.col("status_updated_at")
    counted = (pl.len(), pl.col("size").sum())
    kind = pl.col("type")
    item = (
        pl.when(kind == "event")
        .then(
            pl.col("schema").str.replace(r"\.[^.]*$", "")
            + "/"
            + pl.col("event").str.json_path_match("$.payload.data.id")
        )
        .when(kind == "treePush")
        .then("tree/" + pl.col("event").str.json_path_match("$.payload.value.id"))
        .otherwise("tree/" + pl.col("event").str.json_path_match("$.payload.options.id"))
        .alias("item")
    )
    drafted = pl.col("id").str.slice(0, 8) + pl.col("id").str.slice(9, 4)
    edits = places.select("partition", "committed_id", "client_id", "status_updated_at", "hour", item)
    edits = edits.sort("partition", "item", "committed_id").with_columns(
        other=pl.col("client_id").shift(1).over("partition", "item"),
        gap=(at - at.shift(1)).over("partition", "item"),
    )
    contested = edits.filter(
        (pl.col("other") != pl.col("client_id")) & pl.col("gap").is_between(0, WITHIN_MS)
    )
    found = pl.collect_all([
        log.select(*counted, pl.col("client_id").n_unique(), at.min().alias("first"), at.max().alias("last")),
        log.group_by("hour").agg(*counted, pl.col("client_id").n_unique()),
        log.group_by("type", "schema").agg(*counted, pl.col("size").max().alias("largest")),
        log.group_by("hour", "type", "schema").agg(pl.len()),
        log.group_by("client_id").agg(*counted, at.min().alias("first"), at.max().alias("last"))
        .sort("len", descending=True).head(20),
        log.group_by(pl.col("size") // 10).agg(pl.len()),
        log.filter(pl.col("id").str.contains(UUID7))
        .group_by((at - drafted.str.to_integer(base=16)) // 10).agg(pl.len()),
        places.group_by("client_id").agg(pl.col("partition").n_unique()),
        places.group_by("partition").agg(*counted, pl.col("client_id").n_unique()),
        places.group_by("hour").agg(pl.col("partition").n_unique()),
        contested.collect().lazy(),
    ])  # fmt: skip
    written = found[7].filter(pl.col("client_id") == "client-1")["partition"].item()
    return int(found[0]["len"].item()), int(written), found[-1].height


def by_python(lake: Lake) -> Answer:
    import re

    import orjson

    uuid7 = re.compile(UUID7)
    steps: dict[int, list[Any]] = defaultdict(lambda: [0, 0, set()])
    kinds, kinds_by_hour, sizes, delays = Counter[Any](), Counter[Any](), Counter[int](), Counter[int]()
    clients, written = Counter[str](), defaultdict[str, set[str]](set)
    writers, busy = defaultdict[str, set[str]](set), Counter[str]()
    places_by_hour: dict[int, set[str]] = defaultdict(set)
    edits: dict[Any, tuple[str, int]] = {}
    events = contested = 0
    columns = (
        "committed_id",
        "id",
        "client_id",
        "partitions",
        "event",
        "type",
        "schema",
        "status_updated_at",
    )
    with gc_paused():
        for batch in lake.scan_arrow(columns=columns):
            rows = zip(*(batch.column(name).to_pylist() for name in columns[1:]), strict=True)
            for id, client, names, text, kind, schema, at in rows:
                events += 1
                hour, size = at // HOUR_MS, len(text.encode())
                step = steps[hour]
                step[0] += 1
                step[1] += size
                step[2].add(client)
                kinds[kind, schema] += 1
                kinds_by_hour[hour, kind, schema] += 1
                sizes[size // 10] += 1
                clients[client] += 1
                if uuid7.match(id):
                    delays[(at - int(id[:8] + id[9:13], 16)) // 10] += 1
                payload = orjson.loads(text)["payload"]
                if kind == "event":
                    item = (schema.rpartition(".")[0], payload["data"]["id"])
                else:
                    item = ("tree", payload["value" if kind == "treePush" else "options"]["id"])
                for name in names:
                    busy[name] += 1
                    writers[name].add(client)
                    written[client].add(name)
                    places_by_hour[hour].add(name)
                    before = edits.get((name, item))
                    if before is not None and before[0] != client and 0 <= at - before[1] <= WITHIN_MS:
                        contested += 1
                    edits[name, item] = client, at
    return events, len(written["client-1"]), contested


def by_report(lake: Lake, spark: Callable[[], Any] | None) -> Answer:
    done = report(spark, lake, top=2_000)
    written = next((row.partitions for row in done.clients if row.client_id == "client-1"), -1)
    return done.totals.events, written, done.contests.contested


def contender(name: str, lake: Lake, rounds: int) -> None:
    """In a process of its own: one line of JSON, seconds of each round (wall, processor) and the answer.

    Spark's processor time is not in it.
    """
    works: dict[str, Callable[[Lake], Answer]] = {
        "report": lambda lake: by_report(lake, None),
        "DuckDB by hand": by_duckdb,
        "Polars by hand": by_polars,
        "plain Python": by_python,
    }
    if name == "report on Spark":
        from unisono.pipeline.spark.session import session

        spark = session("local[*]", "benchmark", quick=True)
        works[name] = lambda lake: by_report(lake, lambda: spark)
    seconds, cpu = [], []
    for _ in range(rounds + 1):
        began, cpu_began = time.perf_counter(), time.process_time()
        answer = works[name](lake)
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - cpu_began)
    print(msgspec.json.encode([seconds[1:], cpu[1:], answer]).decode())


CONTENDERS = ("report", "DuckDB by hand", "Polars by hand", "report on Spark", "plain Python")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "unisono-reporting")
    parser.add_argument("--lake", type=Path, help="a lake of `benchmarks.scale` that is there")
    parser.add_argument(
        "--skip", default="-", help="contenders with one of these, separated by commas, in their names"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    place = chosen.lake or chosen.cache / f"lake-{chosen.events}"
    if chosen.one:
        contender(chosen.one, Lake.at(str(place)), chosen.rounds)
        return
    if chosen.lake is None and not place.exists():
        from unisono.pipeline.jobs.export.job import export
        from unisono.pipeline.spark.session import session

        build(chosen.cache / f"log-{chosen.events}", chosen.events)
        Lake.at(str(place)).make()
        spark = session("local[*]", "benchmark", quick=True)
        export(spark, sqlite_uri(chosen.cache / f"log-{chosen.events}"), Lake.at(str(place)))
        spark.stop()
    print(
        f"{Lake.at(str(place)).head():,} events, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    found: dict[str, tuple[float, float, Answer]] = {}
    for name in CONTENDERS:
        skipped = any(text in name for text in chosen.skip.split(","))
        if skipped or (name.startswith("Polars") and find_spec("polars") is None):
            continue
        words = [
            sys.executable,
            "-m",
            "benchmarks.reporting",
            "--lake",
            str(place),
            "--rounds",
            str(chosen.rounds),
        ]
        done = subprocess.run([*words, "--one", name], check=True, capture_output=True, text=True)
        seconds, cpu, answer = msgspec.json.decode(done.stdout, type=tuple[list[float], list[float], Answer])
        found[name] = statistics.median(seconds), statistics.median(cpu), answer
        each = " ".join(f"{second:.2f}" for second in seconds)
        print(
            f"  {name:<18} {found[name][0]:>7.2f} s   ({each}); processor {found[name][1]:.2f} s", flush=True
        )
    assert len({answer for _, _, answer in found.values()}) == 1, found
    if "report" in found and "DuckDB by hand" in found:
        ours, theirs = found["report"], found["DuckDB by hand"]
        print(
            f"  report / DuckDB by hand: {ours[0] / theirs[0]:.2f}, of processor time {ours[1] / theirs[1]:.2f}"
        )


if __name__ == "__main__":
    main()
