"""Publishing the snapshots of a lake of tiny partitions, and erasing clients from it.

    python -m benchmarks.erasing [--partitions 100000] [--clients 1] [--cache DIR]

One event per partition, of 500 clients in turn, folded into snapshots. The log and its lake are made once, kept in
the cache and copied; then the snapshots are published and the clients erased. Spark is up and has done a small job
before anything is timed. Memory is the highest resident size of the driver and of a worker meanwhile.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

from tests.pipeline.processes import python_workers

from benchmarks.notes import added, item, record
from benchmarks.scale.watch import resident_mb
from unisono.lake.lake import Lake
from unisono.pipeline.job_model import in_force
from unisono.pipeline.jobs.erase.job import erase, plan
from unisono.pipeline.jobs.erase.select import Selector
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.jobs.snapshot.publish import publish
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.private import java_process
from unisono.pipeline.spark.session import session
from unisono.pipeline.spark.warmup import prepare
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog

GROUP = 5_000


def build(data: Path, partitions: int) -> None:
    """Complete the log, through the real writer."""
    with closing(SqliteLog.open(data)) as log:
        for first in range(log.head() + 1, partitions + 1, GROUP):
            chance = random.Random(first)
            log.begin([])
            log.commit([_made(n, chance) for n in range(first, min(first + GROUP, partitions + 1))])
            log.maintain()


def _made(number: int, chance: random.Random) -> Record:
    return record(number, added(item(number, chance)), [f"room-{number:07d}"], chance)


class PeakMemory:
    """The highest resident size of this process and of each Python worker, in MB, while the block runs."""

    def __init__(self, java_pid: int) -> None:
        self._java_pid = java_pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.driver = self.worker = 0.0

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self.driver = max(self.driver, resident_mb("self"))
            workers = [resident_mb(pid) for pid in python_workers(self._java_pid)]
            self.worker = max([self.worker, *workers])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=1, help="how many of the 500 are erased")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "unisono-benchmarks")
    options = parser.parse_args()
    prepare()
    spark = session("local[*]", "benchmark", quick=True)
    kept = options.cache / f"tiny-{options.partitions}"
    if not (kept / "done").exists():
        store, lake = sqlite_uri(kept / "data"), Lake.at(str(kept / "lake"))
        build(kept / "data", options.partitions)
        lake.make()
        export(spark, store, lake)
        snapshot(spark, lake, in_force(store))
        (kept / "done").touch()
    with tempfile.TemporaryDirectory(dir=options.cache) as folder:
        place = Path(folder)
        for name in ("data", "lake"):
            shutil.copytree(kept / name, place / name)
        store, lake = sqlite_uri(place / "data"), Lake.at(str(place / "lake"))
        with PeakMemory(java_process(spark).pid) as peak:
            published = publish(lake, store, in_force(store).version)
        print(
            f"  {published.snapshots} snapshots published in {published.seconds:.1f} s; driver {peak.driver:.0f} MB",
            flush=True,
        )
        last = time.perf_counter()

        def notify(text: str) -> None:
            nonlocal last
            now = time.perf_counter()
            print(f"    {now - last:>7.1f} s  {text}", flush=True)
            last = now

        with PeakMemory(java_process(spark).pid) as peak:
            began = time.perf_counter()
            clients = tuple(f"client-{number}" for number in range(options.clients))
            planned = plan(spark, store, lake, Selector("client", clients))
            notify("planned")
            done = erase(spark, store, lake, planned, notify=notify)
            notify("proved")
            seconds = time.perf_counter() - began
    assert done.proof.holds
    print(
        f"  {done.events} events of {options.partitions} partitions erased in {seconds:.1f} s; "
        f"driver {peak.driver:.0f} MB, worker {peak.worker:.0f} MB"
    )
    spark.stop()


if __name__ == "__main__":
    main()
