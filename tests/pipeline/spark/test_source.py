from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from tests.pipeline.history import append, make_store, row_of
from tests.pipeline.test_open_log import prune
from tests.waiting import PATIENCE_S
from unisono.pipeline.errors import NoSuchRange, NoSuchStore
from unisono.pipeline.open_log import POSTGRES_READERS_MAX, sqlite_uri
from unisono.pipeline.spark.source import Reading, UnisonoSource
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog


def load(spark: SparkSession, store: str, **options: object) -> DataFrame:
    reading = spark.read.format("unisono").option("store", store)
    for name, value in options.items():
        reading = reading.option("from" if name == "since" else name, str(value))
    return reading.load()


def ids(rows: DataFrame) -> list[int]:
    return sorted(row.committed_id for row in rows.select("committed_id").collect())


def rows_read(rows: DataFrame) -> int:
    """How many rows the source handed to Spark for this query, by Spark's own count."""
    rows.collect()
    plans: list[Any] = [rows._jdf.queryExecution().executedPlan()]
    count = 0
    while plans:
        plan = plans.pop()
        if plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
            plans.append(plan.executedPlan())
            continue
        if plan.nodeName().startswith("BatchScan"):
            count += plan.metrics().apply("numOutputRows").value()
        children = plan.children()
        plans += [children.apply(place) for place in range(children.size())]
    return count


def test_the_log_as_a_dataframe(spark: SparkSession, store: str, records: list[Record]) -> None:
    rows = load(spark, store, events_per_task=700)
    assert rows.rdd.getNumPartitions() == 5
    found = [row.asDict() for row in rows.orderBy("committed_id").collect()]
    times = [row.pop("committed_at").replace(tzinfo=UTC) for row in found]
    assert found == [row_of(record) | {"hash": bytearray(record.hash)} for record in records]
    assert times == [datetime.fromtimestamp(record.status_updated_at / 1_000, UTC) for record in records]


def test_a_replayed_range_gives_identical_rows(spark: SparkSession, store: str) -> None:
    one = load(spark, store, since=100, to=1_100, events_per_task=100)
    other = load(spark, store, since=100, to=1_100)
    first, again, otherwise = (rows.collect() for rows in (one, one, other))
    assert first == again
    assert first == otherwise, "however the range is cut"
    assert [row.committed_id for row in first] == list(range(101, 1_101))


def test_partitions(spark: SparkSession, store: str, records: list[Record]) -> None:
    for text, names in (
        ("room-001", {"room-001"}),
        (json.dumps(["plain", "emoji-🎻"]), {"plain", "emoji-🎻"}),
    ):
        wanted = [r.committed_id for r in records[:2000] if names & set(r.partitions)]
        rows = load(spark, store, partitions=text, to=2_000, events_per_task=300)
        assert ids(rows) == wanted
        assert rows_read(rows.select("id")) == len(wanted), "found by index, not by looking at everything"


def test_conditions_are_taken_over_on_request(spark: SparkSession, store: str, records: list[Record]) -> None:
    def fresh() -> DataFrame:
        return load(spark, store, push_down="true")

    for condition, read, right in (
        ("committed_id > 2990", 10, 10),
        ("committed_id >= 2990 and committed_id < 2995", 5, 5),
        ("committed_id <= 3", 3, 3),
        ("committed_id = 7", 1, 1),
        ("committed_id in (10, 12)", 3, 2),
        ("committed_id > 2900 and type = 'event'", 100, 50),
        ("committed_id > 5000", 0, 0),
    ):
        rows = fresh().where(condition)
        assert rows_read(rows) == read, condition
        assert rows.count() == right, condition
    same = records[0].partitions
    expected = [record for record in records if record.partitions == same]
    rows = fresh().where(f.col("partitions") == f.array(*map(f.lit, same)))
    assert rows_read(rows) == sum(same[0] in record.partitions for record in records)
    assert ids(rows) == [record.committed_id for record in expected]


def test_a_limit_reads_the_first_task_only(spark: SparkSession, store: str) -> None:
    assert 100 <= rows_read(load(spark, store, events_per_task=500).limit(100)) <= 500


def test_conditions_do_not_leak_into_other_queries(spark: SparkSession, store: str) -> None:
    rows = load(spark, store)
    assert rows.where("committed_id < 5").count() == 4
    assert rows.count() == 3_000
    assert rows.where("committed_id < 5").union(rows).count() == 3_004


def test_a_dataframe_is_the_log_when_it_was_loaded(spark: SparkSession, tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path)
    append(log, 50)
    rows = load(spark, str(tmp_path))
    append(log, 50)
    assert rows.count() == 50
    assert rows.count() == 50
    assert load(spark, str(tmp_path)).count() == 100
    log.close()


def test_an_empty_and_a_pruned_log(spark: SparkSession, tmp_path: Path) -> None:
    SqliteLog.open(tmp_path).close()
    assert load(spark, str(tmp_path)).count() == 0
    make_store(tmp_path, 60)
    prune(tmp_path, 20)
    assert ids(load(spark, str(tmp_path))) == list(range(21, 61))


def test_errors_say_what_to_do(spark: SparkSession, store: str, tmp_path: Path) -> None:
    make_store(tmp_path, 60)
    prune(tmp_path, 20)
    for options, words in (
        ({"store": str(tmp_path / "nowhere")}, "holds no log"),
        ({"store": ""}, "is missing"),
        ({"store": store, "to": 3_001}, "the log ends at 3000"),
        ({"store": str(tmp_path), "since": 5}, "events up to 20 have left the log"),
        ({"store": store, "since": 3_001}, "the log ends at 3000, 3001 is requested"),
        ({"store": store, "since": 9, "to": 8}, "is not a range"),
        ({"store": store, "since": "x"}, "option from must be a whole number"),
        ({"store": store, "partition": "plain"}, "option 'partition' is unknown"),
        ({"store": store, "push_down": "yes"}, "option push_down must be true or false"),
        ({"store": store, "partitions": "[1]"}, "JSON array of names"),
    ):
        with pytest.raises(PySparkException, match=words):
            load(spark, **options).count()


def test_it_needs_no_settings_of_ours(spark: SparkSession, store: str) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert load(spark, store).where("committed_id > 2990").count() == 10
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


# Streams.


@pytest.fixture
def collect(spark: SparkSession, tmp_path: Path) -> Callable[..., list[list[int]]]:
    """Runs a stream to its end and tells the ids of each of its batches."""
    batches: dict[int, list[int]] = {}

    def run(store: str, checkpoint: str = "at", **options: object) -> list[list[int]]:
        reading = spark.readStream.format("unisono").option("store", store)
        for name, value in options.items():
            reading = reading.option("from" if name == "since" else name, str(value))
        query = (
            reading.load()
            .writeStream.foreachBatch(lambda rows, number: batches.__setitem__(number, ids(rows)))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(int(2 * PATIENCE_S))
        seen = [batch for _, batch in sorted(batches.items()) if batch]
        batches.clear()
        return seen

    return run


@pytest.mark.soak
def test_a_stream_in_bounded_batches_goes_on_from_its_checkpoint(
    collect: Callable[..., list[list[int]]], tmp_path: Path
) -> None:
    log = SqliteLog.open(tmp_path / "data")
    append(log, 250)
    store = sqlite_uri(tmp_path / "data")
    seen = collect(store, max_events_per_batch=100)
    assert [(batch[0], batch[-1], len(batch)) for batch in seen] == [
        (1, 100, 100),
        (101, 200, 100),
        (201, 250, 50),
    ]
    append(log, 30)
    assert collect(store, max_events_per_batch=100) == [list(range(251, 281))]
    assert collect(store) == []
    assert collect(store, "elsewhere", since=270) == [list(range(271, 281))]
    assert collect(store, "bounded", to=7) == [list(range(1, 8))]
    log.close()


def test_what_a_stream_plans(store: str, records: list[Record]) -> None:
    stream = UnisonoSource(
        {"store": store, "max_events_per_batch": "500", "events_per_task": "200"}
    ).streamReader(None)  # type: ignore[arg-type]
    assert stream.initialOffset() == {"committed_id": 0}
    assert stream.getDefaultReadLimit() == ReadMaxRows(500)
    for limit, end in ((ReadMaxRows(500), 500), (ReadAllAvailable(), 3_000)):
        reached = {"committed_id": end, "since": 0, "event_id": records[end - 1].id}
        assert stream.latestOffset({"committed_id": 0}, limit) == reached
    assert stream.latestOffset({"committed_id": 3_000}, ReadMaxRows(500)) == {"committed_id": 3_000}
    parts = stream.partitions({"committed_id": 0}, {"committed_id": 500})
    assert [part.value for part in parts] == [(0, 200), (200, 400), (400, 500)]
    assert stream.partitions({"committed_id": 9}, {"committed_id": 9}) == []
    one, again = (list(stream.read(parts[1])) for _ in range(2))
    assert one == again


def test_a_database_gets_few_connections_of_a_read() -> None:
    """However long its log is and however many cores there are, unless somebody says otherwise."""
    for store, step, tasks in (
        ("sqlite:/data", None, 100),
        ("postgresql://db/log", None, POSTGRES_READERS_MAX),
        ("postgresql://db/log", 50_000, 200),
    ):
        ranges = Reading(store, None, step, ("id",)).ranges(0, 10_000_000)
        assert len(ranges) == tasks
        assert [part.value for part in ranges][-1][1] == 10_000_000


def test_a_stream_that_was_left_behind_says_so(tmp_path: Path) -> None:
    make_store(tmp_path, 60)
    prune(tmp_path, 20)
    stream = UnisonoSource({"store": str(tmp_path)}).streamReader(None)  # type: ignore[arg-type]
    assert stream.initialOffset() == {"committed_id": 20}
    with pytest.raises(NoSuchRange, match="events up to 20 have left the log"):
        stream.partitions({"committed_id": 10}, {"committed_id": 60})
    with pytest.raises(NoSuchStore):
        UnisonoSource({}).schema()
    with pytest.raises(NoSuchStore):
        UnisonoSource({"url": "ws://somewhere"}).reader(StructType())


def test_what_was_pruned_before_the_first_batch_was_done_is_missed(tmp_path: Path) -> None:
    """A stream without `from` begins where the log begins, which Spark asks again when it repeats its first batch."""
    make_store(tmp_path, 60)

    def stream() -> DataSourceStreamReader:
        return UnisonoSource({"store": str(tmp_path)}).streamReader(None)  # type: ignore[arg-type]

    start = stream().initialOffset()
    end = json.loads(json.dumps(stream().latestOffset(start, ReadMaxRows(40))))
    assert [part.value for part in stream().partitions(start, end)] == [(0, 40)]
    for upto in (20, 50):
        prune(tmp_path, upto)
        start = stream().initialOffset()
        assert start == {"committed_id": upto}
        with pytest.raises(NoSuchRange, match=f"events up to {upto} have left the log"):
            stream().partitions(start, end)


def test_a_stream_ahead_of_its_log_says_so(tmp_path: Path) -> None:
    """Its log was put back, or is another one: to go on once it is longer would leave events out unnoticed."""
    make_store(tmp_path, 60)
    for options in ({}, {"to": "50"}):
        stream = UnisonoSource({"store": str(tmp_path), **options}).streamReader(None)  # type: ignore[arg-type]
        assert stream.latestOffset({"committed_id": 60}, ReadAllAvailable()) == {"committed_id": 60}
        with pytest.raises(NoSuchRange, match="is at event 61 and the log ends at 60"):
            stream.latestOffset({"committed_id": 61}, ReadAllAvailable())
    with pytest.raises(NoSuchRange, match=r"\(9, 8\] is not a range"):
        UnisonoSource({"store": str(tmp_path), "from": "9", "to": "8"}).streamReader(None)  # type: ignore[arg-type]


def test_a_stream_does_not_go_on_in_another_past(tmp_path: Path) -> None:
    """A log that was put back from a backup and has gone on is long enough, and its events are others."""
    lost, put_back = tmp_path / "lost", tmp_path / "put back"
    for place in (lost, put_back):
        make_store(place, 60)
    for place, seed, count in ((lost, 1, 40), (put_back, 2, 80)):
        with closing(SqliteLog.open(place)) as log:
            append(log, count, seed)
    before, after = (
        UnisonoSource({"store": str(place)}).streamReader(None)  # type: ignore[arg-type]
        for place in (lost, put_back)
    )
    shared, reached = (before.latestOffset({"committed_id": 0}, ReadMaxRows(rows)) for rows in (60, 100))
    assert after.latestOffset(shared, ReadAllAvailable())["committed_id"] == 140, "nothing of it was lost"
    with pytest.raises(NoSuchRange, match=r"event 100 was '\w+' for this stream and is '\w+' in the log"):
        after.latestOffset(reached, ReadAllAvailable())
    with pytest.raises(NoSuchRange, match="use another checkpoint"):
        after.partitions(shared, reached)
    for unknown in ({"committed_id": 100}, shared):  # of an earlier version; pruned
        assert after.latestOffset(unknown, ReadMaxRows(1))["committed_id"] == unknown["committed_id"] + 1
        prune(put_back, 60)


class Writer:
    """Commits small groups as they come, slowly enough for streams to keep up; knows what it acknowledged."""

    def __init__(self, directory: Path) -> None:
        self._log = SqliteLog.open(directory)
        self._stop = threading.Event()
        self.acknowledged = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        chance = random.Random(7)
        while not self._stop.wait(0.02):
            self.acknowledged = append(self._log, chance.randrange(1, 40))[-1].committed_id

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._log.close()


@pytest.mark.soak
@pytest.mark.req("ORD-02")
def test_never_a_gap_beside_a_racing_writer(
    spark: SparkSession, collect: Callable[..., list[list[int]]], tmp_path: Path
) -> None:
    """ORD-02 as Spark sees it: whatever is read is 1, 2, 3 … without a hole, and all that was acknowledged."""
    streamed: list[int] = []
    with Writer(tmp_path / "data") as writer:
        for turn in range(3):
            acknowledged = writer.acknowledged
            seen = ids(load(spark, str(tmp_path / "data"), events_per_task=2_000))
            assert seen == list(range(1, len(seen) + 1))
            assert len(seen) >= acknowledged
            batches = collect(str(tmp_path / "data"), max_events_per_batch=3_000)
            streamed += [id for batch in batches for id in batch]
            assert streamed == list(range(1, len(streamed) + 1)), f"turn {turn}"
            assert len(streamed) >= acknowledged
            assert writer.acknowledged > acknowledged, "the writer goes on meanwhile"
