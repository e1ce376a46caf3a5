"""Bars of a run as SVG files."""

from __future__ import annotations

from pathlib import Path

from benchmarks.comparison.results import Run, Table
from benchmarks.comparison.workloads import FLOOR
from unisono.pipeline.html.charts import Unit, bars

PICTURES = ("submit-1", "submit-50", "batch-100", "catchup-dense-4", "fan-out", "connect")


def draw(run: Run, folder: Path) -> list[tuple[str, str]]:
    """Write a picture for each of the main workloads; the name of each, and what it shows."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for key in PICTURES:
        table = run.table(key)
        if table is None or not any(row.samples for row in table.rows):
            continue
        label = f"{table.title}, {table.unit}"
        (folder / f"{key}.svg").write_text(standalone(_bars(table, label)), "utf-8")
        drawn.append((f"{key}.svg", label))
        if key == "submit-1":
            label = f"{table.title}: median latency"
            (folder / "latency-1.svg").write_text(standalone(_latencies(table, label)), "utf-8")
            drawn.append(("latency-1.svg", label))
    return drawn


def standalone(svg: str) -> str:
    """An element made for a page, as a file of its own: with namespace, size and font."""
    box = svg.split('viewBox="', 1)[1].split('"', 1)[0].split()
    size = f'width="{box[2]}" height="{box[3]}"'
    font = 'font-family="system-ui, sans-serif"'
    return svg.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} ', 1) + "\n"


def _bars(table: Table, label: str) -> str:
    rows = [row for row in table.rows if row.samples and row.name != FLOOR]
    return bars([row.name for row in rows], [_rounded(row.rate) for row in rows], label=label)


def _latencies(table: Table, label: str) -> str:
    rows = [row for row in table.rows if row.samples]
    unit: Unit = "ms"
    return bars([row.name for row in rows], [row.p50_ms for row in rows], label=label, unit=unit)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
