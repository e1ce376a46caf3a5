"""What an open page of the console costs a server under load: commits, and the server's CPU time for each.

One server is loaded by the same writers and readers again and again, in turn without a page, with the live log and
with the page Now. The requests of a page come from a thread here, the same ones at the same pace as the page's script
sends them: a browser on a machine this small would take more from the server by drawing than by asking.

    python -m benchmarks.console [--rounds 6] [--seconds 4] [--writers 20] [--batch 1]
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.comparison.measure import Sample, measure, order
from benchmarks.peers.ours import Unisono
from benchmarks.peers.system import cpu_s
from unisono.ipc.files import AdminFile, read_admin_file

PAGES = ("none", "log", "now")


class OpenPage:
    """Asks as the page of a name does (`console/static/log.js`, `now.js`) until it is closed."""

    def __init__(self, admin: AdminFile, name: str) -> None:
        self._address = urlsplit(admin.url)
        self._headers = {"Authorization": f"Bearer {admin.token}"}
        self._work = {"log": self._log, "now": self._now}[name]
        self._next = 0
        self._closed = threading.Event()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed

    def _run(self) -> None:
        try:
            for turn in range(10**6):
                self._work(turn)
                if self._closed.wait(1.0):
                    return
        except Exception as error:
            self._failed = error

    def _get(self, path: str) -> Any:
        connection = http.client.HTTPConnection(str(self._address.hostname), self._address.port, timeout=30)
        try:
            connection.request("GET", f"/api/{path}", headers=self._headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{path}: {body!r}")
            return json.loads(body)
        finally:
            connection.close()

    def _log(self, turn: int) -> None:
        after = f"after={self._next}&behind_max=200&" if self._next else ""
        found = self._get(f"events?{after}limit=100")
        self._next = found["head"]
        self._get(f"times?after={max(0, self._next - 200)}")
        if turn % 3 == 0:
            self._get("refusals")

    def _now(self, turn: int) -> None:
        if turn % 2 == 0:
            self._get("now")
        if turn % 6 == 0:
            self._get("series")


@contextmanager
def opened(admin: AdminFile, name: str) -> Iterator[None]:
    page = None if name == "none" else OpenPage(admin, name)
    try:
        yield
    finally:
        if page is not None:
            page.close()


def run(
    rounds: int, seconds: float, writers: int, batch: int
) -> tuple[dict[str, list[Sample]], dict[str, list[float]]]:
    """For each page the samples, and how many cores the node's own process used, which answers the console."""
    samples: dict[str, list[Sample]] = {name: [] for name in PAGES}
    node: dict[str, list[float]] = {name: [] for name in PAGES}
    clients = [(f"w{number}", [f"p{number}"]) for number in range(writers)]
    readers = [(f"r{number}", [f"p{number}"]) for number in range(writers)]
    with tempfile.TemporaryDirectory() as place:
        system = Unisono(judging=True)
        system.start(Path(place))
        assert system.process is not None
        pid = system.process.pid
        admin = read_admin_file(Path(place) / "data")
        try:
            for turn in range(rounds + 1):
                for name in (PAGES[turn % 3 :] + PAGES)[:3]:
                    write = order(
                        system, "submit", clients, run=f"{turn}{name}", seconds=seconds, batch=batch
                    )
                    read = order(system, "listen", readers, run=f"{turn}{name}", seconds=seconds)
                    with opened(admin, name):
                        time.sleep(0.2)
                        before, began = cpu_s(pid), time.monotonic()
                        sample = measure(system, [write, read], lambda one: one.work == "submit")
                        used = (cpu_s(pid) - before) / (time.monotonic() - began)
                    if turn:  # the first one warms up
                        samples[name].append(sample)
                        node[name].append(used)
        finally:
            system.stop()
    return samples, node


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--writers", type=int, default=20)
    parser.add_argument("--batch", type=int, default=1)
    given = parser.parse_args()
    samples, node = run(given.rounds, given.seconds, given.writers, given.batch)
    print(f"{given.rounds} rounds of {given.seconds:g} s, {given.writers} writers and as many readers")
    for name in PAGES:
        rate = statistics.median(each.rate for each in samples[name])
        costs = [1e6 * each.server_cores / each.rate for each in samples[name]]
        pairs = list(zip(samples[name], samples["none"], strict=True))
        rates = sorted(100 * (mine.rate / bare.rate - 1) for mine, bare in pairs)
        cost = sorted(
            100 * (mine.server_cores / mine.rate * bare.rate / bare.server_cores - 1) for mine, bare in pairs
        )
        print(
            f"{name:5} {rate:8,.0f} commits/s "
            f"({statistics.median(rates):+.1f} %, {rates[0]:+.1f} to {rates[-1]:+.1f})  "
            f"{statistics.median(costs):6.1f} µs of the server for each "
            f"({statistics.median(cost):+.1f} %, {cost[0]:+.1f} to {cost[-1]:+.1f})  "
            f"{100 * statistics.median(node[name]):.2f} % of a core in the node's own process"
        )


if __name__ == "__main__":
    main()
