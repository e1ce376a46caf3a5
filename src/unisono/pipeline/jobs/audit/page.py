"""An audit as an HTML page: verdict, checks, findings by place in the history, and growth of the log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import numpy as np

from unisono.pipeline.html.charts import Series, columns, line, ranges
from unisono.pipeline.html.pages import Figure, render
from unisono.pipeline.jobs.audit.findings import AuditFinding
from unisono.pipeline.jobs.audit.result import AuditReport, FindingKind
from unisono.store.check_rows import TIME_MAX_MS

LISTED: Final = 50
"""Findings of one kind on the page; the JSON has all that are kept."""

PLACES_SHOWN: Final = 50
"""Columns of the chart of places."""

KINDS_DRAWN: Final = 7
"""Kinds with their own colour; rarer kinds share one."""

BINS: Final = 60
"""Intervals in the chart of growth."""


class _KindFindings(msgspec.Struct, frozen=True):
    """The first findings of one kind as a table."""

    name: str
    count: int
    meaning: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    caption: str


def page(report: AuditReport) -> str:
    """The page; the same report gives the same text."""
    return render(
        "jobs/audit/page.html",
        report=report,
        listed=LISTED,
        checked=[(one.what, f"{one.count:,} {one.unit}", one.note) for one in report.checked],
        kinds=[_findings(kind, report.findings) for kind in report.kinds],
        places=_places(report),
        growth=_growth(report),
    )


def _findings(kind: FindingKind, findings: list[AuditFinding]) -> _KindFindings:
    first = [finding for finding in findings if finding.kind == kind.kind][:LISTED]
    head: tuple[str, ...] = ("event", "partition", "what is wrong")
    rows: list[tuple[str, ...]] = [(_event(each), each.partition or "", each.message) for each in first]
    if not any(each.partition for each in first):
        head, rows = (head[0], head[2]), [(row[0], row[2]) for row in rows]
    return _KindFindings(
        f"{kind.kind} (warning)" if kind.warning else kind.kind,
        kind.count,
        kind.meaning,
        head,
        rows,
        "" if kind.count == len(first) else f"The first {len(first)} of {kind.count:,}.",
    )


def _event(finding: AuditFinding) -> str:
    return "" if finding.committed_id is None else f"{finding.committed_id:,}"


def _places(report: AuditReport) -> Figure | None:
    """Stacked columns of the kinds over the parts of the history."""
    placed = [kind for kind in report.kinds if any(kind.places)]
    # Many warnings would hide the findings.
    kinds = [kind for kind in placed if not kind.warning] or placed
    if not kinds:
        return None
    head, most = report.head, sorted(kinds, key=lambda kind: -kind.count)
    drawn = [(kind.kind, _merge_places(kind.places, head)) for kind in most[:KINDS_DRAWN]]
    if rest := most[KINDS_DRAWN:]:
        drawn.append(("others", np.sum([_merge_places(kind.places, head) for kind in rest], axis=0)))
    # Centres each event on its number on the axis.
    edges = np.linspace(0.5, head + 0.5, _bins(head) + 1).tolist()
    series = [Series(name, values.tolist()) for name, values in drawn]
    chart = ranges(edges, series, label="findings by place in the history")
    return Figure(chart, "Where in the history the findings lie, by committed_id.")


def _bins(head: int) -> int:
    return max(1, min(PLACES_SHOWN, head))


def _merge_places(places: list[int], head: int) -> Any:
    """Merge the counted parts into the columns of the chart."""
    bins, last = _bins(head), np.arange(1, len(places) + 1)
    return np.bincount(-(-last * bins // len(places)) - 1, places, bins)


def _growth(report: AuditReport) -> list[Figure]:
    """Events over time, from the points noted by the file checks, if they are enough for a chart."""
    ticks = [tick for tick in report.ticks if 0 < tick.time <= TIME_MAX_MS]  # others are findings
    if len(ticks) < BINS:
        return []
    ids = np.array([tick.committed_id for tick in ticks], float)
    times = np.maximum.accumulate(np.array([tick.time for tick in ticks], float))
    if times[-1] <= times[0]:
        return []
    edges = np.linspace(times[0], times[-1], BINS + 1)
    totals = np.interp(edges, times, ids)
    total = line(
        edges.tolist(), [Series("events", totals.tolist())], label="events in all, by time", area=True
    )
    by_time = columns(
        edges[:-1].astype(int).tolist(),
        [Series("events", np.diff(totals).round(1).tolist())],
        step_ms=max(1, int(edges[1] - edges[0])),
        label="events by time",
    )
    return [
        Figure(total, f"Events in all, from {_moment(times[0])} to {_moment(times[-1])}."),
        Figure(by_time, f"Events in each of {BINS} equal stretches of time, read off the line above."),
    ]


def _moment(ms: float) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
