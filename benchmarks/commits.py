"""What a commit to a table of the lake takes as the table's log gets longer.

    python -m benchmarks.commits [--versions 500,4000] [--cache DIR]

Two tables get that many versions: one by commits that name a file more, which is not there, one by notes alone. Each
line is the median of the last hundred commits before that version, opening the table included, as a job does.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from unisono.lake.lake import Lake
from unisono.lake.storage import LOG
from unisono.lake.write import DataFile

ROWS = 250
MEDIAN_OF = 100


def name_a_file(lake: Lake, number: int) -> None:
    first, last = number * ROWS + 1, (number + 1) * ROWS
    path = f"{first:012d}-{last:012d}-{number:032x}.parquet"
    file = DataFile(LOG, path, 20_000, ROWS, first, last, times=(first, last), clients=("a", "z"))
    lake.table(LOG).append([file], first - 1, last, {})


def note_alone(lake: Lake, number: int) -> None:
    lake.table(LOG).write_notes({"note": number})


def measure(lake: Lake, commit: Callable[[Lake, int], None], versions: list[int]) -> None:
    lake.make(16)
    seconds: list[float] = []
    for number in range(max(versions)):
        began = time.perf_counter()
        commit(lake, number)
        seconds.append(time.perf_counter() - began)
        if number + 1 in versions:
            took = sorted(seconds[-MEDIAN_OF:])
            slowest = f"slowest {1000 * took[-1]:.1f}"
            print(
                f"    {number + 1:>6} versions {1000 * statistics.median(took):>8.1f} ms, {slowest}",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--versions", default="500,4000")
    parser.add_argument("--cache", type=Path)
    chosen = parser.parse_args()
    versions = [int(part) for part in chosen.versions.split(",")]
    with tempfile.TemporaryDirectory(dir=chosen.cache) as place:
        for words, commit in (("a file more in each", name_a_file), ("notes alone", note_alone)):
            print(words, flush=True)
            measure(Lake.at(f"{place}/{commit.__name__}"), commit, versions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
