"""The figures as Markdown, written into `docs/pipeline-scale.md` between two marks."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.scale.results import Measured, Results

BEGIN = "<!-- figures: written by `python -m benchmarks.scale`, do not edit -->"
END = "<!-- figures end -->"


def write(results: Results, page: Path) -> None:
    text = page.read_text("utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n\n{markdown(results)}\n\n{END}{after}", "utf-8")


def markdown(results: Results) -> str:
    parts = [results.machine, _busy(results)]
    growth = _named(results, "growth")
    if growth:
        parts += [
            "Seconds, and in brackets events per second (publish: snapshots):",
            _table(growth, lambda each: f"{each.seconds:,.1f}{_rate(each)}"),
            "Seconds of all processors together, which other work on the machine disturbs less:",
            _table(growth, lambda each: f"{each.cpu:,.1f}" if each.cpu > 0 else ""),
            "Highest resident size in MB: driver / Java / largest Python worker:",
            _table(
                growth, lambda each: f"{each.driver_mb:,.0f} / {each.java_mb:,.0f} / {each.worker_mb:,.0f}"
            ),
            "Files that the tables name after a step, and their size:",
            _table(
                growth,
                lambda each: f"{each.files:,} ({each.bytes / 1e6:,.0f} MB)",
                ("export", "fold", "compact"),
            ),
        ]
    clusters = [name.split() for name in results.steps if name.startswith("cluster ")]
    for events in sorted({int(name[1]) for name in clusters}):
        found = {int(name[2]): results.steps[" ".join(name)] for name in clusters if int(name[1]) == events}
        share = min(each.share for steps in found.values() for each in steps.values())
        cores = "one core each" if share == 1 else f"{share:.0%} of a core each"
        parts += [f"A standalone cluster, {events:,} events, executors with {cores}:", _speed_up(found)]
    for files, steps in sorted(_named(results, "metadata").items()):
        rows = "\n".join(
            f"| {step} | {each.seconds:.2f} s | {each.driver_mb:,.0f} MB |" for step, each in steps.items()
        )
        parts += [
            f"A lake of {files:,} files in each table, named and not there:",
            f"| driver | time | memory |\n| --- | ---: | ---: |\n{rows}",
        ]
    return "\n\n".join(part for part in parts if part)


def _busy(results: Results) -> str:
    loads = [each.load for steps in results.steps.values() for each in steps.values()]
    cores = os.cpu_count() or 1
    if max(loads, default=0) <= 2 * cores + 1:
        return ""
    return f"**The machine did other work meanwhile** (load up to {max(loads):.0f}): wall times are too long."


def _named(results: Results, kind: str) -> dict[int, dict[str, Measured]]:
    return {
        int(name.split()[1]): steps
        for name, steps in results.steps.items()
        if name.split()[0] == kind and steps
    }


def _rate(each: Measured) -> str:
    return f" ({each.items / each.seconds:,.0f})" if each.items else ""


def _table(growth: dict[int, dict[str, Measured]], text: object, only: tuple[str, ...] = ()) -> str:
    sizes = sorted(growth)
    steps = dict.fromkeys(step for size in sizes for step in growth[size] if not only or step in only)
    lines = [
        "| | " + " | ".join(f"{size:,}" for size in sizes) + " |",
        "| --- |" + " ---: |" * len(sizes),
    ]
    for step in steps:
        cells = [text(growth[size][step]) if step in growth[size] else "" for size in sizes]  # type: ignore[operator]
        lines.append(f"| {step} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _speed_up(found: dict[int, dict[str, Measured]]) -> str:
    lines = ["| executors | fold | | audit | |", "| ---: | ---: | ---: | ---: | ---: |"]
    for executors, steps in sorted(found.items()):
        cells = []
        for step in ("fold", "audit"):
            first = found[min(found)].get(step)
            own = steps.get(step)
            cells += (
                ["", ""]
                if own is None or first is None
                else [f"{own.seconds:.1f} s", f"{first.seconds / own.seconds:.2f} times as fast"]
            )
        lines.append(f"| {executors} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
