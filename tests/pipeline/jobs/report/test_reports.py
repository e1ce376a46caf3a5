"""Reports: every figure against a plain computation over the same records."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.behaviour.server.harness import item, running, set_event, tree_event
from tests.commands import unisono
from tests.lake.lakes import HERE, export_to
from tests.pipeline.history import make_store
from tests.pipeline.html.test_charts import read_page
from tests.pipeline.jobs.report.by_hand import (
    SCRIPT,
    START_MS,
    WITHIN_MS,
    bins,
    contested,
    delays_of,
    item_of,
    kind,
    make_records,
    ranked,
    store_of,
)
from tests.pipeline.processes import run
from unisono.lake.lake import Lake
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.html.charts import format_value
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.report.job import DELAY_EDGES, SHARING_EDGES, SIZE_EDGES, report, write
from unisono.pipeline.jobs.report.page import _pace, page
from unisono.pipeline.jobs.report.server_metrics import server_counts
from unisono.pipeline.jobs.report.steps import DAY_MS, HOUR_MS, MINUTE_MS, WEEK_MS, step_of, step_start
from unisono.pipeline.jobs.report.tables import HistoryReport
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.service.stages import ServiceOptions, stages
from unisono.store.port import Record


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return make_records()


@pytest.fixture(scope="module")
def place(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Lake]:
    folder = tmp_path_factory.mktemp("reported")
    store, lake = store_of(folder / "data", records), Lake.at(str(folder / "lake"))
    lake.make(4)
    export(HERE, store, lake, events_per_file=400)
    return store, lake


@pytest.fixture(scope="module")
def made(spark: SparkSession, place: tuple[str, Lake]) -> HistoryReport:
    return report(lambda: spark, place[1], top=5, within_ms=WITHIN_MS, store=place[0])


def test_this_process_and_spark_give_the_same_report(made: HistoryReport, place: tuple[str, Lake]) -> None:
    assert report(None, place[1], top=5, within_ms=WITHIN_MS, store=place[0]) == made


# -- figures -----------------------------------------------------------------------------------------------


def test_totals_and_activity(made: HistoryReport, records: list[Record]) -> None:
    totals = made.totals
    assert totals.events == len(records)
    assert totals.bytes == sum(len(record.event) for record in records)
    assert totals.clients == len({record.client_id for record in records})
    assert totals.partitions == len({name for record in records for name in record.partitions})
    assert (totals.first_id, totals.last_id) == (1, len(records))
    assert (totals.first_at, totals.last_at) == (records[0].status_updated_at, records[-1].status_updated_at)
    assert made.step_ms == DAY_MS
    steps = range(records[0].status_updated_at // DAY_MS, records[-1].status_updated_at // DAY_MS + 1)
    assert [row.at for row in made.activity] == [step * DAY_MS for step in steps]
    by_then = bytes_by_then = 0
    for row in made.activity:
        within = [record for record in records if row.at <= record.status_updated_at < row.at + DAY_MS]
        by_then, bytes_by_then = by_then + len(within), bytes_by_then + sum(len(r.event) for r in within)
        assert row.events == len(within)
        assert row.bytes == sum(len(record.event) for record in within)
        assert row.clients == len({record.client_id for record in within})
        assert row.partitions == len({name for record in within for name in record.partitions})
        assert (row.events_by_then, row.bytes_by_then) == (by_then, bytes_by_then)


def test_kinds(made: HistoryReport, records: list[Record]) -> None:
    counted = Counter(kind(record) for record in records)
    assert made.kinds_in_all == len(counted)
    assert [(row.type, row.schema) for row in made.kinds] == sorted(
        counted, key=lambda name: (-counted[name], name[0], name[1] or "")
    )
    for row in made.kinds:
        sizes = [len(record.event) for record in records if kind(record) == (row.type, row.schema)]
        assert (row.events, row.bytes, row.largest) == (len(sizes), sum(sizes), max(sizes))
    shown = [(row.type, row.schema) for row in made.kinds[:7]]
    over_time = Counter[tuple[int, Any]]()
    for record in records:
        name = kind(record) if kind(record) in shown else (None, None)
        over_time[record.status_updated_at // DAY_MS * DAY_MS, name] += 1
    told = {(row.at, (row.type, row.schema)): row.events for row in made.kinds_over_time if row.events}
    assert told == dict(over_time)


def test_the_busiest(made: HistoryReport, records: list[Record]) -> None:
    partitions = Counter(name for record in records for name in record.partitions)
    top = sorted(partitions, key=lambda name: (-partitions[name], name.encode()))[:5]
    assert [row.partition for row in made.partitions] == top
    for row in made.partitions:
        own = [record for record in records if row.partition in record.partitions]
        assert row.events == len(own)
        assert row.bytes == sum(len(record.event) for record in own)
        assert row.clients == len({record.client_id for record in own})
        assert (row.first_at, row.last_at) == (own[0].status_updated_at, own[-1].status_updated_at)
    clients = Counter(record.client_id for record in records)
    assert [row.client_id for row in made.clients] == sorted(
        clients, key=lambda name: (-clients[name], name)
    )[:5]
    for each in made.clients:
        own = [record for record in records if record.client_id == each.client_id]
        assert (each.events, each.bytes) == (len(own), sum(len(record.event) for record in own))
        assert each.partitions == len({name for record in own for name in record.partitions})
    writers = defaultdict(set)
    for record in records:
        for name in record.partitions:
            writers[name].add(record.client_id)
    assert made.sharing == bins([len(names) for names in writers.values()], SHARING_EDGES)


def test_sizes_and_delays(made: HistoryReport, records: list[Record]) -> None:
    sizes = [len(record.event) for record in records]
    assert made.sizes.bins == bins(sizes, SIZE_EDGES)
    assert (made.sizes.values, made.sizes.largest) == (len(sizes), max(sizes))
    assert (made.sizes.half, made.sizes.tenth, made.sizes.hundredth) == tuple(
        ranked(sizes, p) for p in (50, 90, 99)
    )
    delays = delays_of(records)
    fair = [delay for delay in delays if delay >= 0]
    assert made.drafts_ahead == len(delays) - len(fair) > 0
    assert made.drafts.bins == bins(fair, DELAY_EDGES)
    assert (made.drafts.values, made.drafts.largest) == (len(fair), max(fair))
    assert made.drafts.half == ranked(fair, 50)


def test_contested_edits(made: HistoryReport, records: list[Record]) -> None:
    found = contested(records)
    edits = sum(len(record.partitions) for record in records if item_of(record) is not None)
    told = made.contests
    assert told.contested == sum(map(len, found.values())) > 20
    assert told.items == len(found)
    assert (told.edits, told.unnamed) == (edits, sum(len(record.partitions) for record in records) - edits)
    assert sum(row.contested for row in told.over_time) == told.contested
    assert sum(row.edits for row in told.over_time) == told.edits
    most = sorted((len(each) for each in found.values()), reverse=True)[:5]
    assert [row.contested for row in told.top] == most
    for row in told.top:
        matches = [
            edits
            for (partition, (place, node)), edits in found.items()
            if partition == row.partition
            and (f"{place.partition(' ')[2]} / {node}" if node else place.partition(" ")[2] or "(everything)")
            == row.item
        ]
        assert (row.contested, row.clients, row.closest_ms) in [
            (len(edits), len({who for edit in edits for who in edit[:2]}), min(edit[2] for edit in edits))
            for edits in matches
        ]


def test_what_retention_would_free(
    made: HistoryReport, records: list[Record], spark: SparkSession, place: tuple[str, Lake]
) -> None:
    assert (made.hot.known, made.hot.since, made.hot.events) == (True, 0, len(records))
    assert made.hot.file_bytes == Path(place[0].removeprefix("sqlite:"), "log.db").stat().st_size
    head_at = records[-1].status_updated_at
    assert (made.head, made.head_at) == (len(records), head_at)
    for row in made.hot.freed:
        old = [record for record in records if record.status_updated_at < head_at - row.keep_days * DAY_MS]
        assert (row.events, row.bytes) == (len(old), sum(len(record.event) for record in old))
    assert [row.keep_days for row in made.hot.freed] == [7, 30, 90]
    assert made.hot.freed[0].events > made.hot.freed[1].events > made.hot.freed[2].events == 0


def test_a_range_of_time(spark: SparkSession, place: tuple[str, Lake], records: list[Record]) -> None:
    from_ms, to_ms = records[-1].status_updated_at - 9 * DAY_MS, START_MS + 35 * DAY_MS
    within = [record for record in records if from_ms <= record.status_updated_at < to_ms]
    before = [record for record in records if record.status_updated_at < from_ms]
    part = report(lambda: spark, place[1], last_ms=9 * DAY_MS, to_ms=to_ms)
    assert (part.from_ms, part.to_ms) == (from_ms, to_ms)
    assert (part.totals.events, part.totals.first_id) == (len(within), within[0].committed_id)
    assert part.step_ms == HOUR_MS
    assert sum(row.events for row in part.activity) == len(within)
    assert part.activity[-1].events_by_then == len(before) + len(within)
    assert not part.hot.known
    assert part.hot.events == len(records), "what retention frees does not depend on the range"
    with pytest.raises(PipelineError, match="must begin before it ends"):
        report(lambda: spark, place[1], from_ms=5, to_ms=5)
    with pytest.raises(PipelineError, match="not both"):
        report(lambda: spark, place[1], from_ms=5, last_ms=5)


def test_steps_follow_the_span() -> None:
    spans = [HOUR_MS, 3 * HOUR_MS, 3 * HOUR_MS + 1, 7 * DAY_MS, 7 * DAY_MS + 1, 730 * DAY_MS, 731 * DAY_MS]
    steps = [MINUTE_MS, MINUTE_MS, HOUR_MS, HOUR_MS, DAY_MS, DAY_MS, WEEK_MS]
    assert [step_of(span) for span in spans] == steps
    assert step_start(START_MS, WEEK_MS) == 1_789_948_800_000, "Monday, 2026-09-21"


# -- the page ----------------------------------------------------------------------------------------------


def test_the_page_shows_every_figure_and_every_name(made: HistoryReport, tmp_path: Path) -> None:
    write(made, tmp_path / "out")
    html = (tmp_path / "out" / "index.html").read_text()
    reading = read_page(html)
    assert "script" not in reading.tags
    assert SCRIPT in reading.text, "a name is shown as it is"
    assert reading.tags.count("svg") == reading.tags.count("figure") == 12
    assert not re.search(r"https?:", html)
    sections = {"Activity", "Partitions and clients", "Kinds and sizes of events", "Working together", "Rejections",
                "From draft to commit", "Growth"}  # fmt: skip
    assert sections <= set(reading.text)
    shown = " ".join(reading.text)
    assert f"{made.totals.events:,}" in reading.text
    assert f"{made.contests.contested:,} of {made.contests.edits:,} edits were" in shown
    assert "What was rejected is never stored" in shown
    for name, (_, rows) in made.tables().items():
        table = pq.read_table(tmp_path / "out" / "tables" / f"{name}.parquet").to_pylist()
        assert table == [msgspec.structs.asdict(row) for row in rows]
    before = html
    write(made, tmp_path / "out")
    assert (tmp_path / "out" / "index.html").read_text() == before
    assert not list((tmp_path / "out").rglob(".*"))


def test_an_empty_lake_and_an_empty_range(
    spark: SparkSession, place: tuple[str, Lake], tmp_path: Path
) -> None:
    empty = Lake.at(str(tmp_path / "lake"))
    empty.make(4)

    def no_spark() -> SparkSession:
        raise AssertionError("nothing to count")

    write(report(no_spark, empty), tmp_path / "out")
    html = (tmp_path / "out" / "index.html").read_text()
    assert "The lake is empty" in html
    assert "1970" not in html
    assert pq.read_table(tmp_path / "out" / "tables" / "activity.parquet").num_rows == 0
    early = report(lambda: spark, place[1], to_ms=5)
    write(early, tmp_path / "early")
    assert early.totals.events == 0
    html = (tmp_path / "early" / "index.html").read_text()
    assert "There are no events in this range: before 1970-01-01 00:00:00.005." in html


@pytest.mark.parametrize(
    ("span", "told"), [(40 * DAY_MS, "22.5day"), (HOUR_MS, "900hour"), (MINUTE_MS, "900minute"), (5, None)]
)
def test_the_pace_is_told_for_a_time_that_the_range_has(
    made: HistoryReport, span: int, told: str | None
) -> None:
    totals = msgspec.structs.replace(made.totals, first_at=START_MS, last_at=START_MS + span)
    pace = _pace(msgspec.structs.replace(made, totals=totals))
    shown = [f"{format_value(value, '')}{name[11:]}" for name, value, _ in pace]
    assert shown == ([] if told is None else [told])


def test_one_event_is_told_as_one(made: HistoryReport) -> None:
    one = msgspec.structs.replace(made.totals, events=1, first_id=7, last_id=7, partitions=1)
    shown = " ".join(read_page(page(msgspec.structs.replace(made, totals=one))).text)
    assert "Event 7, committed 2026-09-21" in shown
    assert "The busiest of 1 partition, by events" in shown


def test_rejections_come_from_the_running_server(tmp_path: Path, spark: SparkSession) -> None:
    with running(tmp_path / "data", "--access-default", "allow") as server, server.client("bob") as bob:
        bob.submit(
            item(["p"], set_event("a", 1), "one"),
            item(["p"], {"type": "treeDelete", "payload": {"target": "none", "options": {"id": "x"}}}),
            item(["p"], tree_event("n1")),
            item(["p"], tree_event("n1")),
        )
        bob.submit(item(["p"], set_event("a", 1), "one"))
        counts = server_counts([server.admin, f"{server.admin}/metrics"])
        assert (counts.servers, counts.commits, counts.duplicates) == (2, 4, 2)
        assert [(row.reason, row.items) for row in counts.rejections] == [("validation_failed", 4)]
        lake = str(tmp_path / "lake")
        Lake.at(lake).make(4)
        told = run("report", "--data", str(tmp_path / "data"), "--lake", lake, "--out", str(tmp_path / "out"))
        assert told.returncode == 0, told.stderr
        assert told.stdout.startswith("reported on 0 events in ")
        store, service = sqlite_uri(tmp_path / "data"), ServiceOptions(out=tmp_path / "service")
        {stage.name: stage for stage in stages(spark, store, Lake.at(lake), service)}["report"].work()
    for written in (tmp_path / "out" / "index.html", tmp_path / "service" / "report" / "index.html"):
        html = written.read_text()
        assert "since the server started" in html
        assert "validation_failed" in html
    with pytest.raises(PipelineError, match=r"no metrics from http://127\.0\.0\.1:1/metrics"):
        server_counts(["http://127.0.0.1:1"])
    with pytest.raises(PipelineError, match="no address"):
        server_counts(["file:///etc/passwd"])


def test_a_report_on_spark_compiles_its_sql(
    place: tuple[str, Lake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is over all that executors counted, which can be millions of rows."""
    asked: list[bool] = []

    def session(*_: Any, few_rows: bool, **__: Any) -> None:
        asked.append(few_rows)
        raise PipelineError("that is enough")

    monkeypatch.setattr("unisono.pipeline.spark.session.session", session)
    result = unisono(
        "lake", "report", "--lake", place[1].storage.location, "--out", str(tmp_path), "--master", "local[1]"
    )
    assert "that is enough" in result.stderr
    assert asked == [False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "yesterday"], "'yesterday' is no time"),
        (["--since", "soon"], "'soon' is no span of time"),
        (["--top", "0"], "0 is not in the range"),
        ([], "`unisono lake export` makes one"),
        (["--out", "{file}/x"], "{file}"),
    ],
)
def test_clear_errors(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    filled = [part.format(file=tmp_path / "file") for part in arguments]
    if "--out" in filled:
        Lake.at(str(tmp_path / "lake")).make(4)
    result = unisono(
        "lake", "report", "--lake", str(tmp_path / "lake"), "--out", str(tmp_path / "out"), *filled
    )
    assert result.exit_code == 2
    assert message.format(file=tmp_path / "file") in result.output


def test_a_time_without_events_is_told(spark: SparkSession, tmp_path: Path) -> None:
    make_store(tmp_path / "data", 20)
    export_to(Lake.at(str(tmp_path / "lake")), tmp_path / "data")
    place = ["--lake", str(tmp_path / "lake"), "--out", str(tmp_path / "out"), "--quiet"]
    result = unisono("lake", "report", *place, "--from", "2040-01-01")
    assert result.exit_code == 0
    assert result.stderr.startswith(
        "no event was committed in that time: the lake's last one, event 20, was at 2023-11-14T22:13:20"
    )


def test_a_log_that_the_lake_is_no_copy_of_is_refused(tmp_path: Path) -> None:
    """What has left another log says nothing of this one."""
    make_store(tmp_path / "data", 20)
    make_store(tmp_path / "other", 20, seed=2)
    export_to(Lake.at(str(tmp_path / "lake")), tmp_path / "data")
    place = ["--lake", str(tmp_path / "lake"), "--out", str(tmp_path / "out"), "--quiet"]
    result = unisono("lake", "report", *place, "--data", str(tmp_path / "other"))
    assert result.exit_code != 0
    assert "the lake is a copy of another log" in result.stderr
    assert not (tmp_path / "out").exists()
