"""The first load of an outline in Chromium: bytes, the time until it is painted, and memory.

The history is one partition: one event in ten adds an item, the others change one. A page loads the JavaScript
client, starts it with an empty IndexedDB and paints a list once it has caught up: from all events, and from a
snapshot that has 99 % of them; then it is loaded again with what its store has. Every load is a new browser context
or, for the last, a new page in the same one. The times are from the start of the client, after its script was loaded.

    python -m benchmarks.browser [--events 10000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from playwright.sync_api import Browser, BrowserContext
from tests.behaviour.server.harness import Server, running
from tests.behaviour.server.planting import plant, record, snapshot_of
from tests.js.browser import chromium, site
from tests.js.node import build

from benchmarks.firstsync import BELOW, outline

PARTITION = "garden"
PAGE = """<!doctype html><meta charset="utf-8"><title>outline</title><ul id="items"></ul>
<script type="module">
  import { createIndexedDbStore, createSyncClient, treeModel } from "./client.js";
  window.load = async ({ url, token, snapshots }) => {
    const client = createSyncClient({
      url, clientId: "reader", token: () => token, model: treeModel(), store: createIndexedDbStore(),
      partitions: ["garden"], options: { snapshots },
    });
    const paint = () => {
      const { items, tree } = client.view().outline ?? { items: {}, tree: [] };
      const line = (textContent) => Object.assign(document.createElement("li"), { textContent });
      const lines = tree.map(({ id }) => line(items[id].title));
      document.querySelector("#items").replaceChildren(...lines);
      return new Promise((resolve) => requestAnimationFrame(() => setTimeout(() => resolve(performance.now()), 0)));
    };
    const began = performance.now();
    await client.start();
    const stored = client.view().outline ? (await paint()) - began : null;
    await client.caughtUp({ timeoutMs: 300_000 });
    const painted = (await paint()) - began;
    const count = document.querySelectorAll("li").length;
    window.client = client;
    return { stored, painted, count };
  };
</script>
"""


def fill(data: Path, events: int) -> int:
    """Write the log and the snapshot; gives how many bytes the events have."""
    random = Random(1)
    records = [record(n + 1, [PARTITION], outline(n, random)) for n in range(events)]
    plant(data, records, [snapshot_of(records, PARTITION, int(events * BELOW))])
    return sum(len(each.event) for each in records)


def load(context: BrowserContext, address: str, server: Server, *, snapshots: bool) -> dict[str, Any]:
    page = context.new_page()
    page.set_default_timeout(300_000)
    session = context.new_cdp_session(page)
    received = 0

    def count(frame: dict[str, Any]) -> None:
        nonlocal received
        received += len(frame["response"]["payloadData"].encode())

    session.on("Network.webSocketFrameReceived", count)
    session.send("Network.enable")
    page.goto(f"{address}outline.html")
    page.wait_for_function("window.load !== undefined")
    given = {"url": server.url, "token": server.token("reader"), "snapshots": snapshots}
    told: dict[str, Any] = page.evaluate("given => window.load(given)", given)
    session.send("HeapProfiler.collectGarbage")
    heap = session.send("Runtime.getHeapUsage")["usedSize"]
    page.evaluate("window.client.stop()")
    kept = page.evaluate("navigator.storage.estimate().then(({ usage }) => usage)")
    page.close()
    return told | {"received": received, "heap": heap, "kept": kept}


def report(browser: Browser, address: str, server: Server, rounds: int) -> None:
    taken: dict[str, list[dict[str, Any]]] = {"all events": [], "snapshot": [], "loaded again": []}
    for _ in range(rounds):
        for way in ("all events", "snapshot"):
            context = browser.new_context()
            taken[way].append(load(context, address, server, snapshots=way == "snapshot"))
            if way == "snapshot":
                taken["loaded again"].append(load(context, address, server, snapshots=True))
            context.close()
    assert len({each["count"] for results in taken.values() for each in results}) == 1, "the lists differ"
    for way, results in taken.items():
        told = {key: statistics.median(each[key] or 0 for each in results) for key in results[0]}
        stored = f"from the store after {told['stored']:5.0f} ms, " if told["stored"] else ""
        print(
            f"  {way:<13} {stored}caught up and painted after {told['painted']:6.0f} ms"
            f"   received {told['received'] / 1000:8.1f} kB   heap {told['heap'] / 1e6:5.1f} MB"
            f"   store {told['kept'] / 1e6:5.1f} MB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    build()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        data, pages = Path(folder, "data"), Path(folder, "site")
        data.mkdir()
        pages.mkdir()
        size = fill(data, chosen.events)
        with (
            site(pages) as address,
            running(data, "--access-default", "allow") as server,
            chromium() as browser,
        ):
            (pages / "outline.html").write_text(PAGE)
            print(f"{chosen.events} events, {size / 1e6:.2f} MB; median of {chosen.rounds}")
            report(browser, address, server, chosen.rounds)


if __name__ == "__main__":
    main()
