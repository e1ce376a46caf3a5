"""The log into the lake: rates of the data source and of export, beside plain Python in one process.

    python -m benchmarks.pipeline [--events 1000000] [--rounds 3] [--cache DIR] [--skip-cold]

The log is made once and kept in the cache: events of about 250 bytes, half canonical and half tree actions, over
10,000 partitions, one event in ten in two of them. Spark is up and has done a small job before anything is
timed; each line is the median of the rounds. "plain" does the same by one process with pyarrow and no Spark:
`log` reads every row and writes one sorted Parquet table, `both` writes both of the lake's tables with the lake's
own code.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.notes import added, item, record
from unisono.lake.columns import LOG_SCHEMA, to_batch
from unisono.lake.lake import Lake
from unisono.pipeline.compare import verify
from unisono.pipeline.jobs.compact.job import compact
from unisono.pipeline.jobs.export.job import BOTH, EVENTS_PER_FILE, ExportTask, export, run_task
from unisono.pipeline.open_log import gc_paused, open_reader, read_range, sqlite_uri
from unisono.pipeline.spark.session import session
from unisono.pipeline.spark.source import UnisonoSource
from unisono.pipeline.spark.warmup import prepare
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog

GROUP = 1_000
PARTITIONS = 10_000


def build(directory: Path, events: int) -> None:
    """Complete the log to `events`, through the real writer."""
    log = SqliteLog.open(directory)
    chance = random.Random(log.head())
    while (head := log.begin([]).head) < events:
        log.commit([made(number, chance) for number in range(head + 1, min(head + GROUP, events) + 1)])
        log.maintain()
    log.abandon()
    log.close()


def made(number: int, chance: random.Random) -> Record:
    note = item(number, chance)
    if number % 2:
        event = added(note)
    else:
        options = {"parent": "_root", "position": "last"}
        event = {"type": "treePush", "payload": {"target": "doc", "value": note, "options": options}}
    names = sorted({f"room-{chance.randrange(PARTITIONS):05d}" for _ in range(1 if number % 10 else 2)})
    return record(number, event, names, chance)


def plain_log(store: str, events: int, folder: Path) -> None:
    """What anybody would write: rows from the log into one Parquet file."""
    reader = open_reader(store)
    with (
        gc_paused(),
        pq.ParquetWriter(folder / "plain.parquet", LOG_SCHEMA, compression="zstd") as writer,
    ):
        for records in read_range(reader, 0, events):
            writer.write_table(pa.Table.from_batches([to_batch(records)]))
    reader.close()


def plain_both(store: str, events: int, folder: Path) -> None:
    """The work of the export's tasks, one after the other in this process."""
    lake = Lake.at(str(folder / "plain-lake"))
    lake.make()
    for since in range(0, events, EVENTS_PER_FILE):
        upto = min(since + EVENTS_PER_FILE, events)
        run_task(ExportTask(store, lake.storage, since, upto, BOTH, 16, EVENTS_PER_FILE))


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def steps(
    spark: Any, log: Any, store: str, events: int, lake: Lake, place: Path
) -> dict[str, Callable[[], object]]:
    return {
        "source, read by Spark": lambda: log.write.format("noop").mode("overwrite").save(),
        "plain Python, log only": lambda: plain_log(store, events, place),
        "plain Python, both tables": lambda: plain_both(store, events, place),
        "export, both tables": lambda: export(spark, store, lake),
        "verify": lambda: verify(spark, store, lake),
        "compact": lambda: compact(spark, lake),
    }


def rates(store: str, events: int, rounds: int, folder: Path) -> None:
    spark = session("local[*]", "benchmark", quick=True)
    spark.dataSource.register(UnisonoSource)
    log = spark.read.format("unisono").option("store", store).load()
    warm = Lake.at(str(folder / "warm"))
    warm.make()
    export(spark, store, warm, to=min(events, 2_000))
    log.where("committed_id < 2000").write.format("noop").mode("overwrite").save()
    seconds: dict[str, list[float]] = {}
    for number in range(rounds):
        place = folder / f"round-{number}"
        lake = Lake.at(str(place / "lake"))
        lake.make()
        for name, work in steps(spark, log, store, events, lake, place).items():
            seconds.setdefault(name, []).append(timed(work))
        assert lake.head() == events
        if number == 0:
            size = sum(file.bytes for file in (*lake.view().log_files, *lake.view().partition_files))
            print(f"  the lake: {size / 1e6:.0f} MB")
        shutil.rmtree(place)
    for name, taken in seconds.items():
        middle = statistics.median(taken)
        each = " ".join(f"{second:.1f}" for second in taken)
        print(f"  {name:<27} {events / middle:>10,.0f} events/s   (seconds: {each})")


def cold(store: str, rounds: int, folder: Path) -> None:
    """Whole commands, from nothing to their answer."""
    place = ["--store", store, "--lake", str(folder / "cold"), "--quiet"]
    command = [sys.executable, "-m", "unisono", "lake"]

    def run(*arguments: str) -> float:
        return timed(lambda: subprocess.run([*command, *arguments, *place], check=True, capture_output=True))

    exports = [run("export", "--to", str(10 * (number + 1))) for number in range(rounds)]
    infos = [run("info") for _ in range(rounds)]
    for name, taken in (("cold: lake info", infos), ("cold: export of 10 events", exports)):
        print(
            f"  {name:<27} {statistics.median(taken):>10.1f} s          ({' '.join(f'{t:.1f}' for t in taken)})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "unisono-benchmark")
    parser.add_argument("--skip-cold", action="store_true")
    chosen = parser.parse_args()
    directory = chosen.cache / f"log-{chosen.events}"
    began = time.perf_counter()
    build(directory, chosen.events)
    store = sqlite_uri(directory)
    size = sum(path.stat().st_size for path in directory.iterdir()) / 1e6
    print(f"{chosen.events:,} events, {size:.0f} MB (made or found in {time.perf_counter() - began:.0f} s)")
    print(f"  {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    prepare()
    with tempfile.TemporaryDirectory(dir=chosen.cache) as folder:
        if not chosen.skip_cold:
            cold(store, chosen.rounds, Path(folder))
        rates(store, chosen.events, chosen.rounds, Path(folder))
    print(f"  load afterwards {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
