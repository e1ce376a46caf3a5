"""The sink: events from Spark through a real server's judgement, each committed once whatever dies."""

from __future__ import annotations

import os
import random
import runpy
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.behaviour.server.harness import Server
from tests.pipeline.history import read_store
from tests.pipeline.processes import python_workers
from unisono.pipeline.open_log import open_reader, sqlite_uri
from unisono.pipeline.spark.executors import parallelism
from unisono.pipeline.spark.private import java_process
from unisono.pipeline.spark.sinking.items import to_items

EVENTS = 3_000


def committed(server: Server) -> dict[str, int]:
    """id → how often it is in the log."""
    counts: dict[str, int] = {}
    for record in read_store(server.data):
        counts[record.id] = counts.get(record.id, 0) + 1
    return counts


def events(spark: SparkSession, prefix: str, count: int = EVENTS, tasks: int = 4) -> DataFrame:
    frame = spark.range(count, numPartitions=tasks)
    return frame.selectExpr(
        f"concat('{prefix}-', id) AS id",
        "array('sink', concat('room-', id % 7)) AS partitions",
        "'note.added' AS schema",
        "to_json(named_struct('n', id, 'text', 'größer')) AS data",
    )


def write(frame: DataFrame, server: Server, **options: str) -> None:
    writing = frame.write.format("unisono").option("url", server.url)
    if not any(name.endswith(("token", "_file")) for name in options):
        writing = writing.option("jwt_secret_file", str(server.secret_file))
    for name, value in options.items():
        writing = writing.option(name, value)
    writing.mode("append").save()


@pytest.mark.req("ORD-03")
def test_written_once_however_often(spark: SparkSession, server: Server) -> None:
    write(events(spark, "once"), server)
    found = {id: times for id, times in committed(server).items() if id.startswith("once-")}
    assert found == {f"once-{number}": 1 for number in range(EVENTS)}
    head = len(read_store(server.data))
    write(events(spark, "once"), server)
    assert len(read_store(server.data)) == head
    record = next(record for record in read_store(server.data) if record.id == "once-5")
    assert record.partitions == ("room-5", "sink")
    assert (
        record.event
        == '{"payload":{"data":{"n":5,"text":"größer"},"schema":"note.added"},"type":"event"}'.encode()
    )
    assert record.client_id.startswith("spark-")


class Killer(threading.Thread):
    """Kills Python workers at random while something is being committed."""

    def __init__(self, java: int, data: Path, kills: int) -> None:
        super().__init__()
        self._java = java
        self._data = data
        self._kills = kills
        self._ending = threading.Event()
        self.killed = 0

    def run(self) -> None:
        chance = random.Random()
        reader = open_reader(sqlite_uri(self._data))
        seen = reader.head()
        while self.killed < self._kills and not self._ending.wait(chance.uniform(0.02, 0.3)):
            workers = python_workers(self._java)
            if workers and reader.head() > seen:
                seen = reader.head()
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(workers), signal.SIGKILL)
                    self.killed += 1
        reader.close()

    def end(self) -> None:
        self._ending.set()
        self.join()


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_workers_killed_while_writing(spark: SparkSession, server: Server) -> None:
    killer = Killer(java_process(spark).pid, server.data, 4)
    frame = events(spark, "killed", 2 * EVENTS, tasks=6)
    killer.start()
    try:
        # A task that lost its worker four times ends the write, and so does a planner that lost its own; it is run
        # again as a person would.
        with suppress(PySparkException, Py4JError):
            write(frame, server, batch="4", in_flight="1")
    finally:
        killer.end()
    write(frame, server)
    assert killer.killed, "something was killed in the middle"
    found = {id: times for id, times in committed(server).items() if id.startswith("killed-")}
    assert found == {f"killed-{number}": 1 for number in range(2 * EVENTS)}


@pytest.mark.req("SUBMIT-08")
def test_rejections_fail_the_write_or_are_collected(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    rows = [
        ("good-1", ["sink"], '{"type":"event","payload":{"schema":"a","data":1}}'),
        ("bad-1", ["sink"], '{"type":"event","payload":{"data":1}}'),
        ("bad-2", [], '{"type":"event","payload":{"schema":"a","data":1}}'),
        ("bad-3", ["sink"], "{not json"),
        ("x" * 200, ["sink"], '{"type":"event","payload":{"schema":"a","data":1}}'),
        ("good-2", ["sink"], ' {"type": "event", "payload": {"schema": "a", "data": 1.0}}'),
        ("good-1", ["sink"], '{"type":"event","payload":{"schema":"a","data":2}}'),
    ]
    frame = spark.createDataFrame(rows, "id STRING, partitions ARRAY<STRING>, event STRING").coalesce(1)
    with pytest.raises(Exception, match=r"events were rejected.*bad-1.*validation_failed"):
        write(frame, server)
    write(frame, server, on_reject="collect", rejects=str(tmp_path / "rejects"))
    collected = spark.read.parquet(str(tmp_path / "rejects")).collect()
    reasons = sorted((row["id"][:6], row["reason"]) for row in collected)
    assert reasons == [
        ("bad-1", "validation_failed"),
        ("bad-2", "validation_failed"),
        ("bad-3", "bad_request"),
        ("good-1", "validation_failed"),
        ("xxxxxx", "bad_request"),
    ]
    ids = committed(server)
    assert ids["good-1"] == ids["good-2"] == 1


@pytest.mark.soak
def test_each_task_needs_a_client_of_its_own(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    token = server.token("the one", prefixes=["sink", "room-"])
    with pytest.raises(Exception, match=r"1 tokens and more tasks: coalesce\(1\)"):
        write(events(spark, "tokens", 40), server, token=token)
    write(events(spark, "tokens", 40).coalesce(1), server, token=token)
    tokens = tmp_path / "tokens"
    tokens.write_text("\n".join(server.token(f"c{n}", prefixes=["sink", "room-"]) for n in range(2)))
    write(events(spark, "more", 40, tasks=2), server, tokens_file=str(tokens))
    names = {record.client_id for record in read_store(server.data) if record.id.startswith("more-")}
    assert names == {"c0", "c1"}
    with pytest.raises(Exception, match="forbidden"):
        write(events(spark, "no", 4, tasks=1), server, token=server.token("weak", prefixes=["sink"]))


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("'x' AS partition, '{}' AS event", {}, "a column id"),
        ("'i' AS id, '{}' AS event", {}, "a column partitions"),
        ("'i' AS id, 'x' AS partition", {}, "a column event"),
        ("'i' AS id, 'x' AS partition, 'p' AS partitions, '{}' AS event", {}, "must be array of string, not string"),
        ("'i' AS id, 'x' AS partition, 's' AS schema, '1' AS data, 7 AS meta", {}, "meta must be string, not int"),
        ("'i' AS id, 'x' AS partition, '{}' AS event", {"colour": "red"}, "option 'colour' is unknown"),
        ("'i' AS id, 'x' AS partition, '{}' AS event", {"on_reject": "cry"}, "on_reject must be"),
        ("'i' AS id, 'x' AS partition, '{}' AS event", {"token": "t", "token_file": "f"}, "give one of the options"),
        ("'i' AS id, 'x' AS partition, '{}' AS event", {"url": ""}, 'option."url", "ws://HOST:PORT". is missing'),
        ("'i' AS id, 'x' AS partition, '{}' AS event", {"url": "http://h:1"}, "must start with ws:// or wss://"),
        ("'i' AS id, 'x' AS partition, '{}' AS event", {"on_reject": "collect", "rejects": "s3://b/r"},
         "'s3://b/r': it must be a directory"),
        ("'i' AS id, 'x' AS partition, '{}' AS event", {"on_reject": "collect", "rejects": "dbfs:/r"},
         "'dbfs:/r': it must be a directory"),
    ],
)  # fmt: skip
def test_refused_before_a_task_is_started(
    spark: SparkSession, server: Server, columns: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(Exception, match=says):
        write(spark.sql(f"SELECT {columns}"), server, **options)


def test_equal_events_become_one_when_ids_are_made_from_them(spark: SparkSession, server: Server) -> None:
    rows = [("sink", '{"type":"event","payload":{"schema":"same","data":1}}')] * 3
    rows.append(("sink", '{"payload":{"data":1.0,"schema":"same"},"type":"event"}'))
    frame = spark.createDataFrame(rows, "partition STRING, event STRING")
    write(frame, server, id="content")
    assert sum(b'"same"' in record.event for record in read_store(server.data)) == 1


def test_the_example_runs(spark: SparkSession, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    example = str(Path(__file__).parents[3] / "examples" / "spark_sink.py")
    monkeypatch.setattr(sys, "argv", [example, server.url, str(server.secret_file)])
    runpy.run_path(example, run_name="__main__")
    clients = {record.client_id for record in read_store(server.data) if record.id.startswith("reading-")}
    assert clients == {f"sensors.{task}" for task in range(parallelism(spark))}


def test_what_is_no_json_is_shown_as_it_was_given() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "1", "partition": "a", "event": "{oops", "schema": None, "data": None},
        {"id": "2", "partition": "a", "event": None, "schema": "note", "data": "{"},
    ]
    found = list(to_items(pa.RecordBatch.from_pylist(rows), from_content=False))
    assert [bytes(item.event) for item in found] == [b"{oops", b'{"schema":"note","data":"{","meta":null}']
    assert all(item.fault.startswith("the event is not JSON") for item in found)


@pytest.mark.req("PART-05")
def test_the_legacy_partition_must_not_disagree() -> None:
    rows = [
        {"id": "1", "partitions": ["b", "a"], "partition": None, "event": "{}"},
        {"id": "2", "partitions": None, "partition": "a", "event": "{}"},
        {"id": "3", "partitions": ["a", "a"], "partition": "a", "event": "{}"},
        {"id": "4", "partitions": ["a", "b"], "partition": "a", "event": "{}"},
        {"id": "5", "partitions": ["a", None], "partition": None, "event": "{}"},
    ]
    found = list(to_items(pa.RecordBatch.from_pylist(rows), from_content=False))
    assert [item.partitions for item in found[:3]] == [["b", "a"], ["a"], ["a", "a"]]
    assert [item.fault for item in found] == [
        "",
        "",
        "",
        "partition is 'a' and partitions are ['a', 'b']",
        "a partition is null",
    ]


# -- the exchange by itself ------------------------------------------------------------------------------------


def test_a_stream_is_written_once(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """A micro-batch that Spark has not recorded as done is written again, and nothing is committed twice."""
    frame = events(spark, "streamed", 300, tasks=2)
    frame.write.parquet(str(tmp_path / "rows"))
    stream = (
        spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "rows"))
    )

    def run() -> None:
        query = (
            stream.writeStream.format("unisono")
            .option("url", server.url)
            .option("jwt_secret_file", str(server.secret_file))
            .option("checkpointLocation", str(tmp_path / "at"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    newest = max((tmp_path / "at" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    run()
    found = {id: times for id, times in committed(server).items() if id.startswith("streamed-")}
    assert found == {f"streamed-{number}": 1 for number in range(300)}
