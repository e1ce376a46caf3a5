"""A report as a page: each figure with a picture, and with words that say what it counts and what it does not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from unisono.pipeline.charts import Series, Unit, bars, columns, histogram, line, told
from unisono.pipeline.pages import Cell, Fact, Page
from unisono.pipeline.reporting.tables import DAY_MS, Bin, Report, Spread, kind_name

BARS_MAX: Final = 12
TABLE_ROWS_MAX: Final = 50

_STEP_NAMES: Final = {60_000: "minute", 3_600_000: "hour", DAY_MS: "day", 7 * DAY_MS: "week"}


def page(report: Report) -> str:
    """The whole page. The same report gives the same text."""
    made = Page(
        "What happened in the log",
        _lead(report),
        f"Made from the lake as of event {report.head:,}, committed {moment(report.head_at)}. All times are UTC; "
        "sizes are bytes of event text. The tables behind the pictures are in the folder tables, as Parquet.",
    )
    if not report.totals.events:
        made.text(
            "There are no events in this range."
            if report.head
            else "The lake is empty: no event was exported."
        )
        if report.server is not None:
            _rejections(made, report)
        return made.html()
    made.facts(_facts(report))
    _activity(made, report)
    _busiest(made, report)
    _kinds(made, report)
    _together(made, report)
    _rejections(made, report)
    _drafts(made, report)
    _growth(made, report)
    return made.html()


def moment(ms: int | None) -> str:
    """A time for a person, to the minute."""
    return "never" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _lead(report: Report) -> str:
    totals = report.totals
    if totals.first_at is None:
        return "Nothing yet."
    text = f"Events {totals.first_id:,} to {totals.last_id:,}, committed {moment(totals.first_at)} to "
    text += f"{moment(totals.last_at)} UTC."
    if report.from_ms is not None or report.to_ms is not None:
        begin = f"from {moment(report.from_ms)}" if report.from_ms is not None else ""
        end = f"before {moment(report.to_ms)}" if report.to_ms is not None else ""
        text += f" Only events {' and '.join(part for part in (begin, end) if part)} are counted."
    return text


def _facts(report: Report) -> list[Fact]:
    totals = report.totals
    assert totals.first_at is not None
    assert totals.last_at is not None
    days = (totals.last_at - totals.first_at) / DAY_MS
    return [
        Fact("events", totals.events),
        Fact("partitions", totals.partitions),
        Fact("clients", totals.clients),
        Fact("event text", totals.bytes, "bytes"),
        Fact("events per day", totals.events / days if days >= 1 else totals.events),
        Fact("contested edits", report.contests.contested),
    ]


def _activity(made: Page, report: Report) -> None:
    step, times = _STEP_NAMES[report.step_ms], [row.at for row in report.activity]
    made.section("Activity")
    kinds = list(dict.fromkeys((row.type, row.schema) for row in report.kinds_over_time))
    series = [
        Series(
            "all others" if kind == (None, None) and len(kinds) > 1 else kind_name(*kind),
            [row.events for row in report.kinds_over_time if (row.type, row.schema) == kind],
        )
        for kind in kinds
    ]
    made.figure(
        columns(times, series, step_ms=report.step_ms, label=f"Events per {step}, by kind"),
        f"Events per {step}, by kind",
    )
    for name, values in (
        ("clients", [row.clients for row in report.activity]),
        ("partitions", [row.partitions for row in report.activity]),
    ):
        text = f"Active {name} per {step}: {name} with at least one event in it"
        made.figure(line(times, [Series(name, values)], label=text, area=True, height=150), text)


def _busiest(made: Page, report: Report) -> None:
    made.section("Partitions and clients")
    text = f"The busiest of {report.totals.partitions:,} partitions, by events"
    top = report.partitions[:BARS_MAX]
    made.figure(bars([row.partition for row in top], [row.events for row in top], label=text), text)
    made.table(
        ["partition", "events", "event text", "clients", "first event", "last event"],
        [
            [row.partition, row.events, row.bytes, row.clients, moment(row.first_at), moment(row.last_at)]
            for row in report.partitions[:TABLE_ROWS_MAX]
        ],
        units=["", "", "bytes", "", "", ""],
    )
    text = f"The busiest of {report.totals.clients:,} clients, by events"
    busy = report.clients[:BARS_MAX]
    made.figure(bars([row.client_id for row in busy], [row.events for row in busy], label=text), text)
    made.table(
        ["client", "events", "event text", "partitions", "first event", "last event"],
        [
            [row.client_id, row.events, row.bytes, row.partitions, moment(row.first_at), moment(row.last_at)]
            for row in report.clients[:TABLE_ROWS_MAX]
        ],
        units=["", "", "bytes", "", "", ""],
    )
    made.note("An event in several partitions counts in each of them.")


def _kinds(made: Page, report: Report) -> None:
    made.section("Kinds and sizes of events")
    text = f"The most frequent of {report.kinds_in_all:,} kinds: schemas of canonical events, types of all others"
    top = report.kinds[:BARS_MAX]
    made.figure(bars([row.name for row in top], [row.events for row in top], label=text), text)
    made.table(
        ["type", "schema", "events", "event text", "mean", "largest"],
        [
            [row.type, row.schema or "", row.events, row.bytes, row.bytes / row.events, row.largest]
            for row in report.kinds[:TABLE_ROWS_MAX]
        ],
        units=["", "", "", "bytes", "bytes", "bytes"],
    )
    text = "Events by the size of their text"
    made.figure(_spread_picture(report.sizes, text, "bytes"), text)
    made.facts(_spread_facts(report.sizes, "bytes"))


def _together(made: Page, report: Report) -> None:
    contests, within = report.contests, told(report.contests.within_ms, "ms")
    made.section("Working together")
    text = "Partitions by the number of clients that wrote to them"
    names = [_range(each) for each in report.sharing]
    made.figure(bars(names, [each.count for each in report.sharing], label=text), text)
    made.heading("Contested edits")
    made.text(
        f"An edit is contested when the edit of the same item before it, in the same partition, was by another "
        f"client and at most {within} earlier. {contests.contested:,} of {contests.edits:,} edits were, of "
        f"{contests.items:,} items."
    )
    if contests.contested:
        step = _STEP_NAMES[report.step_ms]
        text = f"Contested edits per {step}"
        made.figure(
            columns(
                [row.at for row in contests.over_time],
                [Series("contested", [row.contested for row in contests.over_time])],
                step_ms=report.step_ms,
                label=text,
            ),
            text,
        )
        made.table(
            ["partition", "item", "contested edits", "clients", "closest"],
            [
                [row.partition, row.item, row.contested, row.clients, row.closest_ms]
                for row in contests.top[:TABLE_ROWS_MAX]
            ],
            units=["", "", "", "", "ms"],
        )
    made.note(
        "An item is the node that a tree action names, with its target; the target of set and unset; the whole "
        "partition for init; and for a canonical event the id in its data together with its schema's name up to the "
        f"last dot. {contests.unnamed:,} events name no item and are not counted here. An event in several "
        "partitions is an edit in each of them."
    )


def _rejections(made: Page, report: Report) -> None:
    made.section("Rejections")
    if report.server is None:
        made.text(
            "Not known. What was rejected is never stored, so the log cannot tell; only a running server counts it, "
            "and none was asked."
        )
        return
    rows = report.server.rejections
    since = "since the server started" if report.server.servers == 1 else "since each of the servers started"
    made.text(
        f"Counted {since}, whatever range this report is on: {sum(row.items for row in rows):,} items rejected, "
        f"{report.server.commits:,} committed, {report.server.duplicates:,} retries answered from the log."
    )
    if rows:
        text = f"Rejected items by reason, {since}"
        made.figure(bars([row.reason for row in rows], [row.items for row in rows], label=text), text)


def _drafts(made: Page, report: Report) -> None:
    made.section("From draft to commit")
    if not report.drafts.values and not report.drafts_ahead:
        made.text(
            "Not known. The protocol carries no time of writing; only ids that are UUIDs of version 7 tell it, and "
            "no event of this range has one."
        )
        return
    text = "Events by the time from draft to commit"
    made.figure(_spread_picture(report.drafts, text, "ms"), text)
    made.facts(_spread_facts(report.drafts, "ms"))
    known = report.drafts.values + report.drafts_ahead
    made.note(
        f"Known for {known:,} of {report.totals.events:,} events: those whose id is a UUID of version 7, which holds "
        "the time of writing by its client's clock. Time spent offline is part of it, and so is the difference "
        f"between the clocks. {report.drafts_ahead:,} drafts dated after their commit are not in the picture."
    )


def _growth(made: Page, report: Report) -> None:
    step, times = _STEP_NAMES[report.step_ms], [row.at for row in report.activity]
    made.section("Growth")
    text = f"Event text committed per {step}"
    values = Series("bytes", [row.bytes for row in report.activity])
    made.figure(columns(times, [values], step_ms=report.step_ms, label=text, unit="bytes"), text)
    text = "Event text since the first event of the log"
    ends = [row.at + report.step_ms for row in report.activity]
    grown = [row.bytes_by_then for row in report.activity]
    made.figure(line(ends, [Series("bytes", grown)], label=text, unit="bytes", area=True), text)
    made.heading("What retention would free")
    hot = report.hot
    if hot.known:
        made.text(
            f"The hot log holds {hot.events:,} events of the lake, {told(hot.bytes, 'bytes')} of event text."
        )
    else:
        made.text("No log was named, so these figures take it that no event has left the hot log yet.")
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
    made.table(head, rows, units=units)
    made.note(
        "Ages are counted from the lake's last event. What can really go depends also on snapshots: `unisono lake "
        "retain --dry-run` says."
    )


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def _spread_picture(spread: Spread, label: str, unit: Unit) -> str:
    if not spread.bins:
        return histogram([], [], label=label)
    edges: list[float] = [each.low or 0 for each in spread.bins]
    last = spread.bins[-1]
    edges.append(last.high if last.high is not None else max(spread.largest or 0, (last.low or 0) + 1))
    return histogram(edges, [each.count for each in spread.bins], label=label, unit=unit)


def _spread_facts(spread: Spread, unit: Unit) -> list[Fact]:
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
    return f"{low} client{'' if high == 1 else 's'}" if low == high else f"{low} to {high} clients"
