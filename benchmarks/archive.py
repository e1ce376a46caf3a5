"""A client at 0 when most of the history has left the log, beside the same log whole.

    python -m benchmarks.archive [--events 100000] [--archived 0.95] [--rounds 3] [--cache DIR]

Two servers' data: the whole log, and a copy of which the oldest 95 % are in a lake (by the pipeline's own tasks, run
here, one run per 250,000 events) and have left the log. A client reads from 0 over a real socket, page after page
of 500: all 64 partitions at once, which is every event, and then one of them. Each reading is from a server that was
just started; the two kinds alternate; medians of the rounds. What came is compared, byte by byte. "reader" is the
share of the server's reader alone, without sockets: pages from the log, and from the lake, in this process; cpu is
the time it computed, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from tests.behaviour.server.harness import Server, running
from tests.lake.lakes import export_to

from benchmarks.notes import added, item, record
from unisono.lake.cold.archive import Archive, ArchivedReader
from unisono.lake.lake import Lake
from unisono.store.port import LogReader, Record
from unisono.store.sqlite.log import SqliteLog, SqliteReader

PARTITIONS = tuple(f"room-{number:02d}" for number in range(64))
PAGE = 500
GROUP = 2_000
PRUNED_AT_ONCE = 3_000


class Page(msgspec.Struct):
    events: list[msgspec.Raw]
    has_more: bool
    next_since_committed_id: int


class Answer(msgspec.Struct):
    type: str
    payload: Page


class Reading(msgspec.Struct):
    """One history read from beginning to end. `cpu` is of this process alone."""

    seconds: float
    cpu: float
    events: int
    digest: str
    pages: list[float]


_decode = msgspec.json.Decoder(Answer).decode


def made(number: int, chance: random.Random) -> Record:
    event = added(item(number, chance))
    names = sorted({chance.choice(PARTITIONS) for _ in range(1 if number % 10 else 2)})
    return record(number, event, names, chance)


def build(folder: Path, events: int, archived: int) -> tuple[Path, Path]:
    """The data of the two servers, made once."""
    whole, pruned = folder / "whole", folder / "pruned"
    if not (folder / "made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        log = SqliteLog.open(whole)
        chance = random.Random(1)
        while (head := log.begin([]).head) < events:
            log.commit([made(number, chance) for number in range(head + 1, min(head + GROUP, events) + 1)])
            log.maintain()
        log.abandon()
        log.close()
        export_to(Lake.at(str(folder / "lake")), whole, archived)
        shutil.copytree(whole, pruned)
        log = SqliteLog.open(pruned)
        log.set_archive(str(folder / "lake"))
        while log.prune_batch(archived, limit=PRUNED_AT_ONCE):
            log.maintain()
        while not log.reclaim().done:
            pass
        log.close()
        (folder / "made").touch()
    return whole, pruned


def sync(server: Server, partitions: tuple[str, ...]) -> Reading:
    """Over the socket, as fast as the server answers."""
    digest, pages, count, since = hashlib.sha256(), [], 0, 0
    with server.client("reader", "canonical") as client:
        began, cpu = time.perf_counter(), time.process_time()
        while True:
            asked = time.perf_counter()
            client.send("sync", {"partitions": partitions, "since_committed_id": since, "limit": PAGE})
            text = client.socket.recv(decode=False)
            pages.append(time.perf_counter() - asked)
            page = _decode(text).payload
            count += len(page.events)
            for event in page.events:
                digest.update(event)
            since = page.next_since_committed_id
            if not page.has_more:
                taken = time.perf_counter() - began, time.process_time() - cpu
                return Reading(*taken, count, digest.hexdigest(), pages)


def read(reader: LogReader, partitions: tuple[str, ...]) -> Reading:
    """The same pages without a server."""
    pages, count, since, head = [], 0, 0, reader.head()
    began, cpu = time.perf_counter(), time.process_time()
    while True:
        asked = time.perf_counter()
        page = reader.page(partitions, since, head, limit=PAGE, bytes_max=1 << 20)
        pages.append(time.perf_counter() - asked)
        count += len(page.records)
        if not page.has_more:
            return Reading(time.perf_counter() - began, time.process_time() - cpu, count, "", pages)
        since = page.records[-1].committed_id


def served(data: Path, partitions: tuple[str, ...]) -> Reading:
    options = ("--model", "open", "--access-default", "allow", "--heartbeat-timeout-s", "3600")
    with running(data, *options) as server:
        reading = sync(server, partitions)
        assert server.stop() == 0
    return reading


def by_hand(data: Path, partitions: tuple[str, ...]) -> Reading:
    reader = ArchivedReader(SqliteReader.open(data), Archive())
    try:
        return read(reader, partitions)
    finally:
        reader.close()


def measure(
    label: str,
    work: Callable[[Path, tuple[str, ...]], Reading],
    places: dict[str, Path],
    partitions: tuple[str, ...],
    rounds: int,
) -> None:
    taken: dict[str, list[Reading]] = {name: [] for name in places}
    for _ in range(rounds):
        for name, data in places.items():
            taken[name].append(work(data, partitions))
    assert len({(reading.events, reading.digest) for readings in taken.values() for reading in readings}) == 1
    middles = {}
    for name, readings in taken.items():
        seconds = middles[name] = statistics.median(reading.seconds for reading in readings)
        pages = sorted(page * 1_000 for reading in readings for page in reading.pages)
        events = readings[0].events
        each = " ".join(f"{reading.seconds:.2f}" for reading in readings)
        cpu = statistics.median(reading.cpu for reading in readings)
        print(
            f"  {label:<22} {name:<9} {events:>9,} events {seconds:>8.2f} s {events / seconds:>9,.0f} events/s   "
            f"page {statistics.median(pages):5.1f} ms median {pages[int(len(pages) * 0.99)]:6.1f} p99 "
            f"{pages[-1]:6.1f} longest   cpu {cpu:.2f} s   (seconds: {each})"
        )
    print(f"  {'':<22} archived / whole: {middles['archived'] / middles['whole']:.2f} times the time")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--archived", type=float, default=0.95)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "unisono-benchmark")
    chosen = parser.parse_args()
    archived = int(chosen.events * chosen.archived)
    folder = chosen.cache / f"archive-{chosen.events}-{archived}"
    whole, pruned = build(folder, chosen.events, archived)
    sizes = [
        sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) / 1e6
        for place in (whole, pruned, folder / "lake")
    ]
    print(f"{chosen.events:,} events, {archived:,} of them archived")
    print(f"  {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print("  on disk: whole log {:.0f} MB; pruned log {:.0f} MB and lake {:.0f} MB".format(*sizes))
    places = {"whole": whole, "archived": pruned}
    for label, partitions in (("64 partitions", PARTITIONS), ("1 partition", PARTITIONS[:1])):
        measure(f"{label}, socket", served, places, partitions, chosen.rounds)
        measure(f"{label}, reader", by_hand, places, partitions, chosen.rounds)
    print(f"  load afterwards {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
