"""Makes a report on the history: activity, clients, partitions, contested edits, growth of the log.

A report reads one version of the lake. The same lake gives the same report, byte for byte: ages count from the lake's
last event, not from the clock. Counters of running servers are the one exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unisono.lake.lake import Lake, View
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.report.page import page
from unisono.pipeline.jobs.report.steps import steps_between
from unisono.pipeline.jobs.report.tables import (
    DAY_MS,
    Activity,
    Bin,
    Contested,
    Contests,
    Distribution,
    EventKindRow,
    FreedByRetention,
    HistoryReport,
    HotLog,
    KindActivity,
    ServerCounts,
    Totals,
    write_table,
)
from unisono.pipeline.open_log import extent, sqlite_directory
from unisono.pipeline.origin_check import require_same_log
from unisono.pipeline.progress import Notify, silent
from unisono.store.sqlite.files import LOG_FILE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from unisono.pipeline.jobs.report.queries import ReportQueries, TimeStep

TOP: Final = 20
WITHIN_MS: Final = 5_000
KEEP_DAYS: Final = (7, 30, 90)
KINDS_MAX: Final = 1_000
"""Kinds in a report: an open model accepts any schema name."""
KINDS_DRAWN: Final = 7
"""Kinds with their own colour in the chart; the palette's last colour, a grey, is for all others."""

SIZE_EDGES: Final = (
    0,
    100,
    200,
    300,
    500,
    700,
    1_000,
    2_000,
    5_000,
    10_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
)
DELAY_EDGES: Final = (
    0, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000, 600_000, 3_600_000, DAY_MS,
)  # fmt: skip
SHARING_EDGES: Final = (1, 2, 3, 5, 10, 20, 50, 100)


def report(
    spark: Callable[[], SparkSession] | None,
    lake: Lake,
    *,
    from_ms: int | None = None,
    to_ms: int | None = None,
    last_ms: int | None = None,
    top: int = TOP,
    within_ms: int = WITHIN_MS,
    store: str | None = None,
    server: ServerCounts | None = None,
    notify: Notify = silent,
) -> HistoryReport:
    """The figures of the events committed within `[from_ms, to_ms)`, or in the `last_ms` before the lake's head.

    `spark` starts a session, and is called only when there is something to count. Without one this process counts,
    with all of its cores.
    """
    view = lake.view()
    head_at = _committed_at(view)
    if last_ms is not None:
        if from_ms is not None:
            raise PipelineError("a report begins at a time or a duration before the end, not both")
        from_ms = head_at - last_ms
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise PipelineError("the report's range is empty: it must begin before it ends")
    if not view.head:
        hot = HotLog(
            store is not None,
            0,
            0,
            0,
            [FreedByRetention(days, 0, 0) for days in KEEP_DAYS],
            _file_bytes(store),
        )
        return _empty(view, head_at, from_ms, to_ms, within_ms, hot, server)
    from unisono.pipeline.jobs.report.engines import engine_on
    from unisono.pipeline.jobs.report.queries import ReportQueries

    pruned_to = 0 if store is None else _pruned_to(store, lake, view.head)
    ages = {days: head_at - days * DAY_MS for days in KEEP_DAYS}
    with engine_on(None if spark is None else spark()) as engine:
        queries = ReportQueries(
            engine, view, from_ms, to_ms, within_ms=within_ms, top=top, since=pruned_to, ages=ages
        )
        totals = queries.totals()
        notify(f"{totals.events} events in {totals.partitions} partitions by {totals.clients} clients")
        if not totals.events:
            return _empty(view, head_at, from_ms, to_ms, within_ms, _hot(queries, pruned_to, store), server)
        step_ms = queries.step_ms
        kinds, kinds_in_all = queries.kinds(KINDS_MAX)
        steps = _filled(queries.per_step(), totals, step_ms)
        activity = _activity(steps, queries.before())
        over_time = _kinds_over_time(queries, steps, kinds[:KINDS_DRAWN])
        notify("counted activity and kinds of events")
        partitions, clients = queries.busiest_partitions(), queries.busiest_clients()
        sharing = _bins(queries.clients_per_partition(), SHARING_EDGES)
        notify("counted partitions and clients")
        contests = _contests(queries, steps, within_ms)
        notify("compared edits of the same items")
        delays, longest = queries.delays()
        ahead = delays.pop(-1, 0)
        return HistoryReport(
            view.head,
            head_at,
            from_ms,
            to_ms,
            step_ms,
            totals,
            activity,
            over_time,
            partitions,
            clients,
            kinds,
            kinds_in_all,
            _spread(*queries.sizes(), SIZE_EDGES),
            sharing,
            contests,
            _spread(delays, longest, DELAY_EDGES),
            ahead,
            _hot(queries, pruned_to, store),
            server,
        )


def write(result: HistoryReport, out: Path) -> None:
    """Write `out/tables/*.parquet`, then `out/index.html`, so that the page never refers to missing tables."""
    tables = out / "tables"
    try:
        tables.mkdir(parents=True, exist_ok=True)
        for name, (row, rows) in result.tables().items():
            write_table(tables / f"{name}.parquet", row, rows)
        unfinished = out / ".index.html.unfinished"
        unfinished.write_text(page(result), encoding="utf-8")
        unfinished.replace(out / "index.html")
    except OSError as error:
        raise PipelineError(f"cannot write the report to {out}: {error.strerror or error}") from error


def _pruned_to(store: str, lake: Lake, head: int) -> int:
    """What has left the log, which must be the one that the lake is a copy of."""
    log_extent = extent(store)
    require_same_log(store, lake, head, log_extent)
    return log_extent.pruned_to


def _committed_at(view: View) -> int:
    """When the last event of the lake was committed; 0 for an empty lake."""
    batches = view.scan_arrow(None, max(view.head - 1, 0), columns=["committed_id", "status_updated_at"])
    times = [time for batch in batches for time in batch.column("status_updated_at").to_pylist()]
    return int(times[-1]) if times else 0


def _filled(found: Mapping[int, TimeStep], totals: Totals, step_ms: int) -> dict[int, TimeStep]:
    """Every step of the range in order, also those without events."""
    from unisono.pipeline.jobs.report.queries import TimeStep

    if totals.first_at is None or totals.last_at is None:
        return {}
    return {
        start: found.get(start, TimeStep())
        for start in steps_between(totals.first_at, totals.last_at, step_ms)
    }


def _activity(steps: Mapping[int, TimeStep], before: tuple[int, int]) -> list[Activity]:
    events, size = before
    rows = []
    for start, step in steps.items():
        events, size = events + step.events, size + step.bytes
        rows.append(Activity(start, step.events, step.bytes, step.clients, step.partitions, events, size))
    return rows


def _kinds_over_time(
    queries: ReportQueries, steps: Iterable[int], kinds: Sequence[EventKindRow]
) -> list[KindActivity]:
    found = queries.kinds_per_step(kinds)
    names: list[tuple[str | None, str | None]] = [(kind.type, kind.schema) for kind in kinds]
    places = [*range(len(kinds))]
    if any(place < 0 for _, place in found):
        names.append((None, None))
        places.append(-1)
    return [
        KindActivity(start, *name, found.get((start, place), 0))
        for start in steps
        for name, place in zip(names, places, strict=True)
    ]


def _contests(queries: ReportQueries, steps: Mapping[int, TimeStep], within_ms: int) -> Contests:
    found = queries.contested()
    items, in_all = queries.contested_items()
    return Contests(
        within_ms,
        sum(step.edits for step in steps.values()),
        sum(step.unnamed for step in steps.values()),
        sum(found.values()),
        in_all,
        [Contested(start, step.edits, found.get(start, 0)) for start, step in steps.items()],
        items,
    )


def _hot(queries: ReportQueries, pruned_to: int, store: str | None) -> HotLog:
    """What retention could prune, with ages counted from the lake's last event."""
    events, size, older = queries.older()
    freed = [FreedByRetention(days, *older[days]) for days in KEEP_DAYS]
    return HotLog(store is not None, pruned_to, events, size, freed, _file_bytes(store))


def _file_bytes(store: str | None) -> int | None:
    directory = None if store is None else sqlite_directory(store)
    if directory is None:
        return None
    try:
        return (directory / LOG_FILE).stat().st_size
    except OSError:
        return None


def _empty(
    view: View,
    head_at: int,
    from_ms: int | None,
    to_ms: int | None,
    within_ms: int,
    hot: HotLog,
    server: ServerCounts | None,
) -> HistoryReport:
    """A report without events."""
    nothing, contests = Distribution([], 0, None, None, None, None), Contests(within_ms, 0, 0, 0, 0, [], [])
    return HistoryReport(
        view.head,
        head_at,
        from_ms,
        to_ms,
        DAY_MS,
        Totals(),
        activity=[],
        kinds_over_time=[],
        partitions=[],
        clients=[],
        kinds=[],
        kinds_in_all=0,
        sizes=nothing,
        sharing=[],
        contests=contests,
        drafts=nothing,
        drafts_ahead=0,
        hot=hot,
        server=server,
    )


def _spread(counts: Mapping[int, int], largest: int | None, edges: Sequence[int]) -> Distribution:
    total = sum(counts.values())
    half, tenth, hundredth = (_at_rank(counts, -(-total * part // 100)) for part in (50, 90, 99))
    return Distribution(_bins(counts, edges), total, half, tenth, hundredth, largest if total else None)


def _at_rank(counts: Mapping[int, int], rank: int) -> int | None:
    """The value that `rank` values do not exceed."""
    for value in sorted(counts):
        rank -= counts[value]
        if rank <= 0:
            return value
    return None


def _bins(counts: Mapping[int, int], edges: Sequence[int]) -> list[Bin]:
    """Counts between neighbouring edges and above the last, without empty bins at either end."""
    bounds = [*edges, None]
    bins = [
        Bin(
            low,
            high,
            sum(n for value, n in counts.items() if value >= low and (high is None or value < high)),
        )
        for low, high in zip(edges, bounds[1:], strict=True)
    ]
    filled = [place for place, each in enumerate(bins) if each.count]
    return bins[filled[0] : filled[-1] + 1] if filled else []
