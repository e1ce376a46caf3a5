"""Reads of UmaDB, in the environment that has its client: the order and the answer of `benchmarks.generators`.

A thread for each connection, each with a client of its own: the client waits in Rust, without the interpreter's lock.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import umadb  # type: ignore[import-not-found]


class Connection(threading.Thread):
    """Reads from the beginning, and again, until it is stopped."""

    def __init__(self, order: dict[str, Any], client: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.tags = client["topics"]
        self.client = umadb.Client(f"http://{order['host']}:{order['port']}")
        self.client.head()
        self.running = True
        self.counting = False
        self.items = 0
        self.latencies: list[int] = []
        self.failure = ""

    def run(self) -> None:
        try:
            while self.running:
                self.read()
        except Exception as error:  # the thread's end is its answer
            self.failure = f"{type(error).__name__}: {error}"

    def read(self) -> None:
        query = umadb.Query([umadb.QueryItem(tags=[tag]) for tag in self.tags]) if self.tags else None
        response = self.client.read(query)
        while self.running:
            started = time.perf_counter()
            batch = response.next_batch()
            if not batch:
                return
            self.count(len(batch), time.perf_counter() - started)

    def count(self, items: int, seconds: float) -> None:
        if self.counting:
            self.items += items
            self.latencies.append(round(seconds * 1e6))


def main() -> int:
    order = json.loads(sys.stdin.readline())
    connections = [Connection(order, client) for client in order["clients"]]
    print("ready", flush=True)
    sys.stdin.readline()
    for one in connections:
        one.start()
    time.sleep(order["warm_s"])
    started, cpu = time.perf_counter(), time.process_time()
    for one in connections:
        one.counting = True
    time.sleep(order["seconds"])
    for one in connections:
        one.counting = False
    elapsed, cpu = time.perf_counter() - started, time.process_time() - cpu
    for one in connections:
        one.running = False
        one.join(10)
        if one.failure:
            print(one.failure, file=sys.stderr)
            return 1
    counted = {
        "items": sum(one.items for one in connections),
        "elapsed_s": elapsed,
        "cpu_s": cpu,
        "latencies_us": sorted(taken for one in connections for taken in one.latencies),
    }
    print(json.dumps(counted), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
