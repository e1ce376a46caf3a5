"""What an open page of the console costs a server under load: CPU time of the server for each event, and commits.

One server is loaded by the same writers again and again, in turn without a page, with the live log and with the page
Now open in a real Chromium. The browser runs with the lowest priority, but on the same machine: its own work can
lower the rate where all cores are busy. The CPU time of the server's processes for each event has no such doubt.

    python -m benchmarks.console [--rounds 6] [--seconds 4] [--writers 20] [--batch 1]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from playwright.sync_api import Page
from tests.js.browser import chromium

from benchmarks.comparison.measure import Sample, measure, order
from benchmarks.peers.ours import Unisono
from benchmarks.peers.system import tree
from unisono.console.links import console_link

PAGES = ("none", "log", "now")
SETTLE_MS = 1_500


def show(page: Page, link: str, name: str) -> None:
    """Open a page of the console, or none."""
    page.goto("about:blank")
    if name != "none":
        page.goto(link)
        page.get_by_role("heading", name="Now", level=1).wait_for()
        page.evaluate("(name) => { location.hash = `#/${name}`; }", name)
    page.wait_for_timeout(SETTLE_MS)


def run(rounds: int, seconds: float, writers: int, batch: int) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {name: [] for name in PAGES}
    with tempfile.TemporaryDirectory() as place:
        system = Unisono(judging=True)
        system.start(Path(place))
        assert system.process is not None
        server = set(tree(system.process.pid))
        link = console_link(Path(place) / "data")
        try:
            with chromium() as browser:
                page = browser.new_page()
                for pid in tree(os.getpid()):
                    if pid != os.getpid() and pid not in server:
                        os.setpriority(os.PRIO_PROCESS, pid, 19)  # later processes of the browser inherit it
                clients = [(f"w{number}", [f"p{number}"]) for number in range(writers)]
                readers = [(f"r{number}", [f"p{number}"]) for number in range(writers)]
                for turn in range(rounds + 1):
                    for name in (PAGES[turn % 3 :] + PAGES)[:3]:
                        show(page, link, name)
                        write = order(
                            system, "submit", clients, run=f"{turn}{name}", seconds=seconds, batch=batch
                        )
                        read = order(system, "listen", readers, run=f"{turn}{name}", seconds=seconds)
                        sample = measure(system, [write, read], lambda one: one.work == "submit")
                        if turn:  # the first one warms up
                            samples[name].append(sample)
        finally:
            system.stop()
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--writers", type=int, default=20)
    parser.add_argument("--batch", type=int, default=1)
    given = parser.parse_args()
    samples = run(given.rounds, given.seconds, given.writers, given.batch)
    cost = {name: [1e6 * each.server_cores / each.rate for each in found] for name, found in samples.items()}
    print(f"{given.rounds} rounds of {given.seconds:g} s, {given.writers} writers and as many readers")
    for name in PAGES:
        rate, micros = statistics.median(each.rate for each in samples[name]), statistics.median(cost[name])
        ratios = [100 * (mine / bare - 1) for mine, bare in zip(cost[name], cost["none"], strict=True)]
        rates = [
            100 * (mine.rate / bare.rate - 1)
            for mine, bare in zip(samples[name], samples["none"], strict=True)
        ]
        print(
            f"{name:5} {rate:8,.0f} commits/s ({statistics.median(rates):+.1f} %)  "
            f"{micros:6.1f} µs of the server for each ({statistics.median(ratios):+.1f} %, "
            f"from {min(ratios):+.1f} to {max(ratios):+.1f})"
        )


if __name__ == "__main__":
    main()
