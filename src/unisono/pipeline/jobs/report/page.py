"""A report as an HTML page: each figure with a chart, and a text that says what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from unisono.pipeline.html.charts import Series, Unit, bars, columns, format_value, histogram, line
from unisono.pipeline.html.pages import Cell, Fact, HtmlPage, counted
from unisono.pipeline.jobs.report.tables import DAY_MS, Bin, Distribution, HistoryReport, kind_name

BARS_MAX: Final = 12
TABLE_ROWS_MAX: Final = 50

_STEP_NAMES: Final = {7 * DAY_MS: "week", DAY_MS: "day", 3_600_000: "hour", 60_000: "minute"}


def page(report: HistoryReport) -> str:
    """The page. The same report gives the same text."""
    doc = HtmlPage("What happened in the log", _lead(report), _footer(report))
    if not report.totals.events:
        if report.server is not None:
            _rejections(doc, report)
        return doc.html()
    doc.facts(_facts(report))
    _activity(doc, report)
    _busiest(doc, report)
    _kinds(doc, report)
    _together(doc, report)
    _rejections(doc, report)
    _drafts(doc, report)
    _growth(doc, report)
    return doc.html()


def _lead(report: HistoryReport) -> str:
    totals, range_text = report.totals, _range_text(report)
    if not report.head:
        return "The lake is empty: no event was exported."
    if totals.first_at is None or totals.last_at is None:
        return f"There are no events in this range: {range_text}."
    if totals.events == 1:
        text = f"Event {totals.first_id:,}, committed {format_value(totals.first_at, 'time')} UTC."
    else:
        first, last = format_value(totals.first_at, "time"), format_value(totals.last_at, "time")
        text = f"Events {totals.first_id:,} to {totals.last_id:,}, committed {first} to {last} UTC."
    return f"{text} Only events {range_text} are counted." if range_text else text


def _range_text(report: HistoryReport) -> str:
    """The requested range; empty for all events."""
    begin = f"from {_exactly(report.from_ms)}" if report.from_ms is not None else ""
    end = f"before {_exactly(report.to_ms)}" if report.to_ms is not None else ""
    return " and ".join(part for part in (begin, end) if part)


def _exactly(ms: int) -> str:
    """A requested time, with seconds if it has some."""
    seconds = ms % 60_000 / 1000
    return format_value(ms, "time") + (f":{seconds:06.3f}".removesuffix(".000") if seconds else "")


def _footer(report: HistoryReport) -> str:
    origin = (
        f"Made from the lake as of event {report.head:,}, committed {format_value(report.head_at, 'time')}. "
    )
    return (
        f"{origin if report.head else ''}All times are UTC; sizes are bytes of event text. The tables behind the "
        "pictures are in the folder tables, as Parquet."
    )


def _facts(report: HistoryReport) -> list[Fact]:
    totals = report.totals
    return [
        Fact("events", totals.events),
        Fact("partitions", totals.partitions),
        Fact("clients", totals.clients),
        Fact("event text", totals.bytes, "bytes"),
        *_pace(report),
        Fact("contested edits", report.contests.contested),
    ]


def _pace(report: HistoryReport) -> list[Fact]:
    """Events per day, or per shorter unit for a short range."""
    span = (report.totals.last_at or 0) - (report.totals.first_at or 0)
    fitting = ((ms, name) for ms, name in _STEP_NAMES.items() if ms <= min(span, DAY_MS))
    return [Fact(f"events per {name}", report.totals.events * ms / span) for ms, name in fitting][:1]


def _activity(doc: HtmlPage, report: HistoryReport) -> None:
    step, times = _STEP_NAMES[report.step_ms], [row.at for row in report.activity]
    doc.section("Activity")
    kinds = list(dict.fromkeys((row.type, row.schema) for row in report.kinds_over_time))
    series = [
        Series(
            "all others" if kind == (None, None) and len(kinds) > 1 else kind_name(*kind),
            [row.events for row in report.kinds_over_time if (row.type, row.schema) == kind],
        )
        for kind in kinds
    ]
    doc.figure(
        columns(times, series, step_ms=report.step_ms, label=f"Events per {step}, by kind"),
        f"Events per {step}, by kind",
    )
    for name, values in (
        ("clients", [row.clients for row in report.activity]),
        ("partitions", [row.partitions for row in report.activity]),
    ):
        text = f"Active {name} per {step}: {name} with at least one event in it"
        picture = columns(times, [Series(name, values)], step_ms=report.step_ms, label=text, height=150)
        doc.figure(picture, text)


def _busiest(doc: HtmlPage, report: HistoryReport) -> None:
    doc.section("Partitions and clients")
    _busiest_of(
        doc,
        ("partition", "clients"),
        report.totals.partitions,
        [
            [row.partition, row.events, row.bytes, row.clients, row.first_at, row.last_at]
            for row in report.partitions
        ],
    )
    _busiest_of(
        doc,
        ("client", "partitions"),
        report.totals.clients,
        [
            [row.client_id, row.events, row.bytes, row.partitions, row.first_at, row.last_at]
            for row in report.clients
        ],
    )
    doc.note("An event in several partitions counts in each of them.")


def _busiest_of(doc: HtmlPage, names: tuple[str, str], in_all: int, rows: Sequence[Sequence[Cell]]) -> None:
    """Partitions or clients, and how many of the other each has; `rows` begin with name and events."""
    text = f"The busiest of {counted(in_all, names[0])}, by events"
    top = rows[:BARS_MAX]
    doc.figure(bars([str(row[0]) for row in top], [int(row[1] or 0) for row in top], label=text), text)
    doc.table(
        [names[0], "events", "event text", names[1], "first event", "last event"],
        rows[:TABLE_ROWS_MAX],
        units=["", "", "bytes", "", "time", "time"],
    )


def _kinds(doc: HtmlPage, report: HistoryReport) -> None:
    doc.section("Kinds and sizes of events")
    in_all = counted(report.kinds_in_all, "kind")
    text = f"The most frequent of {in_all}: schemas of canonical events, types of all others"
    top = report.kinds[:BARS_MAX]
    doc.figure(bars([row.name for row in top], [row.events for row in top], label=text), text)
    doc.table(
        ["type", "schema", "events", "event text", "mean", "largest"],
        [
            [row.type, row.schema or "", row.events, row.bytes, row.bytes / row.events, row.largest]
            for row in report.kinds[:TABLE_ROWS_MAX]
        ],
        units=["", "", "", "bytes", "bytes", "bytes"],
    )
    text = "Events by the size of their text"
    doc.figure(_spread_picture(report.sizes, text, "bytes"), text)
    doc.facts(_spread_facts(report.sizes, "bytes"))


def _together(doc: HtmlPage, report: HistoryReport) -> None:
    contests, within = report.contests, format_value(report.contests.within_ms, "ms")
    doc.section("Working together")
    text = "Partitions by the number of clients that wrote to them"
    names = [_range(each) for each in report.sharing]
    doc.figure(bars(names, [each.count for each in report.sharing], label=text), text)
    doc.heading("Contested edits")
    items = f", of {counted(contests.items, 'item')}" if contests.items else ""
    doc.text(
        f"An edit is contested when the edit of the same item before it, in the same partition, was by another "
        f"client and at most {within} earlier. {contests.contested:,} of {counted(contests.edits, 'edit')} "
        f"were{items}."
    )
    if contests.contested:
        step = _STEP_NAMES[report.step_ms]
        text = f"Contested edits per {step}"
        doc.figure(
            columns(
                [row.at for row in contests.over_time],
                [Series("contested", [row.contested for row in contests.over_time])],
                step_ms=report.step_ms,
                label=text,
            ),
            text,
        )
        doc.table(
            ["partition", "item", "contested edits", "clients", "closest"],
            [
                [row.partition, row.item, row.contested, row.clients, row.closest_ms]
                for row in contests.top[:TABLE_ROWS_MAX]
            ],
            units=["", "", "", "", "ms"],
        )
    doc.note(
        "An item is the node that a tree action names, with its target; the target of set and unset; the whole "
        "partition for init; and for a canonical event the id in its data together with its schema's name up to the "
        f"last dot. An event in several partitions is an edit in each of them. "
        f"Edits that name no item, and are not counted here: {contests.unnamed:,}."
    )


def _rejections(doc: HtmlPage, report: HistoryReport) -> None:
    doc.section("Rejections")
    if report.server is None:
        doc.text(
            "Not known. What was rejected is never stored, so the log cannot tell; only a running server counts it, "
            "and none was asked."
        )
        return
    rows = report.server.rejections
    since = "since the server started" if report.server.servers == 1 else "since each of the servers started"
    rejected = counted(sum(row.items for row in rows), "item")
    doc.text(
        f"Counted {since}, whatever range this report is on: {rejected} rejected, "
        f"{report.server.commits:,} committed, {report.server.duplicates:,} retries answered from the log."
    )
    if rows:
        text = f"Rejected items by reason, {since}"
        doc.figure(bars([row.reason for row in rows], [row.items for row in rows], label=text), text)


def _drafts(doc: HtmlPage, report: HistoryReport) -> None:
    doc.section("From draft to commit")
    if not report.drafts.values and not report.drafts_ahead:
        doc.text(
            "Not known. The protocol carries no time of writing; only ids that are UUIDs of version 7 tell it, and "
            "no event of this range has one."
        )
        return
    text = "Events by the time from draft to commit"
    doc.figure(_spread_picture(report.drafts, text, "ms"), text)
    doc.facts(_spread_facts(report.drafts, "ms"))
    known = report.drafts.values + report.drafts_ahead
    doc.note(
        f"Known for {known:,} of {counted(report.totals.events, 'event')}: those whose id is a UUID of version 7, "
        "which holds the time of writing by its client's clock. Time spent offline is part of it, and so is the "
        "difference between the clocks. Drafts dated after their commit, which are not in the picture: "
        f"{report.drafts_ahead:,}."
    )


def _growth(doc: HtmlPage, report: HistoryReport) -> None:
    step, times = _STEP_NAMES[report.step_ms], [row.at for row in report.activity]
    doc.section("Growth")
    text = f"Event text committed per {step}"
    values = Series("bytes", [row.bytes for row in report.activity])
    doc.figure(columns(times, [values], step_ms=report.step_ms, label=text, unit="bytes"), text)
    text = "Event text since the first event of the log"
    ends = [times[0], *(at + report.step_ms for at in times)]
    first = report.activity[0]
    grown = [first.bytes_by_then - first.bytes, *(row.bytes_by_then for row in report.activity)]
    doc.figure(line(ends, [Series("bytes", grown)], label=text, unit="bytes", area=True), text)
    doc.heading("What retention would free")
    hot = report.hot
    if hot.known:
        doc.text(
            f"The hot log holds {counted(hot.events, 'event')} of the lake, "
            f"{format_value(hot.bytes, 'bytes')} of event text."
        )
    else:
        doc.text("No log was named, so these figures take it that no event has left the hot log yet.")
    head = ["kept", "events that could go", "event text", "share"]
    units: list[Unit] = ["", "", "bytes", "%"]
    rows: list[list[Cell]] = [
        [f"--keep {row.keep_days}d", row.events, row.bytes, _share(row.bytes, hot.bytes)] for row in hot.freed
    ]
    if hot.file_bytes is not None:
        head.append("of the log's file, about")
        units.append("bytes")
        for cells, row in zip(rows, hot.freed, strict=True):
            cells.append(round(hot.file_bytes * _share(row.bytes, hot.bytes) / 100))
    doc.table(head, rows, units=units)
    doc.note(
        "Ages are counted from the lake's last event. What can really go depends also on snapshots: `unisono lake "
        "retain --dry-run` says."
    )


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def _spread_picture(spread: Distribution, label: str, unit: Unit) -> str:
    if not spread.bins:
        return histogram([], [], label=label)
    edges: list[float] = [each.low or 0 for each in spread.bins]
    last = spread.bins[-1]
    edges.append(last.high if last.high is not None else max(spread.largest or 0, (last.low or 0) + 1))
    return histogram(edges, [each.count for each in spread.bins], label=label, unit=unit)


def _spread_facts(spread: Distribution, unit: Unit) -> list[Fact]:
    return [
        Fact("half of them, at most", spread.half, unit),
        Fact("9 of 10, at most", spread.tenth, unit),
        Fact("99 of 100, at most", spread.hundredth, unit),
        Fact("the most", spread.largest, unit),
    ]


def _range(each: Bin) -> str:
    if each.high is None:
        return f"{each.low} clients or more"
    low, high = each.low or 0, each.high - 1
    return counted(low, "client") if low == high else f"{low} to {high} clients"
