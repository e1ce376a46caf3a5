"""A report as an HTML page: the charts and computed figures; the template says what they count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from unisono.pipeline.html.charts import HEIGHT, Series, Unit, bars, columns, format_value, histogram, line
from unisono.pipeline.html.pages import Cell, Figure, counted, render
from unisono.pipeline.jobs.report.tables import DAY_MS, Bin, Distribution, HistoryReport, kind_name

BARS_MAX: Final = 12
TABLE_ROWS_MAX: Final = 50

_STEP_NAMES: Final = {7 * DAY_MS: "week", DAY_MS: "day", 3_600_000: "hour", 60_000: "minute"}


def page(report: HistoryReport) -> str:
    """The page. The same report gives the same text."""
    return render(
        "jobs/report/page.html",
        report=report,
        range=_range_text(report),
        rows_max=TABLE_ROWS_MAX,
        since=_since(report),
        rejections=_rejections(report),
        pace=_pace(report),
        kinds=[
            (row.type, row.schema or "", row.events, row.bytes, row.bytes / row.events, row.largest)
            for row in report.kinds[:TABLE_ROWS_MAX]
        ],
        figures=_figures(report) if report.totals.events else {},
        freed=_freed(report),
    )


def _range_text(report: HistoryReport) -> str:
    """The requested range; empty for all events."""
    begin = f"from {_exactly(report.from_ms)}" if report.from_ms is not None else ""
    end = f"before {_exactly(report.to_ms)}" if report.to_ms is not None else ""
    return " and ".join(part for part in (begin, end) if part)


def _exactly(ms: int) -> str:
    """A requested time, with seconds if it has some."""
    seconds = ms % 60_000 / 1000
    return format_value(ms, "time") + (f":{seconds:06.3f}".removesuffix(".000") if seconds else "")


def _pace(report: HistoryReport) -> list[tuple[str, float, str]]:
    """Events per day, or per shorter unit for a short range."""
    span = (report.totals.last_at or 0) - (report.totals.first_at or 0)
    fitting = ((ms, name) for ms, name in _STEP_NAMES.items() if ms <= min(span, DAY_MS))
    return [(f"events per {name}", report.totals.events * ms / span, "") for ms, name in fitting][:1]


def _figures(report: HistoryReport) -> dict[str, Figure]:
    step, activity, contests = _STEP_NAMES[report.step_ms], report.activity, report.contests
    times = [row.at for row in activity]

    def over_time(
        caption: str,
        series: Sequence[Series],
        at: Sequence[int] = times,
        unit: Unit = "",
        height: int = HEIGHT,
    ) -> Figure:
        chart = columns(at, series, step_ms=report.step_ms, label=caption, unit=unit, height=height)
        return Figure(chart, caption)

    def active(name: str, values: list[int]) -> Figure:
        caption = f"Active {name} per {step}: {name} with at least one event in it"
        return over_time(caption, [Series(name, values)], height=150)

    kinds = list(dict.fromkeys((row.type, row.schema) for row in report.kinds_over_time))
    of_kinds = [
        Series(
            "all others" if kind == (None, None) and len(kinds) > 1 else kind_name(*kind),
            [row.events for row in report.kinds_over_time if (row.type, row.schema) == kind],
        )
        for kind in kinds
    ]
    busiest = "The busiest of {}, by events"
    frequent = (
        f"The most frequent of {counted(report.kinds_in_all, 'kind')}: schemas of canonical events, "
        "types of all others"
    )
    contested = [Series("contested", [row.contested for row in contests.over_time])]
    return {
        "kinds_over_time": over_time(f"Events per {step}, by kind", of_kinds),
        "active_clients": active("clients", [row.clients for row in activity]),
        "active_partitions": active("partitions", [row.partitions for row in activity]),
        "partitions": _bars(
            busiest.format(counted(report.totals.partitions, "partition")),
            [(row.partition, row.events) for row in report.partitions],
        ),
        "clients": _bars(
            busiest.format(counted(report.totals.clients, "client")),
            [(row.client_id, row.events) for row in report.clients],
        ),
        "kinds": _bars(frequent, [(row.name, row.events) for row in report.kinds]),
        "sizes": _histogram("Events by the size of their text", report.sizes, "bytes"),
        "sharing": _bars(
            "Partitions by the number of clients that wrote to them",
            [(_clients(each), each.count) for each in report.sharing],
        ),
        "contested": over_time(
            f"Contested edits per {step}", contested, [row.at for row in contests.over_time]
        ),
        "drafts": _histogram("Events by the time from draft to commit", report.drafts, "ms"),
        "growth": over_time(
            f"Event text committed per {step}",
            [Series("bytes", [row.bytes for row in activity])],
            unit="bytes",
        ),
        "total": _total(report),
    }


def _total(report: HistoryReport) -> Figure:
    caption, first = "Event text since the first event of the log", report.activity[0]
    ends = [first.at, *(row.at + report.step_ms for row in report.activity)]
    grown = [first.bytes_by_then - first.bytes, *(row.bytes_by_then for row in report.activity)]
    return Figure(line(ends, [Series("bytes", grown)], label=caption, unit="bytes", area=True), caption)


def _since(report: HistoryReport) -> str:
    several = report.server is not None and report.server.servers != 1
    return "since each of the servers started" if several else "since the server started"


def _rejections(report: HistoryReport) -> Figure | None:
    rows = [(row.reason, row.items) for row in report.server.rejections] if report.server else []
    return _bars(f"Rejected items by reason, {_since(report)}", rows, len(rows)) if rows else None


def _bars(caption: str, rows: Sequence[tuple[str, int]], bars_max: int = BARS_MAX) -> Figure:
    top = rows[:bars_max]
    return Figure(bars([name for name, _ in top], [value for _, value in top], label=caption), caption)


def _histogram(caption: str, spread: Distribution, unit: Unit) -> Figure:
    edges: list[float] = [each.low or 0 for each in spread.bins]
    if spread.bins:
        last = spread.bins[-1]
        edges.append(last.high if last.high is not None else max(spread.largest or 0, (last.low or 0) + 1))
    return Figure(histogram(edges, [each.count for each in spread.bins], label=caption, unit=unit), caption)


def _freed(report: HistoryReport) -> list[list[Cell]]:
    """What each retention would free, with its part of the log's file if that is known."""
    rows: list[list[Cell]] = []
    hot = report.hot
    for row in hot.freed:
        share = 100 * row.bytes / hot.bytes if hot.bytes else 0.0
        file = [] if hot.file_bytes is None else [round(hot.file_bytes * share / 100)]
        rows.append([f"--keep {row.keep_days}d", row.events, row.bytes, share, *file])
    return rows


def _clients(each: Bin) -> str:
    if each.high is None:
        return f"{each.low} clients or more"
    low, high = each.low or 0, each.high - 1
    return counted(low, "client") if low == high else f"{low} to {high} clients"
