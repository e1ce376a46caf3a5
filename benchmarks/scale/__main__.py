"""How the pipeline grows: all jobs on histories of growing length, a cluster of one to four executors, and the
driver's part for a lake of many files.

    python -m benchmarks.scale [--sizes 100000,1000000] [--cluster-events 1000000] [--files 100000] [--cache DIR]
                               [--again MEASUREMENT] [--page docs/pipeline-scale.md]

Each measurement is a process of its own. What was measured is kept in the cache, so a run that was ended goes on with
the next step, and more sizes can be added later: `--sizes 10000000` takes half an hour and 20 GB of disk.
`--again growth`, `cluster` or `metadata` forgets what is kept of that kind. At the end the figures of all sizes are
written into the page. The machine should be idle.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.scale.results import ResultFile

PAGE = Path(__file__).parents[2] / "docs" / "pipeline-scale.md"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="100000,1000000", help="lengths of histories; empty: none")
    parser.add_argument("--cluster-events", type=int, default=1_000_000, help="0: no cluster")
    parser.add_argument("--executors", default="1,2,4")
    parser.add_argument("--files", type=int, default=100_000, help="0: no lake of metadata")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "unisono-scale")
    parser.add_argument("--again", action="append", default=[], metavar="MEASUREMENT")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    results = ResultFile(chosen.cache / "results.json")
    if chosen.one:
        _one(chosen.cache, results, *chosen.one)
        return
    for name in [name for name in results.read().steps if name.split()[0] in chosen.again]:
        results.forget(name)
    results.describe(_machine())
    from unisono.pipeline.spark.warmup import prepare

    prepare()
    sizes = [int(size) for size in chosen.sizes.split(",") if size]
    if chosen.cluster_events and chosen.cluster_events not in sizes:
        sizes.append(chosen.cluster_events)
    for size in sizes:
        _apart(chosen.cache, "log", size)
        _apart(chosen.cache, "growth", size)
    if chosen.cluster_events:
        for executors in chosen.executors.split(","):
            _apart(chosen.cache, "cluster", chosen.cluster_events, int(executors))
    if chosen.files:
        _apart(chosen.cache, "metadata", chosen.files)
    from benchmarks.scale import page

    print(page.markdown(results.read()))
    if chosen.page.exists():
        page.write(results.read(), chosen.page)


def _apart(cache: Path, kind: str, *numbers: int) -> None:
    print(
        f"{kind} {' '.join(f'{number:,}' for number in numbers)} (load {os.getloadavg()[0]:.1f})", flush=True
    )
    words = [
        sys.executable,
        "-m",
        "benchmarks.scale",
        "--cache",
        str(cache),
        "--one",
        kind,
        *map(str, numbers),
    ]
    subprocess.run(words, check=True)


def _one(cache: Path, results: ResultFile, kind: str, *numbers: str) -> None:
    if kind == "log":
        from benchmarks.scale.history import build

        build(cache / f"growth-{numbers[0]}" / "data", int(numbers[0]))
    elif kind == "growth":
        from benchmarks.scale import growth

        growth.measure(cache / f"growth-{numbers[0]}", int(numbers[0]), results)
    elif kind == "cluster":
        from benchmarks.scale import cluster

        events, executors = map(int, numbers)
        cluster.measure(cache / f"growth-{events}", events, executors, results)
    else:
        from benchmarks.scale import metadata

        metadata.measure(cache / f"metadata-{numbers[0]}", int(numbers[0]), results)


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB of memory, Python {platform.python_version()}."


if __name__ == "__main__":
    main()
