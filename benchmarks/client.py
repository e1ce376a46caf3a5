"""The Python client on a long history: first sync, start with a snapshot, start without; time and memory.

Two histories of the same length: an outline that grows to a fifth as many items as there are events, and counters
that are set again and again, whose state stays small. Memory that grows with the first and not with the second
grows with the state, not with the history. Each figure is taken in a process of its own; starts are offline. CPU is
the client's alone; wall time has the server's share in it, and that of whatever else the machine does.

    python -m benchmarks.client [--events 100000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import apsw
from tests.behaviour.server.harness import Server, running

NOWHERE = "ws://127.0.0.1:9/sync"
BATCH = 100
WAIT_S = 600.0


def outline(number: int, random: Random) -> dict[str, Any]:
    """A fifth of the events add an item, the others change one."""
    items = number // 5 + 1
    if number % 5 == 0:
        options = {"position": "last"}
        if number:
            options["parent"] = f"item-{random.randrange(items - 1)}"
        value = {"id": f"item-{items - 1}", "title": f"Item number {items - 1}", "done": False}
        return {"type": "treePush", "payload": {"target": "outline", "value": value, "options": options}}
    value = {"title": f"Changed by {number}", "words": "x" * 60}
    options = {"id": f"item-{random.randrange(items)}"}
    return {"type": "treeUpdate", "payload": {"target": "outline", "value": value, "options": options}}


def counters(number: int, random: Random) -> dict[str, Any]:
    value = {"count": number, "words": "x" * 60}
    return {"type": "set", "payload": {"target": f"counters.c{random.randrange(100)}", "value": value}}


HISTORIES: dict[str, Callable[[int, Random], dict[str, Any]]] = {"outline": outline, "counters": counters}


def fill(server: Server, partition: str, events: int) -> None:
    random, make = Random(1), HISTORIES[partition]
    with server.client(f"writer-{partition}") as writer:
        for start in range(0, events, BATCH):
            batch = [
                {"id": f"{partition}-{n}", "partitions": [partition], "event": make(n, random)}
                for n in range(start, min(start + BATCH, events))
            ]
            results = writer.submit(*batch)
            assert all(result["status"] == "committed" for result in results), results[0]


def measure(url: str, token: str, partition: str, store: str) -> dict[str, float]:
    """In a process of its own: open, catch up where there is a server, read the view once, close."""
    from unisono.client import connect

    before = _rss_mib()
    started, started_cpu = time.perf_counter(), time.process_time()
    with connect(
        url, token=token, client_id=f"reader-{partition}", store=store, partitions=[partition],
        profile="compatibility",
    ) as client:  # fmt: skip
        opened = time.perf_counter()
        if url != NOWHERE:
            client.caught_up(WAIT_S)
        ready, ready_cpu = time.perf_counter(), time.process_time()
        client.view(partition)
        viewed = time.perf_counter()
        after = _rss_mib()
    closed = time.perf_counter()
    return {
        "open": opened - started,
        "ready": ready - started,
        "cpu": ready_cpu - started_cpu,
        "view": viewed - ready,
        "close": closed - viewed,
        "before": before,
        "after": after,
        "peak": _peak_mib(),
    }


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def _peak_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def child(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.client", "--child", *arguments]
    told: dict[str, float] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    return told


def without_snapshot(store: Path) -> None:
    connection = apsw.Connection(str(store))
    connection.execute("DELETE FROM snapshots")
    connection.close()


def median(rounds: list[dict[str, float]], key: str) -> float:
    return statistics.median(each[key] for each in rounds)


def row(name: str, rounds: list[dict[str, float]], events: int | None = None) -> None:
    took = median(rounds, "ready")
    rate = f"{events / took:9.0f}" if events else "        -"
    print(
        f"  {name:<24}{took:7.2f} s, CPU {median(rounds, 'cpu'):6.2f} s {rate} /s   "
        f"view {median(rounds, 'view') * 1000:6.0f} ms   "
        f"close {median(rounds, 'close'):5.2f} s   RSS {median(rounds, 'before'):5.0f} before, "
        f"{median(rounds, 'peak'):5.0f} peak, {median(rounds, 'after'):5.0f} MiB after"
    )


def report(server: Server, directory: Path, partition: str, events: int, rounds: int) -> None:
    token = server.token(f"reader-{partition}")
    first, warm, cold = [], [], []
    for number in range(rounds):
        store = directory / f"{partition}-{number}.db"
        first.append(child(server.url, token, partition, str(store)))
        size = store.stat().st_size / 2**20
        warm.append(child(NOWHERE, token, partition, str(store)))
        without_snapshot(store)
        cold.append(child(NOWHERE, token, partition, str(store)))
    print(f"{partition}: {events} committed events, store {size:.0f} MiB, median of {rounds}")
    row("first sync", first, events)
    row("start with a snapshot", warm)
    row("start without", cold, events)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(*sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        directory = Path(folder)
        with running(directory / "data", "--model", "open", "--access-default", "allow") as server:
            for partition in HISTORIES:
                fill(server, partition, chosen.events)
                report(server, directory, partition, chosen.events, chosen.rounds)


if __name__ == "__main__":
    main()
