"""The sink: events from Spark through a real server's judgement, each committed once whatever dies."""

from __future__ import annotations

import os
import random
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from websockets.sync.server import ServerConnection, serve

from tests.behaviour.server.harness import Server, running
from tests.pipeline.history import read_store
from tests.pipeline.processes import python_workers
from tests.ports import free_port
from tests.waiting import PATIENCE_S, until
from unisono.pipeline.open_log import open_reader, sqlite_uri
from unisono.pipeline.spark.executors import parallelism
from unisono.pipeline.spark.private import java_process
from unisono.pipeline.spark.sinking.answers import SinkTarget
from unisono.pipeline.spark.sinking.connection import ExchangeRefused
from unisono.pipeline.spark.sinking.exchange import Exchange, ExchangeFailed
from unisono.pipeline.spark.sinking.items import SinkItem, to_items
from unisono.pipeline.spark.sinking.tokens import Tokens
from unisono.protocol.codec import encode

EVENTS = 3_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Deny is the default: the sink's own tokens must say what they may touch."""
    with running(
        tmp_path_factory.mktemp("sink") / "data", "--model", "open", "--access-default", "deny"
    ) as started:
        yield started


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


def items(prefix: str, count: int) -> list[SinkItem]:
    event = '{"type":"treePush","payload":{"target":"t","value":{"id":"%s"},"options":{"parent":"%s"}}}'
    rows = [
        {
            "id": f"{prefix}-{number}",
            "partitions": [prefix],
            "event": event % (f"n{number}", f"n{number - 1}" if number else "_root"),
        }
        for number in range(count)
    ]
    return list(to_items(pa.RecordBatch.from_pylist(rows), from_content=False))


def exchange(server: Server, **changes: Any) -> Exchange:
    tokens = Tokens.of({"jwt_secret_file": str(server.secret_file)}, "alone")
    speaking = SinkTarget(
        changes.get("url", server.url),
        "compatibility",
        changes.get("batch", 10),
        changes.get("in_flight", 4),
        changes.get("timeout_s", PATIENCE_S),
    )
    return Exchange(speaking, tokens.of_task(0))


def test_a_rate_limit_delays_and_breaks_nothing(tmp_path: Path) -> None:
    """Every event rests on the one before it; those that overtook a refused one are submitted again."""
    limits = ("--rate-events-per-s", "400", "--rate-burst-events", "25")
    with running(tmp_path / "data", "--model", "open", *limits) as server:
        with exchange(server) as conversation:
            rejections = list(conversation.submit(iter(items("chain", 300))))
            assert (rejections, conversation.committed) == ([], 300)
        assert [record.id for record in read_store(server.data)] == [f"chain-{n}" for n in range(300)]


def test_a_request_refused_whole_is_taken_apart(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--model", "open", "--require-uuid-ids") as server:
        fine = [f"00000000-0000-4000-8000-{number:012d}" for number in range(20)]
        asked = [
            SinkItem(id, item.partitions, item.event)
            for id, item in zip([*fine[:7], "no uuid", *fine[7:]], items("p", 21), strict=True)
        ]
        # Without its parent the rest of the chain is refused, and said so in order.
        with exchange(server, batch=100) as conversation:
            rejections = list(conversation.submit(iter(asked)))
        assert [rejection.reason for rejection in rejections] == ["bad_request"] + ["validation_failed"] * 13
        assert [record.id for record in read_store(server.data)] == fine[:7]


def is_free(port: int) -> bool:
    """Whether the last process of a killed server has let go of its port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.req("DUR-03")
def test_the_server_is_killed_and_comes_back(tmp_path: Path) -> None:
    port = free_port()
    server = Server(tmp_path / "data", "--model", "open", "--port", str(port)).start()
    try:
        with exchange(server) as conversation:

            def slowly() -> Iterator[SinkItem]:
                for number, item in enumerate(items("chain", 400)):
                    if number == 200:
                        server.kill()
                        until(lambda: is_free(port), "the port of the killed server is still in use")
                        threading.Thread(target=server.start).start()
                    yield item

            assert list(conversation.submit(slowly())) == []
            assert conversation.committed == 400
        assert [record.id for record in read_store(server.data)] == [f"chain-{n}" for n in range(400)]
    finally:
        server.kill()


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """The URL of a server that says one thing after the other, then nothing but goodbye."""

    def talk(connection: ServerConnection) -> None:
        for answer, _ in zip(answers, connection, strict=False):
            connection.send(answer, text=True)
        connection.recv()

    with serve(talk, "127.0.0.1", 0) as stub:
        thread = threading.Thread(target=stub.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{stub.socket.getsockname()[1]}"
        stub.shutdown()
        thread.join()


def test_a_server_that_falls_over_each_time_is_given_up(server: Server) -> None:
    """It is there and lets everyone in; but what is submitted is never answered."""
    with (
        answering(encode("connected", "s1", 0, b"{}")) as url,
        exchange(server, url=url, timeout_s=0.2) as conversation,
        pytest.raises(ExchangeFailed, match="gave no answer for 0 s: closed: 1000"),
    ):
        list(conversation.submit(iter(items("chain", 3))))


def test_a_server_that_will_not_have_us(server: Server) -> None:
    """Its no to `connect` is not taken for a yes."""
    error = encode("error", "s1", 0, b'{"code":"bad_request","message":"not like this"}')
    with answering(error) as url, pytest.raises(ExchangeRefused, match="bad_request: not like this"):
        exchange(server, url=url).__enter__()


def test_an_address_without_a_server_is_refused_at_once(server: Server) -> None:
    """A wrong path would be tried for a minute, by each try of the task."""
    url = server.url.removesuffix("/sync")
    with pytest.raises(
        ExchangeRefused, match=r"HTTP 404: there is no Unisono server at this path; its own is"
    ):
        exchange(server, url=url).__enter__()


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
