"""Unisono beside other systems: `python -m benchmarks peers`, or `make bench`."""

from __future__ import annotations

import argparse
import fnmatch
import os
import platform
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.comparison.pictures import draw
from benchmarks.comparison.raw import echo_server, floor, raw_limits
from benchmarks.comparison.report import markdown, write_page
from benchmarks.comparison.results import Run, Table
from benchmarks.comparison.rounds import say
from benchmarks.comparison.workloads import (
    QUICK,
    Plan,
    Scale,
    Systems,
    all_systems,
    growth,
    idle,
    running,
)
from benchmarks.peers.install import install
from benchmarks.peers.system import ROOT

OUT = ROOT / "benchmarks" / "out"
PAGE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "performance"
LARGEST_LOG = 10_000_000
DESCRIPTORS = 20_000


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks peers", description=__doc__)
    parser.add_argument("--rounds", type=int, help="rounds of each workload [3]")
    parser.add_argument("--seconds", type=float, help="seconds of each measurement [2]")
    parser.add_argument("--only", help="workloads, separated by commas; * stands for anything [all]")
    parser.add_argument("--systems", help="systems, separated by commas, by a part of their names [all]")
    parser.add_argument("--largest", action="store_true", help=f"also a log of {LARGEST_LOG:,} events")
    parser.add_argument(
        "--quick", action="store_true", help="everything once and short: figures mean nothing"
    )
    parser.add_argument("--folder", type=Path, default=ROOT, help="where the servers' data stand meanwhile")
    parser.add_argument(
        "--out", type=Path, default=OUT, help="where results.json, results.md and pictures go"
    )
    parser.add_argument("--no-install", action="store_true", help="take the peers that are installed")
    parser.add_argument("--write-docs", action="store_true", help=f"write the figures into {PAGE.name}")
    chosen = parser.parse_args(arguments)
    scale = QUICK if chosen.quick else Scale()
    if chosen.rounds:
        scale = msgspec.structs.replace(scale, rounds=chosen.rounds)
    if chosen.seconds:
        scale = msgspec.structs.replace(scale, seconds=chosen.seconds)
    if chosen.largest:
        scale = msgspec.structs.replace(scale, log_sizes=(*scale.log_sizes, LARGEST_LOG))
    notes: list[str] = []
    if not chosen.no_install:
        notes += install()
        for note in notes:
            say(note)
    systems = chosen_systems(all_systems(), chosen.systems)
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="bench-") as folder:
        run = measured(Path(folder), systems, scale, (chosen.only or "*").split(","), notes)
    show(run, chosen.out, write_docs=chosen.write_docs)
    return 0


def chosen_systems(systems: Systems, parts: str | None) -> Systems:
    if parts is None:
        return systems
    wanted = [part.strip().lower() for part in parts.split(",")]
    return {name: one for name, one in systems.items() if any(part in name.lower() for part in wanted)}


def measured(folder: Path, systems: Systems, scale: Scale, only: Sequence[str], notes: list[str]) -> Run:
    def wanted(key: str) -> bool:
        return any(fnmatch.fnmatch(key, pattern.strip()) for pattern in only)

    allow_descriptors()
    tables: list[Table] = []
    with echo_server() as port, running(systems, folder / "systems", notes) as up:
        if wanted("raw"):
            tables.append(raw_limits(folder, port, scale.rounds, scale.seconds / 2))
        versions = {system.name: system.version() for system in up.values()}
        for key, workload in (
            Plan(up, scale, lambda seconds: floor(folder, port, seconds)).workloads().items()
        ):
            if wanted(key):
                tables.append(workload())
    if wanted("idle"):
        tables.append(idle(folder / "idle", scale, systems))
    if wanted("grow"):
        tables += growth(folder / "grow", scale, notes)
    for table in tables:
        notes += [
            f"{table.title}, {row.name}: the generator used {row.generator_cores:.2f} cores and may be the limit"
            for row in table.rows
            if row.generator_limited
        ]
    return Run(time.strftime("%Y-%m-%d"), machine(), versions, scale.rounds, scale.seconds, tables, notes)


def show(run: Run, out: Path, *, write_docs: bool) -> None:
    """Print and keep the results; with `write_docs`, also in the documentation."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))
    pictures = draw(run, out)
    text = markdown(run, pictures)
    (out / "results.md").write_text(text + "\n", "utf-8")
    print(text)
    say(f"\nkept in {out}")
    if write_docs:
        drawn = [(f"{PICTURES.name}/{name}", label) for name, label in draw(run, PICTURES)]
        write_page(PAGE, run, drawn)
        say(f"written into {PAGE} and {PICTURES}")


def report(arguments: Sequence[str]) -> int:
    """Write the page once more from kept results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks report", description=report.__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=OUT / "results.json")
    parser.add_argument("--write-docs", action="store_true", help=f"write the figures into {PAGE.name}")
    chosen = parser.parse_args(arguments)
    run = msgspec.json.decode(chosen.results.read_bytes(), type=Run)
    show(run, chosen.results.parent, write_docs=chosen.write_docs)
    return 0


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}"


def allow_descriptors() -> None:
    """For thousands of connections, here and in the processes started from here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS:
        limit = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
