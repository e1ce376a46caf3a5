"""The shared log beside the embedded one: events per second by group size, several writers, pages per second.

A real PostgreSQL is started for the run, on the same disk and machine, so the network is missing from its figures.
Measurements alternate in one run; medians are shown with their ratio.

    python -m benchmarks.postgres [--seconds 0.5] [--rounds 5]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from tests.store.postgres.server import Postgres, shared_server

from unisono.store.port import CommitLog, LogReader, Record
from unisono.store.postgres.log import PostgresLog, PostgresReader
from unisono.store.sqlite.log import SqliteLog, SqliteReader

GROUP_SIZES = (1, 10, 100, 1000)
EVENT = b'{"payload":{"options":{"replace":true},"target":"doc.title","value":"%b"},"type":"set"}' % (
    b"x" * 300
)
PARTITIONS = [f"part-{n}" for n in range(50)]
HISTORY = 100_000

processes = multiprocessing.get_context("spawn")


def write_group(log: CommitLog, size: int) -> None:
    """As the authority does: look the ids up under the lock, then append."""
    ids = [uuid.uuid4().hex for _ in range(size)]
    now = time.time_ns() // 1_000_000
    opening = log.begin(ids)
    log.commit(
        [
            Record(n, id, "client", (PARTITIONS[n % 50],), EVENT, os.urandom(32), now)
            for n, id in enumerate(ids, opening.head + 1)
        ]
    )
    log.maintain()


def events_per_s(log: CommitLog, size: int, seconds: float) -> float:
    write_group(log, size)
    groups, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        write_group(log, size)
        groups += 1
    return groups * size / elapsed


def writer(dsn: str, name: str, size: int, seconds: float, start: Barrier, told: Any) -> None:
    with closing(PostgresLog.open(dsn, name)) as log:
        start.wait(60)
        told.put(events_per_s(log, size, seconds))


def several(server: Postgres, writers: int, size: int, seconds: float) -> float:
    """The sum of what `writers` processes commit to one log."""
    dsn = server.create()
    start, told = processes.Barrier(writers), processes.Queue()
    arguments = [(dsn, f"w{n}", size, seconds, start, told) for n in range(writers)]
    running = [processes.Process(target=writer, args=each) for each in arguments]
    for process in running:
        process.start()
    total: float = sum(told.get(timeout=120) for _ in running)
    for process in running:
        process.join()
    server.drop(dsn)
    return total


def fill(log: CommitLog) -> None:
    """HISTORY events: all in `dense`, every 1,000th in `rare`, the rest over twenty partitions."""
    now = time.time_ns() // 1_000_000
    for start in range(0, HISTORY, 2_000):
        head = log.begin([]).head
        records = []
        for n in range(start, start + 2_000):
            other = "rare" if n % 1_000 == 0 else f"q{n % 20}"
            records.append(
                Record(
                    head + 1 + n - start, uuid.uuid4().hex, "client", ("dense", other), EVENT, b"h" * 32, now
                )
            )
        log.commit(records)
        log.maintain()


def pages_per_s(reader: LogReader, partitions: list[str], limit: int, seconds: float) -> float:
    pages, since, started = 0, 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        page = reader.page(partitions, since, HISTORY, limit=limit, bytes_max=1 << 20)
        since = page.records[-1].committed_id if page.has_more else 0
        pages += 1
    return pages / elapsed


def medians(rounds: int, **measures: Callable[[], float]) -> dict[str, float]:
    """Each measure once a round, in turn."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            found[name].append(measure())
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    seconds, rounds = options.seconds, options.rounds
    server = shared_server()
    with tempfile.TemporaryDirectory() as place:
        dsn = server.create()
        with (
            closing(PostgresLog.open(dsn, "bench")) as postgres,
            closing(SqliteLog.open(Path(place) / "commits")) as sqlite,
        ):
            print(f"{'events/s':<26}{'postgres':>10}{'sqlite':>10}{'ratio':>8}")
            for size in GROUP_SIZES:
                found = medians(
                    rounds,
                    postgres=lambda n=size: events_per_s(postgres, n, seconds),  # type: ignore[misc]
                    sqlite=lambda n=size: events_per_s(sqlite, n, seconds),  # type: ignore[misc]
                )
                _row(f"groups of {size}", found["postgres"], found["sqlite"])
        print(f"\n{'events/s':<26}{'2 writers':>10}{'1 writer':>10}{'ratio':>8}")
        for size in (10, 100):
            found = medians(
                min(rounds, 3),
                two=lambda n=size: several(server, 2, n, seconds * 2),  # type: ignore[misc]
                one=lambda n=size: several(server, 1, n, seconds * 2),  # type: ignore[misc]
            )
            _row(f"groups of {size}", found["two"], found["one"])
        dsn = server.create()
        with (
            closing(PostgresLog.open(dsn, "bench")) as postgres,
            closing(SqliteLog.open(Path(place) / "pages")) as sqlite,
        ):
            fill(postgres)
            fill(sqlite)
        with (
            closing(PostgresReader.open(dsn)) as shared,
            closing(SqliteReader.open(Path(place) / "pages")) as embedded,
        ):
            print(f"\n{'pages/s':<26}{'postgres':>10}{'sqlite':>10}{'ratio':>8}")
            asks = {"dense": ["dense"], "rare": ["rare"], "20 partitions": [f"q{n}" for n in range(20)]}
            for (name, partitions), limit in ((ask, limit) for ask in asks.items() for limit in (50, 1000)):
                found = medians(
                    rounds,
                    shared=lambda p=partitions, n=limit: pages_per_s(shared, p, n, seconds),  # type: ignore[misc]
                    embedded=lambda p=partitions, n=limit: pages_per_s(embedded, p, n, seconds),  # type: ignore[misc]
                )
                _row(f"{name}, limit {limit}", found["shared"], found["embedded"])


def _row(name: str, one: float, other: float) -> None:
    print(f"{name:<26}{one:>10,.0f}{other:>10,.0f}{one / other:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
