"""The commands of the pipeline beside those of another revision.

    python -m benchmarks jobs --base REV [--events 1000000] [--partitions 10000]

Each revision makes the same history of outlines with its own code, and runs its own `unisono lake` commands on it,
the start of Spark included. Step by step in turn, so that what slows the machine slows both.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.comparison.compare import run_in, worktree
from benchmarks.peers.system import ROOT

MAKER = Path(__file__).with_name("jobs_history.py")
WARMUPS = ("unisono.pipeline.spark.warmup", "unisono.pipeline.warmup")
"""What prepares quick starts of Spark, by the name of today and an older one."""

MORE_SHARE = 100
"""One event of so many comes after the first export and fold."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks jobs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base", required=True, metavar="REV", help="the revision to compare with")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="where the logs and lakes stand meanwhile")
    chosen = parser.parse_args(arguments)
    with (
        worktree(chosen.base) as base,
        tempfile.TemporaryDirectory(dir=chosen.folder, prefix="bench-") as place,
    ):
        trees = {"base": base, "new": ROOT}
        first = chosen.events - chosen.events // MORE_SHARE
        for name, tree in trees.items():
            print(f"{name}: making {chosen.events:,} events", flush=True)
            run_in(tree, MAKER, Path(place) / name / "data", chosen.events, chosen.partitions)
            run_in(tree, "-m", next(module for module in WARMUPS if _has(tree, module)))
        print(f"\n{'seconds':28}{'base':>9}{'new':>9}{'times as fast':>15}")
        for step, words in _steps(first):
            took = {name: _job(tree, Path(place) / name, words) for name, tree in trees.items()}
            ratio = took["base"] / took["new"]
            print(f"{step:28}{took['base']:>9.1f}{took['new']:>9.1f}{ratio:>15.1f}", flush=True)
    return 0


def _steps(first: int) -> list[tuple[str, list[str]]]:
    return [
        ("export", ["export", "STORE", "--to", str(first)]),
        ("fold into snapshots", ["snapshot", "MODEL"]),
        ("export of 1 % more", ["export", "STORE"]),
        ("fold of 1 % more", ["snapshot", "MODEL", "STORE", "--publish"]),
        ("audit", ["audit", "STORE"]),
        ("report", ["report", "OUT"]),
        ("erase one of 50 clients", ["erase", "STORE", "--client", "client-7", "--yes"]),
        ("retain", ["retain", "STORE", "--keep-events", "1000"]),
    ]


def _has(tree: Path, module: str) -> bool:
    return (tree / "src" / f"{module.replace('.', '/')}.py").is_file()


def _job(tree: Path, folder: Path, words: Sequence[str]) -> float:
    given = {
        "STORE": ["--store", str(folder / "data")],
        "MODEL": ["--model", str(tree / "src" / "unisono" / "samples" / "outline")],
        "OUT": ["--out", str(folder / "report")],
    }
    command = [part for word in words for part in given.get(word, [word])]
    # Some events of the history fit no profile, which an audit finds and says by 1.
    codes = (0, 1) if command[0] == "audit" else (0,)
    began = time.monotonic()
    run_in(tree, "-m", "unisono", "lake", command[0], "--lake", folder / "lake", *command[1:], codes=codes)
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
