"""How fast a history is audited, beside plain Python in one process.

    python -m benchmarks.audit [--events 100000] [--rounds 3] [--cache DIR] [--only TEXT]

The log is that of `benchmarks.pipeline`: events of about 250 bytes, half canonical and half tree actions, over 10,000
partitions, one event in ten in two of them; it is made once, with its lake and its snapshots, and kept in the cache.
Spark is up and has done a small job before anything is timed; each line is the median of the rounds.

"plain, events only" is what anybody would write: every event read from the files of `log` and looked at, ids in a
set. It leaves out by_partition, the server's log and the snapshots. "plain, all files" does the work of the audit's
first pass in one process, with the audit's own code and no Spark.
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.pipeline import build
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.audit.event_checks import EventCheck
from unisono.pipeline.jobs.audit.findings import FindingTally
from unisono.pipeline.jobs.audit.job import (
    AuditOptions,
    audit,
    check_parts,
    first_parts,
    list_files,
    make_scope,
    merge_outcomes,
)
from unisono.pipeline.jobs.audit.tasks import AuditOutcome
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.open_log import gc_paused, sqlite_uri
from unisono.pipeline.spark.session import session
from unisono.pipeline.spark.warmup import prepare


def plain_events(lake: Lake) -> None:
    """Every event of `log`, one after the other."""
    tally = FindingTally(lake.head())
    check = EventCheck(tally)
    ids: set[str] = set()
    reached = 0
    with gc_paused():
        for batch in lake.scan_arrow():
            check.check(batch)
            ids.update(batch.column("id").to_pylist())
            for committed_id in batch.column("committed_id").to_pylist():
                assert committed_id == reached + 1
                reached = committed_id
    assert len(ids) == reached
    assert not tally.counts


def plain_all(lake: Lake, store: str | None) -> None:
    """What the tasks of the first pass do, in this process."""
    log, places = lake.table(LOG), lake.table(BY_PARTITION)
    tally = FindingTally(log.head)
    files = [*list_files(log, tally), *list_files(places, tally)]
    scope = make_scope(lake, log, places, store, AuditOptions(), tally)
    found = list(check_parts(scope, 1, first_parts(scope, files)))
    outcome = merge_outcomes(scope, 0, [pickle.dumps(each) for home, each in found if home == 0])
    merge_outcomes(scope, 1, [blob for home, blob in found if home])
    assert not tally.counts
    assert isinstance(outcome, AuditOutcome)
    assert not outcome.tally.counts


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "unisono-audit-benchmark")
    parser.add_argument("--only", default="", help="the steps whose names have this in them")
    asked = parser.parse_args()
    prepare()
    data = asked.cache / f"log-{asked.events}"
    build(data, asked.events)
    store, lake = sqlite_uri(data), Lake.at(str(asked.cache / f"lake-{asked.events}"))
    lake.make()
    spark = session("local[2]", "audit benchmark", quick=True)
    export(spark, store, lake)
    snapshot(spark, lake, ShippedModel.open())
    steps: dict[str, Callable[[], object]] = {
        "plain, events only": lambda: plain_events(lake),
        "plain, all files": lambda: plain_all(lake, None),
        "plain, all files and the log": lambda: plain_all(lake, store),
        "Spark, lake alone": lambda: sound(audit(spark, lake, None, AuditOptions(sample=0)).sound),
        "Spark, lake and log": lambda: sound(audit(spark, lake, store, AuditOptions(sample=0)).sound),
        "Spark, also snapshots of 100 partitions": lambda: sound(
            audit(spark, lake, store, AuditOptions()).sound
        ),
        "Spark, also all snapshots": lambda: sound(
            audit(spark, lake, store, AuditOptions(sample=None)).sound
        ),
    }
    print(
        f"{asked.events} events, median of {asked.rounds}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    for name, work in steps.items():
        if asked.only not in name:
            continue
        began = time.process_time()
        seconds = statistics.median(timed(work) for _ in range(asked.rounds))
        own = (time.process_time() - began) / asked.rounds
        print(
            f"{name:42} {seconds:7.2f} s {asked.events / seconds:10,.0f} events/s   "
            f"(this process: {own:.2f} s of CPU)",
            flush=True,
        )
    print(f"load afterwards {os.getloadavg()[0]:.1f}")
    largest = max(
        resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(f"largest process {largest / 1024:.0f} MB")


def sound(verdict: bool) -> None:
    assert verdict, "the benchmark's history is sound"


if __name__ == "__main__":
    main()
