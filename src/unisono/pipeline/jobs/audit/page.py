"""An audit as a page: the verdict, what was looked at, where in the history findings lie, and how the log grew."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from unisono.pipeline.html.charts import Series, columns, line, ranges
from unisono.pipeline.html.pages import Fact, HtmlPage, counted
from unisono.pipeline.jobs.audit.findings import AuditFinding
from unisono.pipeline.jobs.audit.result import AuditReport, FindingKind

LISTED: Final = 50
"""Findings of one kind on the page; the JSON has all that were kept."""

PLACES_SHOWN: Final = 50
"""Columns of the picture of places."""

KINDS_DRAWN: Final = 7
"""Kinds with a colour of their own there; what is rarer is drawn together."""

BINS: Final = 60
"""Stretches of time in the picture of growth."""


def page(report: AuditReport) -> str:
    """The whole page; the same report gives the same text."""
    where = report.lake if report.store is None else f"{report.lake}, beside {report.store}"
    made = HtmlPage(
        "Audit of the history",
        where,
        "All times are UTC. An audit reads one version of each table of the lake.",
    )
    made.verdict(_verdict(report), good=report.sound)
    made.facts(
        [
            Fact("events", report.events),
            Fact("findings", report.wrong),
            Fact("warnings", sum(kind.count for kind in report.kinds if kind.warning)),
            Fact("took", report.seconds * 1000, "ms"),
            Fact("erased events", report.erased),
        ]
    )
    _looked_at(made, report)
    if report.kinds:
        _found(made, report)
    _growth(made, report)
    return made.html()


def _verdict(report: AuditReport) -> str:
    if report.sound:
        return f"The history is sound{'' if report.head else ', and empty'}."
    return f"The history is NOT SOUND: {counted(report.wrong, 'finding')}."


def _looked_at(made: HtmlPage, report: AuditReport) -> None:
    made.section("What was looked at")
    rows = [(one.what, f"{one.count:,} {one.unit}", one.note) for one in report.checked]
    made.table(("what", "how many", "note"), rows)
    if report.erased:
        named = ", ".join(map(str, report.erased_ids[:LISTED]))
        made.note(
            f"Of {report.erased:,} erased events only the tombstone is there, so that their hashes cannot be "
            f"recomputed: {named}{', …' if report.erased > LISTED else ''}."
        )


def _found(made: HtmlPage, report: AuditReport) -> None:
    made.section("What was found")
    rows = [(_named(kind), kind.count, kind.meaning) for kind in report.kinds]
    made.table(("kind", "findings", "meaning"), rows)
    placed = [kind for kind in report.kinds if any(kind.places)]
    # Warnings can be many, and would hide what is wrong.
    drawn = [kind for kind in placed if not kind.warning] or placed
    if drawn:
        made.figure(_places(drawn, report.head), "Where in the history the findings lie, by committed_id.")
    for kind in report.kinds:
        told = [finding for finding in report.findings if finding.kind == kind.kind][:LISTED]
        made.heading(f"{_named(kind)}: {kind.meaning}")
        caption = "" if kind.count == len(told) else f"The first {len(told)} of {kind.count:,}."
        if any(finding.partition for finding in told):
            told_with_place = [
                (_event(finding), finding.partition or "", finding.message) for finding in told
            ]
            made.table(("event", "partition", "what is wrong"), told_with_place, caption=caption)
        else:
            plain = [(_event(finding), finding.message) for finding in told]
            made.table(("event", "what is wrong"), plain, caption=caption)


def _named(kind: FindingKind) -> str:
    return f"{kind.kind} (warning)" if kind.warning else kind.kind


def _event(finding: AuditFinding) -> str:
    return "" if finding.committed_id is None else f"{finding.committed_id:,}"


def _places(kinds: list[FindingKind], head: int) -> str:
    """A column over each part of the history, the kinds on top of each other."""
    most = sorted(kinds, key=lambda kind: -kind.count)
    drawn = [(kind.kind, _folded(kind.places, head)) for kind in most[:KINDS_DRAWN]]
    if rest := most[KINDS_DRAWN:]:
        drawn.append(("others", np.sum([_folded(kind.places, head) for kind in rest], axis=0)))
    # An event stands in the middle of the place that its number has on the axis.
    edges = np.linspace(0.5, head + 0.5, _bins(head) + 1).tolist()
    series = [Series(name, values.tolist()) for name, values in drawn]
    return ranges(edges, series, label="findings by place in the history")


def _bins(head: int) -> int:
    return max(1, min(PLACES_SHOWN, head))


def _folded(places: list[int], head: int) -> Any:
    """The parts that findings were counted in, put together to the columns of the picture."""
    bins, last = _bins(head), np.arange(1, len(places) + 1)
    return np.bincount(-(-last * bins // len(places)) - 1, places, bins)


def _growth(made: HtmlPage, report: AuditReport) -> None:
    """The number of events by time, from the points that were noted on the way, if they are enough for a picture."""
    if len(report.ticks) < BINS:
        return
    ids = np.array([tick.committed_id for tick in report.ticks], float)
    times = np.maximum.accumulate(np.array([tick.time for tick in report.ticks], float))
    if times[-1] <= times[0] or times[0] <= 0:
        return
    made.section("How the log grew")
    edges = np.linspace(times[0], times[-1], BINS + 1)
    totals = np.interp(edges, times, ids)
    made.figure(
        line(edges.tolist(), [Series("events", totals.tolist())], label="events in all, by time", area=True),
        f"Events in all, from {_moment(times[0])} to {_moment(times[-1])}.",
    )
    made.figure(
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
