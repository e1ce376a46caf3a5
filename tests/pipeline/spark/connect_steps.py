"""The pipeline's jobs and the data source on any session, with all results as JSON.

    python -m tests.pipeline.spark.connect_steps sc://HOST:PORT STORE FOLDER [URL SECRET_FILE]

Spark Connect and a classic session cannot be used in one process; both run the same steps.
"""

from __future__ import annotations

import hashlib
import json
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.spark.on_executors import differ, place_and_size
from unisono import pipeline
from unisono.lake.lake import Lake
from unisono.pipeline.errors import Mismatch, PipelineError
from unisono.pipeline.jobs.report.job import report, write
from unisono.pipeline.spark.executors import PLAN_BYTES_MAX, parallelism, run_on_executors

EXAMPLES = Path(__file__).parents[3] / "examples"


def results(spark: SparkSession, store: str, lake: str) -> dict[str, Any]:
    """What the steps give that must not depend on the kind of session; makes the lake."""
    exported = pipeline.export(spark, store, lake, events_per_file=500)
    folded = pipeline.make_snapshots(spark, lake, model="open")
    audited = pipeline.audit(spark, lake, store, sample=None)
    pipeline.register(spark)
    log = spark.read.format("unisono").option("store", store).option("events_per_task", 1_500).load()
    streamed = (
        spark.readStream.format("unisono").option("store", store).option("max_events_per_batch", 2_000).load()
    )
    target = Path(lake).parent / "streamed"
    query = (
        streamed.writeStream.format("parquet")
        .option("checkpointLocation", f"{target}-at")
        .trigger(availableNow=True)
        .start(str(target))
    )
    query.awaitTermination()
    sizes = [10, PLAN_BYTES_MAX]
    return {
        "parallelism": parallelism(spark),
        "tasks": [
            run_on_executors(spark, [(n, bytes(size)) for n in range(5)], place_and_size) for size in sizes
        ],
        "error": raised(spark),
        "exported": [exported.since, exported.upto, exported.events, msgspec.to_builtins(exported.digest)],
        "folded": [folded.upto, folded.partitions, folded.events, folded.skipped],
        "audited": [
            audited.verdict(),
            [[step.what, step.count, step.unit, step.note] for step in audited.checked],
        ],
        "log": digest(log, "committed_id"),
        "stream": digest(spark.read.parquet(str(target)), "committed_id"),
        "lake": digest(pipeline.read_log(spark, lake, 100, 1_900), "committed_id"),
        "by_partition": digest(
            pipeline.read_partitions(spark, lake, ["room-007", "slash/name"]), "committed_id"
        ),
        "states": digest(pipeline.states_at(spark, lake, 777, model="open"), "partition"),
        "snapshots": digest(pipeline.snapshots(spark, lake, model="open").drop("created_at"), "partition"),
    }


def digest(frame: DataFrame, order: str) -> list[Any]:
    """The number of rows, and a hash of all of them."""
    rows = frame.orderBy(order, *[name for name in frame.columns if name != order]).collect()
    text = repr([tuple(row) for row in rows]).encode()
    return [len(rows), hashlib.sha256(text).hexdigest()]


def raised(spark: SparkSession) -> str:
    try:
        run_on_executors(spark, ["7"], differ)
    except Mismatch as error:
        return str(error)
    return "nothing"


def told_elsewhere(server: str) -> list[str]:
    """What is said to who wants another server, or a setting that a running one cannot take."""
    said = []
    for master, conf in (("sc://127.0.0.1:1", {}), (server, {"spark.executor.memory": "9g"})):
        try:
            pipeline.session(master, conf=conf)
        except PipelineError as error:
            said.append(str(error))
    return said


def make_report(spark: SparkSession, lake: str, out: Path) -> None:
    write(report(lambda: spark, Lake.at(lake)), out)


def submit(spark: SparkSession, url: str, secret_file: str) -> list[str]:
    """Events to a server; the text of the error of a write that is refused. Streams: test_sink.py."""
    pipeline.register(spark)
    rows = spark.range(60, numPartitions=2).selectExpr(
        "concat('connect-', id) AS id", "array('sink') AS partitions", "'note.added' AS schema",
        "to_json(named_struct('n', id)) AS data",
    )  # fmt: skip
    rows.write.format("unisono").options(url=url, jwt_secret_file=secret_file).mode("append").save()
    try:
        rows.write.format("unisono").options(url=url).mode("append").save()
    except PySparkException as error:
        return [line for line in str(error).splitlines() if "give one of the options" in line][:1]
    return []


if __name__ == "__main__":
    server, store, place, *sink = sys.argv[1:]
    spark = pipeline.session(server, "connect steps")
    folder = Path(place)
    found = results(spark, store, str(folder / "lake"))
    make_report(spark, str(folder / "lake"), folder / "report")
    assert pipeline.session(server) is spark
    found["elsewhere"] = told_elsewhere(server)
    if sink:
        found["refused"] = submit(spark, *sink)
    (folder / "results.json").write_text(json.dumps(found))
    with (folder / "notebook.txt").open("w") as shown, redirect_stdout(shown):
        sys.argv = ["", store.removeprefix("sqlite:"), str(folder / "notebook"), server]
        runpy.run_path(str(EXAMPLES / "lake_notebook.py"), run_name="__main__")
    spark.stop()
