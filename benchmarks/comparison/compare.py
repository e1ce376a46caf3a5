"""This tree beside another revision of it: `python -m benchmarks compare --base <revision>`.

The other revision is checked out into a temporary worktree; both run with the same installed packages and the same
generators, in turn, so that what slows the machine slows both.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.comparison import works
from benchmarks.comparison.measure import Sample
from benchmarks.comparison.peers import allow_descriptors
from benchmarks.comparison.report import number, times
from benchmarks.comparison.results import Table, ratio
from benchmarks.comparison.rounds import Contender, play, say
from benchmarks.comparison.workloads import running
from benchmarks.peers.ours import Unisono
from benchmarks.peers.system import ROOT, System

BASE, NEW = "base", "new"
FILL_EVENTS = 50_000
FILL_S = 10.0

Work = Callable[[System, float], Sample]
WORKLOADS: dict[str, Work] = {
    "submit-1": lambda system, seconds: works.submit(system, 1, 1, seconds),
    "submit-10": lambda system, seconds: works.submit(system, 10, 1, seconds),
    "submit-50": lambda system, seconds: works.submit(system, 50, 1, seconds),
    "submit-200": lambda system, seconds: works.submit(system, 200, 1, seconds),
    "batch-100": lambda system, seconds: works.submit(system, 10, 100, seconds),
    "catchup-1": lambda system, seconds: works.read(system, [works.DENSE_TOPIC], 1, seconds),
    "catchup-4": lambda system, seconds: works.read(system, [works.DENSE_TOPIC], 4, seconds),
    "catchup-20": lambda system, seconds: works.read(system, works.SPREAD_TOPICS[:20], 4, seconds),
    "fan-out": lambda system, seconds: works.fan_out(system, 500, seconds),
    "connect": works.opening,
    "mixed": works.mixed,
}
DEFAULT = ("submit-1", "submit-50", "batch-100", "catchup-4")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base", required=True, help="the revision to compare with, as git knows it")
    parser.add_argument("--only", help=f"of {', '.join(WORKLOADS)} [{','.join(DEFAULT)}]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument(
        "--judging", action="store_true", help="with the judging model instead of the open one"
    )
    parser.add_argument("--folder", type=Path, default=ROOT, help="where the servers' data stand meanwhile")
    chosen = parser.parse_args(arguments)
    keys = chosen.only.split(",") if chosen.only else list(DEFAULT)
    if unknown := [key for key in keys if key not in WORKLOADS]:
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    allow_descriptors()
    with (
        worktree(chosen.base) as base,
        tempfile.TemporaryDirectory(dir=chosen.folder, prefix="bench-") as folder,
    ):
        both: dict[str, System] = {
            BASE: Unisono(judging=chosen.judging, source=base / "src"),
            NEW: Unisono(judging=chosen.judging),
        }
        notes: list[str] = []
        with running(both, Path(folder), notes) as up:
            if len(up) < 2:
                return 1
            tables = [table for key in keys for table in compared(up, key, chosen.rounds, chosen.seconds)]
    print(f"\n{chosen.base} (base) and this tree (new), {chosen.rounds} rounds of {chosen.seconds:g} s")
    print(shown(tables))
    return 0


def compared(systems: dict[str, System], key: str, rounds: int, seconds: float) -> Iterator[Table]:
    if key.startswith("catchup") or key == "mixed":
        topics = works.SPREAD_TOPICS if key == "catchup-20" else [works.DENSE_TOPIC]
        for name, system in systems.items():
            say(f"  filling {name}")
            works.fill(system, topics, FILL_EVENTS, FILL_S)
    contenders = [
        Contender(name, lambda _, system=system: WORKLOADS[key](system, seconds))  # type: ignore[misc]
        for name, system in systems.items()
    ]
    yield play(key, key, "events/s", contenders, rounds)


def shown(tables: Sequence[Table]) -> str:
    """Ratios above 1: the new one is faster; for latencies below 1."""
    lines = [f"{'':14}{'base':>12}{'new':>12}{'ratio':>9}{'p50 ratio':>11}{'p99 ratio':>11}{'generator':>11}"]
    for table in tables:
        base, new = table.row(BASE), table.row(NEW)
        if base is None or new is None:
            notes = "; ".join(row.note for row in table.rows if row.note)
            lines.append(f"{table.key:14}{notes}")
            continue
        cells = [times(ratio(new, base, field)) for field in ("rate", "p50_ms", "p99_ms")]
        limit = "!" if new.generator_limited else ""
        lines.append(
            f"{table.key:14}{number(base.rate):>12}{number(new.rate):>12}{cells[0]:>9}{cells[1]:>11}{cells[2]:>11}"
            f"{new.generator_cores:>10.2f}{limit}"
        )
    return "\n".join(lines)


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """The sources of a revision, for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="unisono-base-") as place:
        folder = Path(place) / "base"
        made = subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(folder), revision],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if made.returncode != 0:
            raise SystemExit(f"no worktree of {revision}: {made.stderr.strip()}")
        try:
            yield folder
        finally:
            subprocess.run(
                ["git", "-C", str(ROOT), "worktree", "remove", "--force", str(folder)],
                capture_output=True, check=False,
            )  # fmt: skip


def run_in(tree: Path, *arguments: object, codes: Sequence[int] = (0,)) -> None:
    """Run this Python with the sources of a tree; ends with what it printed unless it exits with one of `codes`."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)])}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment, cwd=tree, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in codes:
        raise SystemExit(f"{' '.join(map(str, arguments))} in {tree}:\n{done.stdout}\n{done.stderr}")
