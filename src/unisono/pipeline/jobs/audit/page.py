"""An audit as an HTML page: verdict, checks, findings by place in the history, and growth of the log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from unisono.pipeline.html.charts import Series, columns, line, ranges
from unisono.pipeline.html.pages import Fact, HtmlPage, counted
from unisono.pipeline.jobs.audit.findings import AuditFinding
from unisono.pipeline.jobs.audit.result import AuditReport, FindingKind

LISTED: Final = 50
"""Findings of one kind on the page; the JSON has all that are kept."""

PLACES_SHOWN: Final = 50
"""Columns of the chart of places."""

KINDS_DRAWN: Final = 7
"""Kinds with their own colour; rarer kinds share one."""

BINS: Final = 60
"""Intervals in the chart of growth."""


def page(report: AuditReport) -> str:
    """The page; the same report gives the same text."""
    where = report.lake if report.store is None else f"{report.lake}, beside {report.store}"
    doc = HtmlPage(
        "Audit of the history",
        where,
        "All times are UTC. An audit reads one version of each table of the lake.",
    )
    doc.verdict(_verdict(report), good=report.sound)
    doc.facts(
        [
            Fact("events", report.events),
            Fact("findings", report.wrong),
            Fact("warnings", sum(kind.count for kind in report.kinds if kind.warning)),
            Fact("took", report.seconds * 1000, "ms"),
            Fact("erased events", report.erased),
        ]
    )
    _steps_section(doc, report)
    if report.kinds:
        _findings_section(doc, report)
    _growth_section(doc, report)
    return doc.html()


def _verdict(report: AuditReport) -> str:
    if report.sound:
        return f"The history is sound{'' if report.head else ', and empty'}."
    return f"The history is NOT SOUND: {counted(report.wrong, 'finding')}."


def _steps_section(doc: HtmlPage, report: AuditReport) -> None:
    doc.section("What was looked at")
    rows = [(one.what, f"{one.count:,} {one.unit}", one.note) for one in report.checked]
    doc.table(("what", "how many", "note"), rows)
    if report.erased:
        named = ", ".join(map(str, report.erased_ids[:LISTED]))
        doc.note(
            f"Of {report.erased:,} erased events only the tombstone is there, so that their hashes cannot be "
            f"recomputed: {named}{', …' if report.erased > LISTED else ''}."
        )


def _findings_section(doc: HtmlPage, report: AuditReport) -> None:
    doc.section("What was found")
    rows = [(_kind_name(kind), kind.count, kind.meaning) for kind in report.kinds]
    doc.table(("kind", "findings", "meaning"), rows)
    placed = [kind for kind in report.kinds if any(kind.places)]
    # Many warnings would hide the findings.
    drawn = [kind for kind in placed if not kind.warning] or placed
    if drawn:
        doc.figure(_places(drawn, report.head), "Where in the history the findings lie, by committed_id.")
    for kind in report.kinds:
        first = [finding for finding in report.findings if finding.kind == kind.kind][:LISTED]
        doc.heading(f"{_kind_name(kind)}: {kind.meaning}")
        caption = "" if kind.count == len(first) else f"The first {len(first)} of {kind.count:,}."
        if any(finding.partition for finding in first):
            triples = [(_event(finding), finding.partition or "", finding.message) for finding in first]
            doc.table(("event", "partition", "what is wrong"), triples, caption=caption)
        else:
            pairs = [(_event(finding), finding.message) for finding in first]
            doc.table(("event", "what is wrong"), pairs, caption=caption)


def _kind_name(kind: FindingKind) -> str:
    return f"{kind.kind} (warning)" if kind.warning else kind.kind


def _event(finding: AuditFinding) -> str:
    return "" if finding.committed_id is None else f"{finding.committed_id:,}"


def _places(kinds: list[FindingKind], head: int) -> str:
    """Stacked columns of the kinds over the parts of the history."""
    most = sorted(kinds, key=lambda kind: -kind.count)
    drawn = [(kind.kind, _merge_places(kind.places, head)) for kind in most[:KINDS_DRAWN]]
    if rest := most[KINDS_DRAWN:]:
        drawn.append(("others", np.sum([_merge_places(kind.places, head) for kind in rest], axis=0)))
    # Centres each event on its number on the axis.
    edges = np.linspace(0.5, head + 0.5, _bins(head) + 1).tolist()
    series = [Series(name, values.tolist()) for name, values in drawn]
    return ranges(edges, series, label="findings by place in the history")


def _bins(head: int) -> int:
    return max(1, min(PLACES_SHOWN, head))


def _merge_places(places: list[int], head: int) -> Any:
    """Merge the counted parts into the columns of the chart."""
    bins, last = _bins(head), np.arange(1, len(places) + 1)
    return np.bincount(-(-last * bins // len(places)) - 1, places, bins)


def _growth_section(doc: HtmlPage, report: AuditReport) -> None:
    """Events over time, from the points noted by the file checks, if they are enough for a chart."""
    if len(report.ticks) < BINS:
        return
    ids = np.array([tick.committed_id for tick in report.ticks], float)
    times = np.maximum.accumulate(np.array([tick.time for tick in report.ticks], float))
    if times[-1] <= times[0] or times[0] <= 0:
        return
    doc.section("How the log grew")
    edges = np.linspace(times[0], times[-1], BINS + 1)
    totals = np.interp(edges, times, ids)
    doc.figure(
        line(edges.tolist(), [Series("events", totals.tolist())], label="events in all, by time", area=True),
        f"Events in all, from {_moment(times[0])} to {_moment(times[-1])}.",
    )
    doc.figure(
        columns(
            edges[:-1].astype(int).tolist(),
            [Series("events", np.diff(totals).round(1).tolist())],
            step_ms=max(1, int(edges[1] - edges[0])),
            label="events by time",
        ),
        f"Events in each of {BINS} equal stretches of time, read off the line above.",
    )


def _moment(ms: float) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
